"""How a write ends, and how it does not (I5, I6, I14, DESIGN 8). Each rule of section 8 has its case here."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from session_custody.core import bounds, calls, commands
from session_custody.core.errors import InvariantBroken
from session_custody.core.events import EventKind
from session_custody.core.inference import FinalAnswer
from session_custody.core.pin import Limits
from session_custody.core.run import ParkReason, Status
from session_custody.core.signals import SignalKind
from tests.unit.loop_world import TIMEOUT_S, World, call, turn

KEY = "run-1/1/0"


def a_world(tool: str, *words: str) -> World:
    """A run that proposes one write and is done; its sends end as `words` say, then with a value."""
    world = World([turn(call(tool, 1)), FinalAnswer("done")])
    told = list(words)
    world.answer = lambda _world, _tool, _key: told.pop(0) if told else "value"
    return world


def pending(tool: str, *words: str) -> World:
    """A run of a new owner over a pending intent: the old one died in the middle of its send."""
    world = a_world(tool, *words)
    world.until(commands.CallWrite)
    world.step(world.drivers[0])
    world.crash()
    return world


def stands(world: World) -> Status:
    return world.row.status


def result(world: World) -> tuple[str | None, str | None]:
    event = world.last(EventKind.TOOL_RESULT)
    return event.result, event.code


# ------------------------------------------------------------------ first send


def test_a_value_is_done() -> None:
    world = a_world("none")
    world.run()
    assert result(world) == ("ok", None)
    assert stands(world) is Status.SUCCEEDED


def test_the_first_sends_tool_error_is_the_tools_word_that_nothing_took_effect() -> None:
    world = a_world("key", "error")
    world.run()
    assert result(world) == ("error", "refused")
    assert world.sends == [KEY]


@pytest.mark.parametrize("word", ["lost", "nothing", "later"])
def test_no_word_leaves_the_intent_pending_until_not_after(word: str) -> None:
    world = a_world("key", word)
    driver = world.until(commands.Pause)
    assert world.row.pending is not None
    assert isinstance(driver.command, commands.Pause)
    assert driver.command.until == world.row.not_after
    assert world.sends == [KEY]
    world.run()
    assert world.sends == [KEY, KEY]
    assert world.effects(1, 0) == 1
    assert result(world) == ("ok", None)


def test_a_tool_that_dedupes_overlapping_requests_is_asked_again_at_once_and_then_waited_for() -> None:
    world = a_world("safe", "lost", "lost")
    world.until(commands.Pause)
    assert world.seconds == 0.0
    assert world.sends == [KEY, KEY]
    world.run()
    assert world.effects(1, 0) == 1


# ------------------------------------------------------------------ re-sends


@pytest.mark.parametrize("word", ["error", "nothing"])
def test_on_a_resend_only_a_value_ends_the_intent(word: str) -> None:
    world = pending("key", "lost", word)
    world.run()
    assert stands(world) is Status.IN_DOUBT
    assert world.last(EventKind.IN_DOUBT).code == "attempts_spent"
    assert world.row.pending is not None


def test_a_resend_has_the_same_key_and_the_same_bytes() -> None:
    world = pending("key", "lost")
    world.run()
    assert world.sends == [KEY, KEY]
    assert len({event.args_digest for event in world.events if event.tool == "key"}) == 1


def test_continue_renews_the_attempts_of_a_key_tool_in_doubt() -> None:
    world = pending("key", "lost", "nothing")
    world.run()
    world.tell(SignalKind.CONTINUE, "app/7")
    world.run()
    assert stands(world) is Status.SUCCEEDED
    assert world.last(EventKind.RESUMED).causation_id == "app/7"
    assert world.effects(1, 0) == 1


def test_without_idempotency_the_write_is_in_doubt_and_never_sent_again() -> None:
    world = pending("none", "lost")
    world.run()
    assert stands(world) is Status.IN_DOUBT
    assert world.sends == [KEY]
    world.tell(SignalKind.CONTINUE)
    world.run()
    assert stands(world) is Status.IN_DOUBT
    assert world.sends == [KEY]


# ------------------------------------------------------------------ reconcile


def test_reconcile_adopts_what_was_done() -> None:
    world = pending("ask", "lost")
    world.run()
    assert world.sends == [KEY]
    assert result(world) == ("ok", None)


def test_not_found_is_resent_under_a_new_key_which_is_a_first_send_again() -> None:
    world = pending("ask", "nothing", "error")
    world.run()
    assert world.sends == [KEY, KEY + "/1"]
    assert KEY in world.tools["ask"].barred
    assert result(world) == ("error", "refused")
    intents = [e.idempotency_key for e in world.events if e.kind is EventKind.INTENT]
    assert intents == [KEY, KEY + "/1"]


def test_not_founds_count_as_attempts() -> None:
    world = pending("ask", "nothing", "nothing", "nothing")
    world.run()
    assert world.sends == [KEY, KEY + "/1", KEY + "/2"]
    assert world.last(EventKind.IN_DOUBT).code == "attempts_spent"


def test_a_tool_that_cannot_promise_not_found_leaves_a_doubt() -> None:
    world = pending("doubt", "nothing")
    world.run()
    assert world.last(EventKind.IN_DOUBT).code == "not_found"


def test_a_tool_that_cannot_tell_yet_is_asked_again_before_anybody_is_woken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = pending("ask", "lost")
    words = iter(["unknown", "unknown"])
    truth = world._reconcile

    def asked(write: commands.Sending) -> calls.Reconciled:
        world.reconcile_word = next(words, "truth")
        return truth(write)

    monkeypatch.setattr(world, "_reconcile", asked)
    world.run()
    assert [event for event in world.events if event.kind is EventKind.IN_DOUBT] == []
    assert result(world)[0] in ("ok", "done")
    assert world.effects(1, 0) == 1


def test_a_tool_that_cannot_tell_is_asked_as_often_as_it_may_be_attempted() -> None:
    world = pending("ask", "lost")
    world.reconcile_word = "unknown"
    world.run()
    assert stands(world) is Status.IN_DOUBT
    assert world.row.attempts == Limits().tool_attempts
    assert world.row.pending is not None


def test_continue_asks_a_reconcile_tool_again() -> None:
    world = pending("ask", "lost")
    world.reconcile_word = "unknown"
    world.run()
    first = world.row.doubt_seq
    assert stands(world) is Status.IN_DOUBT
    world.tell(SignalKind.CONTINUE)
    world.run()
    assert world.row.doubt_seq not in (None, first)
    world.reconcile_word = "truth"
    world.tell(SignalKind.CONTINUE)
    world.run()
    assert stands(world) is Status.SUCCEEDED


def test_under_stop_requested_not_found_ends_the_write_as_not_done() -> None:
    world = pending("ask", "nothing")
    world.tell(SignalKind.CANCEL)
    world.run()
    assert result(world) == ("not_done", "stopped")
    assert stands(world) is Status.CANCELLED


# ------------------------------------------------------------------ the start allowance


def test_a_call_that_never_starts_parks_with_its_intent_after_bounded_renewals() -> None:
    world = a_world("key")
    driver = world.until(commands.CallWrite)
    for _ in range(bounds.NOT_AFTER_RENEWALS_MAX):
        world.seconds += 5.0
        world.step(driver)  # the send, which does not start
        world.step(driver)  # the gate is open: no wait
        world.step(driver)  # the renewal
    world.seconds += 5.0
    world.step(driver)  # the last send
    world.step(driver)  # the park
    assert world.sends == []
    assert stands(world) is Status.PARKED
    assert world.row.park_reason is ParkReason.NOT_STARTED
    assert world.row.pending is not None
    assert world.row.wake_at is None
    world.tell(SignalKind.CONTINUE)
    world.run()
    assert stands(world) is Status.SUCCEEDED
    assert world.effects(1, 0) == 1


def test_no_intent_is_written_while_the_lanes_gate_is_closed() -> None:
    world = a_world("key")
    world.gate_open = False
    driver = world.until(commands.Pause)
    assert isinstance(driver.command, commands.Pause)
    assert driver.command.gate
    assert world.kinds == []
    world.gate_open = True
    world.run()
    assert stands(world) is Status.SUCCEEDED


# ------------------------------------------------------------------ threads and late results


def test_a_write_is_neither_sent_again_nor_asked_while_its_thread_lives() -> None:
    world = a_world("safe", "thread")
    world.run()
    assert world.sends == [KEY]
    assert stands(world) is Status.IN_DOUBT
    assert world.row.call_running
    assert world.seconds >= TIMEOUT_S
    world.land(world.in_flight[0])
    world.run()
    assert stands(world) is Status.SUCCEEDED
    assert world.kinds[:5] == ["decided", "intent", "in_doubt", "resumed", "tool_result"]
    assert not world.row.call_running


def test_a_thread_that_ends_with_an_error_only_ends_call_running() -> None:
    world = a_world("key", "thread")
    world.run()
    world.in_flight.clear()
    world.late(KEY, calls.ToolErrored("refused"))
    world.run()
    assert stands(world) is Status.IN_DOUBT
    assert not world.row.call_running
    assert world.events[-1].code == "late_tool_error"


def test_a_late_error_never_ends_a_write_that_somebody_may_have_sent_again() -> None:
    world = pending("key", "nothing", "lost")
    world.until(commands.Pause)
    world.seconds += 30
    driver = world.until(commands.CallWrite)
    world.step(driver)
    assert world.effects(1, 0) == 1
    world.late(KEY, calls.ToolErrored("refused"))
    world.run()
    assert "late_tool_error" in [e.code for e in world.events]
    assert stands(world) is Status.IN_DOUBT
    assert world.row.pending is not None


def test_a_late_value_ends_only_the_intent_of_its_key() -> None:
    world = pending("ask", "nothing", "nothing", "nothing")
    world.run()
    world.late(KEY, calls.Returned(1))
    world.run()
    assert stands(world) is Status.IN_DOUBT
    assert world.events[-1].kind is EventKind.SIGNAL_REFUSED
    world.late(KEY + "/2", calls.Returned(1))
    world.run()
    assert stands(world) is Status.SUCCEEDED


def test_a_late_result_behind_the_outcome_leaves_a_refused_event_and_nothing_else() -> None:
    world = a_world("key")
    world.run()
    ended = world.row
    world.late(KEY, calls.Returned(1))
    world.tell(SignalKind.CONTINUE)
    world.run()
    assert world.kinds[-2:] == ["outcome", "signal_refused"]
    assert world.commits[-1].after_end
    assert stands(world) is ended.status
    assert set(world.signals) == world.consumed


def test_the_old_owners_answer_reaches_the_new_one() -> None:
    world = a_world("none")
    old = world.until(commands.CallWrite)
    world.move()
    world.step(old)
    world.step(old)
    world.run()
    assert stands(world) is Status.SUCCEEDED
    assert world.sends == [KEY]


# ------------------------------------------------------------------ the PEP over a pending intent


def test_a_deny_over_a_pending_intent_is_a_doubt_and_not_a_no() -> None:
    world = pending("key", "lost")
    world.pep = "deny"
    world.run()
    assert stands(world) is Status.IN_DOUBT
    assert world.last(EventKind.IN_DOUBT).code == "policy_denied"


@pytest.mark.parametrize(
    ("pep", "reason"), [("down", ParkReason.POLICY_UNAVAILABLE), ("absent", ParkReason.CONTRACT_MISSING)]
)
def test_a_pep_that_cannot_be_asked_parks_the_run_and_keeps_the_intent(pep: str, reason: ParkReason) -> None:
    world = pending("key", "lost")
    world.pep = pep
    world.seconds += 60
    while stands(world) is not Status.PARKED:
        world.step(world.until(commands.Commit))
    assert world.row.park_reason is reason
    assert world.row.pending is not None
    world.pep = "permit"
    world.seconds += 2
    world.run()
    assert stands(world) is Status.SUCCEEDED
    assert world.effects(1, 0) == 1


# ------------------------------------------------------------------ resolve


def in_doubt(tool: str = "none", word: str = "lost") -> World:
    world = pending(tool, word)
    world.run()
    assert stands(world) is Status.IN_DOUBT
    return world


def test_done_with_a_result_goes_to_the_model() -> None:
    world = in_doubt()
    world.tell(
        SignalKind.RESOLVE, done=True, event_seq=world.row.doubt_seq, reason="seen", result={"id": 3}, by="op"
    )
    world.run()
    assert world.kinds[-4:] == ["resolved", "resumed", "decided", "outcome"]
    resolved = world.last(EventKind.RESOLVED)
    assert (resolved.result, resolved.reason, resolved.answered_by) == ("done", "seen", "op")
    assert world.requests[-1].messages[-1].role == "tool"
    assert '"id":3' in repr(world.requests[-1].messages[-1])


def test_not_done_goes_to_the_model_as_an_error() -> None:
    world = in_doubt(word="nothing")
    world.tell(SignalKind.RESOLVE, done=False, event_seq=world.row.doubt_seq, reason="sender is gone")
    world.run()
    assert world.last(EventKind.RESOLVED).result == "not_done"
    assert '"error":"not_done"' in repr(world.requests[-1].messages[-1])


@pytest.mark.parametrize("body", [{"done": True, "event_seq": 2}, {"done": "yes"}, {}])
def test_a_resolve_that_names_another_doubt_or_nothing_is_refused(body: dict[str, int]) -> None:
    world = in_doubt()
    world.tell(SignalKind.RESOLVE, **body)
    world.run()
    assert stands(world) is Status.IN_DOUBT
    assert world.events[-1].kind is EventKind.SIGNAL_REFUSED


def test_a_resolve_of_a_run_that_is_not_in_doubt_is_refused() -> None:
    world = a_world("key")
    world.until(commands.CallWrite)
    world.tell(SignalKind.RESOLVE, done=False, event_seq=4, reason="")
    world.run()
    assert "not_in_doubt" in [event.code for event in world.events]
    assert stands(world) is Status.SUCCEEDED


def test_stop_over_a_doubt_waits_for_the_resolve() -> None:
    world = in_doubt()
    world.tell(SignalKind.CANCEL)
    world.run()
    assert stands(world) is Status.IN_DOUBT
    assert world.row.stop_requested == "cancel"
    world.tell(SignalKind.RESOLVE, done=True, event_seq=world.row.doubt_seq, reason="seen")
    world.run()
    assert stands(world) is Status.CANCELLED
    assert world.kinds[-3:] == ["resolved", "resumed", "outcome"]


def test_expiry_over_a_pending_intent_ends_the_run_behind_it() -> None:
    world = pending("key", "lost")
    world.seconds = (world.expires_at - world.now + timedelta(seconds=world.seconds)).total_seconds()
    world.run()
    assert stands(world) is Status.EXPIRED
    assert world.effects(1, 0) == 1
    assert result(world) == ("ok", None)


def test_cancel_of_a_parked_run_with_an_open_write_is_a_doubt() -> None:
    world = pending("key", "lost")
    world.pep = "down"
    world.seconds += 60
    while stands(world) is not Status.PARKED:
        world.step(world.until(commands.Commit))
    world.tell(SignalKind.CANCEL)
    world.run()
    assert stands(world) is Status.IN_DOUBT
    assert world.row.stop_requested == "cancel"


# ------------------------------------------------------------------ what a write returns


@pytest.mark.parametrize(("value", "code"), [("x" * 300, "result_too_large"), (object(), "result_not_json")])
def test_a_write_stays_done_whatever_it_returned(value: object, code: str) -> None:
    world = World([turn(call("key", 1)), FinalAnswer("done")], limits=Limits(result_bytes=200))
    world.value = value  # type: ignore[assignment]
    world.run()
    assert result(world) == ("unstorable", code)
    assert stands(world) is Status.SUCCEEDED


def test_a_result_that_the_store_refuses_is_done_without_its_value() -> None:
    world = a_world("key")
    world.refuse_commit = lambda commit: any(
        draft.kind is EventKind.TOOL_RESULT and draft.result == "ok" for draft in commit.drafts
    )
    world.run()
    assert result(world) == ("unstorable", "result_not_storable")
    assert stands(world) is Status.SUCCEEDED


def test_a_recorded_call_that_does_not_match_its_intent_is_never_sent() -> None:
    world = pending("safe", "lost")
    assert world.row.pending is not None
    world.row = replace(world.row, pending=replace(world.row.pending, args_digest="other"))
    with pytest.raises(InvariantBroken):
        world.run()
    assert world.sends == [KEY]
