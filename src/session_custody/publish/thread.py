"""Station 12: the one thread in which a lane's librdkafka calls block.

Not `ThreadPoolExecutor`: the interpreter waits for its threads at exit, and a call to a broker that hangs
would hold a drained worker for the call's whole timeout. This thread is a daemon; what it leaves undone in
Kafka, the lane's next owner ends.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

Answer = TypeVar("Answer")


class OneThread:
    """Calls in order, one at a time. `end` lets the calls that were given before finish.

    Given work from the event loop only; started with the first of it.
    """

    def __init__(self, name: str) -> None:
        self._queue: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._started = False

    async def call(self, work: Callable[[], Answer]) -> Answer:
        """Run `work` in the thread. Cancelling stops the waiting, not the work."""
        return await asyncio.wrap_future(self.post(work))

    def post(self, work: Callable[[], Answer]) -> Future[Answer]:
        """Run `work` in the thread, without waiting."""
        future: Future[Answer] = Future()
        self._queue.put((future, work))
        if not self._started:
            self._started = True
            self._thread.start()
        return future

    def end(self) -> None:
        self._queue.put(None)

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            future, work = item
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(work())
            except BaseException as error:  # noqa: BLE001 - whoever waits for it gets it
                future.set_exception(error)
            del item, future, work
