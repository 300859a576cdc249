"""Stations 7, 9, 11: executes the commands of `core.loop` for one run (DESIGN 9).

The driver decides nothing: it takes a command from the machine, does it, and sends back what came of it. What
it adds is what the machine may not know: clocks, the fence, and that a refused commit ends the driving. A
write's answer whose commit is refused is not lost: it becomes a signal for the run's owner (DESIGN 8).

Cancelling `drive` is safe at any await: nothing is held that a crash would not lose as well.
"""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Final, assert_never

import structlog

from session_custody.core.calls import Returned, ToolErrored
from session_custody.core.commands import (
    AskModel,
    Authorize,
    Boundary,
    CallReads,
    CallWrite,
    Command,
    Commit,
    Committed,
    ContractAbsent,
    ContractsLoaded,
    Fact,
    LoadContracts,
    Observed,
    Pause,
    Reconcile,
    Refused,
    Woken,
)
from session_custody.core.errors import ContractInvalid, ContractMissing, InvariantBroken, Unavailable
from session_custody.core.inference import Mask
from session_custody.core.late_load import with_contracts
from session_custody.core.loop import drive, park_unreadable
from session_custody.core.pin import Resolved, RunId, RunPin
from session_custody.core.progress import Machine, rebuild
from session_custody.core.run import DRIVEN
from session_custody.core.transcript import RecordUnreadable
from session_custody.loop.calls import GATE_LOOK_S, Caller
from session_custody.loop.commits import OFFER_BACKOFF_FIRST_S, OFFER_BACKOFF_MAX_S, Recorder
from session_custody.loop.late import LateResults
from session_custody.ports import (
    Clock,
    CommitAnswer,
    Contracts,
    Inbox,
    LaneFence,
    LoadedRun,
    ModelClient,
    RunStore,
    Signer,
    ToolGate,
)
from session_custody.telemetry import CONTRACT_LOADS, STATION_ERRORS, bound_trace, log

PAUSE_LOOK_S: Final = 1.0
"""How often a pausing run looks at the clock: database time may jump or be steered."""


class Driver:
    """`ports.RunDriver`. One per process; holds nothing of a run."""

    def __init__(
        self,
        *,
        store: RunStore,
        contracts: Contracts,
        model: ModelClient,
        gate: ToolGate,
        clock: Clock,
        signer: Signer,
        mask: Mask,
    ) -> None:
        self.store = store
        self.contracts = contracts
        self.model = model
        self.gate = gate
        self.clock = clock
        self.signer = signer
        self.mask = mask
        self.late = LateResults(store)
        self.handing_over: set[asyncio.Task[None]] = set()
        """Answers on their way to signals; they outlive the run's task, which a lost lane cancels at once."""

    async def drive(self, run: LoadedRun, fence: LaneFence, inbox: Inbox, suspects: bool) -> None:
        """Drive until the run leaves memory; see `ports.RunDriver`."""
        trace = run.facts.trace(run.checkpoint.stage, run.checkpoint.loop_step)
        with bound_trace(trace, run.traceparent):
            inbox.put(run.signals)
            await _Driving(self, run, fence, inbox).go(_machine(run, suspects=suspects))


class _Left(Exception):
    pass


class _Driving:
    """One run between being loaded and leaving memory."""

    def __init__(self, stations: Driver, run: LoadedRun, fence: LaneFence, inbox: Inbox) -> None:
        self._contracts = stations.contracts
        self._clock = stations.clock
        self._stations = stations
        self._run = run
        self._pin = run.pin
        self._fence = fence
        self._inbox = inbox
        self._recorder = Recorder(
            run, fence, store=stations.store, clock=stations.clock, signer=stations.signer
        )
        self._caller = Caller(
            run.facts,
            run.traceparent,
            fence,
            model=stations.model,
            gate=stations.gate,
            clock=stations.clock,
            mask=stations.mask,
        )
        self._seen = run.db_now
        self._in_hand: tuple[str, Returned | ToolErrored] | None = None
        """A write's answer that is committed nowhere yet."""

    async def go(self, machine: Machine[None]) -> None:
        try:
            command = next(machine)
            while True:
                command = machine.send(await self._do(command))
        except StopIteration:
            return
        except _Left:
            if (task := self._hand_over()) is not None:
                await asyncio.shield(task)
        except asyncio.CancelledError:
            if self._fence.lost:  # else the commit under way may still land
                self._hand_over()
            raise
        finally:
            machine.close()

    async def _do(self, command: Command) -> Fact:
        match command:
            case Boundary(key):
                return self._observe(key)
            case LoadContracts(resolved):
                return await self._load(resolved)
            case AskModel():
                return await self._caller.ask(command, self._pin)
            case Authorize():
                return await self._caller.authorize(command, self._pin)
            case CallReads():
                return await self._caller.reads(command)
            case CallWrite():
                return await self._write(command)
            case Reconcile():
                return await self._caller.reconcile(command)
            case Pause(until, gate):
                await self._pause(until, gate=gate)
                return Woken()
            case Commit():
                return await self._commit(command)
            case _:
                assert_never(command)

    # -------------------------------------------------------------- boundaries

    def _now(self) -> datetime:
        """What timers go by. While the clock is held after a jump it stands still (DESIGN 11)."""
        if not getattr(self._clock, "held", False):
            self._seen = max(self._clock.now(), self._run.db_now)
        return self._seen

    def _observe(self, key: str | None) -> Observed:
        self._in_hand = None  # the machine went on without a commit: the answer said nothing to keep
        if self._fence.lost or self._fence.draining:
            raise _Left
        return Observed(
            self._now(),
            self._inbox.take(),
            gate_open=self._fence.gate_open,
            call_running=key is not None and self._caller.running(key),
        )

    async def _pause(self, until: datetime, *, gate: bool) -> None:
        while not (self._fence.lost or self._fence.draining):
            left_s = (until - self._now()).total_seconds()
            if left_s <= 0 or (gate and self._fence.gate_open):
                return
            try:
                async with asyncio.timeout(min(left_s, GATE_LOOK_S if gate else PAUSE_LOOK_S)):
                    await self._inbox.wait()
                return
            except TimeoutError:
                pass

    # -------------------------------------------------------------- contracts

    async def _load(self, resolved: Resolved) -> ContractsLoaded | ContractAbsent:
        """By the pinned names, versions and digests and nothing else (I3). An outage is waited for."""
        delay_s = OFFER_BACKOFF_FIRST_S
        while True:
            try:
                loaded = await self._load_once(resolved)
            except (ContractMissing, ContractInvalid) as error:
                CONTRACT_LOADS.labels(result="missing").inc()
                return ContractAbsent(str(error))
            except Unavailable as error:
                STATION_ERRORS.labels(station="decide", error=type(error).__name__).inc()
                if self._fence.lost or self._fence.draining:
                    raise _Left from None
                await asyncio.sleep(delay_s)
                delay_s = min(delay_s * 2, OFFER_BACKOFF_MAX_S)
                continue
            CONTRACT_LOADS.labels(result="loaded").inc()
            self._pin = RunPin(sent=self._run.pin.sent, resolved=loaded.resolved)
            return loaded

    async def _load_once(self, resolved: Resolved) -> ContractsLoaded:
        sent = self._run.pin.sent
        manifest = manifest_digest = policy_digest = None
        if sent.manifest_id is not None:
            version = sent.manifest_version or resolved.manifest_version
            if version is None:
                raise ContractMissing("manifest", sent.manifest_id, "?", "was never resolved to a version")
            manifest, manifest_digest = await self._contracts.manifest(
                sent.manifest_id, version, resolved.manifest_digest
            )
        if sent.policy_profile is not None:
            version = sent.policy_version or resolved.policy_version
            if version is None:
                raise ContractMissing("policy", sent.policy_profile, "?", "was never resolved to a version")
            _, policy_digest = await self._contracts.policy(
                sent.policy_profile, version, resolved.policy_digest
            )
        return ContractsLoaded(manifest, with_contracts(resolved, manifest, manifest_digest, policy_digest))

    # -------------------------------------------------------------- writes and commits

    async def _write(self, command: CallWrite) -> Fact:
        if self._fence.lost:
            raise _Left
        if self._recorder.offered_at is None:
            raise InvariantBroken("a write would be sent whose intent was not offered by this driver")
        ended = await self._caller.write(command, self._recorder.offered_at)
        if isinstance(ended.answer, Returned | ToolErrored):
            self._in_hand = (command.write.key, ended.answer)
        return ended

    async def _commit(self, command: Commit) -> Committed | Refused:
        answer = await self._recorder.commit(command)
        match answer:
            case CommitAnswer.COMMITTED:
                self._in_hand = None
                stands = command.checkpoint
                structlog.contextvars.bind_contextvars(
                    orchestration_step=stands.stage, loop_step=stands.loop_step
                )
                if stands.status not in DRIVEN:
                    codes = [draft.code for draft in command.drafts if draft.code is not None]
                    log.info("run left memory", status=stands.status.value, code=codes[-1] if codes else None)
                return Committed(max(self._clock.now(), self._now()))
            case CommitAnswer.UNSTORABLE:
                STATION_ERRORS.labels(station="result", error="unstorable").inc()
                log.warning("a row's content was refused", drafts=len(command.drafts))
                return Refused()
            case CommitAnswer.STALE | CommitAnswer.LANE_LOST:
                log.info("run left: another owner", answer=answer.value)
                raise _Left
            case _:
                assert_never(answer)

    def _hand_over(self) -> asyncio.Task[None] | None:
        """A write's answer in hand goes to the run's owner as a signal (DESIGN 8)."""
        if self._in_hand is None:
            return None
        key, answer = self._in_hand
        telling = self._stations.late(RunId(self._run.facts.run_id), key, answer)
        task = asyncio.create_task(telling, name=f"late result {key}")
        self._stations.handing_over.add(task)
        task.add_done_callback(self._stations.handing_over.discard)
        return task


def _machine(run: LoadedRun, *, suspects: bool) -> Machine[None]:
    try:
        state = rebuild(
            facts=run.facts,
            pin=run.pin,
            input_text=run.input,
            expires_at=run.expires_at,
            checkpoint=run.checkpoint,
            steps=run.steps,
        )
    except RecordUnreadable as error:
        STATION_ERRORS.labels(station="lane", error="record_unreadable").inc()
        log.error("a committed record cannot be read", detail=str(error))
        bare = rebuild(
            facts=run.facts,
            pin=run.pin,
            input_text=run.input,
            expires_at=run.expires_at,
            checkpoint=run.checkpoint,
            steps=(),
        )
        return park_unreadable(bare, str(error))
    return drive(state, suspects=suspects)
