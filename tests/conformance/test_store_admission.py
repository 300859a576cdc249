"""What every run store promises about admission (I1, I13, I16; DESIGN 5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from session_custody.core.errors import LaneLost, RejectReason, RowRefused
from session_custody.core.pin import RunId
from session_custody.core.run import Status
from session_custody.ports import (
    Admitted,
    KnownRun,
    OffsetMoved,
    OutboxDeadLetter,
    OutboxEvent,
    RunStore,
    SignalKind,
)
from tests.conformance import values
from tests.conformance.conftest import Run

Heard = list[tuple[frozenset[RunId], Sequence[KnownRun]]]


def test_one_run_per_correlation_id_the_first_start_wins(on_store: Run) -> None:
    """I1: from another lane and with another pin too; `decide` is told what stands."""

    async def scenario(store: RunStore) -> None:
        first, second = await values.own_lane(store), await values.own_lane(store)
        start = values.new_run()
        run_id = RunId(start.facts.run_id)
        await values.admitted(store, first, start)
        heard: Heard = []
        again = values.new_run(run_id, sent_digest=b"\x07" * 32)
        answer = await store.admit(values.batch(second, [again], heard=heard))
        assert answer == Admitted(frozenset(), 0, 0, input_offset=1)
        known = KnownRun(run_id, first.lane_id, start.sent_digest, Status.QUEUED, "u-17", "bank-a")
        assert heard == [(frozenset(), [known])]
        (loaded,) = await store.load_runs([run_id])
        assert loaded.pin == start.pin
        assert await store.known_runs([run_id, values.fresh_id()]) == [known]

    on_store(scenario)


def test_runs_and_dead_letters_share_one_sequence_in_the_batchs_order(on_store: Run) -> None:
    async def scenario(store: RunStore) -> None:
        fence = await values.own_lane(store)
        # The ids sort the other way round: numbers follow the batch, not the ids.
        runs = [
            values.new_run(RunId(f"{name}-{values.fresh_id()}"), order=n) for name, n in (("z", 0), ("a", 2))
        ]
        letters = [values.dead_letter(1, 1), values.dead_letter(3, 3, reason=RejectReason.TOO_LARGE)]
        answer = await store.admit(values.batch(fence, runs, dead_letters=letters))
        assert answer == Admitted(frozenset(RunId(run.facts.run_id) for run in runs), 0, 2, input_offset=4)
        rows = await store.outbox(fence.lane_id, 0, 10)
        assert [row.lane_seq for row in rows] == [1, 2, 3, 4]
        first, refused, second, large = rows
        assert isinstance(first, OutboxEvent)
        assert isinstance(second, OutboxEvent)
        assert (first.run_id, second.run_id) == (runs[0].facts.run_id, runs[1].facts.run_id)
        assert isinstance(refused, OutboxDeadLetter)
        assert (refused.key, refused.value) == (letters[0].key, letters[0].value)
        assert list(refused.headers) == list(letters[0].headers)
        assert (refused.topic, refused.partition, refused.offset) == (fence.key.topic, fence.key.partition, 1)
        assert isinstance(large, OutboxDeadLetter)
        assert large.hash != refused.hash
        assert [row.lane_seq for row in await store.outbox(fence.lane_id, 2, 1)] == [3]

    on_store(scenario)


def test_a_batch_that_is_not_where_the_lane_stands_is_sent_back(on_store: Run) -> None:
    async def scenario(store: RunStore) -> None:
        fence = await values.own_lane(store)
        await values.admitted(store, fence, values.new_run())
        late = values.new_run()
        assert await store.admit(values.batch(fence, [late], first=5)) == OffsetMoved(1, values.TOPIC_ID)
        other = replace(values.batch(fence, [late]), topic_id="generation-0")
        assert await store.admit(other) == OffsetMoved(1, values.TOPIC_ID)
        assert await store.load_runs([RunId(late.facts.run_id)]) == []
        await store.set_topic_generation(fence, "generation-2", 0)
        assert await store.admit(values.batch(fence, [late], first=1)) == OffsetMoved(0, "generation-2")
        assert isinstance(await store.admit(values.batch(fence, [late], first=0)), Admitted)

    on_store(scenario)


def test_an_empty_batch_moves_the_offset(on_store: Run) -> None:
    async def scenario(store: RunStore) -> None:
        fence = await values.own_lane(store)
        assert await store.admit(values.batch(fence, records=7)) == Admitted(frozenset(), 0, 0, 7)
        assert (await store.read_lane(fence.lane_id)).input_offset == 7
        assert fence.input_offset == 7

    on_store(scenario)


def test_a_fenced_owner_admits_nothing(on_store: Run) -> None:
    async def scenario(store: RunStore) -> None:
        fence = await values.own_lane(store)
        await values.take(store, fence.key)
        start = values.new_run()
        with pytest.raises(LaneLost):
            await store.admit(values.batch(fence, [start]))
        assert fence.lost
        assert await store.load_runs([RunId(start.facts.run_id)]) == []

    on_store(scenario)


def test_the_record_at_fault_is_named_and_nothing_of_its_batch_is_written(on_store: Run) -> None:
    """I16: intake takes it out and offers the rest."""

    async def scenario(store: RunStore) -> None:
        fence = await values.own_lane(store)
        runs = [values.new_run(order=order) for order in range(9)]
        runs[6] = replace(runs[6], input="raw \x00")
        with pytest.raises(RowRefused) as refused:
            await store.admit(values.batch(fence, runs))
        assert refused.value.order == 6
        runs[6] = replace(runs[6], input="half \ud83d")
        with pytest.raises(RowRefused) as refused:
            await store.admit(values.batch(fence, runs))
        assert refused.value.order == 6
        assert await store.load_runs([RunId(run.facts.run_id) for run in runs]) == []
        del runs[6]
        assert isinstance(await store.admit(values.batch(fence, runs, records=9)), Admitted)

    on_store(scenario)


def test_the_same_resume_counts_once(on_store: Run) -> None:
    """The same correlation_id, source, id and digest: two producers may both count from 1."""

    async def scenario(store: RunStore) -> None:
        fence = await values.own_lane(store)
        (run,) = await values.admitted(store, fence, values.new_run())
        run_id = RunId(run.facts.run_id)
        told = values.signal(
            run_id, source="kafka", dedupe_source="ui", dedupe_id="1", dedupe_digest=b"\x01" * 32
        )
        other = replace(told, dedupe_digest=b"\x02" * 32)
        answer = await store.admit(values.batch(fence, signals=[told, other]))
        assert answer == Admitted(frozenset(), 2, 0, input_offset=3)
        again = await store.admit(values.batch(fence, signals=[told]))
        assert again == Admitted(frozenset(), 0, 0, input_offset=4)
        assert len(await store.signals_for([run_id])) == 2

    on_store(scenario)


def test_a_resume_before_its_start_is_held_and_then_heard(on_store: Run) -> None:
    """Start and resume may arrive on two partitions, in either order."""

    async def scenario(store: RunStore) -> None:
        here, there = await values.own_lane(store), await values.own_lane(store)
        start = values.new_run()
        run_id = RunId(start.facts.run_id)
        early = values.signal(
            run_id, SignalKind.CANCEL, source="kafka", held=True, topic_id=values.TOPIC_ID, offset=0,
            raw_key=b"k", raw_value=b"v", body={"reason": "customer called"}, causation_id="ce-1",
        )  # fmt: skip
        await store.admit(values.batch(there, signals=[early]))
        assert await store.due_runs([here.lane_id, there.lane_id], [], 10) == []
        (run,) = await values.admitted(store, here, start)
        assert [(one.kind, one.body) for one in run.signals] == [(SignalKind.CANCEL, early.body)]
        assert await store.due_runs([here.lane_id], [], 10) == [(run_id, here.lane_id)]

    on_store(scenario)


def test_a_resume_whose_start_never_comes_is_dead_lettered_where_it_arrived(on_store: Run) -> None:
    """I13: past the hold by its record's time, with its exact bytes, in the lane's sequence."""

    async def scenario(store: RunStore) -> None:
        fence = await values.own_lane(store)
        held = values.signal(
            values.fresh_id(), source="kafka", held=True, topic_id=values.TOPIC_ID, offset=0, raw_key=b"k",
            raw_value=b"\xff", raw_headers=[("h", b"\x01")],
            recorded_at=datetime.now(UTC) - timedelta(days=8),
        )  # fmt: skip
        young = replace(held, run_id=values.fresh_id(), offset=1, recorded_at=datetime.now(UTC))
        (run,) = await values.admitted(store, fence, values.new_run())
        bound = replace(held, run_id=RunId(run.facts.run_id), offset=2)
        await store.admit(values.batch(fence, signals=[held, young, bound]))
        assert await store.sweep_orphans(fence, hold_s=7 * 86_400) == 1
        assert await store.sweep_orphans(fence, hold_s=7 * 86_400) == 0
        _, letter = await store.outbox(fence.lane_id, 0, 10)
        assert isinstance(letter, OutboxDeadLetter)
        assert (letter.reason, letter.run_id) == (RejectReason.ORPHAN_RESUME, held.run_id)
        assert (letter.key, letter.value, list(letter.headers)) == (b"k", b"\xff", [("h", b"\x01")])
        assert (letter.offset, letter.lane_seq, fence.last_seen) == (0, 2, 2)

    on_store(scenario)
