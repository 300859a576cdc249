"""Stations 9 and 11: drafts become numbered, sealed events and are offered as one commit (I7, I8).

Fault points: `intent.*` around a commit that holds an intent, `result.*` around one that holds a result or
the outcome, and around every commit without an intent.
"""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import replace
from typing import Final

from session_custody import faults
from session_custody.core.commands import Commit, InSeconds
from session_custody.core.errors import InvariantBroken, LaneLost, Unavailable
from session_custody.core.events import EventDraft, EventKind, SealedEvent
from session_custody.core.pin import Resolved, RunId
from session_custody.core.run import Checkpoint
from session_custody.ports import Clock, CommitAnswer, LaneFence, LoadedRun, RunCommit, RunStore, Signer
from session_custody.telemetry import (
    BUDGET_EXHAUSTED,
    CHECKPOINT_WRITE,
    RUN_DURATION,
    RUNS_FINISHED,
    STATION_ERRORS,
    STEPS,
    log,
)
from session_custody.wire import SALT_BYTES, PinnedParts, seal

OFFER_BACKOFF_FIRST_S: Final = 0.1
OFFER_BACKOFF_MAX_S: Final = 2.0

_RESULTS: Final = frozenset({EventKind.TOOL_RESULT, EventKind.OUTCOME, EventKind.INFERENCE})
_BOUND_CODES: Final = frozenset(
    {
        "max_loop_steps",
        "too_many_calls",
        "arguments_too_large",
        "result_too_large",
        "working_too_large",
        "final_text_too_large",
        "attempts_spent",
        "not_started",
        "model_unavailable",
    }
)


class Recorder:
    """The committed half of one live run: version, head of the chain, and what is offered next."""

    def __init__(
        self, run: LoadedRun, fence: LaneFence, *, store: RunStore, clock: Clock, signer: Signer
    ) -> None:
        self._run = run
        self._fence = fence
        self._store = store
        self._clock = clock
        self._signer = signer
        self._head: Checkpoint = run.checkpoint
        self._version = run.checkpoint.version
        """As the row has it: `_head` holds the one that its commit compared with."""
        self.offered_at: float | None = None
        """CLOCK_BOOTTIME from before the last commit that set not_after was first offered (DESIGN 8)."""

    async def commit(self, command: Commit) -> CommitAnswer:
        """Seal, offer until it is decided, remember. UNSTORABLE also where an event cannot be encoded."""
        try:
            events = self._sealed(command)
        except (UnicodeError, ValueError, OverflowError) as error:
            STATION_ERRORS.labels(station="result", error=type(error).__name__).inc()
            return CommitAnswer.UNSTORABLE
        head_seq = self._head.head_seq + len(events)
        if command.checkpoint.head_seq != head_seq:
            raise InvariantBroken("the machine and the chain disagree on head_seq")
        checkpoint = replace(
            command.checkpoint,
            version=self._version,
            head_hash=events[-1].hash if events else self._head.head_hash,
        )
        offer = RunCommit(
            fence=self._fence,
            run_id=RunId(self._run.facts.run_id),
            checkpoint=checkpoint,
            events=events,
            consumes=command.consumes,
            not_after=command.not_after,
            wake_at=command.wake_at,
            working_changed=command.working_changed,
            after_end=command.after_end,
        )
        kinds = {draft.kind for draft in command.drafts}
        points = [
            point
            for point, held in (
                ("intent", EventKind.INTENT in kinds),
                ("result", bool(kinds & _RESULTS) or EventKind.INTENT not in kinds),
            )
            if held
        ]
        seen = {"run_id": offer.run_id, "loop_step": checkpoint.loop_step}
        for point in points:
            faults.reach(f"{point}.before", **seen)
        if isinstance(command.not_after, InSeconds):
            self.offered_at = self._clock.boottime()
        answer = await self._offer(offer)
        if answer is CommitAnswer.COMMITTED:
            self._head = checkpoint
            self._version += 1
            self._count(command.drafts)
            for point in points:
                faults.reach(f"{point}.after", **seen)
        return answer

    def _sealed(self, command: Commit) -> tuple[SealedEvent, ...]:
        sealed: list[SealedEvent] = []
        seq, head = self._head.head_seq, self._head.head_hash
        now = self._clock.now()
        resolved = self._newly_resolved(command)
        for draft in command.drafts:
            seq += 1
            salt = os.urandom(SALT_BYTES)
            if resolved is not None and draft.kind is not EventKind.OUTCOME:
                parts = PinnedParts(resolved=resolved)
                event = seal(draft, self._run.facts, seq, head, now, self._signer, salt, parts)
                resolved = None
            else:
                event = seal(draft, self._run.facts, seq, head, now, self._signer, salt)
            sealed.append(event)
            head = event.hash
        return tuple(sealed)

    def _newly_resolved(self, command: Commit) -> Resolved | None:
        """The first step event after a contract's first load tells what it resolved to (I3)."""
        loaded = command.checkpoint.loaded
        if loaded is None or loaded == self._head.loaded:
            return None
        return Resolved.model_validate_json(loaded)

    async def _offer(self, offer: RunCommit) -> CommitAnswer:
        """The same commit until it is decided. While Postgres is away nothing else of this run happens: no
        tool and no model is asked again for it."""
        delay_s = OFFER_BACKOFF_FIRST_S
        began = time.monotonic()
        while True:
            try:
                answer = await self._store.commit(offer)
            except LaneLost:
                answer = CommitAnswer.LANE_LOST
            except Unavailable as error:
                STATION_ERRORS.labels(station="result", error=type(error).__name__).inc()
                if self._fence.lost:
                    return CommitAnswer.LANE_LOST
                log.warning("commit waits for postgres", delay_s=delay_s)
                await asyncio.sleep(delay_s)
                delay_s = min(delay_s * 2, OFFER_BACKOFF_MAX_S)
                continue
            CHECKPOINT_WRITE.observe(time.monotonic() - began)
            return answer

    def _count(self, drafts: tuple[EventDraft, ...]) -> None:
        for draft in drafts:
            STEPS.labels(kind=draft.kind.value, result=draft.result or draft.status.value).inc()
            if draft.code in _BOUND_CODES:
                BUDGET_EXHAUSTED.labels(bound=draft.code).inc()
            if draft.kind is EventKind.OUTCOME:
                route = self._run.facts.pin.route_id
                RUNS_FINISHED.labels(route_id=route, outcome=draft.status.value).inc()
                lived = self._clock.now() - self._run.pinned_at
                RUN_DURATION.labels(route_id=route).observe(max(lived.total_seconds(), 0.0))
