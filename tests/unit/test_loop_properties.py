"""Whole histories of one run against a model of store and tools (I1-I16 as far as the loop carries them).

A history: owners that load, step, crash at any command, freeze and go on late; time; cancels, continues,
parks, resolves; tools of every kind that answer in every way; a PDP, a model and contracts that come and go.
At its end people answer, nothing crashes any more, and the run has to end.
"""

from __future__ import annotations

from typing import Final

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from session_custody.core import calls, commands
from session_custody.core.events import EventKind
from session_custody.core.inference import FinalAnswer, Proposal, ToolCalls
from session_custody.core.run import Status
from session_custody.core.signals import SignalKind
from tests.unit.loop_world import EPOCH, TIMEOUT_S, Tool, World, call, turn

WRITES: Final = ("key", "safe", "ask", "doubt", "none")
MAX_STEPS: Final = 3
HONEST: Final = {
    # what a tool of this kind may be heard to say of one send
    "read": ("value", "error"),
    **dict.fromkeys(WRITES, ("value", "error", "lost", "nothing", "later", "thread")),
}
Halt = type[commands.Command] | None
HALT = st.sampled_from(
    (commands.CallWrite, commands.CallWrite, commands.Commit, commands.Reconcile, commands.Boundary, None)
)
WORD = st.sampled_from(
    ("value", "error", "error", "lost", "lost", "lost", "nothing", "later", "later", "thread", "thread")
)
WORDS = st.lists(WORD, min_size=1, max_size=3)
MOSTLY = st.sampled_from((*(True,) * 6, False))
RARELY = st.sampled_from((False, False, False, True))
TOOL = st.sampled_from(("read", *WRITES, *WRITES))
TURN = st.lists(TOOL, min_size=1, max_size=3).map(
    lambda names: turn(*(call(name, place) for place, name in enumerate(names)))
)


class Histories(RuleBasedStateMachine):
    world: World

    @initialize(script=st.lists(TURN, min_size=1, max_size=3), ends=st.booleans(), halts=HALT, words=WORDS)
    def start(self, script: list[ToolCalls], ends: bool, halts: Halt, words: list[str]) -> None:
        proposals: list[Proposal] = [*script, *([FinalAnswer("done")] if ends else [])]
        self.world = World(proposals, max_loop_steps=MAX_STEPS, expires_s=3600.0)
        self.words: list[str] = []
        self.world.answer = self._answer
        self.goes_on(halts, words, True, False)

    def _answer(self, world: World, tool: Tool, key: str) -> str:
        word = self.words.pop() if self.words else "value"
        return word if word in HONEST[tool.spec.name] else "value"

    # -------------------------------------------------------------- owners

    @rule(halts=HALT, words=WORDS, waits=st.booleans(), suspects=RARELY)
    def goes_on(self, halts: Halt, words: list[str], waits: bool, suspects: bool) -> None:
        """The owner drives as far as `halts` and stands there: everything else may come between."""
        self.words = words
        for done in range(40):
            driver = self.world.live
            if driver is None:
                if not self.world.due:
                    return
                driver = self.world.load(suspects=suspects)
                if driver is None:
                    return
            if done and halts is not None and isinstance(driver.command, halts):
                return
            if isinstance(driver.command, commands.Pause):
                if not waits:
                    return
                self.world.seconds = max(self.world.seconds, (driver.command.until - EPOCH).total_seconds())
            self._look(driver.command)
            self.world.step(driver)

    @rule(words=WORDS)
    @precondition(lambda self: self.world.live is not None)
    def one_command(self, words: list[str]) -> None:
        driver = self.world.live
        assert driver is not None
        self.words = words
        self._look(driver.command)
        self.world.step(driver)

    def _look(self, command: commands.Command) -> None:
        if isinstance(command, commands.AskModel):
            answered = {
                (e.loop_step, e.ordinal)
                for e in self.world.events
                if e.kind in (EventKind.TOOL_RESULT, EventKind.RESOLVED)
            }
            for event in self.world.events:
                if event.kind is EventKind.INTENT:
                    assert (event.loop_step, event.ordinal) in answered, "Decide while a write has no end"
            recorded = [e.loop_step for e in self.world.events if e.kind is EventKind.DECIDED]
            assert command.loop_step not in recorded, "asked for a turn that is recorded"
            assert command.loop_step <= MAX_STEPS, "I10"

    @rule(words=WORDS)
    @precondition(lambda self: any(d.owner != self.world.owner for d in self.world.drivers))
    def a_frozen_owner_goes_on(self, words: list[str]) -> None:
        self.words = words
        driver = next(d for d in self.world.drivers if d.owner != self.world.owner)
        self.world.step(driver)

    @rule(dies=st.booleans())
    @precondition(lambda self: self.world.live is not None)
    def the_owner_dies_or_loses_its_lane(self, dies: bool) -> None:
        if dies:
            self.world.crash()
        else:
            self.world.move()

    # -------------------------------------------------------------- time and weather

    @rule(seconds=st.sampled_from((0.5, 4.0, 6.0, 20.0, 20.0, 400.0)))
    def time_passes(self, seconds: float) -> None:
        self.world.seconds += seconds

    @rule(which=st.integers(0, 3))
    @precondition(lambda self: bool(self.world.in_flight))
    def a_request_lands_late(self, which: int) -> None:
        self.world.land(self.world.in_flight[which % len(self.world.in_flight)])

    @rule(which=st.integers(0, 3))
    @precondition(lambda self: any(one.until is None for one in self.world.in_flight))
    def a_thread_ends_without_effect(self, which: int) -> None:
        threads = [one for one in self.world.in_flight if one.until is None]
        one = threads[which % len(threads)]
        self.world.in_flight.remove(one)
        self.world.late(one.key, calls.ToolErrored("refused") if which % 2 else calls.Uncertain("raised"))

    @rule(
        pep=st.sampled_from((*("permit",) * 6, "deny", "down", "absent")),
        model=MOSTLY,
        contract=MOSTLY,
        gate=MOSTLY,
        ask=st.sampled_from((*("truth",) * 4, "unknown")),
    )
    def weather(self, pep: str, model: bool, contract: bool, gate: bool, ask: str) -> None:
        world = self.world
        world.pep, world.model_up, world.contract_here = pep, model, contract
        world.gate_open, world.reconcile_word = gate, ask

    # -------------------------------------------------------------- people

    @rule(kind=st.sampled_from((*("continue",) * 8, "unpark", "park", "signal", "cancel")))
    @precondition(lambda self: bool(self.world.events))
    def somebody_says(self, kind: str) -> None:
        self.world.tell(SignalKind(kind))

    @rule()
    @precondition(lambda self: self.world.row.status is Status.IN_DOUBT)
    def the_operator_resolves(self) -> None:
        self._resolve(self.world.row.doubt_seq)

    @rule(seq=st.integers(1, 12), done=st.booleans())
    @precondition(lambda self: self.world.row.pending is not None)
    def a_resolve_of_another_doubt(self, seq: int, done: bool) -> None:
        if seq != self.world.row.doubt_seq:
            self.world.tell(SignalKind.RESOLVE, done=done, event_seq=seq, reason="late")

    def _resolve(self, seq: int | None) -> None:
        """Truthfully, as the ledger and the senders are at this moment; what the INSERT checks is checked."""
        world, row = self.world, self.world.row
        if row.status is not Status.IN_DOUBT or row.pending is None or seq is None:
            return
        write = (row.pending.loop_step, row.pending.ordinal)
        if world.effects(*write):
            world.tell(SignalKind.RESOLVE, done=True, event_seq=seq, reason="seen")
            return
        early = row.not_after is not None and world.now < row.not_after
        if not early and not row.call_running and not self._may_yet_happen(row.pending.key):
            world.tell(SignalKind.RESOLVE, done=False, event_seq=seq, reason="sender is gone")

    def _may_yet_happen(self, key: str) -> bool:
        stem = "/".join(key.split("/")[:3])
        now = self.world.seconds
        flying = any(
            one.key.startswith(stem) and (one.until is None or one.until > now)
            for one in self.world.in_flight
        )
        about = any(isinstance(d.command, commands.CallWrite) for d in self.world.drivers)
        return flying or about

    # -------------------------------------------------------------- invariants

    @invariant()
    def every_write_happens_at_most_once_and_as_recorded(self) -> None:
        if not hasattr(self, "world"):
            return
        world = self.world
        for event in world.events:
            if event.effect != "write" or event.ordinal is None:
                continue
            effects = world.effects(event.loop_step, event.ordinal)
            assert effects <= 1, "I6: a write took effect twice"
            if event.kind in (EventKind.TOOL_RESULT, EventKind.RESOLVED):
                done = event.result in ("ok", "done", "unstorable")
                assert effects == (1 if done else 0), f"I6: recorded {event.result}, effects {effects}"

    @invariant()
    def no_end_over_a_pending_intent(self) -> None:
        if hasattr(self, "world"):
            row = self.world.row
            assert not (row.status.terminal and row.pending is not None), "I14"
            assert (row.not_after is not None) == (row.pending is not None)
            assert row.wake_at is None or row.status in (Status.WAITING, Status.PARKED)
            assert (row.doubt_seq is not None) == (row.status is Status.IN_DOUBT)
            assert row.loop_step <= MAX_STEPS

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.from_here_every_run_ends()

    def from_here_every_run_ends(self) -> None:
        """Crashes stop, everything is up, people answer: within a bound the run is at its end."""
        world = self.world
        self.weather("permit", True, True, True, "truth")
        self.words = []
        world.crash()
        world.drivers.clear()
        for _ in range(60):
            if world.row.status.terminal and not world.due:
                break
            self._let_go()
            world.run()
            if world.row.status is Status.IN_DOUBT:
                self._resolve(world.row.doubt_seq)
                if not world.due:
                    world.tell(SignalKind.CONTINUE)
            elif world.row.status is Status.PARKED:
                world.tell(SignalKind.CONTINUE)
            world.seconds += 30
        assert world.row.status.terminal, f"never ends: {world.row}"
        self.every_write_happens_at_most_once_and_as_recorded()
        self.no_end_over_a_pending_intent()
        decided = [e.loop_step for e in world.events if e.kind is EventKind.DECIDED]
        assert decided == list(range(1, len(decided) + 1)), "a turn is recorded once"
        outcomes = [e for e in world.events if e.kind is EventKind.OUTCOME]
        assert len(outcomes) == 1
        ends = [(e.loop_step, e.ordinal) for e in world.events if e.kind in _ENDS]
        assert len(ends) == len(set(ends)), "a call ends once"
        assert set(world.signals) == world.consumed, "a signal was forgotten"

    def _let_go(self) -> None:
        for one in list(self.world.in_flight):
            self.world.land(one)
        assert self.world.now >= EPOCH
        self.world.seconds += TIMEOUT_S


_ENDS = (EventKind.TOOL_RESULT, EventKind.RESOLVED)

TestHistories = pytest.mark.timeout(600)(Histories.TestCase)  # room to shrink a history that went wrong
TestHistories.settings = settings(
    max_examples=300,
    stateful_step_count=50,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
