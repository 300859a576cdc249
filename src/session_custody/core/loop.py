"""Station 7: the bounded agent loop as a machine without I/O (DESIGN 9; I2, I3, I10).

`drive` yields one command at a time and is sent the fact that answers it. It has no clock, no randomness and
no I/O: the property tests, the simulator, replay and production drive this same code. Around each turn:

    boundary -> [open write: effect.settle_intent] -> [open calls: the next reads, or the next write]
             -> [nothing open: ask the model, unless a bound is exhausted]

A read-only turn is one commit (`decided` and its `tool_result`s), so a crash inside it asks the model again;
from the first intent on the proposal is recorded and the model is not asked again.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Final

from session_custody.core import bounds, proposal
from session_custody.core.boundary import absorb, boundary, look
from session_custody.core.calls import CouldNotAsk, Denied, Malformed, Permit
from session_custody.core.commands import (
    AskModel,
    Authorize,
    Authorized,
    CallReads,
    ContractAbsent,
    ContractsLoaded,
    LoadContracts,
    ModelFailed,
    Pause,
    Proposed,
    ReadsEnded,
    Sending,
    unexpected,
)
from session_custody.core.effect import begin_write, park_undecided, settle_intent
from session_custody.core.errors import InvariantBroken
from session_custody.core.events import EventKind
from session_custody.core.inference import ToolSchema
from session_custody.core.manifest import Effect
from session_custody.core.pin import OnMaxLoopSteps, Pattern
from session_custody.core.progress import Ended, Machine, Progress, RunState
from session_custody.core.results import call_key, read_result, refused, stage_result
from session_custody.core.run import DRIVEN, ParkReason, Status
from session_custody.core.transcript import MALFORMED, CallResult, Notice, Turn, messages

MODEL_DELAY_FIRST_S: Final = 1.0
MODEL_DELAY_MAX_S: Final = 60.0


def drive(state: RunState, *, suspects: bool = False) -> Machine[None]:
    """Drive one run until it leaves memory. `suspects`: its lane has unclean ends (DESIGN 4)."""
    p = Progress(state)
    try:
        if p.cp.status.terminal:
            yield from _after_the_end(p)
        elif p.cp.status in DRIVEN:
            if suspects and not (yield from _count_suspect(p)):
                return
            yield from _run(p)
        else:
            yield from _load(p, parks=False)
            if (yield from boundary(p)):
                yield from _run(p)
    except Ended:
        return


def park_unreadable(state: RunState, detail: str) -> Machine[None]:
    """A run whose records this build cannot read: it parks with its reason, its neighbours go on (I16).

    `state` has no turns. Without a pending intent it can still be cancelled and expires.
    """
    p = Progress(state)
    if p.cp.status in DRIVEN or (p.cp.pending is None and (yield from boundary(p))):
        yield from p.park(ParkReason.SUSPECT, detail)


# ------------------------------------------------------------------ before and after


def _after_the_end(p: Progress) -> Machine[None]:
    """Terminal statuses absorb: signals are counted; a late tool result leaves a refused event (DESIGN 7)."""
    yield from look(p)
    yield from absorb(p)


def _count_suspect(p: Progress) -> Machine[bool]:
    """Counted before the run is driven: if it kills this worker, the next one knows."""
    counted = replace(p.cp, suspect_count=p.cp.suspect_count + 1)
    if counted.suspect_count >= p.limits.suspect_at:
        p.cp = counted
        yield from p.park(ParkReason.SUSPECT)
        return False
    yield from p.commit(counted)
    return True


def _load(p: Progress, *, parks: bool = True) -> Machine[bool]:
    """Bring the pinned contracts; what admission could not resolve is recorded with the next commit."""
    if p.contracts_loaded:
        return True
    fact = yield LoadContracts(p.resolved)
    match fact:
        case ContractsLoaded(manifest, resolved):
            p.manifest = manifest
            if resolved != p.resolved:
                p.resolved = resolved
                p.loaded = resolved.model_dump_json()
            p.contracts_loaded = True
            return True
        case ContractAbsent(detail):
            if parks:
                yield from p.park(ParkReason.CONTRACT_MISSING, detail)
            return False
        case _:
            raise unexpected(fact, "LoadContracts")


# ------------------------------------------------------------------ the loop


def _run(p: Progress) -> Machine[None]:
    while True:
        turn = p.turn
        if p.came_further and (turn is None or turn.next_open is None):
            yield from p.commit(replace(p.cp, status=Status.RUNNING))
        if not (yield from boundary(p)):
            return
        if not (yield from _load(p)):
            return
        if p.cp.pending is not None:
            goes_on = yield from settle_intent(p)
        elif turn is not None and turn.next_open is not None:
            goes_on = yield from _advance(p, turn, turn.next_open)
        else:
            goes_on = yield from _decide(p)
        if not goes_on:
            return


def _advance(p: Progress, turn: Turn, ordinal: int) -> Machine[bool]:
    """The next calls of the open proposal: contiguous reads together, a write alone (DESIGN 8)."""
    spec = p.spec(turn.calls[ordinal].tool)
    if spec is not None and spec.effect is Effect.WRITE:
        return (yield from begin_write(p, turn, ordinal, spec))
    group: list[int] = []
    for place in range(ordinal, len(turn.calls)):
        spec = p.spec(turn.calls[place].tool)
        if spec is not None and spec.effect is Effect.WRITE:
            break
        if place in turn.results:
            continue
        if spec is None:
            unknown = CallResult(MALFORMED, code="unknown_tool", text="There is no tool of this name.")
            stage_result(p, turn, place, unknown)
        else:
            group.append(place)
    return (yield from _read(p, turn, group)) if group else True


def _read(p: Progress, turn: Turn, group: list[int]) -> Machine[bool]:
    assert p.manifest is not None
    fact = yield Authorize(p.manifest, tuple(turn.calls[place] for place in group), p.stage, turn.loop_step)
    if not isinstance(fact, Authorized):
        raise unexpected(fact, "Authorize")
    permits: dict[int, Permit] = {}
    for answer in fact.answers:
        if isinstance(answer, CouldNotAsk | ContractAbsent):
            yield from park_undecided(p, answer)
            return False
    for place, answer in zip(group, fact.answers, strict=True):
        if isinstance(answer, Permit):
            permits[place] = answer
        elif isinstance(answer, Denied | Malformed):
            policy = answer.policy if isinstance(answer, Denied) else None
            stage_result(p, turn, place, refused(answer), policy=policy)
    if permits:
        yield from _call_reads(p, turn, permits)
    return True


def _call_reads(p: Progress, turn: Turn, permits: dict[int, Permit]) -> Machine[None]:
    run_id = p.run.facts.run_id
    keys = {place: call_key(run_id, turn.loop_step, place) for place in permits}
    reads = tuple(
        Sending(permit, keys[place], 1, p.timeout_s(permit.spec)) for place, permit in permits.items()
    )
    fact = yield CallReads(reads)
    if not isinstance(fact, ReadsEnded):
        raise unexpected(fact, "CallReads")
    for (place, permit), answer in zip(permits.items(), fact.answers, strict=True):
        result = read_result(answer, p.limits.result_bytes)
        stage_result(p, turn, place, result, permit=permit, key=keys[place], attempt=1)


# ------------------------------------------------------------------ asking the model


def _decide(p: Progress) -> Machine[bool]:
    """Nothing is open: ask for the next proposal, or end at a bound (I10)."""
    match p.resolved.pattern:
        case Pattern.INFERENCE:
            return (yield from _infer(p))
        case Pattern.LOOP:
            pass
        case _:
            yield from p.park(ParkReason.CONTRACT_MISSING, "this build does not drive stages")
            return False
    most = p.run.pin.max_loop_steps
    if most is None:
        yield from p.finish(Status.FAILED, code="max_loop_steps_missing")
        return False
    if p.loop_step >= most:
        partial = p.resolved.on_max_loop_steps is OnMaxLoopSteps.PARTIAL
        text = next((turn.text for turn in reversed(p.turns) if turn.text), None)
        status = Status.PARTIAL if partial else Status.ESCALATED
        yield from p.finish(status, code="max_loop_steps", text=text)
        return False
    assert p.manifest is not None
    tools = tuple(ToolSchema(tool.name, tool.description, tool.input) for tool in p.manifest.tools)
    answer = yield from _ask(p, tools)
    if not isinstance(answer, Turn):
        return answer
    p.turns.append(answer)
    notice = answer.notice
    p.drafts.append(
        p.draft(EventKind.DECIDED, record=answer.as_record(), code=None if notice is None else notice.code)
    )
    return (yield from _take_proposal(p, answer))


def _take_proposal(p: Progress, turn: Turn) -> Machine[bool]:
    match turn.kind:
        case proposal.ANSWER:
            yield from p.finish(Status.SUCCEEDED, text=turn.text, data=turn.data)
            return False
        case proposal.REFUSAL:
            yield from p.finish(Status.ESCALATED, code="model_refused", text=turn.text)
            return False
        case proposal.CALLS:
            for ordinal, result in sorted(turn.results.items()):
                stage_result(p, turn, ordinal, result)
            return True
        case _:
            return True


def _infer(p: Progress) -> Machine[bool]:
    """Pattern 0: one inference, no tools; the inference and the outcome are one commit."""
    answer = yield from _ask(p, None)
    if not isinstance(answer, Turn):
        return answer
    p.turns.append(answer)
    notice = answer.notice
    code = None if notice is None else notice.code
    p.drafts.append(p.draft(EventKind.INFERENCE, record=answer.as_record(), code=code))
    match answer.kind:
        case proposal.ANSWER:
            yield from p.finish(Status.SUCCEEDED, text=answer.text, data=answer.data)
        case proposal.REFUSAL:
            yield from p.finish(Status.ESCALATED, code="model_refused", text=answer.text)
        case _:
            yield from p.finish(Status.FAILED, code=code or f"unexpected_{answer.kind}")
    return False


def _ask(p: Progress, tools: tuple[ToolSchema, ...] | None) -> Machine[Turn | bool]:
    """A new turn; or True: look around and try again; or False: the run left memory."""
    if p.ask_after is not None and p.now < p.ask_after:
        yield Pause(until=min(p.ask_after, p.run.expires_at))
        return True
    loop_step = p.loop_step + 1
    if any(turn.next_open is not None for turn in p.turns):
        raise InvariantBroken("the model would be asked while a call has no result")
    fact = yield AskModel(
        instructions=None if p.manifest is None else p.manifest.instructions,
        messages=messages(p.first, p.turns),
        tools=tools,
        timeout_s=p.limits.model_timeout_s,
        orchestration_step=p.stage,
        loop_step=loop_step,
    )
    match fact:
        case Proposed(said):
            p.ask_after = None
            return _questioned(p, proposal.read_proposal(said, loop_step, p.limits))
        case ModelFailed():
            return (yield from _model_failed(p, fact))
        case _:
            raise unexpected(fact, "AskModel")


def _questioned(p: Progress, turn: Turn) -> Turn:
    """A question is answered with a notice: nobody can be asked by this contract or this build."""
    if turn.kind == proposal.QUESTION:
        text = "Nobody can be asked in this run. Go on with what is known, or give your answer."
        turn.notice = Notice("question_not_allowed", text)
    return turn


def _model_failed(p: Progress, failed: ModelFailed) -> Machine[bool]:
    """A retry budget that restarts do not renew, then park (DESIGN 9)."""
    attempts = p.cp.attempts + 1
    if failed.final or attempts >= p.limits.model_attempts:
        yield from p.park(ParkReason.MODEL_UNAVAILABLE, failed.code, attempts=attempts)
        return False
    yield from p.commit(replace(p.cp, status=Status.RUNNING, attempts=attempts))
    delay_s = min(MODEL_DELAY_FIRST_S * 2.0 ** (attempts - 1), MODEL_DELAY_MAX_S)
    if failed.retry_after_s is not None:
        delay_s = min(max(failed.retry_after_s, 0.0), bounds.PARK_BACKOFF_MAX_S)
    p.ask_after = max(p.now, failed.now) + timedelta(seconds=delay_s)
    return True
