"""What every run store promises about admission and the commit (I1, I7, I8, I14; DESIGN 5, 6)."""

from __future__ import annotations

from session_custody.core.events import EventKind
from session_custody.ports import CommitAnswer, InSeconds, OutboxEvent, RunStore
from tests.conformance import values
from tests.conformance.conftest import Run


def test_a_start_is_admitted_loaded_and_published(on_store: Run) -> None:
    async def scenario(store: RunStore) -> None:
        fence = await values.own_lane(store)
        run = values.new_run()
        (loaded,) = await values.admitted(store, fence, run)
        assert loaded.facts == run.facts
        assert loaded.pin == run.pin
        assert loaded.input == run.input
        assert loaded.expires_at == run.expires_at
        assert loaded.checkpoint == run.checkpoint
        assert loaded.lane_id == fence.lane_id
        assert [(step.event_seq, step.kind) for step in loaded.steps] == [(1, EventKind.PINNED)]
        assert await store.due_runs([fence.lane_id], [], 10) == [(run.facts.run_id, fence.lane_id)]
        (row,) = await store.outbox(fence.lane_id, 0, 10)
        assert isinstance(row, OutboxEvent)
        assert (row.lane_seq, row.hash, row.body) == (1, run.events[0].hash, run.events[0].body)
        assert fence.input_offset == 1
        assert fence.last_seen == 1

    on_store(scenario)


def test_a_commit_writes_checkpoint_step_and_event_together(on_store: Run) -> None:
    async def scenario(store: RunStore) -> None:
        fence = await values.own_lane(store)
        (run,) = await values.admitted(store, fence, values.new_run())
        again = await values.step(
            store, fence, run, EventKind.DECIDED, EventKind.TOOL_RESULT, loop_step=1,
            working={"alert_id": "a\x00b"}, working_changed=True, last_tool="get_alert",
        )  # fmt: skip
        assert again.checkpoint.version == run.checkpoint.version + 1
        assert again.checkpoint.head_seq == 3
        assert again.checkpoint.working == {"alert_id": "a\x00b"}
        assert [step.loop_step for step in again.steps] == [0, 1, 1]
        assert [row.lane_seq for row in await store.outbox(fence.lane_id, 0, 10)] == [1, 2, 3]
        assert fence.last_seen == 3

    on_store(scenario)


def test_an_older_version_is_stale(on_store: Run) -> None:
    async def scenario(store: RunStore) -> None:
        fence = await values.own_lane(store)
        (run,) = await values.admitted(store, fence, values.new_run())
        await values.step(store, fence, run, EventKind.DECIDED)
        assert await store.commit(values.commit(fence, run, EventKind.DECIDED)) is CommitAnswer.STALE

    on_store(scenario)


def test_not_after_counts_from_the_database_and_ends_with_its_intent(on_store: Run) -> None:
    async def scenario(store: RunStore) -> None:
        fence = await values.own_lane(store)
        (run,) = await values.admitted(store, fence, values.new_run())
        before = await store.now()
        run = await values.step(
            store, fence, run, EventKind.INTENT, pending=values.PENDING, not_after=InSeconds(16)
        )
        assert run.checkpoint.pending == values.PENDING
        assert run.checkpoint.not_after is not None
        assert 16 <= (run.checkpoint.not_after - before).total_seconds() < 20
        kept = await values.step(store, fence, run, attempts=1)
        assert kept.checkpoint.not_after == run.checkpoint.not_after
        ended = await values.step(store, fence, kept, EventKind.TOOL_RESULT, pending=None)
        assert ended.checkpoint.not_after is None

    on_store(scenario)
