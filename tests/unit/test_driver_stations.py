"""The driver at its stations: model, contracts, gate, boundaries, late results. Errors stay with the run."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import cast

import pytest
from pydantic import JsonValue

from session_custody.core.canonical import accept
from session_custody.core.errors import ContractMissing, ModelProfileUnknown, SignalRefused, Unavailable
from session_custody.core.events import EventKind
from session_custody.core.inference import FinalAnswer, InferenceRequest, Proposal
from session_custody.core.pin import Limits
from session_custody.core.run import Checkpoint, ParkReason, PendingIntent, Status
from session_custody.core.signals import SignalKind
from session_custody.loop import LateResults
from session_custody.ports import (
    InSeconds,
    LoadedRun,
    NotStarted,
    Returned,
    RunStore,
    Signal,
    StepRecord,
    ToolErrored,
    Uncertain,
)
from session_custody.wire import decode_body
from tests.unit.driver_stations import RUN_ID, Stations, Store, a_run
from tests.unit.loop_world import call, turn


def drive(stations: Stations, run: LoadedRun | None = None, *, suspects: bool = False) -> None:
    asyncio.run(asyncio.wait_for(stations.drive(run, suspects=suspects), timeout=30))


def last(stations: Stations) -> Checkpoint:
    return stations.store.commits[-1].checkpoint


def said(kind: SignalKind, signal_id: int = 1) -> Signal:
    return Signal(signal_id, RUN_ID, kind, {}, "app/1", datetime.now(UTC), None)


# ------------------------------------------------------------------ the model


@pytest.mark.parametrize("error", [Unavailable("model"), ModelProfileUnknown("p"), RuntimeError("bug")])
def test_a_model_that_fails_for_good_parks_the_run(error: Exception) -> None:
    stations = Stations(error)
    drive(stations, a_run(limits=Limits(model_attempts=1)))
    assert stations.kinds == ["parked"]
    assert last(stations).park_reason is ParkReason.MODEL_UNAVAILABLE
    assert isinstance(stations.store.commits[-1].wake_at, InSeconds)


def test_a_model_that_hangs_is_a_failed_asking() -> None:
    stations = Stations()

    async def hang(_: InferenceRequest) -> Proposal:
        await asyncio.Event().wait()
        raise AssertionError

    stations.model.propose = hang  # type: ignore[assignment,method-assign]
    drive(stations, a_run(limits=Limits(model_attempts=1, model_timeout_s=0.01)))
    assert stations.kinds == ["parked"]


def test_something_else_than_a_proposal_is_a_failed_asking() -> None:
    stations = Stations(cast("Proposal", "hello"))
    drive(stations, a_run(limits=Limits(model_attempts=1)))
    assert stations.kinds == ["parked"]


def test_a_failed_asking_is_counted_and_the_model_is_asked_again_when_it_said() -> None:
    busy = Unavailable("model")
    busy.retry_after_s = 0.01  # type: ignore[attr-defined]
    stations = Stations(busy, FinalAnswer("done"))
    drive(stations)
    assert [(c.checkpoint.attempts, len(c.events)) for c in stations.store.commits] == [(1, 0), (0, 2)]


# ------------------------------------------------------------------ contracts


def test_a_missing_contract_parks_and_never_falls_back() -> None:
    stations = Stations(FinalAnswer("done"))
    stations.contracts.manifest_ = None
    drive(stations)
    assert last(stations).park_reason is ParkReason.CONTRACT_MISSING
    assert stations.model.requests == []


def test_an_outage_while_loading_contracts_is_waited_for() -> None:
    stations = Stations(FinalAnswer("done"))
    stations.contracts.errors = [Unavailable("postgres")]
    drive(stations)
    assert last(stations).status is Status.SUCCEEDED


def test_a_late_load_is_told_by_the_first_event_behind_it() -> None:
    stations = Stations(FinalAnswer("done"))
    drive(stations, a_run(pattern=None))
    decided, outcome = stations.store.events
    body = decode_body(decided.schema_fingerprint, decided.body)
    assert body["resolved"] is not None
    assert outcome.kind is EventKind.OUTCOME
    assert last(stations).loaded is not None


# ------------------------------------------------------------------ the gate


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Unavailable("pdp"), ParkReason.POLICY_UNAVAILABLE),
        (RuntimeError("bug"), ParkReason.POLICY_UNAVAILABLE),
        (ContractMissing("tool", "read", "1"), ParkReason.CONTRACT_MISSING),
    ],
)
def test_a_gate_that_cannot_decide_parks_the_run(error: Exception, reason: ParkReason) -> None:
    stations = Stations(turn(call("read")))
    stations.gate.authorize_error = error
    drive(stations)
    assert last(stations).park_reason is reason
    assert stations.kinds == ["decided", "parked"]
    assert stations.gate.sends == []


def test_a_gate_that_raises_in_a_read_is_a_failed_read() -> None:
    stations = Stations(turn(call("read")), FinalAnswer("done"))
    stations.gate.answers = [RuntimeError("bug")]
    drive(stations)
    assert stations.kinds == ["decided", "tool_result", "decided", "outcome"]
    assert "tool_failed" in repr(stations.model.requests[-1].messages[-1])


def test_a_gate_that_raises_in_a_write_leaves_it_pending() -> None:
    stations = Stations(turn(call("safe")), FinalAnswer("done"))
    stations.gate.answers = [RuntimeError("bug"), Returned(1)]
    drive(stations)
    keys = [send.idempotency_key for send in stations.gate.sends]
    assert keys == ["run-1/1/0", "run-1/1/0"]
    assert [send.attempt for send in stations.gate.sends] == [1, 2]
    assert last(stations).status is Status.SUCCEEDED


def test_reads_of_one_proposal_are_called_together() -> None:
    stations = Stations(turn(call("read", 1), call("read", 2)), FinalAnswer("done"))
    both = asyncio.Event()
    under_way = 0
    invoke = stations.gate.invoke

    async def together(*arguments: object) -> object:
        nonlocal under_way
        under_way += 1
        if under_way == 2:
            both.set()
        await both.wait()
        return await invoke(*arguments)  # type: ignore[arg-type]

    stations.gate.invoke = together  # type: ignore[assignment,method-assign]
    drive(stations)
    assert under_way == 2


# ------------------------------------------------------------------ boundaries


def test_signals_that_came_with_the_load_are_read_and_consumed() -> None:
    stations = Stations()
    drive(stations, a_run(signals=[said(SignalKind.CANCEL)]))
    assert last(stations).status is Status.CANCELLED
    assert stations.store.commits[-1].consumes == (1,)


def test_a_draining_lane_starts_nothing_new() -> None:
    stations = Stations(turn(call("key")), FinalAnswer("done"))

    def drain(_: object) -> None:
        stations.fence.draining = True

    stations.gate.before_invoke = drain
    drive(stations)
    assert stations.kinds == ["decided", "intent", "tool_result"]
    assert last(stations).status is Status.RUNNING
    assert stations.store.signals == []


def test_a_pausing_run_wakes_for_a_signal() -> None:
    stations = Stations(turn(call("none")))
    stations.gate.answers = [Uncertain("timeout")]
    sent = asyncio.Event()
    stations.gate.before_invoke = lambda _: sent.set()

    async def told() -> None:
        driving = asyncio.create_task(stations.drive())
        await sent.wait()
        body: dict[str, JsonValue] = {"key": "run-1/1/0", "ended": "returned", "value": 5}
        late = Signal(4, RUN_ID, SignalKind.TOOL_RESULT, body, None, datetime.now(UTC), None)
        stations.model.script = [FinalAnswer("done")]
        stations.inbox.put([late])
        await driving

    asyncio.run(asyncio.wait_for(told(), 10))
    assert stations.kinds == ["decided", "intent", "tool_result", "decided", "outcome"]


def test_a_clock_that_jumped_holds_the_timers() -> None:
    stations = Stations(FinalAnswer("done"))
    stations.clock.skew_s = 7 * 24 * 3600.0
    stations.clock.held = True
    drive(stations)
    assert last(stations).status is Status.SUCCEEDED


def test_a_suspect_is_counted_by_a_commit_without_events() -> None:
    stations = Stations(FinalAnswer("done"))
    drive(stations, suspects=True)
    assert [(c.checkpoint.suspect_count, len(c.events)) for c in stations.store.commits] == [(1, 0), (0, 2)]


def test_an_unreadable_record_parks_its_run_and_says_where() -> None:
    stations = Stations()
    drive(stations, a_run(steps=[StepRecord(2, EventKind.DECIDED, 1, "no object")]))
    assert stations.kinds == ["parked"]
    assert last(stations).park_reason is ParkReason.SUSPECT


def test_a_new_owner_resends_a_pending_write_with_the_recorded_bytes() -> None:
    first = Stations(turn(call("key", 3)))
    first.store.answers = []
    first.gate.before_invoke = lambda _: setattr(first.fence, "lost", True)
    first.gate.answers = [Uncertain("gone")]
    drive(first)
    committed = first.store.commits[-1]
    steps = [StepRecord(e.event_seq, e.kind, 1, _document(e.record)) for e in first.store.events]
    checkpoint = replace(committed.checkpoint, version=2, not_after=datetime.now(UTC) - timedelta(seconds=1))
    assert isinstance(checkpoint.pending, PendingIntent)
    second = Stations(FinalAnswer("done"))
    drive(second, a_run(checkpoint=checkpoint, steps=steps))
    assert [(s.idempotency_key, s.attempt) for s in second.gate.sends] == [("run-1/1/0", 2)]
    assert second.gate.authorized == [call("key", 3)]
    assert last(second).status is Status.SUCCEEDED
    assert second.store.events[0].event_seq == committed.checkpoint.head_seq + 1


def _document(record: str | None) -> JsonValue:
    return None if record is None else accept(record)


# ------------------------------------------------------------------ late results


def tell(store: Store, answer: Returned | ToolErrored | Uncertain | NotStarted) -> None:
    late = LateResults(cast("RunStore", store))
    asyncio.run(asyncio.wait_for(late(RUN_ID, "run-1/1/0", answer), 10))


def test_a_late_value_becomes_a_signal_once_postgres_is_back() -> None:
    store = Store()
    store.signal_errors = [Unavailable("postgres"), Unavailable("postgres")]
    tell(store, Returned({"n": float("nan")}))
    (signal,) = store.signals
    assert signal.body == {"key": "run-1/1/0", "ended": "returned", "value": {"n": "NaN"}}
    assert (signal.dedupe_source, signal.dedupe_id) == ("tool", "run-1/1/0")


def test_a_late_value_that_is_no_json_is_still_a_done() -> None:
    store = Store()
    tell(store, Returned(cast("str", object())))
    assert store.signals[0].body["code"] == "result_not_json"


def test_a_call_that_was_never_sent_is_no_late_result() -> None:
    store = Store()
    tell(store, NotStarted())
    assert store.signals == []


def test_a_run_that_is_gone_hears_nothing() -> None:
    store = Store()
    store.signal_errors = [SignalRefused("run_unknown", "run-1")]
    tell(store, Uncertain("timeout"))
    assert store.signals == []
