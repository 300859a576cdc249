"""What signals and the clock mean in each status (the table of DESIGN 5); suspects; late contracts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from session_custody.core import commands
from session_custody.core.events import EventKind
from session_custody.core.inference import FinalAnswer
from session_custody.core.pin import Pattern, Resolved
from session_custody.core.run import ParkReason, Status
from session_custody.core.signals import SignalKind
from tests.unit.loop_world import MANIFEST, World, call, turn


def stands(world: World) -> Status:
    return world.row.status


def a_world(**fields: Any) -> World:
    return World([turn(call("read", 1)), turn(call("key", 2)), FinalAnswer("done")], **fields)


def parked(reason: str = "pep") -> World:
    """A run that parks by itself in its first turn, nothing pending."""
    world = a_world()
    world.pep = "down" if reason == "pep" else "permit"
    world.model_up = reason != "model"
    world.contract_here = reason != "contract"
    while stands(world) is not Status.PARKED:
        driver = world.live or world.load()
        assert driver is not None
        if isinstance(driver.command, commands.Pause):
            world.seconds += 60
        world.step(driver)
    world.pep, world.model_up, world.contract_here = "permit", True, True
    return world


# ------------------------------------------------------------------ queued, running


def test_cancel_ends_a_running_run_at_its_next_boundary() -> None:
    world = a_world()
    world.until(commands.AskModel)
    world.tell(SignalKind.CANCEL)
    world.run()
    assert stands(world) is Status.CANCELLED
    assert world.kinds == ["decided", "outcome"]
    assert world.consumed == set(world.signals)


def test_cancel_before_anything_happened() -> None:
    world = a_world()
    world.contract_here = False
    world.tell(SignalKind.CANCEL, "app/3", reason="customer called")
    world.run()
    assert stands(world) is Status.CANCELLED
    assert world.asked == 0
    outcome = world.events[-1]
    assert (outcome.code, outcome.reason, outcome.causation_id) == ("cancel", "customer called", "app/3")


def test_cancel_between_a_read_and_a_write_keeps_the_write_from_being_sent() -> None:
    world = World([turn(call("read", 1), call("key", 2))])
    world.step(world.until(commands.CallReads))
    world.tell(SignalKind.CANCEL)
    world.run()
    assert stands(world) is Status.CANCELLED
    assert world.sends == []
    assert world.kinds == ["decided", "tool_result", "outcome"]


def test_an_answer_in_hand_wins_over_the_expiry_behind_it() -> None:
    world = World([FinalAnswer("done")], expires_s=10)
    world.step(world.until(commands.AskModel))
    world.seconds = 20
    world.run()
    assert stands(world) is Status.SUCCEEDED


def test_a_run_expires_at_a_boundary() -> None:
    world = a_world(expires_s=10)
    world.seconds = 20
    world.run()
    assert stands(world) is Status.EXPIRED
    assert world.asked == 0


def test_continue_of_a_running_run_is_a_no_op_consumed_by_the_next_commit() -> None:
    world = a_world()
    signal = world.tell(SignalKind.CONTINUE)
    world.run()
    assert signal in world.commits[0].consumes
    assert stands(world) is Status.SUCCEEDED


def test_an_answer_without_a_question_is_a_refused_event() -> None:
    world = a_world()
    world.tell(SignalKind.ANSWER, "app/9", answer="yes", question_id="q-1")
    world.run()
    refused = world.last(EventKind.SIGNAL_REFUSED)
    assert (refused.code, refused.question_id, refused.causation_id) == ("no_question", "q-1", "app/9")
    assert stands(world) is Status.SUCCEEDED


def test_an_operator_parks_and_unparks() -> None:
    world = a_world()
    world.tell(SignalKind.PARK)
    world.run()
    assert stands(world) is Status.PARKED
    assert world.row.park_reason is ParkReason.OPERATOR
    assert world.row.wake_at is None
    world.tell(SignalKind.UNPARK)
    world.run()
    assert stands(world) is Status.SUCCEEDED


# ------------------------------------------------------------------ parked


@pytest.mark.parametrize(
    ("reason", "named"),
    [
        ("pep", ParkReason.POLICY_UNAVAILABLE),
        ("model", ParkReason.MODEL_UNAVAILABLE),
        ("contract", ParkReason.CONTRACT_MISSING),
    ],
)
def test_what_can_come_back_wakes_by_itself(reason: str, named: ParkReason) -> None:
    world = parked(reason)
    assert world.row.park_reason is named
    assert world.row.wake_at is not None
    assert not world.due
    world.seconds += 2
    world.run()
    assert stands(world) is Status.SUCCEEDED
    assert "resumed" in world.kinds


def test_a_proposal_that_met_no_policy_is_recorded_and_not_asked_for_again() -> None:
    world = parked("pep")
    assert world.kinds == ["decided", "parked"]
    world.seconds += 2
    world.run()
    assert world.asked == 3


def test_the_back_off_grows_and_a_fact_zeroes_it() -> None:
    world = parked("pep")
    world.pep = "down"
    gaps = []
    for _ in range(12):
        assert world.row.wake_at is not None
        gaps.append((world.row.wake_at - world.now).total_seconds())
        world.seconds = world.seconds + gaps[-1]
        world.run()
    assert gaps[:4] == [1.0, 2.0, 4.0, 8.0]
    assert gaps[-1] == 300.0
    world.pep = "permit"
    world.seconds += 300
    world.run()
    assert world.row.parks == 0


def test_continue_wakes_with_a_renewed_budget_and_the_clock_does_not() -> None:
    world = parked("model")
    asked = world.asked
    world.model_up = False
    world.seconds += 2
    world.run()
    assert world.asked == asked + 1
    assert stands(world) is Status.PARKED
    world.tell(SignalKind.CONTINUE)
    world.run()
    assert world.asked == asked + 1 + 5


def test_cancel_of_a_parked_run() -> None:
    world = parked("pep")
    world.tell(SignalKind.CANCEL)
    world.run()
    assert stands(world) is Status.CANCELLED


def test_a_parked_run_expires() -> None:
    world = parked("pep")
    world.seconds += 24 * 3600
    world.run()
    assert stands(world) is Status.EXPIRED


def test_an_operators_park_keeps_a_run_from_waking_by_itself() -> None:
    world = parked("pep")
    world.tell(SignalKind.PARK)
    world.run()
    world.seconds += 500
    assert not world.due
    assert world.row.park_reason is ParkReason.OPERATOR


def test_signals_behind_the_outcome_are_consumed_without_an_event() -> None:
    world = a_world()
    world.run()
    events = len(world.events)
    for kind in (SignalKind.CANCEL, SignalKind.CONTINUE, SignalKind.ANSWER, SignalKind.RESOLVE):
        world.tell(kind)
    world.run()
    assert len(world.events) == events
    assert world.consumed == set(world.signals)


def test_signals_read_together_with_the_last_one_are_consumed_too() -> None:
    world = parked("pep")
    for kind in (SignalKind.CANCEL, SignalKind.CONTINUE, SignalKind.CANCEL):
        world.tell(kind)
    world.run()
    assert stands(world) is Status.CANCELLED
    assert world.consumed == set(world.signals)


# ------------------------------------------------------------------ suspects


def test_a_suspect_is_counted_before_it_is_driven_and_parks_at_the_bound() -> None:
    world = a_world()
    for count in (1, 2):
        world.load(suspects=True)
        world.step(world.until(commands.Commit))
        assert world.row.suspect_count == count
        world.crash()
    world.run(suspects=True)
    assert stands(world) is Status.PARKED
    assert world.row.park_reason is ParkReason.SUSPECT
    assert world.asked == 0
    world.tell(SignalKind.CONTINUE)
    world.run()
    assert stands(world) is Status.SUCCEEDED


def test_a_fact_zeroes_the_suspicion() -> None:
    world = a_world()
    world.load(suspects=True)
    world.step(world.until(commands.Commit))
    world.run()
    assert world.row.suspect_count == 0


# ------------------------------------------------------------------ contracts


def test_what_admission_could_not_resolve_is_recorded_at_the_first_load() -> None:
    world = a_world(pattern=None)
    world.run()
    assert stands(world) is Status.SUCCEEDED
    assert world.row.loaded is not None
    loaded = Resolved.model_validate_json(world.row.loaded)
    assert loaded.pattern is Pattern.LOOP
    assert [c.checkpoint.loaded is None for c in world.commits[:1]] == [False]


def test_a_manifest_with_tools_for_a_run_without_max_loop_steps_fails() -> None:
    world = a_world(pattern=None, max_loop_steps=None)
    world.run()
    assert stands(world) is Status.FAILED
    assert world.events[-1].code == "max_loop_steps_missing"


def test_a_late_manifest_without_tools_is_one_inference() -> None:
    manifest = MANIFEST.model_copy(update={"tools": ()})
    world = World([FinalAnswer("hi")], manifest=manifest, pattern=None, max_loop_steps=None)
    world.run()
    assert world.kinds == ["inference", "outcome"]
    assert world.events[0].orchestration_step == "inference"


def test_a_workflow_is_left_to_a_build_that_drives_stages() -> None:
    world = a_world(pattern=Pattern.STAGES)
    world.load()
    for _ in range(20):
        if world.live is not None:
            world.step(world.live)
    assert world.row.park_reason is ParkReason.CONTRACT_MISSING


def test_a_checkpoint_of_a_newer_format_is_not_driven() -> None:
    world = a_world()
    world.row = replace(world.row, format=99)
    with pytest.raises(ValueError, match="format 99"):
        world.load()
