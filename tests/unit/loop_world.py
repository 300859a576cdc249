"""A small model of what is around the loop's machine: a run's row, its tools, owners that crash or freeze.

It executes the machine's commands one at a time, so a test may stop, crash or overtake a driver between any
two. Time is a number that tests move. Tools keep a ledger of effects by key, as a real one outside would.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic import JsonValue

from session_custody.core import calls, commands
from session_custody.core.canonical import digest
from session_custody.core.events import EventDraft, EventKind, PolicyRecord, RunFacts
from session_custody.core.inference import FinalAnswer, Proposal, ToolCall, ToolCalls
from session_custody.core.late_load import with_contracts
from session_custody.core.loop import drive
from session_custody.core.manifest import Manifest, OnNotFound, ToolSpec
from session_custody.core.pin import Limits, Pattern, Resolved, RunId, RunPin, SentPin, Subject
from session_custody.core.progress import Machine, rebuild
from session_custody.core.run import TRANSITIONS, Checkpoint, Status
from session_custody.core.signals import Signal, SignalKind, late_result_body
from session_custody.core.transcript import StepRecord

RUN_ID = RunId("run-1")
EPOCH = datetime(2026, 8, 14, tzinfo=UTC)
TIMEOUT_S = 10.0
OBJECT: dict[str, Any] = {"type": "object"}


def tool_spec(name: str, **fields: Any) -> ToolSpec:
    return ToolSpec(name=name, endpoint=f"python:t:{name}", input=OBJECT, **fields)


TOOLS = (
    tool_spec("read", effect="read", saves={"seen": "/n"}, visible=("/args/n", "/result/n")),
    tool_spec("key", effect="write", idempotency="key", attempts=2),
    tool_spec("safe", effect="write", idempotency="key", overlap="safe", attempts=2, visible=("/args/n",)),
    tool_spec("ask", effect="write", idempotency="reconcile", on_not_found=OnNotFound.RESEND, attempts=3),
    tool_spec("doubt", effect="write", idempotency="reconcile"),
    tool_spec("none", effect="write", idempotency="none", on_in_doubt="hold"),
)
MANIFEST = Manifest(
    manifest_id="m", manifest_version="1", instructions="Do it.", visible=("input", "text"), tools=TOOLS
)


def call(tool: str, n: int = 0, call_id: str | None = None) -> ToolCall:
    return ToolCall(call_id or f"{tool}-{n}", tool, {"n": n})


@dataclass
class Tool:
    """Ledger of one tool: effects by key, and keys that a NotFound has barred."""

    spec: ToolSpec
    effects: dict[str, int] = field(default_factory=dict)
    barred: set[str] = field(default_factory=set)

    def land(self, key: str, *, unseen: bool) -> bool:
        """A request takes effect, is deduplicated (both True) or refused.

        `unseen`: its key was new when it arrived; a tool that is not `overlap: safe` looks only then.
        """
        if key in self.barred:
            return False
        dedupes = self.spec.idempotency == "key" and (self.spec.overlap == "safe" or not unseen)
        if dedupes and self.effects.get(key):
            return True
        self.effects[key] = self.effects.get(key, 0) + 1
        return True


@dataclass
class InFlight:
    """A request that may still take effect: of a deaf client until `until`, of a thread while it lives."""

    tool: Tool
    key: str
    unseen: bool
    until: float | None
    owner: int


@dataclass
class Driver:
    owner: int
    version: int
    machine: Machine[None]
    command: commands.Command
    offered_at: float = 0.0
    in_hand: tuple[str, calls.ToolAnswer] | None = None
    seen: set[int] = field(default_factory=set)


Answerer = Callable[["World", Tool, str], str]


class World:
    """See the module docstring. Attributes are there for tests to turn."""

    def __init__(
        self,
        script: Sequence[Proposal] | None = None,
        *,
        manifest: Manifest | None = MANIFEST,
        pattern: Pattern | None = Pattern.LOOP,
        max_loop_steps: int | None = 5,
        input_text: str = '"hello"',
        limits: Limits | None = None,
        expires_s: float = 24 * 3600.0,
        **sent: Any,
    ) -> None:
        pin = SentPin(
            route_id="r",
            route_table_version="1",
            manifest_id=None if manifest is None else "m",
            manifest_version=None if manifest is None else "1",
            model_profile="p",
            max_loop_steps=max_loop_steps,
            **sent,
        )
        resolved = Resolved(
            pattern=pattern, limits=limits or Limits(tool_timeout_s=TIMEOUT_S), manifest_digest="d"
        )
        self.pin = RunPin(sent=pin, resolved=resolved)
        self.facts = RunFacts(RUN_ID, RUN_ID, None, None, Subject(id="u"), None, pin, "1", None, None)
        self.input_text = input_text
        self.manifest = manifest
        self.script = list(script or [FinalAnswer("done")])
        self.tools = {spec.name: Tool(spec) for spec in (manifest.tools if manifest else ())}
        self.seconds = 0.0
        self.expires_at = EPOCH + timedelta(seconds=expires_s)
        self.row = Checkpoint(Status.QUEUED, 0, "loop", version=1, head_seq=1, head_hash=b"0")
        self.events: list[EventDraft] = []
        self.steps: list[StepRecord] = [StepRecord(1, EventKind.PINNED, 0, None)]
        self.commits: list[commands.Commit] = []
        self.signals: dict[int, Signal] = {}
        self.consumed: set[int] = set()
        self.owner = 1
        self.drivers: list[Driver] = []
        self.in_flight: list[InFlight] = []
        self.sends: list[str] = []
        self.asked = 0
        self.requests: list[commands.AskModel] = []
        # the weather
        self.pep = "permit"
        self.model_up = True
        self.contract_here = True
        self.gate_open = True
        self.refuse_commit: Callable[[commands.Commit], bool] = lambda _: False
        self.answer: Answerer = lambda *_: "value"
        self.reconcile_word = "truth"
        self.value: JsonValue = {"n": 7}

    # -------------------------------------------------------------- owners

    @property
    def now(self) -> datetime:
        return EPOCH + timedelta(seconds=self.seconds)

    @property
    def live(self) -> Driver | None:
        return next((driver for driver in self.drivers if driver.owner == self.owner), None)

    @property
    def due(self) -> bool:
        row = self.row
        if any(signal_id not in self.consumed for signal_id in self.signals):
            return True
        if row.status in (Status.QUEUED, Status.RUNNING):
            return True
        if row.wake_at is not None and self.now >= row.wake_at:
            return True
        return not row.status.terminal and row.status is not Status.IN_DOUBT and self.now >= self.expires_at

    def load(self, *, suspects: bool = False) -> Driver | None:
        """The owner loads the run, as recovery does."""
        assert self.live is None
        state = rebuild(
            facts=self.facts,
            pin=self.pin,
            input_text=self.input_text,
            expires_at=self.expires_at,
            checkpoint=self.row,
            steps=tuple(self.steps),
        )
        machine = drive(state, suspects=suspects)
        try:
            driver = Driver(self.owner, self.row.version, machine, next(machine))
        except StopIteration:
            return None
        self.drivers.append(driver)
        return driver

    def crash(self) -> None:
        """The owner's process dies with its threads; requests on their way go on at the tool."""
        dead = self.owner
        self.drivers = [driver for driver in self.drivers if driver.owner != dead]
        self.in_flight = [one for one in self.in_flight if one.owner != dead or one.until is not None]
        self.owner += 1

    def move(self) -> None:
        """The lane moves; the old owner has not noticed and goes on as far as it can."""
        self.owner += 1

    def run(self, *, suspects: bool = False, steps: int = 500) -> None:
        """Drive until the run is not due; time moves only where the driver pauses."""
        for _ in range(steps):
            driver = self.live
            if driver is None:
                if not self.due:
                    return
                driver = self.load(suspects=suspects)
                if driver is None:
                    continue
            if isinstance(driver.command, commands.Pause) and not (driver.command.gate and self.gate_open):
                self.seconds = max(self.seconds, (driver.command.until - EPOCH).total_seconds())
            self.step(driver)
        raise AssertionError("the run never rests")

    def until(self, kind: type[commands.Command], *, steps: int = 100) -> Driver:
        """Step the live driver until it is about to do a command of this kind."""
        for _ in range(steps):
            driver = self.live or self.load()
            assert driver is not None
            if isinstance(driver.command, kind):
                return driver
            self.step(driver)
        raise AssertionError(f"no {kind.__name__}")

    def step(self, driver: Driver) -> None:
        """Do the driver's command; it waits with its next one, or is gone."""
        fact = self._do(driver, driver.command)
        if fact is None:
            self.drivers.remove(driver)
            driver.machine.close()
            return
        try:
            driver.command = driver.machine.send(fact)
        except StopIteration:
            self.drivers.remove(driver)

    # -------------------------------------------------------------- commands

    def _do(self, driver: Driver, command: commands.Command) -> commands.Fact | None:
        match command:
            case commands.Boundary(key):
                driver.in_hand = None
                waiting = tuple(s for i, s in sorted(self.signals.items()) if i not in self.consumed)
                taken = tuple(s for s in waiting if s.signal_id not in driver.seen)
                driver.seen.update(s.signal_id for s in taken)
                running = any(
                    o.until is None and o.owner == driver.owner and o.key == key for o in self.in_flight
                )
                return commands.Observed(self.now, taken, self.gate_open, running)
            case commands.LoadContracts(resolved):
                if not self.contract_here:
                    return commands.ContractAbsent("manifest m@1 is not published")
                return commands.ContractsLoaded(
                    self.manifest, with_contracts(resolved, self.manifest, "d", None)
                )
            case commands.AskModel():
                self.requests.append(command)
                self.asked += 1
                if not self.model_up:
                    return commands.ModelFailed("model_unavailable", self.now)
                place = min(command.loop_step, len(self.script)) - 1
                return commands.Proposed(self.script[place])
            case commands.Authorize(_, asked):
                return commands.Authorized(tuple(self._authorize(one) for one in asked))
            case commands.CallReads(reads):
                return commands.ReadsEnded(tuple(self._read(read) for read in reads))
            case commands.CallWrite():
                return self._write(driver, command)
            case commands.Reconcile(write):
                return commands.Asked(self._reconcile(write))
            case commands.Pause():
                return commands.Woken()
            case commands.Commit():
                return self._commit(driver, command)

    def _authorize(self, asked: ToolCall) -> calls.Authorization | commands.ContractAbsent:
        if self.pep == "down":
            return calls.CouldNotAsk("pdp")
        if self.pep == "absent":
            return commands.ContractAbsent("another build")
        allow = self.pep == "permit"
        policy = PolicyRecord("allow" if allow else "deny", "d-1")
        if not allow:
            return calls.Denied(policy)
        assert self.manifest is not None
        spec = self.manifest.tool(asked.tool)
        assert spec is not None
        if asked.arguments == {"n": -1}:
            return calls.Malformed("arguments_refused", "n is too small")
        trace = self.facts.trace("loop", 1)
        return calls.Permit(RUN_ID, spec, asked, digest(asked.arguments).hex(), policy, trace, "build")

    def _read(self, read: commands.Sending) -> calls.ToolAnswer:
        word = self.answer(self, self.tools[read.permit.spec.name], read.key)
        if word == "value":
            return calls.Returned(self.value)
        return calls.ToolErrored("not_there", "There is none.")

    def _write(self, driver: Driver, command: commands.CallWrite) -> commands.Fact:
        if self.seconds >= driver.offered_at + command.allowance_s or not self.gate_open:
            return commands.WriteEnded(calls.NotStarted())
        key = command.write.key
        intents = {e.idempotency_key for e in self.events if e.kind is EventKind.INTENT}
        assert key in intents, "I5: a write is sent and no intent is committed"
        self.sends.append(key)
        tool = self.tools[command.write.permit.spec.name]
        unseen = not tool.effects.get(key)
        word = self.answer(self, tool, key)
        answer = self._ended(driver, tool, key, word, unseen=unseen)
        if isinstance(answer, calls.Returned | calls.ToolErrored):
            driver.in_hand = (key, answer)
        return commands.WriteEnded(answer)

    def _ended(self, driver: Driver, tool: Tool, key: str, word: str, *, unseen: bool) -> calls.ToolAnswer:
        """What the client hears. Words: value, error, lost (landed, no word), none (did not land, no word),
        later (no word yet, may land within its timeout), thread (a sync call outlives its timeout)."""
        if key in tool.barred:
            return calls.ToolErrored("barred")
        match word:
            case "value":
                tool.land(key, unseen=unseen)
                return calls.Returned(self.value)
            case "error":
                return calls.ToolErrored("refused", "Not now.")
            case "lost":
                tool.land(key, unseen=unseen)
                return calls.Uncertain("timeout")
            case "later":
                self.in_flight.append(InFlight(tool, key, unseen, self.seconds + TIMEOUT_S, driver.owner))
                return calls.Uncertain("connection_lost")
            case "thread":
                self.in_flight.append(InFlight(tool, key, unseen, None, driver.owner))
                return calls.Uncertain("timeout", still_running=True)
            case _:
                return calls.Uncertain("connection_lost")

    def _reconcile(self, write: commands.Sending) -> calls.Reconciled:
        tool = self.tools[write.permit.spec.name]
        if self.reconcile_word == "unknown":
            return calls.ReconciledUnknown("no_answer")
        if tool.effects.get(write.key):
            return calls.ReconciledDone(self.value)
        tool.barred.add(write.key)
        return calls.ReconciledNotFound()

    def _commit(self, driver: Driver, commit: commands.Commit) -> commands.Fact | None:
        if isinstance(commit.not_after, commands.InSeconds):
            driver.offered_at = self.seconds
        if driver.owner != self.owner or driver.version != self.row.version:
            if driver.in_hand is not None:
                self.late(*driver.in_hand)
            return None
        if self.refuse_commit(commit):
            return commands.Refused()
        before, after = self.row.status, commit.checkpoint.status
        assert commit.after_end or after in TRANSITIONS[before], f"{before} -> {after}"
        assert commit.checkpoint.head_seq == self.row.head_seq + len(commit.drafts)
        assert not (set(commit.consumes) & self.consumed), "a signal is consumed twice"
        self.commits.append(commit)
        for seq, draft in enumerate(commit.drafts, self.row.head_seq + 1):
            assert draft.status is after
            self.events.append(draft)
            self.steps.append(StepRecord(seq, draft.kind, draft.loop_step, draft.record))
        self.consumed.update(commit.consumes)
        self.row = replace(
            commit.checkpoint,
            version=self.row.version + 1,
            not_after=self._reached(commit.not_after, self.row.not_after),
            wake_at=self._reached(commit.wake_at, self.row.wake_at),
        )
        driver.version = self.row.version
        driver.in_hand = None
        return commands.Committed(self.now)

    def _reached(self, asked: commands.Deadline, stood: datetime | None) -> datetime | None:
        match asked:
            case commands.InSeconds(seconds):
                return self.now + timedelta(seconds=seconds)
            case commands.Clear():
                return None
            case commands.Keep():
                return stood

    # -------------------------------------------------------------- people and tools outside

    def tell(self, kind: SignalKind, causation_id: str | None = None, /, **body: JsonValue) -> int:
        signal_id = len(self.signals) + 1
        self.signals[signal_id] = Signal(signal_id, RUN_ID, kind, body, causation_id, self.now, None)
        return signal_id

    def late(self, key: str, answer: calls.ToolAnswer) -> None:
        body = late_result_body(key, answer)
        assert body is not None
        self.tell(SignalKind.TOOL_RESULT, **body)

    def land(self, one: InFlight) -> None:
        """A request in flight takes effect (or is refused) at the tool; not when its time is over."""
        self.in_flight.remove(one)
        if one.until is not None and self.seconds >= one.until:
            return
        landed = one.tool.land(one.key, unseen=one.unseen)
        if one.until is None:
            self.late(one.key, calls.Returned(self.value) if landed else calls.ToolErrored("barred"))

    def effects(self, loop_step: int, ordinal: int) -> int:
        stem = f"{RUN_ID}/{loop_step}/{ordinal}"
        return sum(
            count
            for tool in self.tools.values()
            for key, count in tool.effects.items()
            if key == stem or key.startswith(stem + "/")
        )

    @property
    def kinds(self) -> list[str]:
        return [event.kind.value for event in self.events]

    def last(self, kind: EventKind) -> EventDraft:
        return next(event for event in reversed(self.events) if event.kind is kind)


def turn(*asked: ToolCall, text: str | None = None) -> ToolCalls:
    return ToolCalls(asked, text)
