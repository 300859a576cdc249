"""Station 10, threads for tools that are plain functions: bounded, and of their own.

Not a ThreadPoolExecutor: the interpreter joins its threads at exit, and a tool that hangs for ever would keep
the worker from ending. A hung call keeps its slot until it ends; whoever waits for a slot past its start
allowance is not started at all (DESIGN 8: a hung pool must not send late).
"""

from __future__ import annotations

import contextlib
import contextvars
import enum
import queue
import threading
from asyncio import AbstractEventLoop, Event, Future
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from session_custody.clock import boottime


@dataclass(frozen=True, slots=True)
class Value:
    """The call came back with this."""

    value: Any


@dataclass(frozen=True, slots=True)
class Raised:
    """The call ended by an exception, whichever. Who looks into it keeps its class only."""

    error: BaseException


class _State(enum.Enum):
    QUEUED = "queued"
    BEGUN = "begun"
    ABANDONED = "abandoned"


class ThreadCall:
    """One call on its way through the threads. Made and waited for on the event loop."""

    def __init__(self, function: Callable[[], Any], start_by: float, loop: AbstractEventLoop) -> None:
        self._function = function
        self._start_by = start_by
        self._loop = loop
        self._context = contextvars.copy_context()
        self._lock = threading.Lock()
        self._state = _State.QUEUED
        self.left_queue = Event()
        """Set when it begins or is given up."""
        self.ended: Future[Value | Raised] = loop.create_future()

    @property
    def begun(self) -> bool:
        return self._state is _State.BEGUN

    def abandon(self) -> bool:
        """True: it has not begun and never will. False: it has begun."""
        return self._leave_queue(_State.ABANDONED) is _State.ABANDONED

    def _leave_queue(self, wanted: _State) -> _State:
        # One moment decides for both sides: the thread that takes the call and the loop that gives it up.
        with self._lock:
            if self._state is _State.QUEUED:
                late = wanted is _State.BEGUN and boottime() > self._start_by
                self._state = _State.ABANDONED if late else wanted
            return self._state

    def run(self) -> None:
        """On a thread of the pool."""
        state = self._leave_queue(_State.BEGUN)
        self._tell(self.left_queue.set)
        if state is not _State.BEGUN:
            return
        try:
            end: Value | Raised = Value(self._context.run(self._function))
        except BaseException as error:  # noqa: BLE001 - SystemExit too: a tool does not end a worker
            end = Raised(error)
        self._tell(lambda: self._end(end))

    def _end(self, end: Value | Raised) -> None:
        if not self.ended.done():
            self.ended.set_result(end)

    def _tell(self, callback: Callable[[], object]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is there to be told
            self._loop.call_soon_threadsafe(callback)


class ToolThreads:
    """At most `threads_max` daemon threads, started when there is work and none is idle."""

    def __init__(self, threads_max: int) -> None:
        self._threads_max = threads_max
        self._calls: queue.SimpleQueue[ThreadCall | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._free = 0
        """Idle threads minus queued calls that will take them."""

    def submit(self, call: ThreadCall) -> None:
        with self._lock:
            self._free -= 1
            grow = self._free < 0 and self._threads < self._threads_max
            if grow:
                self._threads += 1
                self._free += 1
            number = self._threads
        self._calls.put(call)
        if grow:
            threading.Thread(target=self._work, name=f"custody-tool-{number}", daemon=True).start()

    def close(self) -> None:
        """Idle threads end; busy ones when their call does. Nothing waits for them."""
        with self._lock:
            threads = self._threads
        for _ in range(threads):
            self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call.run()
            del call  # its arguments and result are not kept while idle
            with self._lock:
                self._free += 1
