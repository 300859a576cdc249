"""API 6: an auditor with two topics, the schemas and the public keys finds what was done to them."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from session_custody import wire
from session_custody.audit import AuditRecord, Report, read_records, verify, write_records
from session_custody.core.chain import Fault
from session_custody.core.events import EventDraft, EventKind, RunFacts, SealedEvent
from session_custody.core.pin import RunId, SentPin, Subject
from session_custody.core.run import Status
from session_custody.ports import OutboxEvent, Signer

NOW = datetime(2026, 8, 14, tzinfo=UTC)
PIN = SentPin(route_id="r", route_table_version="1", model_profile="m", max_loop_steps=12)


@dataclass(frozen=True)
class Trail:
    """What stands on the two topics."""

    steps: list[AuditRecord]
    outcomes: list[AuditRecord]
    signer: wire.Ed25519Signer

    def verified(self, *, from_start: bool = True, expect_outcomes: bool = True) -> Report:
        return verify(
            steps=self.steps,
            outcomes=self.outcomes,
            public_keys={self.signer.key_id: self.signer.public_key},
            from_start=from_start,
            expect_outcomes=expect_outcomes,
        )


def facts_of(run_id: str) -> RunFacts:
    return RunFacts(run_id, run_id, "s", "t", Subject(id="u", tenant="t"), None, PIN, None, None, None)


def record_of(facts: RunFacts, event: SealedEvent, *, erased: bool = False) -> AuditRecord:
    salt, payload = (None, None) if erased else (event.salt, event.payload)
    row = OutboxEvent(
        lane_seq=1, run_id=RunId(facts.run_id), correlation_id=facts.run_id, event_seq=event.event_seq,
        kind=event.kind, schema_fingerprint=event.schema_fingerprint, body=event.body, hash=event.hash,
        salt=salt, payload=payload, signature=event.signature, recorded_at=NOW, causation_id=None,
    )  # fmt: skip
    trace = wire.decode_trace(event.schema_fingerprint, event.body)
    headers = wire.event_headers(row, trace, deployment="d", type_prefix="p")
    value = wire.published_value(event.schema_fingerprint, event.body, payload, salt, event.signature)
    return AuditRecord(value, facts.run_id.encode(), dict(headers))


def sealed_run(run_id: str, signer: Signer) -> list[SealedEvent]:
    facts, events = facts_of(run_id), list[SealedEvent]()
    for kind, status in (
        (EventKind.PINNED, Status.QUEUED),
        (EventKind.DECIDED, Status.RUNNING),
        (EventKind.TOOL_RESULT, Status.RUNNING),
        (EventKind.OUTCOME, Status.SUCCEEDED),
    ):
        draft = EventDraft(kind, status, "loop", len(events), visible={"n": len(events)})
        previous = events[-1].hash if events else None
        events.append(wire.seal(draft, facts, len(events) + 1, previous, NOW, signer, os.urandom(16)))
    return events


@pytest.fixture
def trail(tmp_path: Path) -> Trail:
    signer = wire.generate_signing_key(tmp_path / "key.pem")
    steps, outcomes = list[AuditRecord](), list[AuditRecord]()
    for number in range(3):
        facts = facts_of(f"run-{number}")
        *events, outcome = sealed_run(facts.run_id, signer)
        steps += [record_of(facts, event) for event in events]
        outcomes.append(record_of(facts, outcome))
    return Trail(steps, outcomes, signer)


def test_an_untouched_trail_is_clean(trail: Trail) -> None:
    report = trail.verified()
    assert report.ok
    assert (report.runs, report.events, report.findings) == (3, 12, ())


def test_values_alone_are_enough(trail: Trail, tmp_path: Path) -> None:
    trail.signer.export_public_key(tmp_path / "public")
    report = verify(
        steps=[record.value for record in trail.steps],
        outcomes=[record.value for record in trail.outcomes],
        public_keys=tmp_path / "public",
        expect_outcomes=True,
    )
    assert report.ok
    assert report.events == 12


def test_files_are_enough(trail: Trail, tmp_path: Path) -> None:
    assert write_records(tmp_path / "steps.jsonl", trail.steps) == 9
    write_records(tmp_path / "outcomes.jsonl", trail.outcomes)
    assert list(read_records(tmp_path / "steps.jsonl")) == trail.steps
    keys = {trail.signer.key_id: trail.signer.public_key}
    assert verify(steps=tmp_path / "steps.jsonl", outcomes=tmp_path / "outcomes.jsonl", public_keys=keys).ok


def test_a_damaged_file_names_its_line(tmp_path: Path) -> None:
    (tmp_path / "f.jsonl").write_text('{"key":null,"value":"","headers":{}}\n{"key":1}\n')
    with pytest.raises(ValueError, match="line 2"):
        list(read_records(tmp_path / "f.jsonl"))


def test_a_removed_step_is_a_gap(trail: Trail) -> None:
    del trail.steps[1]
    report = trail.verified()
    assert (report.gaps, report.ok) == (1, False)
    assert (report.findings[0].run_id, report.findings[0].event_seq) == ("run-0", 2)


def test_a_repeated_record_is_a_duplicate(trail: Trail) -> None:
    trail.steps.append(trail.steps[4])
    assert trail.verified().duplicates == 1


def test_a_removed_outcome_is_missed_where_outcomes_are_expected(trail: Trail) -> None:
    del trail.outcomes[2]
    report = trail.verified()
    assert report.missing_outcomes == 1
    assert [finding.fault for finding in report.findings] == [Fault.MISSING_OUTCOME]
    assert trail.verified(expect_outcomes=False).ok


def test_an_event_written_anew_breaks_the_chain(trail: Trail) -> None:
    facts = facts_of("run-1")
    draft = EventDraft(EventKind.DECIDED, Status.RUNNING, "loop", 1, code="forged")
    previous = trail.steps[3].headers["custody_event_hash"]
    forged = wire.seal(draft, facts, 2, bytes.fromhex(previous.decode()), NOW, None, os.urandom(16))
    trail.steps[4] = record_of(facts, forged)
    report = trail.verified()
    assert report.breaks == 1
    assert (report.findings[0].run_id, report.findings[0].event_seq) == ("run-1", 3)


def test_a_whole_run_written_anew_fails_at_its_signature(trail: Trail, tmp_path: Path) -> None:
    forger = wire.generate_signing_key(tmp_path / "forger.pem")
    facts = facts_of("run-0")
    *events, outcome = sealed_run("run-0", forger)
    trail.steps[:3] = [record_of(facts, event) for event in events]
    trail.outcomes[0] = record_of(facts, outcome)
    report = trail.verified()
    assert (report.bad_signatures, report.gaps, report.breaks) == (1, 0, 0)


def test_a_forged_signature_under_a_known_key_is_found(trail: Trail, tmp_path: Path) -> None:
    forger = wire.generate_signing_key(tmp_path / "forger.pem")

    class Pretender:
        key_id = trail.signer.key_id

        def sign(self, event_hash: bytes) -> bytes:
            return forger.sign(event_hash)

    facts = facts_of("run-0")
    *events, outcome = sealed_run("run-0", Pretender())
    trail.steps[:3] = [record_of(facts, event) for event in events]
    trail.outcomes[0] = record_of(facts, outcome)
    assert trail.verified().bad_signatures == 1


def test_an_unsigned_outcome_is_found(trail: Trail) -> None:
    body = wire.hashed_body(trail.outcomes[0].value)
    event = wire.decode_event(trail.outcomes[0].value)
    value = wire.published_value(trail.outcomes[0].value[2:10], body, event["payload"], event["salt"], None)
    trail.outcomes[0] = replace(trail.outcomes[0], value=value)
    assert trail.verified().bad_signatures == 1


def test_a_changed_payload_is_found(trail: Trail) -> None:
    record = trail.steps[2]
    event = wire.decode_event(record.value)
    value = wire.published_value(
        record.value[2:10], wire.hashed_body(record.value), '{"n":9}', event["salt"], None
    )
    trail.steps[2] = replace(record, value=value)
    report = trail.verified()
    assert report.breaks == 1
    assert "payload" in report.findings[0].detail


def test_an_erased_payload_breaks_nothing_and_is_counted(trail: Trail) -> None:
    facts = facts_of("run-9")
    *events, outcome = sealed_run("run-9", trail.signer)
    trail.steps.extend(record_of(facts, event, erased=True) for event in events)
    trail.outcomes.append(record_of(facts, outcome))
    report = trail.verified()
    assert report.ok
    assert report.erased == 3


@pytest.mark.parametrize(
    "change",
    [
        lambda record: replace(record, headers=record.headers | {"custody_event_hash": b"0" * 64}),
        lambda record: replace(record, headers=record.headers | {"ce_id": b"run-0/9"}),
        lambda record: replace(record, key=b"run-7"),
    ],
)
def test_an_envelope_that_lies_is_found(trail: Trail, change: Callable[[AuditRecord], AuditRecord]) -> None:
    trail.steps[0] = change(trail.steps[0])
    assert trail.verified().breaks == 1


def test_what_cannot_be_read_is_reported_and_stops_nothing(trail: Trail) -> None:
    trail.steps.append(AuditRecord(b"junk"))
    trail.steps.append(trail.outcomes[0])
    trail.steps.append(replace(trail.steps[0], value=trail.steps[0].value + b"\x00"))
    report = trail.verified()
    assert report.unreadable == 3
    assert report.runs == 3


def stub_of(record: AuditRecord, value: bytes) -> AuditRecord:
    return replace(record, value=value, headers={**record.headers, "custody_stub": b"MSG_SIZE_TOO_LARGE"})


def test_what_the_broker_refused_stands_as_a_stub_in_a_whole_chain(trail: Trail) -> None:
    record = trail.steps[1]
    event = wire.decode_event(record.value)
    bare = wire.published_value(record.value[2:10], wire.hashed_body(record.value), None, event["salt"], None)
    trail.steps[1] = stub_of(record, bare)
    trail.steps[4] = stub_of(trail.steps[4], b"")
    report = trail.verified()
    assert (report.findings, report.stubs, report.ok) == ((), 2, True)


def test_a_stub_hides_no_outcome_and_no_other_event(trail: Trail) -> None:
    trail.outcomes[0] = stub_of(trail.outcomes[0], b"")
    trail.steps[4] = stub_of(trail.steps[5], b"")
    trail.steps[8] = AuditRecord(b"", None, {"custody_stub": b"x"})
    report = trail.verified()
    assert (report.bad_signatures, report.unreadable) == (1, 1)
    assert report.gaps == 2
    assert not report.ok


def test_a_trail_may_begin_in_the_middle_where_that_was_asked_for(trail: Trail) -> None:
    del trail.steps[:2]
    report = trail.verified(from_start=False)
    assert report.ok
    assert report.cut_off == 1
    assert not trail.verified().ok


def test_one_flipped_bit_anywhere_in_the_hashed_part_is_found(trail: Trail) -> None:
    record = trail.steps[1]
    values_alone = [replace(step, headers={}, key=None) for step in trail.steps]
    for place in range(10, len(record.value) - 40, 7):
        changed = bytearray(record.value)
        changed[place] ^= 1
        steps = [*values_alone[:1], AuditRecord(bytes(changed)), *values_alone[2:]]
        keys = {trail.signer.key_id: trail.signer.public_key}
        assert not verify(steps=steps, outcomes=trail.outcomes, public_keys=keys).ok
