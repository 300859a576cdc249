"""`run watch`: a run's steps as they are committed, and its end as an exit code (API 5)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any, Final

from session_custody.cli.output import Exit, Form, cell, fail, say, write_line, write_text
from session_custody.cli.why import explain
from session_custody.core.run import Status
from session_custody.store import PostgresStore

LOOK_EVERY_S: Final = 0.5
APPEARS_S: Final = 5.0
"""How long a run that was just published may still be on its way to Postgres."""

EXITS: Final = {
    Status.SUCCEEDED: 0,
    Status.PARTIAL: 20,
    Status.ESCALATED: 21,
    Status.FAILED: 22,
    Status.CANCELLED: 23,
    Status.EXPIRED: 24,
}
_QUIET: Final = frozenset({Status.QUEUED, Status.RUNNING})


async def watch_run(store: PostgresStore, run: str, timeout_s: float | None, form: Form) -> int:
    """Print what is new until the run has ended; the exit code. Steps are data, why it stands is talk."""
    began = time.monotonic()
    shown, stood = 0, None
    while True:
        evidence = await store.run_evidence(run)
        waited_s = time.monotonic() - began
        if evidence is None:
            if waited_s > APPEARS_S:
                raise fail(f"there is no run {run}", Exit.NOT_FOUND)
        elif int(evidence["head_seq"]) > shown:
            steps = await store.steps(run)
            for step in steps[shown:]:
                _show(step, form)
            shown = len(steps)
        if evidence is not None:
            status = Status(evidence["status"])
            if status is not stood and status not in _QUIET:
                say(explain(evidence))
            stood = status
            if status.terminal:
                return EXITS[status]
        if timeout_s is not None and waited_s > timeout_s:
            raise fail(f"{run} has not ended within {timeout_s:g} s", Exit.TIMEOUT)
        await asyncio.sleep(LOOK_EVERY_S)


def _show(step: Mapping[str, Any], form: Form) -> None:
    match form:
        case Form.JSON | Form.JSONL:
            write_line(step)
        case Form.ID:
            write_line(step["event_seq"])
        case Form.TABLE:
            said = (step.get(name) for name in ("tool", "result", "code", "reason"))
            words = [cell(word) for word in said if word is not None]
            head = f"{cell(step['recorded_at'])}  {step['event_seq']:>4}  step {step['loop_step']:<3}"
            write_text(f"{head}  {step['kind']:<12} {' '.join(words)}".rstrip())
