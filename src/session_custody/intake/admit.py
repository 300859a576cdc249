"""Stations 3 and 4: one batch of a lane, from decoded records to its admission transaction (I1, I13, I16).

    decode -> route pins, sessions -> first look, contracts, seal      (`prepare`, before the transaction)
    -> store.admit: insert candidates; read what stands; `Prepared.decide`; number, fence, COMMIT

`decide` runs inside the transaction; it is pure but for remembering its verdicts, which are counted only once
the transaction has committed. Offered again, a batch is prepared anew: clocks and contracts have moved on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, assert_never

from session_custody import faults
from session_custody.core import admission
from session_custody.core.admission import (
    AdmissionRecord,
    AdmissionRules,
    DeadLettered,
    Fresh,
    RefusedRecord,
    ResumeRecord,
    StartRecord,
    Verdict,
)
from session_custody.core.errors import RecordRejected, RejectReason, Unavailable
from session_custody.core.events import RunResume, RunStart
from session_custody.core.pin import RunId
from session_custody.intake import letters
from session_custody.intake.decode import Decoded, decode, unexpected
from session_custody.intake.pinning import Pinning
from session_custody.intake.record import Record
from session_custody.ports import (
    AdmissionBatch,
    Clock,
    Contracts,
    Decided,
    KnownRun,
    LaneFence,
    NewDeadLetter,
    NewRun,
    NewSignal,
    RoutePins,
    Signer,
)
from session_custody.telemetry import ROUTE_PIN_LOOKUPS, log
from session_custody.wire import sent_digest

RECORDS_AT_A_STRETCH: Final = 25

SessionRuns = Callable[[str], Awaitable[RunId | None]]
"""The newest waiting run of a session, for a resume that names no run (DESIGN 5)."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """What became of a record at an earlier offer of its batch. `bare`: its dead letter was refused too and
    goes without content.
    """

    rejected: RecordRejected
    bare: bool = False


@dataclass(slots=True)
class Prepared:
    """A batch ready for the store; `verdicts` are those of the last `decide`."""

    fence: LaneFence
    topic_id: str
    decoded: Sequence[Decoded]
    records: Sequence[AdmissionRecord]
    runs: Mapping[int, NewRun]
    refusals: Mapping[int, Refusal]
    rules: AdmissionRules
    verdicts: dict[int, Verdict] = field(default_factory=dict)

    def batch(self, first_offset: int, next_offset: int) -> AdmissionBatch:
        named = {record.run_id for record in self.records if not isinstance(record, RefusedRecord)}
        return AdmissionBatch(
            fence=self.fence,
            topic_id=self.topic_id,
            first_offset=first_offset,
            next_offset=next_offset,
            candidates=[self.runs[order] for order in sorted(self.runs)],
            named=sorted(named),
            decide=self.decide,
        )

    def decide(self, created: frozenset[RunId], known: Sequence[KnownRun]) -> Decided:
        if admission.unsettled(self.records, created, known):
            raise Unavailable("postgres", "a run was swept while its start was admitted")
        self.verdicts = admission.judge(self.records, created, known, self.rules)
        signals: list[NewSignal] = []
        dead: list[NewDeadLetter] = []
        for decoded, record in zip(self.decoded, self.records, strict=True):
            match self.verdicts[decoded.order]:
                case admission.Passed(run_id, held):
                    signals.append(letters.signal(decoded, run_id, held, self.topic_id))
                case DeadLettered(reason, detail):
                    dead.append(self._dead_letter(decoded, record, reason, detail))
                case admission.Conflict():
                    detail = "the id stands with another pin, subject or input"
                    dead.append(self._dead_letter(decoded, record, RejectReason.PIN_CONFLICT, detail))
                case (
                    admission.Created() | admission.Redelivered() | admission.Ignored() | admission.Skipped()
                ):
                    pass
                case never:
                    assert_never(never)
        return Decided(signals=signals, dead_letters=dead)

    def _dead_letter(
        self, decoded: Decoded, record: AdmissionRecord, reason: RejectReason, detail: str
    ) -> NewDeadLetter:
        refusal = self.refusals.get(decoded.record.offset)
        run_id = None if isinstance(record, RefusedRecord) else record.run_id
        return letters.dead_letter(
            decoded, self.topic_id, reason, detail, run_id, bare=refusal is not None and refusal.bare
        )


class Admission:
    """Prepares batches. One per process."""

    def __init__(
        self,
        *,
        contracts: Contracts,
        signer: Signer,
        clock: Clock,
        rules: AdmissionRules,
        route_pins: RoutePins | None = None,
        session_runs: SessionRuns | None = None,
    ) -> None:
        self.rules = rules
        self._clock = clock
        self._pinning = Pinning(contracts, signer, rules)
        self._route_pins = route_pins
        self._session_runs = session_runs

    async def prepare(
        self,
        fence: LaneFence,
        topic_id: str,
        records: Sequence[Record],
        refusals: Mapping[int, Refusal],
    ) -> Prepared:
        """`refusals`: by offset. Raises Unavailable; one record's own fault stays with it."""
        faults.reach("admission.before", lane_id=fence.lane_id)
        decoded: list[Decoded] = []
        for order, read in enumerate(records):
            decoded.append(decode(read, order))
            await _let_others_run(order)
        now = self._clock.now()
        routes = await self._routes(decoded)
        looked: list[AdmissionRecord] = []
        runs: dict[int, NewRun] = {}
        taken: set[RunId] = set()
        for item in decoded:
            await _let_others_run(item.order)
            refusal = refusals.get(item.record.offset)
            try:
                rejected = item.refused if refusal is None else refusal.rejected
                if rejected is not None:
                    raise rejected
                record, run = await self._look(item, now, taken, routes)
            except RecordRejected as rejected:
                record, run = RefusedRecord(item.order, DeadLettered(rejected.reason, rejected.detail)), None
            except Unavailable:
                raise
            except Exception as error:  # noqa: BLE001 - poison stays alone (I16)
                internal = unexpected("admission", error)
                record, run = RefusedRecord(item.order, DeadLettered(internal.reason, internal.detail)), None
            looked.append(record)
            if run is not None:
                runs[item.order] = run
                taken.add(RunId(run.facts.run_id))
        faults.reach("admission.after", lane_id=fence.lane_id)
        return Prepared(fence, topic_id, decoded, looked, runs, refusals, self.rules)

    async def _look(
        self,
        item: Decoded,
        now: datetime,
        taken: set[RunId],
        routes: Mapping[str, Mapping[str, str] | None],
    ) -> tuple[AdmissionRecord, NewRun | None]:
        match item.event:
            case RunStart() as start:
                _compare_route(start, routes)
                return await self._look_at_start(item, start, now, taken)
            case RunResume() as resume:
                run_id = await self._run_of(resume, routes)
                target = resume.activation_target
                ours = None if target is None else admission.is_ours(target, self.rules)
                return ResumeRecord(item.order, run_id, resume, ours), None
            case None:
                raise AssertionError("a decoded record has an event or a refusal")
            case never:
                assert_never(never)

    async def _look_at_start(
        self, item: Decoded, start: RunStart, now: datetime, taken: set[RunId]
    ) -> tuple[StartRecord, NewRun | None]:
        run_id = RunId(start.correlation_id)
        digest = sent_digest(start)
        look = admission.first_look(start, item.record.recorded_at, now, self.rules)
        run = None
        # Only the first fresh start of an id is a candidate; the next is compared with it by its digest.
        if isinstance(look, Fresh) and run_id not in taken:
            try:
                run = await self._pinning.build(item, start, digest, look.expires_at, now)
            except RecordRejected as rejected:
                # Not refused outright: if the run stands already, this is a redelivery all the same.
                look = DeadLettered(rejected.reason, rejected.detail)
        return StartRecord(item.order, run_id, digest, start.subject, look), run

    async def _run_of(self, resume: RunResume, routes: Mapping[str, Mapping[str, str] | None]) -> RunId:
        """The run that a resume names, by itself or by its session: route pin, then the newest
        waiting run.
        """
        if resume.correlation_id is not None:
            return RunId(resume.correlation_id)
        assert resume.session_id is not None
        pin = routes.get(resume.session_id)
        if pin is not None and (named := pin.get("correlation_id")):
            return RunId(named)
        found = None if self._session_runs is None else await self._session_runs(resume.session_id)
        if found is None:
            raise RecordRejected(RejectReason.ORPHAN_RESUME, "no route pin, no waiting run of this session")
        return found

    async def _routes(self, decoded: Sequence[Decoded]) -> Mapping[str, Mapping[str, str] | None]:
        """Route pins of the batch's sessions, each read once. Never an outage of ours (DESIGN 14)."""
        if self._route_pins is None:
            return {}
        events = (item.event for item in decoded if item.event is not None)
        sessions = sorted({event.session_id for event in events if event.session_id is not None})
        found = await asyncio.gather(*(self._route_pins.read(session) for session in sessions))
        return dict(zip(sessions, found, strict=True))


async def _let_others_run(order: int) -> None:
    """A whole batch takes a tenth of a second: runs under way do not wait for it."""
    if order % RECORDS_AT_A_STRETCH == RECORDS_AT_A_STRETCH - 1:
        await asyncio.sleep(0)


def _compare_route(start: RunStart, routes: Mapping[str, Mapping[str, str] | None]) -> None:
    """Compare the route pin with what the start froze: counted and warned, the start's pointers
    stand (I3).
    """
    if start.session_id is None or start.session_id not in routes:
        return
    pin = routes[start.session_id]
    if pin is None:
        return
    if pin.get("correlation_id") not in {None, start.correlation_id}:
        ROUTE_PIN_LOOKUPS.labels("another_run").inc()  # the session went on to another turn
        return
    frozen = {
        "tenant": start.subject.tenant,
        "route_id": start.pin.route_id,
        "route_table_version": start.pin.route_table_version,
        "activation_target": start.pin.activation_target,
    }
    differing = sorted(name for name, value in frozen.items() if pin.get(name) not in {None, value})
    ROUTE_PIN_LOOKUPS.labels("mismatch" if differing else "match").inc()
    if differing:
        log.warning("a start differs from its route pin", run_id=start.correlation_id, fields=differing)
