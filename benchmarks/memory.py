"""What runs hold in memory: one that is being driven, and one that waits."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from dataclasses import dataclass
from typing import Final

from benchmarks.product import Product, Script
from session_custody.core.errors import Unavailable
from session_custody.core.inference import InferenceRequest, Proposal
from session_custody.core.pin import RunId
from session_custody.ports import Inbox

HELD_AT_STEP: Final = 6
LOAD_CHUNK: Final = 250


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes a run by tracemalloc. `active`: held at step 6, with its conversation in memory.

    `waiting`: after it was parked; `waiting_tasks` are tasks that it keeps.
    """

    runs: int
    active_bytes: float
    waiting_bytes: float
    waiting_tasks: int


class Held:
    """Answers as the script does, but holds every run at one step until it is told to go on."""

    def __init__(self) -> None:
        self._script = Script()
        self._go = asyncio.Event()
        self._arrived = 0
        self._changed = asyncio.Event()

    async def propose(self, request: InferenceRequest) -> Proposal:
        if request.trace.loop_step >= HELD_AT_STEP:
            self._arrived += 1
            self._changed.set()
            del request  # a client of a gateway has sent it by now
            await self._go.wait()
            raise Unavailable("model", "the run is to be parked")
        return await self._script.propose(request)

    async def arrived(self, runs: int) -> None:
        while self._arrived < runs:
            self._changed.clear()
            await self._changed.wait()

    def go(self) -> None:
        self._go.set()


async def memory(product: Product, runs: int) -> Memory:
    """Drive runs half way, look, let them park, look again."""
    ids = [RunId(run_id) for run_id in await product.prepare("read", runs)]
    held = Held()
    stations = await product.open(held)
    warm, *rest = ids
    try:
        tracemalloc.start()
        for run in await stations.store.load_runs([warm]):
            first = asyncio.create_task(
                stations.driver.drive(run, product.fence_of(run), Inbox(), suspects=False)
            )
            await held.arrived(1)
        tasks_before, before = len(asyncio.all_tasks()), _traced()
        driving = []
        for at in range(0, len(rest), LOAD_CHUNK):
            for run in await stations.store.load_runs(rest[at : at + LOAD_CHUNK]):
                drive = stations.driver.drive(run, product.fence_of(run), Inbox(), suspects=False)
                driving.append(asyncio.create_task(drive))
            del run
        await held.arrived(runs)
        active = _traced() - before
        held.go()
        await asyncio.gather(first, *driving)
        driving.clear()
        await asyncio.sleep(0)
        waiting, tasks = _traced() - before, len(asyncio.all_tasks())
    finally:
        tracemalloc.stop()
        await stations.close()
    return Memory(runs, active / len(rest), max(waiting, 0) / len(rest), max(tasks - tasks_before + 1, 0))


def _traced() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]
