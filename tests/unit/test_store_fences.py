"""What an answer may say about a lane while something else of it is under way (DESIGN 4, 6)."""

from __future__ import annotations

import asyncio
from uuid import uuid4

from session_custody.core.pin import LaneId
from session_custody.ports import LaneFence, LaneKey
from session_custody.store.fences import Fences


def a_fence(lane_id: int = 1) -> LaneFence:
    return LaneFence(
        LaneId(lane_id), LaneKey("cluster", "runs", 0), uuid4(), 1, "generation-1", gate_open=True
    )


def test_an_answer_that_an_admission_overtook_does_not_send_intake_back() -> None:
    """Sent before the admission, read after it: its input_offset is older than what intake knows."""
    fences, fence = Fences(), a_fence()
    sent_before = fences.ticket(fence.lane_id)
    fences.admission_moves(fence.lane_id)
    sent_during = fences.ticket(fence.lane_id)
    fence.input_offset = 40
    fences.admission_moves(fence.lane_id)
    fences.saw(fence, sent_before, 7)
    fences.saw(fence, sent_during, 7)
    assert fence.input_offset == 40


def test_an_answer_that_nothing_overtook_tells_that_the_store_went_back() -> None:
    fences, fence = Fences(), a_fence()
    fence.input_offset = 40
    fences.saw(fence, fences.ticket(fence.lane_id), 33)
    assert fence.input_offset == 33


def test_a_broken_connection_closes_every_gate_and_a_loss_only_its_own() -> None:
    fences, one, two = Fences(), a_fence(1), a_fence(2)
    heard: list[str] = []
    for name, fence in (("one", one), ("two", two)):
        fence.on_broken = lambda name=name: heard.append(f"{name} broken")  # type: ignore[misc]
        fence.on_lost = lambda name=name: heard.append(f"{name} lost")  # type: ignore[misc]
        fences.know(fence)
    fences.lose(one)
    fences.lose(one)
    assert (one.gate_open, two.gate_open, heard) == (False, True, ["one lost"])
    fences.broken()
    assert (two.gate_open, heard) == (False, ["one lost", "two broken"])


def test_who_was_refused_waits_for_a_settling_before_it_counts_as_lost() -> None:
    async def scenario() -> None:
        fences, fence = Fences(), a_fence()
        sent = fence.owner
        await fences.settling.acquire()
        asking = asyncio.create_task(fences.moved_on(fence, sent))
        await asyncio.sleep(0)
        assert not asking.done()
        fence.owner = uuid4()
        fences.settling.release()
        assert await asking
        assert not await fences.moved_on(fence, fence.owner)

    asyncio.run(scenario())
