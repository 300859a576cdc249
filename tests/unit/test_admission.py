"""The pure admission table: order of checks, identity first, duplicates folded (I1, DESIGN 5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from session_custody.core import bounds
from session_custody.core.admission import (
    AdmissionRecord,
    AdmissionRules,
    Conflict,
    Created,
    DeadLettered,
    Foreign,
    Fresh,
    Ignored,
    LookedUp,
    Passed,
    Redelivered,
    RefusedRecord,
    ResumeRecord,
    Skipped,
    StartRecord,
    candidates,
    check_key,
    check_shape,
    first_look,
    judge,
    resolve,
    unsettled,
)
from session_custody.core.errors import RecordRejected, RejectReason
from session_custody.core.events import ResumeKind
from session_custody.core.pin import OnMaxLoopSteps, Pattern, RunId, Subject
from session_custody.core.run import TERMINAL, Status
from tests.unit.intake_fakes import NOW
from tests.unit.intake_records import MANIFEST, SUBJECT, TARGET, looping_pin, pin, resume, start

RULES = AdmissionRules(targets=frozenset({TARGET}))
FRESH = Fresh(NOW + timedelta(days=1))
ID = RunId("run-1")


@dataclass(frozen=True)
class Known:
    run_id: RunId = ID
    sent_digest: bytes = b"one"
    status: Status = Status.RUNNING
    subject_id: str = SUBJECT.id
    subject_tenant: str | None = SUBJECT.tenant


def a_start(order: int, digest: bytes = b"one", look: object = FRESH, run_id: RunId = ID) -> StartRecord:
    assert isinstance(look, Fresh | Skipped | DeadLettered)
    return StartRecord(order, run_id, digest, SUBJECT, look)


def a_resume(order: int, kind: ResumeKind = ResumeKind.CANCEL, **fields: Any) -> ResumeRecord:
    ours = fields.pop("ours", None)
    assert ours is None or isinstance(ours, bool)
    return ResumeRecord(order, ID, resume(kind=kind, **fields), ours)


def verdicts(
    records: Sequence[AdmissionRecord], created: set[RunId] | None = None, known: Sequence[Known] = ()
) -> list[object]:
    found = judge(records, frozenset(created or ()), known, RULES)
    return [found[record.order] for record in records]


# ------------------------------------------------------------------ identity


def test_the_first_start_of_an_id_creates_its_run_and_the_same_again_is_a_redelivery() -> None:
    assert verdicts([a_start(0), a_start(1)], {ID}) == [Created(ID), Redelivered(ID)]


def test_the_first_fresh_start_of_an_id_is_its_candidate() -> None:
    other = RunId("run-2")
    assert candidates([a_start(0), a_start(1, b"two"), a_start(2, run_id=other), a_start(3)]) == (0, 2)


def test_another_pin_for_the_id_in_the_same_batch_is_a_conflict() -> None:
    assert verdicts([a_start(0), a_start(1, b"two")], {ID}) == [Created(ID), Conflict(ID)]


def test_a_standing_run_makes_every_start_a_redelivery_or_a_conflict() -> None:
    found = verdicts([a_start(0), a_start(1, b"two"), a_start(2)], set(), [Known()])
    assert found == [Redelivered(ID), Conflict(ID), Redelivered(ID)]


@pytest.mark.parametrize(
    "look",
    [
        Skipped(),
        DeadLettered(RejectReason.STALE_START, ""),
        DeadLettered(RejectReason.EXPIRED_ON_ARRIVAL, ""),
    ],
)
def test_identity_counts_before_everything_that_time_can_change(look: object) -> None:
    assert verdicts([a_start(0, look=look)], set(), [Known()]) == [Redelivered(ID)]
    assert verdicts([a_start(0, look=look)]) == [look]


def test_a_refused_start_leaves_the_id_to_the_next_one() -> None:
    refused = DeadLettered(RejectReason.EXPIRED_ON_ARRIVAL, "")
    records = [a_start(0, b"old", refused), a_start(1, b"new"), a_start(2, b"old", refused)]
    assert candidates(records) == (1,)
    assert verdicts(records, {ID}) == [refused, Created(ID), Conflict(ID)]


def test_a_candidate_that_neither_began_nor_stood_is_unsettled() -> None:
    assert unsettled([a_start(0)], frozenset(), [])
    assert not unsettled([a_start(0)], frozenset({ID}), [])
    assert not unsettled([a_start(0)], frozenset(), [Known()])


@given(st.lists(st.sampled_from([b"one", b"two"]), min_size=1, max_size=6), st.booleans())
def test_at_most_one_start_of_an_id_creates_and_all_others_are_compared_with_it(
    digests: list[bytes], stands: bool
) -> None:
    records = [a_start(order, digest) for order, digest in enumerate(digests)]
    winner = b"two" if stands else digests[0]
    known = [Known(sent_digest=b"two")] if stands else []
    found = verdicts(records, set() if stands else {ID}, known)
    assert sum(isinstance(verdict, Created) for verdict in found) == (0 if stands else 1)
    for record, verdict in zip(records, found, strict=True):
        assert isinstance(verdict, Conflict) == (record.sent_digest != winner)


# ------------------------------------------------------------------ resumes


def test_a_resume_before_its_start_in_the_batch_is_a_signal_of_the_run() -> None:
    assert verdicts([a_resume(0), a_start(1)], {ID}) == [Passed(ID, held=False), Created(ID)]


def test_a_resume_for_no_run_is_held() -> None:
    assert verdicts([a_resume(0)]) == [Passed(ID, held=True)]
    assert verdicts([a_resume(0, ResumeKind.CONTINUE)]) == [Passed(ID, held=True)]


def test_an_answer_for_no_run_is_held_only_if_it_names_its_question() -> None:
    named = a_resume(0, ResumeKind.SIGNAL, answer='"yes"', question_id="confirm")
    unnamed = a_resume(1, ResumeKind.SIGNAL, answer='"yes"')
    first, second = verdicts([named, unnamed])
    assert first == Passed(ID, held=True)
    assert isinstance(second, DeadLettered)
    assert second.reason is RejectReason.ORPHAN_RESUME


@pytest.mark.parametrize("status", sorted(TERMINAL))
def test_after_the_outcome_a_resume_is_only_counted(status: Status) -> None:
    assert verdicts([a_resume(0)], set(), [Known(status=status)]) == [Ignored(ID)]


@pytest.mark.parametrize("status", sorted(set(Status) - TERMINAL))
def test_before_the_outcome_every_resume_is_a_signal_for_the_owner(status: Status) -> None:
    assert verdicts([a_resume(0)], set(), [Known(status=status)]) == [Passed(ID, held=False)]


@pytest.mark.parametrize(
    "fields",
    [
        {"subject": Subject(id="other", tenant="bank-a")},
        {"subject": Subject(id="u-17")},
        {"tenant": "bank-b"},
    ],
)
def test_a_resume_of_another_subject_is_refused(fields: dict[str, Any]) -> None:
    for created, known in (({ID}, []), (set(), [Known()])):
        records: list[AdmissionRecord] = [a_resume(0, **fields)]
        if created:
            records.append(a_start(1))
        verdict = verdicts(records, created, known)[0]
        assert isinstance(verdict, DeadLettered)
        assert verdict.reason is RejectReason.SUBJECT_MISMATCH


def test_a_resume_without_a_target_is_ours_when_its_run_is() -> None:
    rules = replace(RULES, shared_runtime=False)
    records = [a_resume(0)]
    assert judge(records, frozenset(), [Known()], rules)[0] == Passed(ID, held=False)
    assert judge(records, frozenset(), [], rules)[0] == Skipped()


def test_a_foreign_resume_is_skipped_or_dead_lettered_as_the_setting_says() -> None:
    records = [a_resume(0, ours=False)]
    assert judge(records, frozenset(), [Known()], RULES)[0] == Skipped()
    verdict = judge(records, frozenset(), [], replace(RULES, foreign=Foreign.DEAD_LETTER))[0]
    assert isinstance(verdict, DeadLettered)
    assert verdict.reason is RejectReason.FOREIGN_TARGET


def test_a_refused_record_keeps_its_verdict_beside_good_neighbours() -> None:
    refused = DeadLettered(RejectReason.UNDECODABLE, "")
    assert verdicts([RefusedRecord(0, refused), a_start(1)], {ID}) == [refused, Created(ID)]


# ------------------------------------------------------------------ first look


def looked(event: object = None, age_s: float = 0.0, rules: AdmissionRules = RULES) -> object:
    event = event or start()
    return first_look(event, NOW - timedelta(seconds=age_s), NOW, rules)  # type: ignore[arg-type]


def test_horizon_then_target_then_expiry() -> None:
    past = NOW - timedelta(seconds=1)
    everything_wrong = start(pin=pin(activation_target="https://other"), expires_at=past)
    assert isinstance(looked(everything_wrong, bounds.DEDUPE_HORIZON_S + 1), DeadLettered)
    assert looked(everything_wrong) == Skipped()
    expired = looked(start(expires_at=past))
    assert isinstance(expired, DeadLettered)
    assert expired.reason is RejectReason.EXPIRED_ON_ARRIVAL


def test_a_start_at_the_horizon_is_fresh_and_beyond_it_stale() -> None:
    assert isinstance(looked(age_s=bounds.DEDUPE_HORIZON_S), Fresh)
    stale = looked(age_s=bounds.DEDUPE_HORIZON_S + 0.001)
    assert isinstance(stale, DeadLettered)
    assert stale.reason is RejectReason.STALE_START


def test_a_record_without_a_timestamp_is_not_stale() -> None:
    assert isinstance(first_look(start(), None, NOW, RULES), Fresh)


def test_expiry_defaults_to_a_day_and_has_a_ceiling() -> None:
    assert looked() == Fresh(NOW + timedelta(seconds=bounds.EXPIRY_DEFAULT_S))
    ceiling = NOW + timedelta(seconds=bounds.EXPIRY_MAX_S)
    assert looked(start(expires_at=ceiling)) == Fresh(ceiling)
    beyond = looked(start(expires_at=ceiling + timedelta(seconds=1)))
    assert isinstance(beyond, DeadLettered)
    assert beyond.reason is RejectReason.INVALID_EVENT


def test_a_start_without_a_target_belongs_to_the_shared_runtime() -> None:
    nameless = start(pin=pin(activation_target=None))
    assert isinstance(looked(nameless), Fresh)
    assert looked(nameless, rules=replace(RULES, shared_runtime=False)) == Skipped()


# ------------------------------------------------------------------ key and shape


def test_the_key_is_the_correlation_id() -> None:
    check_key(b"run-1", start())
    for key in (None, b"", b"run-2"):
        with pytest.raises(RecordRejected, match="key_mismatch"):
            check_key(key, start())


def test_a_resume_without_a_correlation_id_names_a_session() -> None:
    check_key(b"anything", resume(None, session_id="sess-1"))
    with pytest.raises(RecordRejected, match="key_mismatch"):
        check_key(b"anything", resume(None))


@pytest.mark.parametrize("field", ["manifest_version", "workflow_version", "policy_version"])
def test_a_version_without_its_name_is_invalid(field: str) -> None:
    with pytest.raises(RecordRejected, match=f"invalid_event: {field}"):
        check_shape(start(pin=pin(**{field: "1"})))


# ------------------------------------------------------------------ what a pin is resolved to


def test_a_pin_without_a_manifest_is_one_inference() -> None:
    resolution = resolve(pin(), LookedUp(), RULES)
    assert (resolution.resolved.pattern, resolution.stage, resolution.missing) == (
        Pattern.INFERENCE,
        "inference",
        False,
    )


def test_a_manifest_with_tools_is_a_loop_and_needs_a_bound() -> None:
    found = LookedUp(manifest=MANIFEST, manifest_version="1", manifest_digest="d")
    resolution = resolve(looping_pin(), found, RULES)
    assert (resolution.resolved.pattern, resolution.stage) == (Pattern.LOOP, "loop")
    with pytest.raises(RecordRejected, match=r"invalid_event: pin\.max_loop_steps"):
        resolve(looping_pin(max_loop_steps=None), found, RULES)


def test_limits_are_frozen_from_the_manifest_and_the_settings() -> None:
    manifest = MANIFEST.model_copy(
        update={
            "on_max_loop_steps": OnMaxLoopSteps.ESCALATE,
            "limits": MANIFEST.limits.model_copy(update={"model_attempts": 9}),
        }
    )
    rules = replace(RULES, limits=RULES.limits.model_copy(update={"start_allowance_s": 7.0}))
    resolved = resolve(looping_pin(), LookedUp(manifest, "1", "d"), rules).resolved
    assert resolved.limits.model_attempts == 9
    assert resolved.limits.start_allowance_s == 7.0
    assert resolved.limits.tool_timeout_s == bounds.TOOL_TIMEOUT_DEFAULT_S
    assert resolved.on_max_loop_steps is OnMaxLoopSteps.ESCALATE


def test_a_contract_that_is_not_published_yet_leaves_the_pattern_open() -> None:
    resolution = resolve(looping_pin(), LookedUp(manifest_version="1"), RULES)
    assert (resolution.missing, resolution.resolved.pattern, resolution.stage) == (True, None, "loop")
    policy_only = resolve(pin(policy_profile="p", policy_version="1"), LookedUp(policy_version="1"), RULES)
    assert policy_only.missing


def test_a_workflow_is_refused_for_now() -> None:
    with pytest.raises(RecordRejected, match="patterns 2 and 3 are not served yet"):
        resolve(pin(workflow_id="kyc", workflow_version="3"), LookedUp(), RULES)


def test_the_model_target_is_what_the_profile_means_at_admission() -> None:
    rules = replace(RULES, model_targets={"reasoning": "gw-large"})
    assert resolve(pin(), LookedUp(), rules).resolved.model_target == "gw-large"
    assert resolve(pin(model_profile="other"), LookedUp(), rules).resolved.model_target is None
