"""What every run store promises about lanes, the floor and contracts (DESIGN 4, 6, 10)."""

from __future__ import annotations

from uuid import uuid4

import pytest

from session_custody.core.errors import ContractConflict, LaneLost
from session_custody.core.events import EventKind
from session_custody.core.manifest import ContractKind
from session_custody.core.run import Status
from session_custody.ports import LaneKey, RunStore
from tests.conformance import values
from tests.conformance.conftest import Run


def test_a_lane_is_its_cluster_topic_and_partition(on_store: Run) -> None:
    async def scenario(store: RunStore) -> None:
        key = LaneKey("cluster", "runs", 3)
        row = await store.ensure_lane(key, "generation-1", 3)
        assert (row.key, row.epoch, row.owner, row.next_seq) == (key, 0, None, 1)
        assert (row.input_offset, row.published_seq, row.cursor_partition) == (0, 0, 3)
        # A later look changes nothing: the generation moves fenced, with the offset.
        assert await store.ensure_lane(key, "generation-2", 5) == row
        assert await store.read_lane(row.lane_id) == row
        other = await store.ensure_lane(LaneKey("cluster", "runs", 4), "generation-1", 4)
        assert other.lane_id != row.lane_id

    on_store(scenario)


def test_acquire_compares_the_epoch_it_read(on_store: Run) -> None:
    """A first try that executes after its retry finds another epoch, and nothing."""

    async def scenario(store: RunStore) -> None:
        row = await store.ensure_lane(LaneKey("cluster", "runs", 0), "generation-1", 0)
        lost_try, retry = uuid4(), uuid4()
        taken = await store.acquire(row.lane_id, retry, 0, [])
        assert taken is not None
        assert (taken.epoch, taken.owner) == (1, retry)
        assert await store.acquire(row.lane_id, lost_try, 0, []) is None
        assert (await store.read_lane(row.lane_id)).owner == retry

    on_store(scenario)


def test_unclean_ends_are_counted_but_not_between_my_own(on_store: Run) -> None:
    async def scenario(store: RunStore) -> None:
        fence = await values.own_lane(store)
        mine, stranger = uuid4(), uuid4()
        taken = await store.acquire(fence.lane_id, mine, 1, [])
        assert taken is not None
        assert taken.unclean_ends == 1
        again = await store.acquire(fence.lane_id, stranger, 2, [mine])
        assert again is not None
        assert again.unclean_ends == 1
        fence = await values.take(store, fence.key)
        assert (await store.heartbeat(fence, clear_unclean=False)).unclean_ends == 2
        beat = await store.heartbeat(fence, clear_unclean=True)
        assert beat.unclean_ends == 0
        assert beat.last_alive is not None
        await store.release(fence)
        clean = await store.acquire(fence.lane_id, uuid4(), beat.epoch, [])
        assert clean is not None
        assert clean.unclean_ends == 0

    on_store(scenario)


def test_an_idle_owner_learns_by_its_heartbeat(on_store: Run) -> None:
    async def scenario(store: RunStore) -> None:
        fence = await values.own_lane(store)
        heard: list[str] = []
        fence.on_lost = lambda: heard.append("lost")
        successor = await values.take(store, fence.key)
        with pytest.raises(LaneLost):
            await store.heartbeat(fence, clear_unclean=True)
        assert heard == ["lost"]
        await store.release(fence)
        assert (await store.read_lane(fence.lane_id)).owner == successor.owner

    on_store(scenario)


def test_the_floor_only_rises_and_names_a_row(on_store: Run) -> None:
    """A lost floor may be written after its retry."""

    async def scenario(store: RunStore) -> None:
        fence = await values.own_lane(store)
        (run,) = await values.admitted(store, fence, values.new_run())
        await values.step(store, fence, run, EventKind.DECIDED, EventKind.TOOL_RESULT)
        rows = await store.outbox(fence.lane_id, 0, 10)
        await store.save_floor(fence, 2, rows[1].hash, 40)
        await store.save_floor(fence, 1, rows[0].hash, 20)
        check = await store.check_cursor(fence.lane_id, 2)
        assert (check.published_seq, check.published_hash, check.row_hash) == (2, rows[1].hash, rows[1].hash)
        assert (check.owner, check.epoch, check.next_seq) == (fence.owner, fence.epoch, 4)
        assert (await store.read_lane(fence.lane_id)).cursor_offset == 40
        assert (await store.check_cursor(fence.lane_id, 9)).row_hash is None
        assert (await store.check_cursor(fence.lane_id, None)).row_hash is None
        assert (await store.progress()).unpublished == 1

    on_store(scenario)


def test_went_back_stays_until_an_operator_speaks(on_store: Run) -> None:
    async def scenario(store: RunStore) -> None:
        fence = await values.own_lane(store)
        await store.mark_went_back(fence)
        assert fence.went_back
        successor = await values.take(store, fence.key)
        assert (await store.heartbeat(successor, clear_unclean=True)).went_back
        assert successor.went_back

    on_store(scenario)


def test_progress_counts_in_one_look(on_store: Run) -> None:
    async def scenario(store: RunStore) -> None:
        fence = await values.own_lane(store)
        runs = await values.admitted(store, fence, *(values.new_run(order=n) for n in range(3)))
        began = await store.now()
        await values.step(store, fence, runs[0], EventKind.INTENT, pending=values.PENDING)
        await values.step(store, fence, runs[1], EventKind.OUTCOME, status=Status.SUCCEEDED)
        now = await store.progress()
        assert now.by_status == {Status.QUEUED: 1, Status.RUNNING: 1, Status.SUCCEEDED: 1}
        assert now.mid_loop == {runs[0].facts.run_id}
        assert now.pending_keys == {values.PENDING.key}
        assert now.unpublished == 5
        ids = [run.facts.run_id for run in runs]
        assert set(await store.first_steps_after(ids, began)) == set(ids[:2])

    on_store(scenario)


def test_a_published_contract_never_changes(on_store: Run) -> None:
    """I3: there is no call without a version; `latest` is the last one published, whatever its number."""

    async def scenario(store: RunStore) -> None:
        kind = ContractKind.MANIFEST
        assert await store.latest_version(kind, "tools") is None
        assert await store.publish_contract(kind, "tools", "2", "body 2", "d2")
        assert await store.publish_contract(kind, "tools", "10", "body 10", "d10")
        assert await store.publish_contract(kind, "tools", "1", "body 1", "d1")
        assert not await store.publish_contract(kind, "tools", "2", "body 2", "d2")
        with pytest.raises(ContractConflict):
            await store.publish_contract(kind, "tools", "2", "other", "d3")
        assert await store.load_contract(kind, "tools", "2") == ("body 2", "d2")
        assert await store.load_contract(ContractKind.POLICY, "tools", "2") is None
        assert await store.latest_version(kind, "tools") == "1"

    on_store(scenario)
