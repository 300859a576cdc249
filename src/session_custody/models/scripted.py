"""Station 7, answers from a file: for demos, development and tests. Deterministic.

    scripts:
      - when: {route_id: fraud_investigate}        # or run_id: "run-9*"; the first that fits; none: any run
        turns:
          - say: Let me look.
            calls: [{tool: get_alert, arguments: {alert_id: {input: /alert_id}}}]
          - calls: [{tool: [add_note, file_note], arguments: {text: Watch.}}]    # the first in scope
          - answer: The alert is noted.
          # further: question: …, choices: [...] | refuse: … | unavailable: …  | malformed: TOOL

Turn n answers loop step n; past the end the last turn answers. `{input: POINTER}` is taken from the start's
input, `{result: [TOOL, POINTER]}` from that tool's latest result.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, Self

import yaml
from pydantic import Field, JsonValue, ValidationError, model_validator

from session_custody.core import canonical, pointers
from session_custody.core.errors import ContractInvalid, ModelProfileUnknown, Unavailable
from session_custody.core.inference import (
    FinalAnswer,
    InferenceRequest,
    Proposal,
    Question,
    Refusal,
    ToolCall,
    ToolCalls,
    ToolOutput,
    UserText,
)
from session_custody.core.pin import Frozen

SCRIPT_BYTES_MAX: Final = 1024 * 1024


class ScriptedCall(Frozen):
    tool: str | tuple[str, ...]
    arguments: dict[str, JsonValue] = Field(default_factory=dict)


class Turn(Frozen):
    """One answer. Exactly one of the kinds."""

    say: str | None = None
    calls: tuple[ScriptedCall, ...] = ()
    answer: str | None = None
    data: JsonValue = None
    question: str | None = None
    choices: tuple[str, ...] = ()
    refuse: str | None = None
    unavailable: str | None = None
    unknown_profile: bool = False
    malformed: str | None = None
    """Name of a tool that is called with arguments that are no JSON."""

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        kinds = (
            bool(self.calls),
            self.answer is not None,
            self.question is not None,
            self.refuse is not None,
            self.unavailable is not None,
            self.unknown_profile,
            self.malformed is not None,
        )
        if sum(kinds) != 1:
            raise ValueError(
                "a turn has exactly one of calls, answer, question, refuse, unavailable, unknown_profile, "
                "malformed"
            )
        return self


class When(Frozen):
    """Which runs a script is for. Patterns of the shell: `*`, `?`."""

    route_id: str = "*"
    run_id: str = "*"


class Script(Frozen):
    when: When = When()
    turns: tuple[Turn, ...] = Field(min_length=1)


class Scripts(Frozen):
    scripts: tuple[Script, ...] = Field(min_length=1)


class ScriptedModel:
    """Implements `ports.ModelClient`."""

    def __init__(self, scripts: Sequence[Script]) -> None:
        self._scripts = tuple(scripts)

    @classmethod
    def from_file(cls, path: Path) -> ScriptedModel:
        """Raises ContractInvalid naming file and field."""
        if path.stat().st_size > SCRIPT_BYTES_MAX:
            raise ContractInvalid(str(path), f"has more than {SCRIPT_BYTES_MAX} bytes")
        try:
            return cls(Scripts.model_validate(yaml.safe_load(path.read_text(encoding="utf-8"))).scripts)
        except yaml.MarkedYAMLError as error:
            line = error.problem_mark.line + 1 if error.problem_mark else 1
            raise ContractInvalid(f"{path}:{line}", error.problem or "is no YAML") from None
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False, include_context=False)[0]
            place = ".".join(str(part) for part in first["loc"])
            raise ContractInvalid(str(path), f"{place}: {first['msg']}") from None

    async def propose(self, request: InferenceRequest) -> Proposal:
        trace = request.trace
        for script in self._scripts:
            if fnmatchcase(trace.route_id, script.when.route_id) and fnmatchcase(
                trace.run_id, script.when.run_id
            ):
                turn = script.turns[min(max(trace.loop_step, 1), len(script.turns)) - 1]
                return _proposal(turn, request)
        raise Unavailable("model", "no script fits this run")


def _proposal(turn: Turn, request: InferenceRequest) -> Proposal:
    if turn.unavailable is not None:
        raise Unavailable("model", turn.unavailable)
    if turn.unknown_profile:
        raise ModelProfileUnknown(request.model_profile)
    if turn.question is not None:
        return Question(turn.question, turn.choices)
    if turn.refuse is not None:
        return Refusal(turn.refuse)
    if turn.answer is not None:
        return FinalAnswer(turn.answer, turn.data)
    step = request.trace.loop_step
    if turn.malformed is not None:
        return ToolCalls((ToolCall(f"c{step}-0", turn.malformed, None, "arguments_not_json"),), turn.say)
    calls = (
        ToolCall(f"c{step}-{place}", _in_scope(call, request), _filled(call.arguments, request))
        for place, call in enumerate(turn.calls)
    )
    return ToolCalls(tuple(calls), turn.say)


def _in_scope(call: ScriptedCall, request: InferenceRequest) -> str:
    if isinstance(call.tool, str):
        return call.tool
    names = {tool.name for tool in request.tools or ()}
    return next((name for name in call.tool if name in names), call.tool[0])


def _filled(arguments: dict[str, JsonValue], request: InferenceRequest) -> dict[str, JsonValue]:
    return {name: _value(value, request) for name, value in arguments.items()}


def _value(value: JsonValue, request: InferenceRequest) -> JsonValue:
    match value:
        case {"input": str(pointer), **rest} if not rest:
            first = next((part.text for part in request.messages if isinstance(part, UserText)), "null")
            return _at(first, pointer)
        case {"result": [str(tool), str(pointer)], **rest} if not rest:
            outputs = (p for p in reversed(request.messages) if isinstance(p, ToolOutput) and p.tool == tool)
            return _at(next((part.content for part in outputs), "null"), pointer)
        case dict():
            return {key: _value(inner, request) for key, inner in value.items()}
        case list():
            return [_value(inner, request) for inner in value]
        case _:
            return value


def _at(text: str, pointer: str) -> JsonValue:
    try:
        document: Any = canonical.tame(json.loads(text))
    except ValueError:
        return None
    found = pointers.at(document, pointer)
    return None if found is pointers.NOTHING else found  # type: ignore[return-value]
