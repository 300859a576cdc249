"""The pure loop: turns, commits and bounds (DESIGN 9; I2, I3, I10)."""

from __future__ import annotations

from session_custody.core import commands
from session_custody.core.inference import FinalAnswer, Question, Refusal, ToolCall, ToolCalls
from session_custody.core.run import Status
from tests.unit.loop_world import World, call, turn


def test_a_final_answer_is_one_commit_with_the_outcome() -> None:
    world = World([FinalAnswer("hello", {"a": 1})])
    world.run()
    assert world.kinds == ["decided", "outcome"]
    assert len(world.commits) == 1
    assert world.row.status is Status.SUCCEEDED
    assert world.events[-1].visible == {"text": "hello", "data": {"a": 1}}


def test_a_read_only_turn_is_one_commit() -> None:
    world = World([turn(call("read", 1), call("read", 2)), FinalAnswer("done")])
    world.run()
    assert [[d.kind.value for d in c.drafts] for c in world.commits] == [
        ["decided", "tool_result", "tool_result"],
        ["decided", "outcome"],
    ]
    assert world.row.working == {"seen": 7}
    assert world.row.last_tool == "read"
    assert world.events[1].visible == {"/args/n": 1, "/result/n": 7}


def test_a_write_is_an_intent_and_then_its_result() -> None:
    world = World(
        [turn(call("read", 1), call("key", 2), call("read", 3), call("none", 4)), FinalAnswer("done")]
    )
    world.run()
    assert [[d.kind.value for d in c.drafts] for c in world.commits] == [
        ["decided", "tool_result", "intent"],
        ["tool_result"],
        ["tool_result", "intent"],
        ["tool_result"],
        ["decided", "outcome"],
    ]
    assert world.sends == ["run-1/1/1", "run-1/1/3"]
    assert [e.loop_step for e in world.events] == [1, 1, 1, 1, 1, 1, 1, 2, 2]
    assert world.row.pending is None
    assert world.row.not_after is None


def test_a_crash_before_the_first_commit_of_a_turn_asks_the_model_again() -> None:
    world = World([turn(call("read")), FinalAnswer("done")])
    world.until(commands.Commit)
    world.crash()
    world.run()
    assert world.asked == 3
    assert world.kinds == ["decided", "tool_result", "decided", "outcome"]


def test_a_crash_behind_the_intent_never_asks_the_model_again() -> None:
    world = World([turn(call("key"), call("read")), FinalAnswer("done")])
    world.until(commands.CallWrite)
    world.crash()
    world.run()
    assert world.asked == 2
    assert world.kinds == ["decided", "intent", "tool_result", "tool_result", "decided", "outcome"]
    assert world.row.status is Status.SUCCEEDED


def test_the_last_proposals_calls_are_made_and_then_the_bound_ends_the_run() -> None:
    world = World([turn(call("key"))], max_loop_steps=2)
    world.run()
    assert world.row.status is Status.PARTIAL
    assert world.row.loop_step == 2
    assert world.sends == ["run-1/1/0", "run-1/2/0"]
    assert world.events[-1].code == "max_loop_steps"


def test_what_the_model_gets_wrong_costs_a_step_and_is_told() -> None:
    world = World(
        [
            ToolCalls(
                (
                    call("nobody", 1),
                    call("read", 2, "same"),
                    call("read", 3, "same"),
                    ToolCall("x", "read", None, "{"),
                    call("read", -1),
                )
            ),
            ToolCalls(()),
            Question("May I?"),
            FinalAnswer("  "),
            FinalAnswer("done"),
        ]
    )
    world.run()
    assert world.row.status is Status.SUCCEEDED
    assert world.row.loop_step == 5
    codes = {e.ordinal: (e.result, e.code) for e in world.events if e.kind.value == "tool_result"}
    assert codes == {
        0: ("malformed", "unknown_tool"),
        1: ("ok", None),
        2: ("malformed", "duplicate_call_id"),
        3: ("malformed", "arguments_not_json"),
        4: ("malformed", "arguments_refused"),
    }
    decided = [e.code for e in world.events if e.kind.value == "decided"]
    assert decided == [None, "empty_proposal", "question_not_allowed", "empty_proposal", None]
    said = world.requests[-1].messages
    assert len({part.call_id for part in said if part.role == "tool"}) == 5


def test_a_refusal_escalates() -> None:
    world = World([Refusal("I will not.")])
    world.run()
    assert world.row.status is Status.ESCALATED
    assert world.events[-1].code == "model_refused"
