"""One run in memory: its checkpoint, its turns, and what the next commit will carry.

Theory of operation. The parts of the machine (`loop`, `boundary`, `effect`) *stage* facts here: drafts,
consumed signals, working slots. Nothing staged exists for anybody else; `commit` writes all of it together
with new checkpoint values, in one transaction (I7), and only then does the view move. A crash before it asks
the model, the PEP and the reads again; a write cannot be lost so, because its intent is a commit of its own.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

from pydantic import JsonValue

from session_custody.core import bounds
from session_custody.core.commands import (
    CLEAR,
    KEEP,
    Command,
    Commit,
    Committed,
    Deadline,
    Fact,
    InSeconds,
    Refused,
    unexpected,
)
from session_custody.core.errors import InvariantBroken
from session_custody.core.events import FORMAT, EventDraft, EventKind, RunFacts
from session_custody.core.inference import UserText
from session_custody.core.manifest import Effect, Manifest, ToolSpec
from session_custody.core.pin import Limits, Pattern, Resolved, RunPin
from session_custody.core.run import Checkpoint, ParkReason, Status, check_transition
from session_custody.core.transcript import OK, StepRecord, Turn, first_message, read_turns, without_value

T = TypeVar("T")
Machine = Generator[Command, Fact, T]
"""A part of the machine: yields commands, is sent the fact that answers each, returns T."""

LOOP_STAGE: Final = "loop"
INFERENCE_STAGE: Final = "inference"
CANCEL: Final = "cancel"
EXPIRY: Final = "expiry"
STOPPED_AS: Final = {CANCEL: Status.CANCELLED, EXPIRY: Status.EXPIRED}

_FACTS: Final = frozenset(
    {EventKind.DECIDED, EventKind.TOOL_RESULT, EventKind.RESOLVED, EventKind.INFERENCE, EventKind.STAGE_ENDED}
)
"""Kinds that say the run came further: they zero suspect_count and parks (DESIGN 4)."""


@dataclass(frozen=True, slots=True)
class RunState:
    """What a run is when its owner loads it. Rebuilt from rows alone, so every owner sees the same."""

    facts: RunFacts
    pin: RunPin
    input: str
    expires_at: datetime
    checkpoint: Checkpoint
    turns: tuple[Turn, ...]


class Ended(Exception):
    """The run left memory in the middle of a part: nothing more is to be done."""


def rebuild(
    *,
    facts: RunFacts,
    pin: RunPin,
    input_text: str,
    expires_at: datetime,
    checkpoint: Checkpoint,
    steps: tuple[StepRecord, ...],
) -> RunState:
    """The machine's state from what the store loaded. Raises RecordUnreadable (a record of another shape)."""
    if checkpoint.format > FORMAT:
        raise ValueError(f"the checkpoint has format {checkpoint.format}, this build knows {FORMAT}")
    return RunState(facts, pin, input_text, expires_at, checkpoint, tuple(read_turns(steps)))


class Progress:
    """The machine's view of its run; see the module docstring."""

    def __init__(self, run: RunState) -> None:
        self.run = run
        self.cp = run.checkpoint
        self._first: UserText | None = None
        self.turns = [replace(turn, results=dict(turn.results)) for turn in run.turns]
        self.resolved = run.pin.resolved
        if self.cp.loaded is not None:
            self.resolved = Resolved.model_validate_json(self.cp.loaded)
        self.manifest: Manifest | None = None
        self.contracts_loaded = False
        self.drafts: list[EventDraft] = []
        self.consumes: list[int] = []
        self.working: dict[str, JsonValue] = dict(self.cp.working or {})
        self.last_tool = self.cp.last_tool
        self.loaded = self.cp.loaded
        # of the last boundary
        self.now = datetime.min.replace(tzinfo=run.expires_at.tzinfo)
        self.gate_open = False
        self.call_running = False
        self.stop: str | None = self.cp.stop_requested
        self.stop_reason: str | None = None
        self.stop_causation_id: str | None = None
        self.park_asked = False
        self.park_words: str | None = None
        self.ask_after: datetime | None = None
        self.causation_id: str | None = None

    # -------------------------------------------------------------- what stands

    @property
    def limits(self) -> Limits:
        return self.resolved.limits

    @property
    def turn(self) -> Turn | None:
        return self.turns[-1] if self.turns else None

    @property
    def first(self) -> UserText:
        """The run's input as the model reads it in every turn; read when it is first needed."""
        if self._first is None:
            self._first = first_message(self.run.input)
        return self._first

    @property
    def loop_step(self) -> int:
        """Model turns so far, the staged one included; never goes back."""
        return max(self.cp.loop_step, self.turns[-1].loop_step if self.turns else 0)

    @property
    def stage(self) -> str:
        match self.resolved.pattern:
            case Pattern.INFERENCE:
                return INFERENCE_STAGE
            case None:
                return self.cp.stage or LOOP_STAGE
            case _:
                return LOOP_STAGE

    @property
    def came_further(self) -> bool:
        return any(draft.kind in _FACTS for draft in self.drafts)

    def spec(self, tool: str) -> ToolSpec | None:
        return None if self.manifest is None else self.manifest.tool(tool)

    def timeout_s(self, spec: ToolSpec) -> float:
        return spec.timeout_s or self.limits.tool_timeout_s

    def draft(self, kind: EventKind, **fields: Any) -> EventDraft:
        """An event of this run as it stands; its status is set when it is committed."""
        return EventDraft(
            kind,
            self.cp.status,
            self.stage,
            self.loop_step,
            causation_id=self.causation_id,
            **fields,
        )

    # -------------------------------------------------------------- the commit

    def commit(
        self, new: Checkpoint, *events: EventDraft, not_after: Deadline = KEEP, wake_at: Deadline = KEEP
    ) -> Machine[None]:
        """Write what is staged, `events` behind it, and `new` values; returns when it is committed.

        A row whose content Postgres refuses is offered once more without the values of its results, then as a
        bare end of the run (Ended): a write's result must always be storable (DESIGN 6).
        """
        drafts = (*self.drafts, *events)
        if (yield from self._offer(new, drafts, not_after, wake_at, storable=True)):
            return
        safe = tuple(_storable(draft) for draft in drafts)
        if safe != drafts:
            self._forget_values(safe)
            if (yield from self._offer(new, safe, not_after, wake_at, storable=False)):
                return
        yield from self._last_resort()

    def _offer(
        self,
        new: Checkpoint,
        drafts: tuple[EventDraft, ...],
        not_after: Deadline,
        wake_at: Deadline,
        *,
        storable: bool,
    ) -> Machine[bool]:
        new = self._completed(new, drafts, keep_working=storable)
        check_transition(self.cp.status, new.status)
        if new.status.terminal and new.pending is not None:
            raise InvariantBroken("a terminal status over a pending write intent (I14)")
        if new.pending is None and self.cp.not_after is not None:
            not_after = CLEAR
        if new.status not in (Status.WAITING, Status.PARKED) and self.cp.wake_at is not None:
            wake_at = CLEAR
        fact = yield Commit(
            checkpoint=new,
            drafts=tuple(
                draft if draft.status is new.status else replace(draft, status=new.status) for draft in drafts
            ),
            consumes=tuple(self.consumes),
            not_after=not_after,
            wake_at=wake_at,
            working_changed=new.working != self.cp.working,
        )
        if isinstance(fact, Refused):
            return False
        if not isinstance(fact, Committed):
            raise unexpected(fact, "Commit")
        reached = _reached(not_after, self.cp.not_after, fact.now)
        wakes = _reached(wake_at, self.cp.wake_at, fact.now)
        if reached != new.not_after or wakes != new.wake_at:
            new = replace(new, not_after=reached, wake_at=wakes)
        self.cp = new
        self.drafts.clear()
        self.consumes.clear()
        self.working = dict(new.working or {})
        return True

    def _completed(
        self, new: Checkpoint, drafts: tuple[EventDraft, ...], *, keep_working: bool
    ) -> Checkpoint:
        """Add what follows from the drafts and the status, whatever part of the machine commits."""
        status = Status.RUNNING if new.status is Status.QUEUED else new.status
        further = any(draft.kind in _FACTS for draft in drafts)
        doubts = [place for place, draft in enumerate(drafts, 1) if draft.kind is EventKind.IN_DOUBT]
        doubt_seq = self.cp.head_seq + doubts[-1] if doubts else new.doubt_seq
        attempts = 0 if further and new.pending is None else new.attempts
        return replace(
            new,
            status=status,
            loop_step=self.loop_step,
            stage=self.stage,
            head_seq=self.cp.head_seq + len(drafts),
            attempts=attempts,
            parks=0 if further and status is not Status.PARKED else new.parks,
            suspect_count=0 if further else new.suspect_count,
            park_reason=new.park_reason if status is Status.PARKED else None,
            doubt_seq=doubt_seq if status is Status.IN_DOUBT else None,
            call_running=new.call_running and new.pending is not None,
            last_tool=self.last_tool,
            working=(self.working or None) if keep_working else self.cp.working,
            # with an event only: the first one that follows tells what was resolved
            loaded=self.loaded if drafts else self.cp.loaded,
        )

    def _forget_values(self, drafts: tuple[EventDraft, ...]) -> None:
        """What could not be stored is not told to the model either: it would differ after a crash."""
        turn = self.turn
        for draft in drafts:
            if turn is not None and draft.ordinal in turn.results and isinstance(draft.record, dict):
                held = turn.results[draft.ordinal]
                if held.result == OK and draft.record.get("result") != OK:
                    wrote = draft.effect == Effect.WRITE.value
                    turn.results[draft.ordinal] = without_value(held, _NOT_STORABLE, took_effect=wrote)

    def _last_resort(self) -> Machine[None]:
        """Nothing of this commit can be stored: end the run, or leave its open write to a person."""
        self.working = dict(self.cp.working or {})
        if self.cp.pending is None:
            event = self.draft(EventKind.OUTCOME, code="unstorable")
            new = replace(self.cp, status=Status.FAILED)
        else:
            event = self.draft(EventKind.IN_DOUBT, code="unstorable")
            new = replace(self.cp, status=Status.IN_DOUBT)
        if not (yield from self._offer(new, (event,), KEEP, KEEP, storable=False)):
            raise InvariantBroken("not even a bare end of the run can be stored")
        raise Ended

    # -------------------------------------------------------------- leaving memory

    def finish(
        self, status: Status, *, code: str | None = None, text: str | None = None, data: JsonValue = None
    ) -> Machine[None]:
        """The outcome, in one commit with what is staged. Never over a pending intent (I14)."""
        document: dict[str, JsonValue] = {"text": text, "data": data}
        shows = self.manifest is not None and "text" in self.manifest.visible and text is not None
        event = self.draft(EventKind.OUTCOME, record=document, visible=document if shows else None, code=code)
        yield from self.commit(replace(self.cp, status=status, stop_requested=self.stop), event)

    def finish_stopped(self, status: Status) -> Machine[None]:
        """Cancelled or expired, in the words and by the record of who asked for it."""
        event = self.draft(EventKind.OUTCOME, code=self.stop, reason=self.stop_reason)
        event = replace(event, causation_id=event.causation_id or self.stop_causation_id)
        yield from self.commit(replace(self.cp, status=status, stop_requested=self.stop), event)

    def park(
        self, reason: ParkReason, detail: str | None = None, *, attempts: int | None = None
    ) -> Machine[None]:
        """Out of memory with its reason; wakes by itself with back-off where the reason does (DESIGN 5)."""
        parks = 0 if self.came_further else self.cp.parks
        wake_at: Deadline = CLEAR
        if reason.wakes_by_itself:
            wake_at = InSeconds(
                min(bounds.PARK_BACKOFF_FIRST_S * 2.0 ** min(parks, 30), bounds.PARK_BACKOFF_MAX_S)
            )
        new = replace(
            self.cp,
            status=Status.PARKED,
            park_reason=reason,
            parks=parks + 1,
            attempts=self.cp.attempts if attempts is None else attempts,
        )
        event = self.draft(EventKind.PARKED, code=reason.value, reason=detail)
        yield from self.commit(new, event, wake_at=wake_at)

    def doubt(self, code: str, *, call_running: bool = False) -> Machine[None]:
        """Nobody here can know whether the pending write took effect: a person or the tool will tell."""
        pending = self.cp.pending
        if pending is None:
            raise InvariantBroken("in_doubt without a pending intent")
        event = self.draft(
            EventKind.IN_DOUBT,
            code=code,
            tool=pending.tool,
            effect="write",
            ordinal=pending.ordinal,
            idempotency_key=pending.key,
            args_digest=pending.args_digest,
            attempt=self.cp.attempts,
        )
        new = replace(self.cp, status=Status.IN_DOUBT, call_running=call_running, stop_requested=self.stop)
        yield from self.commit(new, event)


_NOT_STORABLE: Final = "result_not_storable"


def _storable(draft: EventDraft) -> EventDraft:
    """The variant of a result that is certainly storable; other drafts as they are."""
    record = draft.record
    if draft.kind is not EventKind.TOOL_RESULT or not isinstance(record, dict) or draft.result != OK:
        return draft
    result = "unstorable" if draft.effect == Effect.WRITE.value else "error"
    return replace(
        draft,
        record={"ordinal": draft.ordinal, "result": result, "value": None, "code": _NOT_STORABLE},
        visible=None,
        result_digest=None,
        result=result,
        code=_NOT_STORABLE,
    )


def _reached(asked: Deadline, stood: datetime | None, now: datetime) -> datetime | None:
    """The deadline as this worker may know it: never before what the database has."""
    match asked:
        case InSeconds(seconds):
            return now + timedelta(seconds=seconds)
        case _ if asked == CLEAR:
            return None
        case _:
            return stood
