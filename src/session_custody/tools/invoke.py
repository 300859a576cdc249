"""Station 10: one call of a tool's function, bounded in time. Imported by the gate alone (I12).

Theory of operation. A call may outlive the interest in it: a thread cannot be stopped, and a coroutine may
refuse to be. So whoever waits and the call itself are apart. `Flight` watches the call's future: while
somebody waits, its end is theirs; once nobody does (time is up, or the waiting task was cancelled), the end
goes to `on_late`. `on_end` comes first in either case: whoever hears of the end finds the call no longer
running.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from session_custody.clock import boottime
from session_custody.tools.threads import Raised, ThreadCall, ToolThreads, Value

CANCEL_GRACE_S: Final = 0.5
"""What a coroutine that is out of time gets to end. Below the not_after margin."""


@dataclass(frozen=True, slots=True)
class OutOfTime:
    """`still_running`: it could not be stopped and may still take effect."""

    still_running: bool


@dataclass(frozen=True, slots=True)
class NotBegun:
    """No thread took it in time; none will."""


CallEnd = Value | Raised | OutOfTime | NotBegun


@dataclass(frozen=True, slots=True)
class Watch:
    """Who is told. Both on the event loop; `on_late` gets the end of a call that nobody waits for."""

    on_end: Callable[[], None]
    on_late: Callable[[Value | Raised], None]


class _Flight:
    def __init__(self, future: asyncio.Future[Value | Raised], watch: Watch) -> None:
        self._future = future
        self._watch = watch
        self._waited_for = True
        self._over = False
        future.add_done_callback(self._landed)

    def _landed(self, future: asyncio.Future[Value | Raised]) -> None:
        self.over()
        if not self._waited_for:
            self._watch.on_late(_end_of(future))

    async def end(self, timeout_s: float) -> Value | Raised | None:
        """Its end within this time; None: not yet."""
        await asyncio.wait({self._future}, timeout=timeout_s)
        return _end_of(self._future) if self._future.done() else None

    def over(self) -> None:
        """It runs no more; said once."""
        if not self._over:
            self._over = True
            self._watch.on_end()

    def leave(self) -> bool:
        """Nobody waits any more. True: it goes on without us."""
        self._waited_for = False
        return not self._future.done()


def _end_of(future: asyncio.Future[Value | Raised]) -> Value | Raised:
    return Raised(asyncio.CancelledError()) if future.cancelled() else future.result()


async def call_async(function: Callable[[], Awaitable[Any]], timeout_s: float, watch: Watch) -> CallEnd:
    """Call a coroutine function. Cancelling this cancels it and gives its end to `on_late`."""
    task = asyncio.ensure_future(_guarded(function))
    flight = _Flight(task, watch)
    try:
        end = await flight.end(timeout_s)
        if end is not None:
            return end
        task.cancel()
        end = await flight.end(CANCEL_GRACE_S)
    except asyncio.CancelledError:
        task.cancel()
        flight.leave()
        raise
    # A value is a value, however late. What it raised is not its word any more: we stopped it.
    if isinstance(end, Value):
        return end
    return OutOfTime(still_running=flight.leave())


async def _guarded(function: Callable[[], Awaitable[Any]]) -> Value | Raised:
    try:
        return Value(await function())
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # noqa: BLE001 - asyncio would let SystemExit of a tool end the worker
        return Raised(error)


async def call_sync(
    threads: ToolThreads,
    function: Callable[[], Any],
    *,
    start_by: float,
    timeout_s: float,
    watch: Watch,
) -> CallEnd:
    """Call a plain function on a thread. `start_by` is CLOCK_BOOTTIME; the timeout counts from its begin."""
    call = ThreadCall(function, start_by, asyncio.get_running_loop())
    flight = _Flight(call.ended, watch)
    threads.submit(call)
    try:
        if not await _begins(call, start_by):
            flight.over()
            return NotBegun()
        end = await flight.end(timeout_s)
    except asyncio.CancelledError:
        if call.abandon():
            flight.over()
        else:
            flight.leave()
        raise
    return end if end is not None else OutOfTime(still_running=flight.leave())


async def _begins(call: ThreadCall, start_by: float) -> bool:
    try:
        async with asyncio.timeout(max(start_by - boottime(), 0.0)):
            await call.left_queue.wait()
    except TimeoutError:
        return not call.abandon()
    return call.begun
