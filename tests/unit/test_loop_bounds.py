"""Every bound of the loop at its bound, pattern 0, and what the model and events may see (DESIGN 7, 9)."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import JsonValue

from session_custody.core import bounds, commands
from session_custody.core.canonical import canonical
from session_custody.core.events import EventKind
from session_custody.core.inference import FinalAnswer, Proposal, Question, Refusal, ToolCall, ToolCalls
from session_custody.core.manifest import Manifest
from session_custody.core.pin import Limits, OnMaxLoopSteps, Pattern
from session_custody.core.pointers import NOTHING, at, saved, shown
from session_custody.core.run import Status
from session_custody.core.transcript import RecordUnreadable, StepRecord, read_turns
from tests.unit.loop_world import MANIFEST, World, call, tool_spec, turn


def decided_codes(world: World) -> list[str | None]:
    return [event.code for event in world.events if event.kind is EventKind.DECIDED]


def test_too_many_calls_make_none_of_them() -> None:
    most = bounds.PROPOSAL_CALLS_MAX
    fits = turn(*(call("read", n) for n in range(most)))
    too_many = turn(*(call("key", n) for n in range(most + 1)))
    world = World([too_many, fits, FinalAnswer("done")])
    world.run()
    assert decided_codes(world) == ["too_many_calls", None, None]
    assert world.sends == []
    assert world.kinds.count("tool_result") == most


@pytest.mark.parametrize(("length", "result"), [(12, "ok"), (13, "malformed")])
def test_arguments_are_bounded(length: int, result: str) -> None:
    # {"n":"…"} is eight bytes and the text
    world = World(
        [ToolCalls((ToolCall("a", "read", {"n": "x" * length}),)), FinalAnswer("done")],
        limits=Limits(arguments_bytes=20),
    )
    world.run()
    assert world.last(EventKind.TOOL_RESULT).result == result


@pytest.mark.parametrize(("length", "result"), [(18, "ok"), (19, "error")])
def test_a_reads_result_is_bounded(length: int, result: str) -> None:
    world = World([turn(call("read")), FinalAnswer("done")], limits=Limits(result_bytes=20))
    world.value = "x" * length
    world.run()
    event = world.last(EventKind.TOOL_RESULT)
    assert (event.result, event.code) == (result, None if result == "ok" else "result_too_large")


@pytest.mark.parametrize(("length", "saved_"), [(9, True), (10, False)])
def test_working_slots_are_bounded_together(length: int, saved_: bool) -> None:
    world = World([turn(call("read")), FinalAnswer("done")], limits=Limits(working_bytes=20))
    world.value = {"n": "x" * length}
    world.run()
    event = world.last(EventKind.TOOL_RESULT)
    assert event.result == "ok"
    assert event.code == (None if saved_ else "working_too_large")
    assert (world.row.working is not None) is saved_


def test_the_final_text_is_bounded() -> None:
    room = bounds.FINAL_TEXT_BYTES_MAX - len('{"data":null,"text":""}')
    world = World([FinalAnswer("x" * (room + 1)), FinalAnswer("x" * room)])
    world.run()
    assert decided_codes(world) == ["final_text_too_large", None]
    assert world.row.status is Status.SUCCEEDED


@pytest.mark.parametrize("ends", list(OnMaxLoopSteps))
def test_max_loop_steps_ends_as_the_row_says(ends: OnMaxLoopSteps) -> None:
    world = World([turn(call("read"), text="so far")], max_loop_steps=1)
    resolved = world.pin.resolved.model_copy(update={"on_max_loop_steps": ends})
    world.pin = world.pin.model_copy(update={"resolved": resolved})
    world.run()
    assert world.row.status is (Status.PARTIAL if ends is OnMaxLoopSteps.PARTIAL else Status.ESCALATED)
    assert world.asked == 1
    assert world.events[-1].record == {"text": "so far", "data": None}


def test_the_models_retry_budget_is_spent_across_restarts() -> None:
    world = World([FinalAnswer("done")], limits=Limits(model_attempts=3))
    world.model_up = False
    world.step(world.until(commands.AskModel))
    world.step(world.until(commands.Commit))
    world.crash()
    assert world.row.attempts == 1
    world.run()
    assert world.asked == 3
    assert world.row.status is Status.PARKED


# ------------------------------------------------------------------ pattern 0


def inference(said: Proposal) -> World:
    manifest = Manifest(manifest_id="m", manifest_version="1", instructions="Say it.", visible=("text",))
    return World([said], manifest=manifest, pattern=Pattern.INFERENCE, max_loop_steps=None)


def test_pattern_0_is_one_commit_and_a_request_without_tools() -> None:
    world = inference(FinalAnswer("hi"))
    world.run()
    assert len(world.commits) == 1
    assert world.kinds == ["inference", "outcome"]
    assert world.requests[0].tools is None
    assert world.requests[0].instructions == "Say it."
    assert world.row.status is Status.SUCCEEDED
    assert world.row.loop_step == 1


@pytest.mark.parametrize(
    ("said", "status", "code"),
    [
        (Refusal("no"), Status.ESCALATED, "model_refused"),
        (turn(call("read")), Status.FAILED, "unexpected_calls"),
        (Question("which?"), Status.FAILED, "question_not_allowed"),
        (FinalAnswer(""), Status.FAILED, "empty_proposal"),
    ],
)
def test_pattern_0_has_one_try(said: Proposal, status: Status, code: str) -> None:
    world = inference(said)
    world.run()
    assert world.row.status is status
    assert world.events[-1].code == code


# ------------------------------------------------------------------ hostile texts


@pytest.mark.parametrize("text", ["nul \x00", "half \ud83d", "\u2028"])
def test_any_text_of_a_model_or_tool_is_a_storable_document(text: str) -> None:
    world = World(
        [
            ToolCalls((ToolCall(text, "read", {text: [text]}), ToolCall("b", text, {})), text),
            FinalAnswer(text, {text: text}),
        ]
    )
    world.value = {text: [text, float("nan"), 2**60]}
    world.run()
    assert world.row.status is Status.SUCCEEDED
    for step in world.steps:
        canonical(step.record)


def test_a_result_nested_too_deep_is_an_error_of_that_call_only() -> None:
    deep: Any = []
    for _ in range(bounds.JSON_DEPTH_MAX + 5):
        deep = [deep]
    world = World([turn(call("read")), FinalAnswer("done")])
    world.value = deep
    world.run()
    assert world.last(EventKind.TOOL_RESULT).code == "result_not_json"
    assert world.row.status is Status.SUCCEEDED


# ------------------------------------------------------------------ what is rebuilt, what is seen


def test_a_resume_sends_the_model_the_same_conversation() -> None:
    script: list[Proposal] = [
        turn(call("read", 1), call("key", 2), text="first"),
        turn(call("read", 3)),
        FinalAnswer("x"),
    ]
    whole = World(script)
    whole.run()
    for stop_at in range(1, 30):
        world = World(script)
        for _ in range(stop_at):
            driver = world.live or world.load()
            if driver is None:
                break
            world.step(driver)
        world.crash()
        world.run()
        assert world.requests[-1].messages == whole.requests[-1].messages


def test_nothing_is_visible_by_default() -> None:
    bare = Manifest(
        manifest_id="m", manifest_version="1", tools=(tool_spec("read", effect="read"), *MANIFEST.tools[1:2])
    )
    world = World([turn(call("read"), call("key")), FinalAnswer("secret")], manifest=bare)
    world.run()
    assert [event.visible for event in world.events] == [None] * len(world.events)


def test_pointers_find_what_rfc_6901_says() -> None:
    document: JsonValue = {"a/b": {"~": [10, {"x": None}]}, "": 1}
    assert at(document, "/a~1b/~0/1/x") is None
    assert at(document, "/") == 1
    assert at(document, "") == document
    for pointer in ("/a~1b/~0/2", "/a~1b/~0/01", "/a~1b/~0/-", "/missing", "a", "/a~1b/~0/0/x"):
        assert at(document, pointer) is NOTHING
    assert saved({"id": 1}, {"one": "/id", "two": "/no"}) == {"one": 1}
    assert shown({"args": {}}, ("/args/x",)) is None


@pytest.mark.parametrize(
    "steps",
    [
        [(EventKind.DECIDED, ["no object"])],
        [(EventKind.TOOL_RESULT, {"ordinal": 0, "result": "ok", "value": 1})],
        [(EventKind.DECIDED, {"kind": "calls", "text": None, "calls": [{"tool": "x"}]})],
        [
            (EventKind.DECIDED, {"kind": "answer", "text": None}),
            (EventKind.TOOL_RESULT, {"ordinal": 0, "result": "ok", "value": 1}),
        ],
    ],
)
def test_a_record_of_another_shape_is_named_and_not_guessed_at(steps: list[tuple[EventKind, Any]]) -> None:
    records = [StepRecord(seq, kind, 1, record) for seq, (kind, record) in enumerate(steps, 2)]
    with pytest.raises(RecordUnreadable, match="step "):
        read_turns(records)
