"""Station 6: a third thread that gives the lanes away when the event loop hangs (DESIGN 4).

A worker whose loop hangs is a zombie with good manners: its poll thread goes on polling, so the group keeps
giving it lanes that it does not serve. The watchdog has the poll thread close the consumer; if even that does
not happen within the session timeout, the process exits, and a restart recovers from Postgres.

It counts rounds, not seconds: a process that was frozen as a whole (SIGSTOP, a suspended machine) wakes with
its watchdog, finds a long time gone and nothing wrong.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable
from typing import Final, NoReturn

from session_custody.ports import IntakeControl
from session_custody.telemetry import STATION_ERRORS, log

ROUNDS: Final = 10
"""Questions asked, without an answer to any, until the loop counts as stalled."""
EXIT_STATUS: Final = 70


def _exit(status: int) -> NoReturn:
    os._exit(status)


class Watchdog:
    """`start` on the event loop; `stop` from anywhere, before the loop ends."""

    def __init__(
        self,
        intake: IntakeControl,
        stall_after_s: float,
        session_timeout_s: float,
        leave_process: Callable[[int], None] = _exit,
    ) -> None:
        self._intake = intake
        self._round_s = stall_after_s / ROUNDS
        self._session_rounds = max(1, round(session_timeout_s / self._round_s))
        self._leave_process = leave_process
        self._answered = threading.Event()
        self._stopped = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="custody-watchdog", daemon=True)

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()

    def _run(self) -> None:
        unanswered = 0
        self._ask()
        while not self._stopped.wait(self._round_s):
            if self._answered.is_set():
                unanswered = 0
                self._ask()
                continue
            unanswered += 1
            if unanswered == ROUNDS:
                self._give_away()

    def _ask(self) -> None:
        self._answered.clear()
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._answered.set)

    def _give_away(self) -> None:
        STATION_ERRORS.labels("lane", "loop_stalled").inc()
        log.error("the event loop does not answer: this worker gives its lanes away")
        self._intake.abandon()
        for _ in range(self._session_rounds):
            if self._intake.abandoned() or self._stopped.wait(self._round_s):
                return
        log.error("the consumer could not be closed within the session timeout: the process exits")
        self._leave_process(EXIT_STATUS)
