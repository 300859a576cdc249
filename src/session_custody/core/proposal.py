"""A model's proposal made a turn: tamed, bounded, and what is wrong with it as facts (I10, DESIGN 9).

Nothing a model says raises. What cannot be used costs a step and is told to it: a whole proposal by a
`Notice`, a single call by a `malformed` result.
"""

from __future__ import annotations

from typing import Final, assert_never

from pydantic import JsonValue

from session_custody.core import bounds, canonical
from session_custody.core.inference import FinalAnswer, Proposal, Question, Refusal, ToolCall, ToolCalls
from session_custody.core.pin import Limits
from session_custody.core.transcript import MALFORMED, CallResult, Notice, Turn

ANSWER: Final = "answer"
CALLS: Final = "calls"
QUESTION: Final = "question"
REFUSAL: Final = "refusal"
NOTHING: Final = "nothing"

TOOL_NAME_CHARS_MAX: Final = 64
CHOICES_MAX: Final = 32


def read_proposal(proposal: Proposal, loop_step: int, limits: Limits) -> Turn:
    """The turn that this proposal opens. Its calls have results where they cannot be made at all."""
    match proposal:
        case FinalAnswer(text, data):
            return _answer(text, data, loop_step)
        case ToolCalls(calls, text):
            return _calls(calls, text, loop_step, limits)
        case Question(text, choices):
            kept = tuple(cut(choice, bounds.ERROR_TEXT_CHARS_MAX) for choice in choices[:CHOICES_MAX])
            return Turn(loop_step, QUESTION, cut(text, bounds.FINAL_TEXT_BYTES_MAX // 4), choices=kept)
        case Refusal(text):
            return Turn(loop_step, REFUSAL, cut(text, bounds.FINAL_TEXT_BYTES_MAX // 4))
        case _:
            assert_never(proposal)


def cut(text: str, chars: int) -> str:
    """At most this many characters, no lone surrogate."""
    tamed = canonical.tame(text[:chars])
    assert isinstance(tamed, str)
    return tamed


def _answer(text: str, data: JsonValue, loop_step: int) -> Turn:
    try:
        document = canonical.tame({"text": text, "data": data})
        size = len(canonical.canonical(document))
    except ValueError:
        return _nothing(loop_step, "answer_not_json", "The answer's data is no JSON document. Answer again.")
    assert isinstance(document, dict)
    if size > bounds.FINAL_TEXT_BYTES_MAX:
        return _nothing(
            loop_step,
            "final_text_too_large",
            f"The answer has {size} bytes, at most {bounds.FINAL_TEXT_BYTES_MAX} are taken. Answer shorter.",
        )
    tamed = str(document["text"])
    if not tamed.strip() and document["data"] is None:
        return _nothing(loop_step, "empty_proposal", "The answer was empty. Answer, or call a tool.")
    return Turn(loop_step, ANSWER, tamed, data=document["data"])


def _nothing(loop_step: int, code: str, text: str) -> Turn:
    return Turn(loop_step, NOTHING, notice=Notice(code, text))


def _calls(calls: tuple[ToolCall, ...], text: str | None, loop_step: int, limits: Limits) -> Turn:
    said = None if text is None else cut(text, bounds.FINAL_TEXT_BYTES_MAX // 4)
    if not calls:
        return _nothing(loop_step, "empty_proposal", "No tool was called. Answer, or call a tool.")
    if len(calls) > limits.proposal_calls:
        # none is made: which of them matter is the model's to say
        why = f"{len(calls)} calls were proposed, at most {limits.proposal_calls} are made. None was made."
        return Turn(loop_step, NOTHING, said, notice=Notice("too_many_calls", why))
    turn = Turn(loop_step, CALLS, said)
    names: set[str] = set()
    kept: list[ToolCall] = []
    for ordinal, call in enumerate(calls):
        tamed, problem = _call(call, ordinal, names, limits)
        names.add(tamed.call_id)
        kept.append(tamed)
        if problem is not None:
            turn.results[ordinal] = problem
    turn.calls = tuple(kept)
    return turn


def _call(
    call: ToolCall, ordinal: int, names: set[str], limits: Limits
) -> tuple[ToolCall, CallResult | None]:
    name = cut(call.tool, TOOL_NAME_CHARS_MAX)
    asked = cut(call.call_id, bounds.CALL_ID_CHARS_MAX) or f"call-{ordinal}"
    call_id = asked
    while call_id in names:
        call_id = f"{call_id[: bounds.CALL_ID_CHARS_MAX - 8]}#{ordinal}"

    def refused(code: str, why: str) -> tuple[ToolCall, CallResult]:
        return ToolCall(call_id, name, None, code), CallResult(MALFORMED, code=code, text=why)

    if call_id != asked:
        return refused("duplicate_call_id", "Another call of this proposal has the same id.")
    if call.arguments is None:
        return refused("arguments_not_json", "The arguments are no JSON object.")
    try:
        arguments = canonical.tame(call.arguments)
        size = len(canonical.canonical(arguments))
    except ValueError:
        return refused("arguments_not_json", "The arguments are no JSON document.")
    if size > limits.arguments_bytes:
        why = f"The arguments have {size} bytes, at most {limits.arguments_bytes} are taken."
        return refused("arguments_too_large", why)
    assert isinstance(arguments, dict)
    return ToolCall(call_id, name, arguments), None
