"""What every run store promises about signals and recovery (I4, I8, I15; DESIGN 4, 5, 8)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from session_custody.core.errors import SignalRefused
from session_custody.core.events import EventKind
from session_custody.core.pin import RunId
from session_custody.core.run import ParkReason, Status
from session_custody.ports import CommitAnswer, InSeconds, RunStore, SignalKind
from tests.conformance import values
from tests.conformance.conftest import Run


def test_a_signal_is_consumed_once_and_with_its_row(on_store: Run) -> None:
    async def scenario(store: RunStore) -> None:
        fence = await values.own_lane(store)
        (run,) = await values.admitted(store, fence, values.new_run())
        run_id = RunId(run.facts.run_id)
        first = await store.insert_signal(values.signal(run_id, causation_id="ce-7"))
        second = await store.insert_signal(values.signal(run_id, SignalKind.PARK))
        assert first is not None
        assert second is not None
        stale = replace(run, checkpoint=replace(run.checkpoint, version=9))
        refused = values.commit(fence, stale, EventKind.RESUMED, consumes=(first,))
        assert await store.commit(refused) is CommitAnswer.STALE
        assert [one.signal_id for one in await store.signals_for([run_id])] == [first, second]
        run = await values.step(store, fence, run, EventKind.RESUMED, consumes=(first,))
        assert [one.signal_id for one in run.signals] == [second]
        twice = values.commit(fence, run, EventKind.RESUMED, consumes=(first, second))
        assert await store.commit(twice) is CommitAnswer.STALE
        assert [one.signal_id for one in await store.signals_for([run_id])] == [second]
        caused = await store.outbox(fence.lane_id, 1, 10)
        assert [getattr(row, "causation_id", None) for row in caused] == ["ce-7"]

    on_store(scenario)


def test_the_same_signal_is_inserted_once(on_store: Run) -> None:
    async def scenario(store: RunStore) -> None:
        fence = await values.own_lane(store)
        (run,) = await values.admitted(store, fence, values.new_run())
        late = values.signal(
            RunId(run.facts.run_id), SignalKind.TOOL_RESULT, source="tool", dedupe_source="tool",
            dedupe_id="run/1/0",
        )  # fmt: skip
        answers = await asyncio.gather(*(store.insert_signal(late) for _ in range(4)))
        assert len([answer for answer in answers if answer is not None]) == 1

    on_store(scenario)


def test_a_signal_to_nobody_is_refused(on_store: Run) -> None:
    async def scenario(store: RunStore) -> None:
        with pytest.raises(SignalRefused) as refused:
            await store.insert_signal(values.signal(values.fresh_id(), SignalKind.PARK))
        assert refused.value.code == "run_unknown"

    on_store(scenario)


def test_after_the_end_only_a_late_tool_result_is_heard(on_store: Run) -> None:
    async def scenario(store: RunStore) -> None:
        fence = await values.own_lane(store)
        (run,) = await values.admitted(store, fence, values.new_run())
        run_id = RunId(run.facts.run_id)
        run = await values.step(store, fence, run, EventKind.OUTCOME, status=Status.FAILED)
        with pytest.raises(SignalRefused) as refused:
            await store.insert_signal(values.signal(run_id, SignalKind.CANCEL))
        assert refused.value.code == "run_ended"
        late = await store.insert_signal(values.signal(run_id, SignalKind.TOOL_RESULT, source="tool"))
        assert late is not None
        assert await store.due_runs([fence.lane_id], [], 10) == [(run_id, fence.lane_id)]
        run = await values.step(
            store,
            fence,
            run,
            EventKind.SIGNAL_REFUSED,
            status=Status.FAILED,
            after_end=True,
            consumes=(late,),
        )
        assert await store.due_runs([fence.lane_id], [], 10) == []

    on_store(scenario)


def test_resolve_names_the_doubt_it_saw_and_not_done_waits_for_the_call(on_store: Run) -> None:
    """DESIGN 8: event_seq, not_after and call_running are checked where the signal is inserted."""

    async def scenario(store: RunStore) -> None:
        fence = await values.own_lane(store)
        (run,) = await values.admitted(store, fence, values.new_run())
        run_id = RunId(run.facts.run_id)

        async def code(event_seq: int, *, done: bool) -> str | None:
            body = {"event_seq": event_seq, "done": done, "reason": "seen in the ledger"}
            try:
                return (
                    "heard"
                    if await store.insert_signal(values.signal(run_id, SignalKind.RESOLVE, body=body))
                    else None
                )
            except SignalRefused as refusal:
                return refusal.code

        assert await code(1, done=True) == "not_in_doubt"
        run = await values.step(
            store, fence, run, EventKind.INTENT, EventKind.IN_DOUBT, status=Status.IN_DOUBT, doubt_seq=3,
            pending=values.PENDING, not_after=InSeconds(60), call_running=True,
        )  # fmt: skip
        assert await code(2, done=True) == "other_doubt"
        assert await code(3, done=False) == "call_running"
        run = await values.step(store, fence, run, status=Status.IN_DOUBT, call_running=False)
        assert await code(3, done=False) == "too_early"
        assert await code(3, done=True) == "heard"
        run = await values.step(store, fence, run, status=Status.IN_DOUBT, not_after=InSeconds(-1))
        assert await code(3, done=False) == "heard"

    on_store(scenario)


def test_due_runs_are_listed_woken_and_cancelled_then_answered_then_fresh(on_store: Run) -> None:
    async def scenario(store: RunStore) -> None:
        fence, other = await values.own_lane(store), await values.own_lane(store)
        names = ("fresh", "running", "woken", "asleep", "answered", "cancelled", "doubt", "ended", "expired")
        starts = [
            values.new_run(RunId(f"{name}-{values.fresh_id()}"), order=n) for n, name in enumerate(names)
        ]
        starts[-1] = replace(starts[-1], expires_at=datetime.now(UTC) - timedelta(seconds=1))
        runs = dict(zip(names, await values.admitted(store, fence, *starts), strict=True))
        await values.admitted(store, other, values.new_run())
        parked = {"status": Status.PARKED, "park_reason": ParkReason.MODEL_UNAVAILABLE}
        await values.step(store, fence, runs["running"], EventKind.DECIDED)
        await values.step(store, fence, runs["woken"], EventKind.PARKED, wake_at=InSeconds(-1), **parked)
        await values.step(store, fence, runs["asleep"], EventKind.PARKED, wake_at=InSeconds(60), **parked)
        for name, kind in (("answered", SignalKind.CONTINUE), ("cancelled", SignalKind.CANCEL)):
            await values.step(store, fence, runs[name], EventKind.PARKED, wake_at=InSeconds(60), **parked)
            await store.insert_signal(values.signal(RunId(runs[name].facts.run_id), kind))
        await values.step(store, fence, runs["doubt"], EventKind.IN_DOUBT, status=Status.IN_DOUBT)
        await values.step(store, fence, runs["ended"], EventKind.OUTCOME, status=Status.FAILED)
        await values.step(store, fence, runs["expired"], EventKind.PARKED, wake_at=InSeconds(60), **parked)

        async def due(limit: int = 10, live: tuple[str, ...] = ()) -> list[str]:
            found = await store.due_runs(
                [fence.lane_id], [RunId(runs[name].facts.run_id) for name in live], limit
            )
            assert {lane_id for _, lane_id in found} <= {fence.lane_id}
            return [run_id.split("-")[0] for run_id, _ in found]

        assert await due() == ["cancelled", "expired", "woken", "answered", "running", "fresh"]
        assert await due(live=("woken", "running")) == ["cancelled", "expired", "answered", "fresh"]
        assert await due(limit=2) == ["cancelled", "expired"]

    on_store(scenario)
