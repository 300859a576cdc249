"""One batch from records to rows: dead letters, signals, new runs with their first events (stations 2-4)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import cast
from uuid import uuid4

import pytest

from session_custody.core.admission import AdmissionRules, Created, Redelivered
from session_custody.core.errors import RecordRejected, RejectReason, Unavailable
from session_custody.core.events import EventKind, ResumeKind
from session_custody.core.manifest import PolicyBundle
from session_custody.core.pin import LaneId, Pattern, RunId, Subject
from session_custody.core.run import ParkReason, Status
from session_custody.core.signals import SignalKind
from session_custody.intake import admit as admit_module
from session_custody.intake.admit import Admission, Prepared, Refusal
from session_custody.intake.record import Record
from session_custody.ports import Admitted, LaneFence, LaneKey, NewDeadLetter
from session_custody.telemetry import REGISTRY
from session_custody.wire import decode_body, sent_digest, verify_hash
from tests.unit.intake_fakes import NOW, FakeContracts, FakeStore, FixedClock, NoSigner
from tests.unit.intake_records import MANIFEST, SUBJECT, TARGET, looping_pin, pin, record, resume, start

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


RULES = AdmissionRules(targets=frozenset({TARGET}))
POLICY = PolicyBundle(
    policy_profile="fraud_ops", policy_version="7", engine="allow-list", allow=("get_alert",)
)


class Routes:
    def __init__(self, pins: Mapping[str, Mapping[str, str]]) -> None:
        self.pins = pins

    async def read(self, session_id: str) -> Mapping[str, str] | None:
        return self.pins.get(session_id)


async def a_lane(store: FakeStore) -> LaneFence:
    row = await store.ensure_lane(LaneKey("cluster-1", "custody.runs", 0), "generation-1", 0)
    owner = uuid4()
    acquired = await store.acquire(row.lane_id, owner, row.epoch, [])
    assert acquired is not None
    return LaneFence(LaneId(row.lane_id), row.key, owner, acquired.epoch, row.topic_id)


def an_admission(*, routes: Routes | None = None, rules: AdmissionRules = RULES) -> Admission:
    return Admission(
        contracts=FakeContracts(MANIFEST, policies=[POLICY]),
        signer=NoSigner(),
        clock=FixedClock(),
        rules=rules,
        route_pins=routes,
    )


class World:
    """A lane in a fake store and an admission; batches go in one after another."""

    def __init__(self, store: FakeStore, fence: LaneFence, admission: Admission) -> None:
        self.store, self.fence, self.admission = store, fence, admission
        self.prepared: Prepared | None = None

    async def offer(self, *records: Record, refusals: Mapping[int, Refusal] | None = None) -> Admitted:
        self.prepared = await self.admission.prepare(self.fence, "generation-1", records, refusals or {})
        first = self.fence.input_offset
        answer = await self.store.admit(self.prepared.batch(first, first + len(records)))
        assert isinstance(answer, Admitted)
        self.fence.input_offset = answer.input_offset
        return answer

    @property
    def dead(self) -> NewDeadLetter:
        return self.store.dead_letters[-1]


async def world(**options: object) -> World:
    store = FakeStore()
    return World(store, await a_lane(store), an_admission(**options))  # type: ignore[arg-type]


async def test_a_start_becomes_a_run_with_its_pinned_event() -> None:
    here = await world()
    event = start(pin=looping_pin(policy_profile="fraud_ops"), session_id="sess-88")
    headers: tuple[tuple[str, bytes | None], ...] = (("ce_id", b"e-1"), ("ce_source", b"crm"))
    await here.offer(record(event, headers=headers))
    _, run = here.store.runs[RunId("run-1")]
    assert run.sent_digest == sent_digest(event)
    assert run.expires_at == NOW + timedelta(days=1)
    assert run.pin.sent == event.pin
    assert run.pin.resolved.pattern is Pattern.LOOP
    assert (run.pin.resolved.policy_version, run.pin.resolved.policy_digest) == ("7", "digest of fraud_ops@7")
    assert run.facts.policy_version == "7"
    assert (run.start_ce_id, run.start_ce_source) == ("e-1", "crm")
    point = run.checkpoint
    assert (point.status, point.stage, point.version, point.head_seq) == (Status.QUEUED, "loop", 1, 1)
    (pinned,) = run.events
    assert (pinned.kind, pinned.event_seq, pinned.hash) == (EventKind.PINNED, 1, point.head_hash)
    assert verify_hash(pinned.body, pinned.hash)
    assert pinned.payload == '"hi"'  # the manifest says visible: input
    body = decode_body(pinned.schema_fingerprint, pinned.body)
    assert body["causation_id"] == "e-1"
    assert body["payload_digest"] == hashlib.sha256(pinned.salt + b'"hi"').digest()


async def test_without_a_manifest_that_says_so_the_input_is_not_in_the_event() -> None:
    here = await world()
    await here.offer(record(start()))
    _, run = here.store.runs[RunId("run-1")]
    assert run.events[0].payload is None
    assert (run.checkpoint.stage, run.pin.resolved.pattern) == ("inference", Pattern.INFERENCE)


async def test_a_named_version_that_is_not_published_parks_the_run() -> None:
    here = await world()
    await here.offer(record(start(pin=looping_pin(manifest_version="2"))))
    _, run = here.store.runs[RunId("run-1")]
    point = run.checkpoint
    assert (point.status, point.park_reason) == (Status.PARKED, ParkReason.CONTRACT_MISSING)
    assert point.wake_at is not None
    assert point.wake_at > NOW
    assert [event.kind for event in run.events] == [EventKind.PINNED, EventKind.PARKED]
    assert (point.head_seq, point.head_hash) == (2, run.events[1].hash)
    body = decode_body(run.events[1].schema_fingerprint, run.events[1].body)
    assert (body["prev_hash"], body["code"]) == (run.events[0].hash, "contract_missing")
    assert (run.pin.resolved.pattern, run.pin.resolved.manifest_version) == (None, "2")


async def test_a_name_without_a_version_is_resolved_once_and_recorded() -> None:
    here = await world()
    await here.offer(record(start(pin=looping_pin(manifest_version=None))))
    _, run = here.store.runs[RunId("run-1")]
    assert run.pin.sent.manifest_version is None
    assert (run.pin.manifest_version, run.facts.manifest_version) == ("1", "1")


async def test_a_name_that_nothing_is_published_under_is_contract_unknown() -> None:
    here = await world()
    await here.offer(record(start(pin=looping_pin(manifest_id="nobody", manifest_version=None))))
    assert here.dead.reason is RejectReason.CONTRACT_UNKNOWN
    assert not here.store.runs


async def test_a_redelivery_stays_one_when_its_contract_has_gone_meanwhile() -> None:
    here = await world()
    event = record(start(pin=looping_pin(manifest_version=None)))
    await here.offer(event)
    here.admission = Admission(contracts=FakeContracts(), signer=NoSigner(), clock=FixedClock(), rules=RULES)
    await here.offer(replace(event, offset=1))
    assert here.prepared is not None
    assert here.prepared.verdicts[0] == Redelivered(RunId("run-1"))
    assert not here.store.dead_letters


@pytest.mark.parametrize("name", ["authorization", "Cookie", "custody-token", "custody-token-ref"])
async def test_a_record_with_a_token_header_is_refused_and_the_token_is_kept_nowhere(name: str) -> None:
    here = await world()
    token = b"Bearer made-up"
    await here.offer(record(start(), headers=((name, token), ("ce_id", b"e-1"))))
    assert here.dead.reason is RejectReason.TOKEN_REFUSED
    assert here.dead.headers == (("ce_id", b"e-1"),)
    assert token not in repr(here.dead).encode()
    assert not here.store.runs


async def test_also_an_undecodable_record_leaves_its_token_behind() -> None:
    here = await world()
    await here.offer(record(b"junk", headers=(("authorization", b"Bearer made-up"),)))
    assert here.dead.headers == ()


@pytest.mark.parametrize(
    ("value", "reason"),
    [(None, RejectReason.UNDECODABLE), (b"", RejectReason.UNDECODABLE), (b"{}", RejectReason.UNDECODABLE)],
)
async def test_bytes_that_are_no_record_go_to_the_dead_letters_exactly_as_they_came(
    value: bytes | None, reason: RejectReason
) -> None:
    here = await world()
    await here.offer(record(value, key=b"\x00k"), record(start(), 1))
    assert (here.dead.reason, here.dead.key, here.dead.value) == (reason, b"\x00k", value)
    assert (here.dead.topic_id, here.dead.offset, here.dead.order) == ("generation-1", 0, 0)
    assert RunId("run-1") in here.store.runs  # the neighbour went on (I16)


async def test_a_conflict_is_dead_lettered_with_its_run() -> None:
    here = await world()
    await here.offer(record(start()), record(start(input='"other"'), 1))
    assert (here.dead.reason, here.dead.run_id) == (RejectReason.PIN_CONFLICT, "run-1")
    assert here.prepared is not None
    assert here.prepared.verdicts[0] == Created(RunId("run-1"))


async def test_a_bug_that_one_record_trips_over_stays_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def digest(event: object) -> bytes:
        if getattr(event, "correlation_id", None) == "run-2":
            raise ZeroDivisionError("content that must not be told")
        return b"d"

    monkeypatch.setattr(admit_module, "sent_digest", digest)
    here = await world()
    await here.offer(record(start()), record(start("run-2"), 1), record(start("run-3"), 2))
    assert sorted(here.store.runs) == ["run-1", "run-3"]
    assert here.dead.reason is RejectReason.INTERNAL
    assert "content" not in here.dead.detail


async def test_duplicates_in_a_batch_are_folded_into_one_candidate() -> None:
    here = await world()
    await here.offer(record(start()), record(start(), 1), record(start(input='"other"'), 2))
    (batch,) = here.store.batches
    assert [run.order for run in batch.candidates] == [0]
    assert batch.named == ["run-1"]


async def test_a_resume_becomes_a_signal_that_is_known_by_source_id_and_digest() -> None:
    here = await world()
    headers: tuple[tuple[str, bytes | None], ...] = (("ce_id", b"e-7"), ("ce_source", b"crm"))
    cancel = resume(kind=ResumeKind.CANCEL, reason="customer called")
    await here.offer(record(start()), record(cancel, 1, headers=headers))
    (signal,) = here.store.signals
    assert (signal.kind, signal.held, signal.causation_id) == (SignalKind.CANCEL, False, "e-7")
    assert (signal.dedupe_source, signal.dedupe_id) == ("crm", "e-7")
    assert signal.body == {"reason": "customer called"}
    assert signal.raw_value is None


async def test_without_ce_headers_the_records_place_stands_for_them() -> None:
    here = await world()
    await here.offer(record(start()), record(resume(), 1))
    (signal,) = here.store.signals
    assert (signal.dedupe_source, signal.dedupe_id) == ("generation-1", "0/1")


async def test_a_resume_without_a_run_is_held_with_its_raw_bytes() -> None:
    here = await world()
    sent = record(resume())
    await here.offer(sent)
    (signal,) = here.store.signals
    assert (signal.held, signal.raw_value, signal.raw_key) == (True, sent.value, b"run-1")


async def test_an_answer_carries_who_answered() -> None:
    here = await world()
    answer = resume(
        kind=ResumeKind.SIGNAL,
        question_id="q-1",
        answer='{"a":1}',
        answered_by={"id": "u-1", "roles": ["ops"]},
        subject=SUBJECT,
    )
    await here.offer(record(start()), record(answer, 1))
    (signal,) = here.store.signals
    assert signal.kind is SignalKind.ANSWER
    assert json.loads(cast("str", signal.body["answer"])) == {"a": 1}
    assert signal.body["answered_by"] == {"id": "u-1", "tenant": None, "roles": ["ops"]} or signal.body[
        "answered_by"
    ] == {"id": "u-1", "roles": ["ops"]}


async def test_a_resume_that_names_a_session_finds_its_run_by_the_route_pin() -> None:
    here = await world(routes=Routes({"sess-1": {"correlation_id": "run-1"}}))
    await here.offer(record(start()), record(resume(None, session_id="sess-1"), 1, key=b"sess-1"))
    (signal,) = here.store.signals
    assert signal.run_id == "run-1"


async def test_a_resume_whose_session_nobody_knows_is_an_orphan_at_once() -> None:
    here = await world(routes=Routes({}))
    await here.offer(record(resume(None, session_id="sess-1"), key=b"sess-1"))
    assert here.dead.reason is RejectReason.ORPHAN_RESUME


async def test_a_start_that_differs_from_its_route_pin_is_counted_and_admitted() -> None:
    def mismatches() -> float:
        return REGISTRY.get_sample_value("custody_route_pin_lookups_total", {"result": "mismatch"}) or 0.0

    before = mismatches()
    pins = {"sess-1": {"correlation_id": "run-1", "route_id": "another", "tenant": "bank-a"}}
    here = await world(routes=Routes(pins))
    await here.offer(record(start(session_id="sess-1")))
    assert RunId("run-1") in here.store.runs
    assert mismatches() == before + 1


async def test_a_foreign_record_is_skipped_and_still_moves_the_lane() -> None:
    here = await world()
    answer = await here.offer(record(start(pin=pin(activation_target="https://other"))))
    assert (answer.input_offset, here.store.runs, here.store.dead_letters) == (1, {}, [])


async def test_a_record_that_postgres_refused_is_dead_lettered_and_then_bare() -> None:
    here = await world()
    rejected = RecordRejected(RejectReason.INVALID_EVENT, "refused")
    sent = record(start(), headers=(("x", b"y"),))
    await here.offer(sent, refusals={0: Refusal(rejected)})
    assert (here.dead.reason, here.dead.value) == (RejectReason.INVALID_EVENT, sent.value)
    await here.offer(replace(sent, offset=1), refusals={1: Refusal(rejected, bare=True)})
    assert (here.dead.value, here.dead.key, here.dead.headers) == (None, None, ())


async def test_an_outage_while_preparing_is_an_outage_and_no_dead_letter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def down(*_: object) -> None:
        raise Unavailable("postgres")

    here = await world()
    monkeypatch.setattr(FakeContracts, "manifest", down)
    with pytest.raises(Unavailable):
        await here.offer(record(start(pin=looping_pin())))
    assert not here.store.dead_letters


async def test_another_subject_in_a_resume_is_refused() -> None:
    here = await world()
    await here.offer(record(start()), record(resume(subject=Subject(id="somebody")), 1))
    assert here.dead.reason is RejectReason.SUBJECT_MISMATCH
    assert not here.store.signals
