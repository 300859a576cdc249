"""Stations 7, 8 and 10 as the machine asks for them: model, PEP, tools. No error of theirs leaves.

Fault points: `decide.*` around the model, `pep.*` around the gate's decision, `tool.*` around each call.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Sequence
from typing import Any, Final, TypeVar

from session_custody import faults
from session_custody.core.calls import (
    Authorization,
    CouldNotAsk,
    NotStarted,
    Reconciled,
    ReconciledUnknown,
    Returned,
    ToolAnswer,
    ToolErrored,
    Uncertain,
)
from session_custody.core.commands import (
    Asked,
    AskModel,
    Authorize,
    Authorized,
    CallReads,
    CallWrite,
    ContractAbsent,
    ModelFailed,
    Proposed,
    ReadsEnded,
    Reconcile,
    Sending,
    WriteEnded,
)
from session_custody.core.errors import ContractMissing, ModelProfileUnknown, Unavailable
from session_custody.core.events import RunFacts
from session_custody.core.inference import Mask, Proposal, ToolCall, build_request
from session_custody.core.manifest import Effect
from session_custody.core.pin import RunPin
from session_custody.core.trace import TraceFields
from session_custody.ports import Clock, LaneFence, ModelClient, Send, ToolGate
from session_custody.telemetry import STATION_ERRORS, STEP_DURATION, TOOL_CALLS, log

GATE_LOOK_S: Final = 0.05
_DECIDING: Final = STEP_DURATION.labels(kind="decide")
_IN_A_TOOL: Final = STEP_DURATION.labels(kind="tool")

T = TypeVar("T")


class Caller:
    """The calls of one live run."""

    def __init__(
        self,
        facts: RunFacts,
        traceparent: str | None,
        fence: LaneFence,
        *,
        model: ModelClient,
        gate: ToolGate,
        clock: Clock,
        mask: Mask,
    ) -> None:
        self._facts = facts
        self._traceparent = traceparent
        self._fence = fence
        self._model = model
        self._gate = gate
        self._clock = clock
        self._mask = mask

    def running(self, key: str) -> bool:
        return self._gate.running(key)

    # -------------------------------------------------------------- the model

    async def ask(self, command: AskModel, pin: RunPin) -> Proposed | ModelFailed:
        """One asking, within its timeout. A client's own error is a failed asking and never the run's end."""
        request = build_request(
            instructions=command.instructions,
            messages=command.messages,
            tools=command.tools,
            model_profile=pin.sent.model_profile,
            model_target=pin.resolved.model_target,
            timeout_s=command.timeout_s,
            trace=self._facts.trace(command.orchestration_step, command.loop_step),
            mask=self._mask,
        )
        seen = {"run_id": self._facts.run_id, "loop_step": command.loop_step}
        faults.reach("decide.before", **seen)
        began = time.monotonic()
        try:
            async with asyncio.timeout(command.timeout_s):
                proposal: object = await self._model.propose(request)
        except TimeoutError:
            return self._failed("model_timeout")
        except Unavailable as error:
            log.warning("the model could not be asked", reason=error.detail)
            after = getattr(error, "retry_after_s", None)
            return self._failed("model_unavailable", float(after) if isinstance(after, int | float) else None)
        except ModelProfileUnknown:
            return self._failed("model_profile_unknown", final=True)
        except Exception as error:  # noqa: BLE001 - a client of the team's own: its bug is an outage of the model
            log.error("the model client raised", error=type(error).__name__)
            return self._failed("model_error")
        _DECIDING.observe(time.monotonic() - began)
        faults.reach("decide.after", **seen)
        if not isinstance(proposal, Proposal):
            log.error("the model client returned no proposal", error=type(proposal).__name__)
            return self._failed("model_error")
        return Proposed(proposal)

    def _failed(self, code: str, after_s: float | None = None, *, final: bool = False) -> ModelFailed:
        STATION_ERRORS.labels(station="decide", error=code).inc()
        return ModelFailed(code, self._clock.now(), after_s, final)

    # -------------------------------------------------------------- the PEP

    async def authorize(self, command: Authorize, pin: RunPin) -> Authorized:
        trace = self._facts.trace(command.orchestration_step, command.loop_step)
        seen = {"run_id": self._facts.run_id, "loop_step": command.loop_step}
        faults.reach("pep.before", **seen)
        answers = await _together([self._authorize(command, pin, call, trace) for call in command.calls])
        faults.reach("pep.after", **seen)
        return Authorized(tuple(answers))

    async def _authorize(
        self, command: Authorize, pin: RunPin, call: ToolCall, trace: TraceFields
    ) -> Authorization | ContractAbsent:
        try:
            return await self._gate.authorize(self._facts, pin, command.manifest, call, trace)
        except ContractMissing as error:
            return ContractAbsent(str(error))
        except Unavailable as error:
            STATION_ERRORS.labels(station="pep", error=type(error).__name__).inc()
            return CouldNotAsk(error.what)
        except Exception as error:  # noqa: BLE001 - nothing was decided: no call, and the run parks
            STATION_ERRORS.labels(station="pep", error=type(error).__name__).inc()
            log.error("the gate raised", error=type(error).__name__)
            return CouldNotAsk("gate")

    # -------------------------------------------------------------- tools

    async def reads(self, command: CallReads) -> ReadsEnded:
        answers = await _together([self._read(read) for read in command.reads])
        return ReadsEnded(tuple(answers))

    async def _read(self, read: Sending) -> ToolAnswer:
        answer = await self._invoke(read, None)
        return ToolErrored("tool_failed") if answer is None else answer

    async def write(self, command: CallWrite, offered_at: float) -> WriteEnded:
        """Starts within the allowance and through an open gate only (DESIGN 4, 8); else it is not sent."""
        start_by = offered_at + command.allowance_s
        while not self._fence.gate_open and self._clock.boottime() < start_by:
            if self._fence.lost:
                return WriteEnded(NotStarted())
            await asyncio.sleep(GATE_LOOK_S)
        if self._fence.lost or not self._fence.gate_open or self._clock.boottime() >= start_by:
            return WriteEnded(NotStarted())
        answer = await self._invoke(command.write, start_by)
        return WriteEnded(Uncertain("gate_failed") if answer is None else answer)

    async def _invoke(self, sending: Sending, start_by: float | None) -> ToolAnswer | None:
        """None: the gate broke its promise and raised."""
        spec = sending.permit.spec
        seen = {"run_id": self._facts.run_id, "tool": spec.name, "key": sending.key}
        faults.reach("tool.before", **seen)
        began = time.monotonic()
        answer: ToolAnswer | None
        try:
            answer = await self._gate.invoke(sending.permit, self._facts, self._send(sending, start_by))
        except Exception as error:  # noqa: BLE001 - one call's bug stays with its run (I16)
            STATION_ERRORS.labels(station="tool", error=type(error).__name__).inc()
            log.error("the gate raised", error=type(error).__name__)
            answer = None
        _IN_A_TOOL.observe(time.monotonic() - began)
        TOOL_CALLS.labels(tool=spec.name, effect=spec.effect.value, result=_word(answer)).inc()
        faults.reach("tool.after", **seen)
        return answer

    async def reconcile(self, command: Reconcile) -> Asked:
        asked: Reconciled
        try:
            asked = await self._gate.reconcile(
                command.write.permit, self._facts, self._send(command.write, None)
            )
        except Exception as error:  # noqa: BLE001 - not knowing is an answer
            STATION_ERRORS.labels(station="tool", error=type(error).__name__).inc()
            asked = ReconciledUnknown("reconcile_failed")
        name = command.write.permit.spec.name
        word = f"reconcile_{type(asked).__name__.removeprefix('Reconciled').lower()}"
        TOOL_CALLS.labels(tool=name, effect=Effect.WRITE.value, result=word).inc()
        return Asked(asked)

    def _send(self, sending: Sending, start_by: float | None) -> Send:
        return Send(sending.key, sending.attempt, sending.timeout_s, start_by, self._traceparent)


async def _together(calls: Sequence[Coroutine[Any, Any, T]]) -> Sequence[T]:
    """Concurrently; a single one, which is the usual, without a task of its own."""
    return [await calls[0]] if len(calls) == 1 else await asyncio.gather(*calls)


def _word(answer: ToolAnswer | None) -> str:
    match answer:
        case Returned():
            return "ok"
        case ToolErrored():
            return "error"
        case NotStarted():
            return "not_started"
        case _:
            return "unknown"
