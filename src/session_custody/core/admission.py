"""Station 3, admission: what becomes of each record of a batch, as pure functions (I1, I13, DESIGN 5).

Two looks, because identity is checked before everything that time can change, and identity is known only
inside the transaction:

1. `first_look` (before it) says what a start *would* be if no run had its id: fresh, or refused for its
   age, target or expiry. Fresh ones become the transaction's candidates.
2. `judge` (inside it) goes through the batch in order. A start whose run stands already is compared by its
   sent digest, whatever the first look said; only a start without a run gets what the first look said.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, Protocol, assert_never

from session_custody.core import bounds
from session_custody.core.errors import RecordRejected, RejectReason
from session_custody.core.events import ResumeKind, RunResume, RunStart
from session_custody.core.manifest import Manifest
from session_custody.core.pin import Limits, Pattern, Resolved, RunId, SentPin, Subject
from session_custody.core.run import Status

STAGE_OF_LOOP: Final = "loop"
STAGE_OF_INFERENCE: Final = "inference"
CONTRACT_PARK_FIRST_S: Final = bounds.PARK_BACKOFF_FIRST_S


class Foreign(StrEnum):
    """What becomes of a record whose activation_target is another app's."""

    SKIP = "skip"
    DEAD_LETTER = "dead_letter"


@dataclass(frozen=True, slots=True)
class AdmissionRules:
    """What settings say about admission. Seconds. `limits` is frozen into each run (I3).

    `targets`: activation_target values that are this app, exact; `shared_runtime`: records without one are
    ours. `model_targets`: model_profile -> gateway alias, copied into the pin; an unlisted profile is sent as
    it stands.
    """

    targets: frozenset[str] = frozenset()
    shared_runtime: bool = True
    foreign: Foreign = Foreign.SKIP
    default_expiry_s: float = bounds.EXPIRY_DEFAULT_S
    dedupe_horizon_s: float = bounds.DEDUPE_HORIZON_S
    limits: Limits = Limits()  # noqa: RUF009 - frozen
    model_targets: Mapping[str, str] = field(default_factory=dict)


# ------------------------------------------------------------------ verdicts


@dataclass(frozen=True, slots=True)
class Created:
    """The run begins here."""

    run_id: RunId


@dataclass(frozen=True, slots=True)
class Redelivered:
    """The same start again: changes nothing that is under way (I1)."""

    run_id: RunId


@dataclass(frozen=True, slots=True)
class Conflict:
    """Another pin for an id that is taken: dead-lettered `pin_conflict`, never merged (I1)."""

    run_id: RunId


@dataclass(frozen=True, slots=True)
class Passed:
    """A resume for a run that stands: a signal. `held`: for one that does not stand yet (DESIGN 5)."""

    run_id: RunId
    held: bool


@dataclass(frozen=True, slots=True)
class Ignored:
    """A resume after the outcome: counted, nothing else (I14, I15)."""

    run_id: RunId


@dataclass(frozen=True, slots=True)
class Skipped:
    """Another app's record."""


@dataclass(frozen=True, slots=True)
class DeadLettered:
    """Refused with its reason (I13)."""

    reason: RejectReason
    detail: str


@dataclass(frozen=True, slots=True)
class Fresh:
    """First look only: would be created. `expires_at` as it will stand in the row."""

    expires_at: datetime


Verdict = Created | Redelivered | Conflict | Passed | Ignored | Skipped | DeadLettered
FirstLook = Fresh | Skipped | DeadLettered


# ------------------------------------------------------------------ records with their facts


@dataclass(frozen=True, slots=True)
class StartRecord:
    """A decoded start. `order` is its place in the batch; `look` what it is if no run has its id."""

    order: int
    run_id: RunId
    sent_digest: bytes
    subject: Subject
    look: FirstLook


@dataclass(frozen=True, slots=True)
class ResumeRecord:
    """A decoded resume, its run resolved. `ours`: its activation_target, None when it names none."""

    order: int
    run_id: RunId
    resume: RunResume
    ours: bool | None


@dataclass(frozen=True, slots=True)
class RefusedRecord:
    """Could not be decoded, or breaks a rule that no time changes."""

    order: int
    verdict: DeadLettered | Skipped


AdmissionRecord = StartRecord | ResumeRecord | RefusedRecord


class Standing(Protocol):
    """What is known of a run or a tombstone; `ports.KnownRun` is one."""

    @property
    def run_id(self) -> RunId: ...
    @property
    def sent_digest(self) -> bytes: ...
    @property
    def status(self) -> Status: ...
    @property
    def subject_id(self) -> str: ...
    @property
    def subject_tenant(self) -> str | None: ...


# ------------------------------------------------------------------ before the transaction


def check_key(key: bytes | None, event: RunStart | RunResume) -> None:
    """The key rule: key == correlation_id; a resume without one names a session. Raises RecordRejected."""
    if event.correlation_id is None:
        if event.session_id is None:
            raise RecordRejected(
                RejectReason.KEY_MISMATCH, "a resume names a correlation_id or, without one, a session_id"
            )
        return
    if key is None or key != event.correlation_id.encode():
        raise RecordRejected(RejectReason.KEY_MISMATCH, "the key is not the correlation_id")


def check_shape(event: RunStart | RunResume) -> None:
    """Rules between pin fields; the rest of the shape is wire's. Raises RecordRejected."""
    if isinstance(event, RunResume):
        return
    for version, name in (
        ("manifest_version", "manifest_id"),
        ("workflow_version", "workflow_id"),
        ("policy_version", "policy_profile"),
    ):
        if getattr(event.pin, version) is not None and getattr(event.pin, name) is None:
            raise RecordRejected(RejectReason.INVALID_EVENT, f"{version}: needs {name}")


def is_ours(target: str | None, rules: AdmissionRules) -> bool:
    return rules.shared_runtime if target is None else target in rules.targets


def first_look(
    start: RunStart, recorded_at: datetime | None, now: datetime, rules: AdmissionRules
) -> FirstLook:
    """What this start is if no run has its id: dedupe horizon -> activation_target -> expiry -> fresh."""
    horizon = timedelta(seconds=rules.dedupe_horizon_s)
    if recorded_at is not None and now - recorded_at > horizon:
        return DeadLettered(
            RejectReason.STALE_START, f"older than the dedupe horizon of {rules.dedupe_horizon_s:.0f} s"
        )
    if not is_ours(start.pin.activation_target, rules):
        return foreign(rules)
    expires_at = start.expires_at or now + timedelta(seconds=rules.default_expiry_s)
    if expires_at <= now:
        return DeadLettered(RejectReason.EXPIRED_ON_ARRIVAL, "expires_at: has passed")
    if expires_at > now + timedelta(seconds=bounds.EXPIRY_MAX_S):
        return DeadLettered(
            RejectReason.INVALID_EVENT, f"expires_at: is more than {bounds.EXPIRY_MAX_S} s ahead"
        )
    return Fresh(expires_at)


def foreign(rules: AdmissionRules) -> Skipped | DeadLettered:
    if rules.foreign is Foreign.SKIP:
        return Skipped()
    return DeadLettered(RejectReason.FOREIGN_TARGET, "activation_target: is not this app")


@dataclass(frozen=True, slots=True)
class LookedUp:
    """The contracts a pin names, as admission found them. A digest of None: named, not published (yet)."""

    manifest: Manifest | None = None
    manifest_version: str | None = None
    manifest_digest: str | None = None
    policy_version: str | None = None
    policy_digest: str | None = None


@dataclass(frozen=True, slots=True)
class Resolution:
    """What goes into the row. `missing`: a named contract is not published: `contract_missing`."""

    resolved: Resolved
    stage: str
    missing: bool


def resolve(sent: SentPin, found: LookedUp, rules: AdmissionRules) -> Resolution:
    """Freeze what the pin depends on (I3). Raises RecordRejected for a pin that no run can have."""
    if sent.workflow_id is not None:
        raise RecordRejected(
            RejectReason.INVALID_EVENT, "pin.workflow_id: patterns 2 and 3 are not served yet"
        )
    manifest_missing = sent.manifest_id is not None and found.manifest is None
    policy_missing = sent.policy_profile is not None and found.policy_digest is None
    pattern = None if manifest_missing else _pattern(found.manifest)
    if pattern is Pattern.LOOP and sent.max_loop_steps is None:
        raise RecordRejected(
            RejectReason.INVALID_EVENT, "pin.max_loop_steps: is required by a manifest with tools"
        )
    resolved = Resolved(
        pattern=pattern,
        manifest_version=found.manifest_version,
        manifest_digest=found.manifest_digest,
        policy_version=found.policy_version,
        policy_digest=found.policy_digest,
        model_target=rules.model_targets.get(sent.model_profile),
        limits=_limits(found.manifest, rules.limits),
    )
    if found.manifest is not None:
        resolved = resolved.model_copy(update={"on_max_loop_steps": found.manifest.on_max_loop_steps})
    looping = pattern is Pattern.LOOP or (pattern is None and sent.max_loop_steps is not None)
    return Resolution(
        resolved=resolved,
        stage=STAGE_OF_LOOP if looping else STAGE_OF_INFERENCE,
        missing=manifest_missing or policy_missing,
    )


def _pattern(manifest: Manifest | None) -> Pattern:
    return Pattern.LOOP if manifest is not None and manifest.tools else Pattern.INFERENCE


def _limits(manifest: Manifest | None, defaults: Limits) -> Limits:
    if manifest is None:
        return defaults
    return defaults.model_copy(update=manifest.limits.model_dump(exclude_none=True))


# ------------------------------------------------------------------ inside the transaction


@dataclass(slots=True)
class _Run:
    """A run as the batch goes on: one that stood there before, or was created by it."""

    sent_digest: bytes
    subject_id: str
    subject_tenant: str | None
    terminal: bool


def candidates(records: Sequence[AdmissionRecord]) -> tuple[int, ...]:
    """Orders of the starts to be inserted: of each id the first fresh one; later ones are compared to it."""
    first: dict[RunId, int] = {}
    for record in records:
        if isinstance(record, StartRecord) and isinstance(record.look, Fresh):
            first.setdefault(record.run_id, record.order)
    return tuple(sorted(first.values()))


def judge(
    records: Sequence[AdmissionRecord],
    created: AbstractSet[RunId],
    known: Sequence[Standing],
    rules: AdmissionRules,
) -> dict[int, Verdict]:
    """Verdict by order. `created`: ids inserted by this transaction; `known`: runs and tombstones before it.

    A candidate in neither makes the batch `unsettled`: the caller offers it again and does not ask here.
    """
    standing = {
        run.run_id: _Run(run.sent_digest, run.subject_id, run.subject_tenant, run.status.terminal)
        for run in known
    }
    begun = _begun(records, created)
    verdicts: dict[int, Verdict] = {}
    for record in records:
        match record:
            case RefusedRecord():
                verdicts[record.order] = record.verdict
            case StartRecord():
                verdicts[record.order] = _judge_start(record, standing)
            case ResumeRecord():
                # A resume may stand before its start in the batch: both are written by this transaction.
                run = standing.get(record.run_id) or _run_of(begun.get(record.run_id))
                verdicts[record.order] = _judge_resume(record, run, rules)
            case _:
                assert_never(record)
    return verdicts


def unsettled(
    records: Sequence[AdmissionRecord], created: AbstractSet[RunId], known: Sequence[Standing]
) -> bool:
    """A candidate was neither created nor stood there: a run was swept in between. Offer the batch again."""
    there = created | {run.run_id for run in known}
    orders = set(candidates(records))
    return any(
        isinstance(record, StartRecord) and record.order in orders and record.run_id not in there
        for record in records
    )


def _begun(records: Sequence[AdmissionRecord], created: AbstractSet[RunId]) -> dict[RunId, StartRecord]:
    orders = set(candidates(records))
    return {
        record.run_id: record
        for record in records
        if isinstance(record, StartRecord) and record.order in orders and record.run_id in created
    }


def _run_of(start: StartRecord | None) -> _Run | None:
    if start is None:
        return None
    return _Run(start.sent_digest, start.subject.id, start.subject.tenant, terminal=False)


def _judge_start(record: StartRecord, standing: dict[RunId, _Run]) -> Verdict:
    run = standing.get(record.run_id)
    if run is not None:
        same = run.sent_digest == record.sent_digest
        return Redelivered(record.run_id) if same else Conflict(record.run_id)
    if not isinstance(record.look, Fresh):
        return record.look
    standing[record.run_id] = _Run(
        record.sent_digest, record.subject.id, record.subject.tenant, terminal=False
    )
    return Created(record.run_id)


def _judge_resume(record: ResumeRecord, run: _Run | None, rules: AdmissionRules) -> Verdict:
    if record.ours is False or (record.ours is None and run is None and not rules.shared_runtime):
        return foreign(rules)
    resume = record.resume
    if run is None:
        if resume.kind is ResumeKind.SIGNAL and resume.question_id is None:
            return DeadLettered(RejectReason.ORPHAN_RESUME, "no run, and the answer names no question")
        return Passed(record.run_id, held=True)
    if _other_subject(resume, run):
        return DeadLettered(RejectReason.SUBJECT_MISMATCH, "subject: is not the run's")
    if run.terminal:
        return Ignored(record.run_id)
    return Passed(record.run_id, held=False)


def _other_subject(resume: RunResume, run: _Run) -> bool:
    if resume.subject is not None:
        return (resume.subject.id, resume.subject.tenant) != (run.subject_id, run.subject_tenant)
    return resume.tenant is not None and resume.tenant != run.subject_tenant
