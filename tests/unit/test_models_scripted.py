"""The scripted model: answers by turn, the same ones every time."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from session_custody.core.errors import ContractInvalid, ModelProfileUnknown, Unavailable
from session_custody.core.inference import (
    FinalAnswer,
    Part,
    Proposal,
    Question,
    Refusal,
    ToolCall,
    ToolCalls,
    ToolOutput,
    ToolSchema,
    UserText,
    build_request,
)
from session_custody.models import ScriptedModel
from session_custody.resources import examples_dir
from tests.unit.tool_app import TRACE

SCRIPT = """
scripts:
  - when: {run_id: "run-odd*"}
    turns:
      - {question: "Go on?", choices: ["yes", "no"]}
      - {refuse: I will not.}
      - {unavailable: down}
      - {unknown_profile: true}
      - {malformed: look}
  - when: {route_id: r}
    turns:
      - say: Looking.
        calls:
          - {tool: look, arguments: {id: {input: /a/id}, deep: [{input: /a/id}, 1], gone: {input: /b}}}
      - calls: [{tool: [note, file], arguments: {of: {result: [look, /account/id]}}}]
      - {answer: Done., data: {n: 1}}
"""


def ask(
    model: ScriptedModel,
    loop_step: int,
    *results: Part,
    run_id: str = "run-1",
    tools: tuple[str, ...] = (),
    **trace: Any,
) -> Proposal:
    request = build_request(
        instructions=None,
        messages=(UserText('{"a":{"id":"a-1"}}'), *results),
        tools=tuple(ToolSchema(name, "", {}) for name in tools),
        model_profile="m",
        model_target=None,
        timeout_s=1.0,
        trace=replace(TRACE, run_id=run_id, loop_step=loop_step, **trace),
        mask=lambda text: text,
    )
    return asyncio.run(model.propose(request))


@pytest.fixture
def model(tmp_path: Path) -> ScriptedModel:
    file = tmp_path / "model.yaml"
    file.write_text(SCRIPT)
    return ScriptedModel.from_file(file)


def test_each_turn_answers_its_loop_step_and_the_last_one_all_later_ones(model: ScriptedModel) -> None:
    first = ToolCalls(
        (ToolCall("c1-0", "look", {"id": "a-1", "deep": ["a-1", 1], "gone": None}),), "Looking."
    )
    assert ask(model, 1) == ask(model, 1) == first
    seen = ToolOutput("c1-0", "look", '{"account":{"id":"acct-1"}}')
    assert ask(model, 2, seen, tools=("file",)) == ToolCalls((ToolCall("c2-0", "file", {"of": "acct-1"}),))
    assert ask(model, 2, seen, tools=("note", "file")) == ToolCalls(
        (ToolCall("c2-0", "note", {"of": "acct-1"}),)
    )
    assert ask(model, 3) == ask(model, 30) == FinalAnswer("Done.", {"n": 1})


def test_a_script_can_be_every_kind_of_model(model: ScriptedModel) -> None:
    assert ask(model, 1, run_id="run-odd-1") == Question("Go on?", ("yes", "no"))
    assert ask(model, 2, run_id="run-odd-1") == Refusal("I will not.")
    with pytest.raises(Unavailable):
        ask(model, 3, run_id="run-odd-1")
    with pytest.raises(ModelProfileUnknown):
        ask(model, 4, run_id="run-odd-1")
    assert ask(model, 5, run_id="run-odd-1") == ToolCalls(
        (ToolCall("c5-0", "look", None, "arguments_not_json"),)
    )


def test_a_run_that_no_script_fits_finds_no_model(model: ScriptedModel) -> None:
    with pytest.raises(Unavailable):
        ask(model, 1, route_id="other")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("scripts: []", "scripts"),
        ("scripts: [{turns: [{answer: a, refuse: b}]}]", "exactly one"),
        ("scripts: [{turns: [{anser: a}]}]", "scripts.0.turns.0.anser"),
        ("scripts:\n  - {", ":2"),
    ],
)
def test_a_script_that_is_wrong_is_refused_by_its_place(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "model.yaml"
    file.write_text(text)
    with pytest.raises(ContractInvalid, match=said):
        ScriptedModel.from_file(file)


def test_the_script_of_the_example_investigates_one_alert() -> None:
    model = ScriptedModel.from_file(examples_dir() / "fraud" / "model.yaml")
    last = ask(model, 4, route_id="fraud_investigate")
    assert isinstance(last, FinalAnswer)
    third = ask(model, 3, route_id="fraud_investigate", tools=("get_alert", "file_note"))
    assert isinstance(third, ToolCalls)
    assert third.calls[0].tool == "file_note"
