"""What every run store promises about admission and the commit (I1, I7, I8, I14; DESIGN 5, 6)."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from session_custody.core.events import EventKind
from session_custody.core.run import Status
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


def test_a_terminal_status_absorbs(on_store: Run) -> None:
    """I14: also for whoever says `after_end`, which may add an event and change no status."""

    async def scenario(store: RunStore) -> None:
        fence = await values.own_lane(store)
        (run,) = await values.admitted(store, fence, values.new_run())
        run = await values.step(store, fence, run, EventKind.OUTCOME, status=Status.SUCCEEDED)
        for status in (Status.FAILED, Status.RUNNING, Status.SUCCEEDED):
            late = values.commit(fence, run, EventKind.SIGNAL_REFUSED, status=status)
            assert await store.commit(late) is CommitAnswer.STALE
        late = values.commit(fence, run, EventKind.SIGNAL_REFUSED, status=Status.CANCELLED, after_end=True)
        assert await store.commit(late) is CommitAnswer.STALE
        run = await values.step(
            store, fence, run, EventKind.SIGNAL_REFUSED, status=Status.SUCCEEDED, after_end=True
        )
        assert run.checkpoint.status is Status.SUCCEEDED
        assert [one.kind for one in run.steps][-1] is EventKind.SIGNAL_REFUSED
        assert await store.due_runs([fence.lane_id], [], 10) == []

    on_store(scenario)


def test_no_terminal_status_stands_over_a_pending_write(on_store: Run) -> None:
    """I14, the other half."""

    async def scenario(store: RunStore) -> None:
        fence = await values.own_lane(store)
        (run,) = await values.admitted(store, fence, values.new_run())
        over = values.commit(fence, run, EventKind.OUTCOME, status=Status.FAILED, pending=values.PENDING)
        assert await store.commit(over) is CommitAnswer.UNSTORABLE
        assert (await values.reload(store, run)).checkpoint == run.checkpoint

    on_store(scenario)


def test_a_row_that_cannot_be_stored_leaves_its_neighbours_alone(on_store: Run) -> None:
    """I16: NUL in text, a lone surrogate and a broken rule, each in a group with good ones."""

    async def scenario(store: RunStore) -> None:
        fence = await values.own_lane(store)
        runs = await values.admitted(store, fence, *(values.new_run(order=n) for n in range(8)))
        commits = [values.commit(fence, run, EventKind.TOOL_RESULT) for run in runs]
        commits[1] = replace(commits[1], events=(values.event(2, record="raw \x00"),))
        commits[3] = replace(commits[3], events=(values.event(2, record="half \ud83d"),))
        commits[6] = replace(
            commits[6],
            checkpoint=replace(commits[6].checkpoint, status=Status.FAILED, pending=values.PENDING),
        )
        answers = await asyncio.gather(*(store.commit(one) for one in commits))
        assert [answer is CommitAnswer.UNSTORABLE for answer in answers] == [n in (1, 3, 6) for n in range(8)]
        assert answers.count(CommitAnswer.COMMITTED) == 5
        rows = await store.outbox(fence.lane_id, 0, 100)
        assert [row.lane_seq for row in rows] == list(range(1, 8 + 5 + 1))

    on_store(scenario)


def test_stale_rows_drop_out_and_survivors_are_numbered_densely(on_store: Run) -> None:
    async def scenario(store: RunStore) -> None:
        fence = await values.own_lane(store)
        runs = await values.admitted(store, fence, *(values.new_run(order=n) for n in range(6)))
        moved = [await values.step(store, fence, run, EventKind.DECIDED) for run in runs[:3]]
        offers = [*runs[:3], *moved, *runs[3:]]
        answers = await asyncio.gather(
            *(store.commit(values.commit(fence, run, EventKind.TOOL_RESULT)) for run in offers)
        )
        assert answers == [CommitAnswer.STALE] * 3 + [CommitAnswer.COMMITTED] * 6
        rows = await store.outbox(fence.lane_id, 0, 100)
        assert [row.lane_seq for row in rows] == list(range(1, 6 + 3 + 6 + 1))
        by_run: dict[str, list[int]] = {}
        for row in rows:
            assert isinstance(row, OutboxEvent)
            by_run.setdefault(row.run_id, []).append(row.event_seq)
        assert all(seqs == list(range(1, len(seqs) + 1)) for seqs in by_run.values())

    on_store(scenario)


def test_lanes_are_numbered_each_for_itself(on_store: Run) -> None:
    async def scenario(store: RunStore) -> None:
        topic = values.fresh_id("topic")
        fences = [await values.own_lane(store, number, topic) for number in range(3)]
        runs = [
            (fence, run)
            for fence in fences
            for run in await values.admitted(store, fence, *(values.new_run(order=n) for n in range(4)))
        ]
        for _ in range(5):
            answers = await asyncio.gather(
                *(store.commit(values.commit(f, run, EventKind.DECIDED)) for f, run in runs)
            )
            assert set(answers) == {CommitAnswer.COMMITTED}
            runs = [(fence, await values.reload(store, run)) for fence, run in runs]
        for fence in fences:
            rows = await store.outbox(fence.lane_id, 0, 1_000)
            assert [row.lane_seq for row in rows] == list(range(1, 4 + 20 + 1))
            assert fence.last_seen == 24

    on_store(scenario)


def test_a_fenced_owner_commits_nothing_and_hears_it(on_store: Run) -> None:
    """I8: neighbours of other lanes in the same group commit."""

    async def scenario(store: RunStore) -> None:
        lost, kept = await values.own_lane(store), await values.own_lane(store)
        (run,) = await values.admitted(store, lost, values.new_run())
        (other,) = await values.admitted(store, kept, values.new_run())
        heard: list[str] = []
        lost.on_lost = lambda: heard.append("lost")
        successor = await values.take(store, lost.key)
        answers = tuple(
            await asyncio.gather(
                store.commit(values.commit(lost, run, EventKind.DECIDED)),
                store.commit(values.commit(kept, other, EventKind.DECIDED)),
            )
        )
        assert answers == (CommitAnswer.LANE_LOST, CommitAnswer.COMMITTED)
        assert (lost.lost, lost.gate_open, heard) == (True, False, ["lost"])
        assert await store.commit(values.commit(lost, run, EventKind.DECIDED)) is CommitAnswer.LANE_LOST
        await values.step(store, successor, run, EventKind.DECIDED)

    on_store(scenario)


def test_a_run_belongs_to_the_lane_it_was_admitted_on(on_store: Run) -> None:
    async def scenario(store: RunStore) -> None:
        first, second = await values.own_lane(store), await values.own_lane(store)
        (run,) = await values.admitted(store, first, values.new_run())
        assert await store.commit(values.commit(second, run, EventKind.DECIDED)) is CommitAnswer.STALE

    on_store(scenario)


def test_commits_ring_the_publishers_bell_when_they_numbered_something(on_store: Run) -> None:
    async def scenario(store: RunStore) -> None:
        fence = await values.own_lane(store)
        rung: list[int] = []
        fence.wake = lambda: rung.append(fence.last_seen)
        (run,) = await values.admitted(store, fence, values.new_run())
        run = await values.step(store, fence, run, suspect_count=1)
        assert rung == [1]
        await values.step(store, fence, run, EventKind.DECIDED)
        assert rung == [1, 2]

    on_store(scenario)


def test_what_was_seen_and_is_not_there_marks_the_lane(on_store: Run) -> None:
    """DESIGN 6: also when every row is refused; only adopt-floor clears it."""

    async def scenario(store: RunStore) -> None:
        fence = await values.own_lane(store)
        (run,) = await values.admitted(store, fence, values.new_run())
        fence.last_seen = 7
        stale = replace(run, checkpoint=replace(run.checkpoint, version=99))
        assert await store.commit(values.commit(fence, stale, EventKind.DECIDED)) is CommitAnswer.STALE
        assert fence.went_back
        assert (await store.read_lane(fence.lane_id)).went_back
        successor = await values.take(store, fence.key)
        assert (await store.check_cursor(successor.lane_id, None)).went_back

    on_store(scenario)
