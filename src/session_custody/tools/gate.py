"""Station 8, the gate: our PEP and the only way to invoke a tool (I11, I12, DESIGN 8, 13).

Order of `authorize`, each before anything that costs or is seen by somebody else:

1. the tool stands in the pinned manifest and runs here as pinned (else the run parks, I3);
2. the arguments fit the pinned JSON Schema, then the function's type hints (else a correctable fact);
3. the PDP says a clean "true" for the pinned subject, bundle and exactly these arguments. Anything else is a
   deny and audited as one; only a PDP that could not be asked is no decision.

`invoke` and `reconcile` take what `authorize` gave, and check that it still is about the same arguments.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, assert_never
from uuid import uuid4

from session_custody.clock import boottime
from session_custody.core import canonical, pointers
from session_custody.core.authorization import AuthorizationRequest, Decision
from session_custody.core.calls import (
    Authorization,
    CouldNotAsk,
    Denied,
    Malformed,
    Permit,
    Reconciled,
    ReconciledUnknown,
    ToolAnswer,
)
from session_custody.core.errors import ContractMissing, InvariantBroken, Unavailable
from session_custody.core.events import PolicyRecord, RunFacts
from session_custody.core.inference import ToolCall
from session_custody.core.manifest import Effect, Manifest, ToolSpec
from session_custody.core.pin import RunId, RunPin
from session_custody.core.trace import TraceFields
from session_custody.ports import LateResult, PolicyDecisionPoint, Send
from session_custody.telemetry import PDP_DECISIONS, PDP_DURATION, PDP_UNAVAILABLE, log
from session_custody.tools import answers
from session_custody.tools.arguments import InputSchema, SchemaUnusable
from session_custody.tools.context import ToolContext, ToolError
from session_custody.tools.input_schema import ArgumentsRefused, read_arguments
from session_custody.tools.invoke import CallEnd, NotBegun, OutOfTime, Watch, call_async, call_sync
from session_custody.tools.outgoing import OpenHttp, OutgoingHttp
from session_custody.tools.registry import Registered, Registry
from session_custody.tools.threads import Raised, ToolThreads, Value

PDP_TIMEOUT_S: Final = 5.0
PREPARED_MAX: Final = 4_096
QUEUE_WAIT_S: Final = 60.0
"""What a read or a reconcile waits for a thread; a write has its start allowance."""
REASON_CHARS_MAX: Final = 200
POLICY_ERROR: Final = "policy_error"


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A pinned tool with what is needed to call it. Holds its spec, so that the cache's key stays its own."""

    spec: ToolSpec
    entry: Registered
    schema: InputSchema


class Gate:
    """Implements `ports.ToolGate`. `late_result` is told of calls that ended when nobody waited for them."""

    def __init__(
        self,
        registry: Registry,
        pdp: PolicyDecisionPoint,
        *,
        late_result: LateResult,
        base_url: str | None,
        sync_threads: int,
        pdp_timeout_s: float = PDP_TIMEOUT_S,
    ) -> None:
        self._registry = registry
        self._pdp = pdp
        self._late_result = late_result
        self._pdp_timeout_s = pdp_timeout_s
        self._http = OutgoingHttp(base_url)
        self._threads = ToolThreads(sync_threads)
        self._prepared: OrderedDict[int, _Prepared] = OrderedDict()
        self._running: Counter[str] = Counter()
        self._telling: set[asyncio.Task[None]] = set()

    # ------------------------------------------------------------------ authorize

    async def authorize(
        self, run: RunFacts, pin: RunPin, manifest: Manifest, call: ToolCall, trace: TraceFields
    ) -> Authorization:
        """See the module. Raises ContractMissing for a tool that is missing or different here."""
        spec = manifest.tool(call.tool)
        if spec is None:
            return Malformed("unknown_tool", "There is no tool of this name.")
        prepared = self._prepare(manifest, spec)
        if call.arguments is None:
            return Malformed("arguments_not_json", "The arguments are no JSON object.")
        problem = self._problem(manifest, prepared, call)
        if problem is not None:
            return Malformed("arguments_invalid", problem)
        digest = canonical.digest(call.arguments).hex()
        request = AuthorizationRequest(
            subject=run.subject,
            action=spec.name,
            effect=spec.effect.value,
            resource=manifest.manifest_id,
            policy_profile=pin.sent.policy_profile,
            policy_version=pin.policy_version,
            trace=trace,
            args_digest=digest,
            declared_args=_declared(spec, call),
        )
        policy = await self._decide(request)
        if isinstance(policy, CouldNotAsk):
            return policy
        if policy.decision != "allow":
            return Denied(policy)
        return Permit(RunId(run.run_id), spec, call, digest, policy, trace, prepared.entry.build_id)

    def _prepare(self, manifest: Manifest, spec: ToolSpec) -> _Prepared:
        known = self._prepared.get(id(spec))
        if known is not None:
            self._prepared.move_to_end(id(spec))
            return known
        entry = self._registry.match(manifest, spec)
        try:
            prepared = _Prepared(spec, entry, InputSchema(spec.input))
        except SchemaUnusable as error:
            raise _unusable(manifest, spec, error) from None
        self._prepared[id(spec)] = prepared
        if len(self._prepared) > PREPARED_MAX:
            self._prepared.popitem(last=False)
        return prepared

    def _problem(self, manifest: Manifest, prepared: _Prepared, call: ToolCall) -> str | None:
        assert call.arguments is not None
        try:
            problem = prepared.schema.problems(call.arguments)
            if problem is None:
                read_arguments(prepared.entry.tool.input_model, call.arguments)
        except SchemaUnusable as error:
            raise _unusable(manifest, prepared.spec, error) from None
        except ArgumentsRefused as error:
            return str(error)
        return problem

    async def _decide(self, request: AuthorizationRequest) -> PolicyRecord | CouldNotAsk:
        """A clean "true" is an allow; everything else is a deny, except that nobody could be asked."""
        began = time.perf_counter()
        try:
            async with asyncio.timeout(self._pdp_timeout_s):
                policy = _record(await self._pdp.decide(request))
        except Unavailable as error:
            PDP_UNAVAILABLE.inc()
            return CouldNotAsk(error.what)
        except TimeoutError:
            PDP_UNAVAILABLE.inc()
            return CouldNotAsk("the PDP did not answer in time")
        except ContractMissing:
            raise
        except Exception as error:  # noqa: BLE001 - deny by default: no fault of a PDP lets a call through
            log.warning("policy decision failed", tool=request.action, error=type(error).__name__)
            policy = _deny(POLICY_ERROR)
        finally:
            PDP_DURATION.observe(time.perf_counter() - began)
        PDP_DECISIONS.labels(request.policy_profile or "none", policy.decision).inc()
        return policy

    # ------------------------------------------------------------------ invoke

    async def invoke(self, permit: Permit, run: RunFacts, send: Send) -> ToolAnswer:
        """One send. Never raises for a tool's failure; cancelled, a write's end goes to `late_result`."""
        entry, arguments = self._checked(permit, run)
        spec = permit.spec
        wrote = spec.effect is Effect.WRITE

        def late(end: Value | Raised) -> None:
            if wrote:
                answer = answers.write_answer(end, answers.UNSTORABLE)
                self._tell_late(permit.run_id, send.idempotency_key, answer)

        end = await self._call(entry, entry.tool.function, arguments, permit, run, send, late)
        match end:
            case Value() | Raised():
                answer = answers.write_answer(end) if wrote else answers.read_answer(end)
            case OutOfTime(still_running):
                answer = answers.out_of_time(spec.effect, still_running=still_running)
            case NotBegun():
                answer = answers.not_begun(spec.effect, allowance=send.start_by is not None)
            case _:
                assert_never(end)
        _note(spec, end)
        return answer

    async def reconcile(self, permit: Permit, run: RunFacts, send: Send) -> Reconciled:
        """Ask the tool what became of the write with this key."""
        entry, arguments = self._checked(permit, run)
        if entry.tool.reconciler is None:
            return ReconciledUnknown("no_reconciler")
        end = await self._call(
            entry, entry.tool.reconciler, arguments, permit, run, send, lambda _: None, counted=False
        )
        match end:
            case Value() | Raised():
                return answers.reconciled(end)
            case OutOfTime():
                return ReconciledUnknown(answers.TOOL_TIMEOUT)
            case NotBegun():
                return ReconciledUnknown(answers.TOOL_UNAVAILABLE)
            case _:
                assert_never(end)

    def running(self, key: str) -> bool:
        """A call with this idempotency key is still inside its tool, on a thread or as a coroutine."""
        return self._running[key] > 0

    async def close(self) -> None:
        """End connections and idle threads. A hung call is not waited for (DESIGN 4)."""
        self._threads.close()
        await self._http.close()

    # ------------------------------------------------------------------ the parts

    def _checked(self, permit: Permit, run: RunFacts) -> tuple[Registered, dict[str, Any]]:
        """Key and arguments digest are checked together before every send (DESIGN 8)."""
        call = permit.call
        if permit.policy.decision != "allow" or permit.run_id != run.run_id or call.arguments is None:
            raise InvariantBroken(f"a permit for {call.tool} is not one for this call")
        if canonical.digest(call.arguments).hex() != permit.args_digest:
            raise InvariantBroken(f"the arguments of {call.tool} are not the permitted ones")
        entry = self._registry.get(permit.spec.endpoint)
        if entry is None:
            raise InvariantBroken(f"{call.tool} was permitted and is not here")
        return entry, call.arguments

    async def _call(
        self,
        entry: Registered,
        function: Callable[..., Any],
        arguments: dict[str, Any],
        permit: Permit,
        run: RunFacts,
        send: Send,
        on_late: Callable[[Value | Raised], None],
        *,
        counted: bool = True,
    ) -> CallEnd:
        if send.start_by is not None and boottime() > send.start_by:
            return NotBegun()
        try:
            values = read_arguments(entry.tool.input_model, arguments)
        except ArgumentsRefused as error:
            # authorize accepted them: a validator that is no function of its input. It was not called.
            return Raised(ToolError("arguments_invalid", str(error)))
        key = send.idempotency_key
        if counted:
            self._running[key] += 1
        watch = Watch((lambda: self._leave(key)) if counted else (lambda: None), on_late)
        if _is_async(function):
            context = self._context(permit, run, send, self._http.async_client)
            return await call_async(lambda: function(context, **values), send.timeout_s, watch)

        def on_thread() -> Any:
            # the context is made there: its deadline counts from the begin
            return function(self._context(permit, run, send, self._http.sync_client), **values)

        start_by = send.start_by if send.start_by is not None else boottime() + QUEUE_WAIT_S
        return await call_sync(
            self._threads, on_thread, start_by=start_by, timeout_s=send.timeout_s, watch=watch
        )

    def _context(
        self, permit: Permit, run: RunFacts, send: Send, open_http: OpenHttp[Any]
    ) -> ToolContext[Any]:
        until = time.monotonic() + send.timeout_s
        return ToolContext(
            run_id=run.run_id,
            trace=permit.trace,
            subject=run.subject,
            idempotency_key=send.idempotency_key,
            deadline=datetime.now(UTC) + timedelta(seconds=send.timeout_s),
            attempt=send.attempt,
            open_log=lambda: log.bind(tool=permit.spec.name, **asdict(permit.trace)),
            open_http=lambda: open_http(until, send.traceparent),
        )

    def _leave(self, key: str) -> None:
        self._running[key] -= 1
        if self._running[key] <= 0:
            del self._running[key]

    def _tell_late(self, run_id: RunId, key: str, answer: ToolAnswer) -> None:
        async def tell() -> None:
            try:
                await self._late_result(run_id, key, answer)
            except Exception as error:  # noqa: BLE001 - the intent stays pending: nothing is lost by it
                log.warning("late result not recorded", run_id=run_id, error=type(error).__name__)

        task = asyncio.get_running_loop().create_task(tell())
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function)


def _declared(spec: ToolSpec, call: ToolCall) -> dict[str, Any]:
    """Arguments that the manifest lets the PDP see. A name is a key; a pointer is taken as one."""
    assert call.arguments is not None
    found = {
        name: pointers.at(call.arguments, name if name.startswith("/") else f"/{name}")
        for name in spec.policy_args
    }
    return {name: value for name, value in found.items() if value is not pointers.NOTHING}


def _record(decision: Decision) -> PolicyRecord:
    """A PDP's answer as the event carries it. No obligation is known yet, so any of them is a deny."""
    if not decision.decision_id:
        return _deny(POLICY_ERROR)
    reason = None if decision.reason is None else str(decision.reason)[:REASON_CHARS_MAX]
    if decision.obligations:
        return PolicyRecord("deny", decision.decision_id, decision.policy_version, "unknown_obligation")
    allowed = decision.allow is True
    return PolicyRecord("allow" if allowed else "deny", decision.decision_id, decision.policy_version, reason)


def _deny(reason: str) -> PolicyRecord:
    return PolicyRecord("deny", f"gate-{uuid4()}", None, reason)


def _unusable(manifest: Manifest, spec: ToolSpec, error: SchemaUnusable) -> ContractMissing:
    where = f"{manifest.manifest_id}/{spec.name}"
    return ContractMissing(
        "tool", where, manifest.manifest_version, f"has an unusable input schema ({error})"
    )


def _note(spec: ToolSpec, end: CallEnd) -> None:
    """The class of what a tool let through, for its owners; its text may hold anything."""
    if isinstance(end, Raised) and not isinstance(end.error, ToolError):
        log.warning("tool failed", tool=spec.name, error=type(end.error).__name__)
