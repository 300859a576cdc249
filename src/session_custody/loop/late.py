"""Station 11: a write's answer whose driver is gone becomes a signal `tool_result` (DESIGN 8).

Two come here: a sync call whose thread outlived its timeout, and an answer whose commit was refused because
the row or the lane has another owner by now. Whoever owns the run reads the signal at its next boundary.
"""

from __future__ import annotations

import asyncio
from typing import Final

from session_custody.core import canonical
from session_custody.core.calls import ToolAnswer
from session_custody.core.errors import SignalRefused, Unavailable
from session_custody.core.pin import RunId
from session_custody.core.signals import late_result_body
from session_custody.ports import NewSignal, RunStore, SignalKind
from session_custody.telemetry import STATION_ERRORS, log

BACKOFF_FIRST_S: Final = 0.1
BACKOFF_MAX_S: Final = 5.0


class LateResults:
    """`ports.LateResult` over the store. Tries until the row stands: the answer is known nowhere else."""

    def __init__(self, store: RunStore) -> None:
        self._store = store

    async def __call__(self, run_id: RunId, key: str, answer: ToolAnswer) -> None:
        body = late_result_body(key, answer)
        if body is None:
            return
        signal = NewSignal(
            run_id=run_id,
            kind=SignalKind.TOOL_RESULT,
            body=body,
            source="tool",
            dedupe_source="tool",
            dedupe_id=key,
            dedupe_digest=canonical.digest(body),
        )
        delay_s = BACKOFF_FIRST_S
        while True:
            try:
                await self._store.insert_signal(signal)
                return
            except SignalRefused as error:
                log.warning("late result of a run that is gone", run_id=run_id, code=error.code)
                return
            except Unavailable as error:
                STATION_ERRORS.labels(station="result", error=type(error).__name__).inc()
                log.warning("late result waits for postgres", run_id=run_id)
            await asyncio.sleep(delay_s)
            delay_s = min(delay_s * 2, BACKOFF_MAX_S)
