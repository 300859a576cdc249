"""What a run has said and heard, rebuilt from step records (DESIGN 6: the checkpoint stays small).

A *turn* is one proposal of the model with what became of its calls. Its record is private and whole; the
shapes below are what rows hold:

    decided      {"kind": "calls" | "answer" | "question" | "refusal" | "nothing", "text", "data"?,
                  "choices"?, "calls": [{"call_id", "tool", "arguments", "malformed"?}],
                  "notice"?: {"code", "text"}}
    tool_result  {"ordinal", "result", "value", "code"?, "text"?}   (`resolved` the same: an operator's word)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pydantic import JsonValue

from session_custody.core import canonical
from session_custody.core.events import EventKind
from session_custody.core.inference import AssistantTurn, Part, ToolCall, ToolOutput, UserText


@dataclass(frozen=True, slots=True)
class StepRecord:
    """A committed step as a resume reads it."""

    event_seq: int
    kind: EventKind
    loop_step: int
    record: JsonValue


class RecordUnreadable(ValueError):
    """A committed record does not have the shape above: this worker cannot go on with this run."""


OK: Final = "ok"
DONE: Final = "done"
"""A write that took effect and whose value is not here: an operator's word without a result."""
UNSTORABLE: Final = "unstorable"
"""A write that took effect and whose value cannot be stored (DESIGN 6)."""
ERROR: Final = "error"
DENIED: Final = "denied"
MALFORMED: Final = "malformed"
NOT_DONE: Final = "not_done"

_TAKEN_EFFECT: Final = frozenset({DONE, UNSTORABLE})


@dataclass(frozen=True, slots=True)
class CallResult:
    """How one call of a proposal ended."""

    result: str
    value: JsonValue = None
    code: str | None = None
    text: str | None = None
    _content: str | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def failed(self) -> bool:
        return self.result not in (OK, DONE, UNSTORABLE)

    def as_record(self, ordinal: int) -> dict[str, JsonValue]:
        record: dict[str, JsonValue] = {"ordinal": ordinal, "result": self.result, "value": self.value}
        if self.code is not None:
            record["code"] = self.code
        if self.text is not None:
            record["text"] = self.text
        return record

    def content(self) -> str:
        """What the model reads: canonical JSON of the value, or of what stands for it. Written once: every
        later turn reads it again.
        """
        if self._content is None:
            object.__setattr__(self, "_content", self._written())
        assert self._content is not None
        return self._content

    def _written(self) -> str:
        if self.result == OK:
            return canonical.canonical(self.value).decode()
        if self.result in _TAKEN_EFFECT:
            stand_in: dict[str, JsonValue] = {"done": True, "result": self.value}
            if self.code:
                stand_in["note"] = self.code
            return canonical.canonical(stand_in).decode()
        return canonical.canonical({"error": self.code or self.result, "text": self.text or ""}).decode()


@dataclass(frozen=True, slots=True)
class Notice:
    """Why a proposal as a whole was not accepted: told to the model, costs a step."""

    code: str
    text: str


@dataclass(slots=True)
class Turn:
    """One proposal and what became of it. `results` fills up by ordinal (0 = the first call)."""

    loop_step: int
    kind: str
    text: str | None = None
    calls: tuple[ToolCall, ...] = ()
    data: JsonValue = None
    choices: tuple[str, ...] = ()
    notice: Notice | None = None
    results: dict[int, CallResult] = field(default_factory=dict)

    @property
    def next_open(self) -> int | None:
        """The first call without a result; None: the model may be asked again."""
        return next((ordinal for ordinal in range(len(self.calls)) if ordinal not in self.results), None)

    def as_record(self) -> dict[str, JsonValue]:
        record: dict[str, JsonValue] = {"kind": self.kind, "text": self.text}
        if self.calls:
            record["calls"] = [_call_record(call) for call in self.calls]
        if self.data is not None:
            record["data"] = self.data
        if self.choices:
            record["choices"] = list(self.choices)
        if self.notice is not None:
            record["notice"] = {"code": self.notice.code, "text": self.notice.text}
        return record

    def parts(self) -> tuple[Part, ...]:
        """This turn as the model reads it again; every call is followed by its result."""
        outputs = tuple(
            ToolOutput(call.call_id, call.tool, self.results[ordinal].content(), self.results[ordinal].failed)
            for ordinal, call in enumerate(self.calls)
        )
        said = AssistantTurn(self.text, self.calls)
        notice = () if self.notice is None else (UserText(self.notice.text),)
        return (said, *outputs, *notice) if self.calls or self.text else notice


def first_message(input_text: str) -> UserText:
    """A string is the first user message as it stands, anything else its canonical JSON (API 1)."""
    document = canonical.accept(input_text)
    return UserText(document if isinstance(document, str) else canonical.canonical(document).decode())


def messages(first: UserText, turns: Sequence[Turn]) -> tuple[Part, ...]:
    """The whole conversation; every turn is complete: no Decide while a call has no result (DESIGN 8)."""
    return (first, *(part for turn in turns for part in turn.parts()))


def read_turns(steps: Sequence[StepRecord]) -> list[Turn]:
    """Turns from committed steps, in order. Raises RecordUnreadable; the message holds no content."""
    turns: list[Turn] = []
    for step in steps:
        try:
            if step.kind in (EventKind.DECIDED, EventKind.INFERENCE):
                turns.append(_read_turn(step.loop_step, step.record))
            elif step.kind in (EventKind.TOOL_RESULT, EventKind.RESOLVED):
                _read_result(turns, step)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            problem = f"step {step.event_seq} ({step.kind.value}): {type(error).__name__}"
            raise RecordUnreadable(problem) from None
    return turns


def _call_record(call: ToolCall) -> dict[str, JsonValue]:
    record: dict[str, JsonValue] = {"call_id": call.call_id, "tool": call.tool, "arguments": call.arguments}
    if call.malformed is not None:
        record["malformed"] = call.malformed
    return record


def _read_turn(loop_step: int, record: Any) -> Turn:
    notice = record.get("notice")
    return Turn(
        loop_step,
        kind=record["kind"],
        text=record["text"],
        calls=tuple(
            ToolCall(call["call_id"], call["tool"], call["arguments"], call.get("malformed"))
            for call in record.get("calls", ())
        ),
        data=record.get("data"),
        choices=tuple(record.get("choices", ())),
        notice=None if notice is None else Notice(notice["code"], notice["text"]),
    )


def _read_result(turns: list[Turn], step: StepRecord) -> None:
    record: Any = step.record
    turn = turns[-1]
    ordinal = record["ordinal"]
    if turn.loop_step != step.loop_step or not 0 <= ordinal < len(turn.calls):
        raise ValueError("a result belongs to no call")
    turn.results[ordinal] = CallResult(
        record["result"], record["value"], record.get("code"), record.get("text")
    )


def without_value(result: CallResult, code: str, *, took_effect: bool) -> CallResult:
    """The variant that is always storable: a write stays done, a read becomes an error (DESIGN 6)."""
    return replace(result, result=UNSTORABLE if took_effect else ERROR, value=None, code=code, text=None)
