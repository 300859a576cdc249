"""The driver against small stations: what it commits, what it does when a commit is refused (DESIGN 6, 8)."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping

import pytest

from session_custody import faults
from session_custody.core.errors import LaneLost, Unavailable
from session_custody.core.inference import FinalAnswer
from session_custody.core.run import Status
from session_custody.ports import CommitAnswer, InSeconds, Keep, RunCommit, Send, ToolErrored, Uncertain
from tests.unit.driver_stations import Stations, a_run
from tests.unit.loop_world import call, turn


def drive(stations: Stations) -> None:
    asyncio.run(asyncio.wait_for(stations.drive(), timeout=30))


def test_a_run_goes_from_queued_to_its_signed_outcome() -> None:
    stations = Stations(turn(call("read"), call("key")), FinalAnswer("done"))
    drive(stations)
    assert stations.kinds == ["decided", "tool_result", "intent", "tool_result", "decided", "outcome"]
    assert [c.checkpoint.version for c in stations.store.commits] == [1, 2, 3]
    assert [e.event_seq for e in stations.store.events] == [2, 3, 4, 5, 6, 7]
    outcome = stations.store.events[-1]
    assert outcome.signature == outcome.hash == hashlib.sha256(outcome.body).digest()
    assert stations.store.commits[-1].checkpoint.status is Status.SUCCEEDED
    assert stations.store.commits[-1].checkpoint.head_hash == outcome.hash
    assert isinstance(stations.store.commits[0].not_after, InSeconds)
    assert [send.idempotency_key for send in stations.gate.sends] == ["run-1/1/0", "run-1/1/1"]
    assert stations.gate.sends[1].start_by is not None


def test_the_model_gets_masked_texts_only() -> None:
    stations = Stations(turn(call("read"), text="the word is hunter2"), FinalAnswer("done"))
    drive(stations)
    assert "hunter2" not in repr(stations.model.requests)
    assert "[masked]" in repr(stations.model.requests)


def test_while_postgres_is_away_the_same_commit_is_offered_and_nothing_else_happens() -> None:
    stations = Stations(turn(call("key")), FinalAnswer("done"))
    stations.store.answers = [CommitAnswer.COMMITTED, Unavailable("postgres"), Unavailable("postgres")]
    drive(stations)
    offers = stations.store.offers
    assert offers[1] is offers[2] is offers[3]
    assert len(stations.gate.sends) == 1
    assert len(stations.model.requests) == 2
    assert stations.kinds[-1] == "outcome"


@pytest.mark.parametrize("refusal", [CommitAnswer.STALE, CommitAnswer.LANE_LOST, LaneLost(1)])
def test_a_writes_answer_whose_commit_is_refused_becomes_a_signal(refusal: CommitAnswer | LaneLost) -> None:
    stations = Stations(turn(call("key")))
    stations.store.answers = [CommitAnswer.COMMITTED, refusal]
    stations.store.signal_errors = [Unavailable("postgres")]
    drive(stations)
    (signal,) = stations.store.signals
    assert signal.kind.value == "tool_result"
    assert signal.body == {"key": "run-1/1/0", "ended": "returned", "value": {"n": 7}}


def test_an_answer_that_says_nothing_is_no_signal() -> None:
    stations = Stations(turn(call("none")))
    stations.gate.answers = [Uncertain("timeout")]

    def lose(_: Send) -> None:
        stations.fence.lost = True

    stations.gate.before_invoke = lose
    drive(stations)
    assert stations.store.signals == []
    assert stations.kinds == ["decided", "intent"]


def test_a_result_that_postgres_refuses_is_stored_as_done_without_it() -> None:
    stations = Stations(turn(call("key")), FinalAnswer("done"))
    stations.store.answers = [CommitAnswer.COMMITTED, CommitAnswer.UNSTORABLE]
    drive(stations)
    assert stations.kinds == ["decided", "intent", "tool_result", "decided", "outcome"]
    result = stations.store.events[2]
    assert result.record is not None
    assert '"unstorable"' in result.record
    assert "result_not_storable" in repr(stations.model.requests[1].messages[-1])


def test_no_write_goes_out_through_a_closed_gate_and_waiting_for_it_costs_one_renewal() -> None:
    stations = Stations(turn(call("key")), FinalAnswer("done"))
    sent_while_closed: list[int] = []

    def reopen() -> None:
        sent_while_closed.append(len(stations.gate.sends))
        stations.fence.gate_open = True

    def close_once(commit: RunCommit) -> None:
        if commit.events and commit.checkpoint.pending is not None:
            stations.fence.gate_open = False
            stations.clock.skew_s += 60.0  # the start allowance passes, and every renewal's would
            asyncio.get_running_loop().call_later(0.1, reopen)

    stations.store.before_commit = close_once
    drive(stations)
    assert sent_while_closed == [0]
    assert stations.kinds == ["decided", "intent", "tool_result", "decided", "outcome"]
    renewed = [c for c in stations.store.commits if not c.events and not isinstance(c.not_after, Keep)]
    assert len(renewed) == 1


def test_no_write_goes_out_under_a_lost_fence() -> None:
    stations = Stations(turn(call("key")))

    def lose(_: RunCommit) -> None:
        stations.fence.lost = True
        stations.fence.gate_open = False

    stations.store.before_commit = lose
    drive(stations)
    assert stations.gate.sends == []
    assert stations.kinds == ["decided", "intent"]


def test_the_start_allowance_counts_from_before_the_first_offer() -> None:
    stations = Stations(turn(call("key")), FinalAnswer("done"))
    slow = iter([6.0])

    def age(commit: RunCommit) -> None:
        if commit.checkpoint.pending is not None:
            stations.clock.skew_s += next(slow, 0.0)

    stations.store.before_commit = age
    drive(stations)
    # the first intent commit took longer than the allowance: not_after was renewed before the send
    assert [len(c.events) for c in stations.store.commits] == [2, 0, 1, 2]
    assert len(stations.gate.sends) == 1


def test_the_first_sends_tool_error_is_a_fact() -> None:
    stations = Stations(turn(call("key")), FinalAnswer("done"))
    stations.gate.answers = [ToolErrored("not\0there", "bad\x00\ud83d")]
    drive(stations)
    assert stations.kinds == ["decided", "intent", "tool_result", "decided", "outcome"]


def test_fault_points_stand_where_design_says() -> None:
    seen: list[str] = []

    def hook(point: str) -> faults.Hook:
        def passed(_: Mapping[str, object]) -> None:
            seen.append(point)

        return passed

    stations = Stations(turn(call("key")), FinalAnswer("done"))
    for point in ("decide", "pep", "intent", "tool", "result"):
        for side in ("before", "after"):
            faults.arm(f"{point}.{side}", hook(f"{point}.{side}"))
    try:
        drive(stations)
    finally:
        faults.disarm()
    assert seen == [
        *("decide.before", "decide.after", "pep.before", "pep.after"),
        *("intent.before", "intent.after", "tool.before", "tool.after", "result.before", "result.after"),
        *("decide.before", "decide.after", "result.before", "result.after"),
    ]


def test_cancelling_the_drive_just_leaves() -> None:
    stations = Stations(turn(call("key")))

    async def cancel() -> None:
        started = asyncio.Event()

        async def hang(*_: object) -> None:
            started.set()
            await asyncio.Event().wait()

        stations.gate.invoke = hang  # type: ignore[assignment,method-assign]
        driving = asyncio.create_task(stations.drive(a_run()))
        await started.wait()
        driving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await driving

    asyncio.run(asyncio.wait_for(cancel(), 30))
    assert stations.kinds == ["decided", "intent"]
    assert stations.store.signals == []


def test_a_lost_lane_that_cancels_the_run_does_not_lose_the_writes_answer() -> None:
    stations = Stations(turn(call("none")))

    async def lose() -> None:
        offered = asyncio.Event()
        commit = stations.store.commit

        async def hang(offer: RunCommit) -> CommitAnswer:
            if offer.checkpoint.pending is not None:
                return await commit(offer)
            offered.set()
            await asyncio.Event().wait()
            raise AssertionError

        stations.store.commit = hang  # type: ignore[assignment,method-assign]
        driving = asyncio.create_task(stations.drive())
        await offered.wait()
        stations.fence.lost = True
        driving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await driving
        await asyncio.gather(*stations.driver.handing_over)

    asyncio.run(asyncio.wait_for(lose(), 30))
    assert [signal.dedupe_id for signal in stations.store.signals] == ["run-1/1/0"]
