"""I9: what is wrong with a run's events is found, whatever it is and in whatever order they come."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from session_custody.core.chain import Fault, Link, RunChain, check_run
from session_custody.core.events import EventKind

STEPS = [EventKind.PINNED, EventKind.DECIDED, EventKind.TOOL_RESULT]


def chain_of(*kinds: EventKind) -> list[Link]:
    links: list[Link] = []
    for seq, kind in enumerate(kinds, 1):
        previous = links[-1].hash if links else None
        links.append(Link(seq, kind, bytes([seq]) * 32, previous))
    return links


WHOLE = chain_of(*STEPS, EventKind.OUTCOME)


def faults(chain: RunChain) -> list[Fault]:
    return [finding.fault for finding in chain.findings]


@given(st.permutations(WHOLE))
def test_a_whole_chain_has_no_fault_in_any_order(links: list[Link]) -> None:
    chain = check_run("run-1", links)
    assert chain.findings == ()
    assert chain.links == tuple(WHOLE)
    assert chain.ended
    assert not chain.cut_off


@given(st.integers(0, 2), st.permutations(range(4)))
def test_a_missing_event_is_a_gap_at_its_number(place: int, order: list[int]) -> None:
    links = [WHOLE[index] for index in order if index != place]
    (finding,) = check_run("run-1", links).findings
    assert finding.fault is Fault.GAP
    assert finding.event_seq == place + 1
    assert finding.run_id == "run-1"


def test_a_missing_end_shows_as_a_run_that_has_not_ended() -> None:
    chain = check_run("run-1", WHOLE[:-1])
    assert chain.findings == ()
    assert not chain.ended


def test_several_missing_events_are_one_gap() -> None:
    (finding,) = check_run("run-1", [WHOLE[0], WHOLE[3]]).findings
    assert finding.detail == "missing: 2 to 3"


@given(st.integers(0, 3))
def test_the_same_event_twice_is_a_duplicate(place: int) -> None:
    assert faults(check_run("run-1", [*WHOLE, WHOLE[place]])) == [Fault.DUPLICATE]


def test_another_event_of_the_same_number_is_a_break() -> None:
    other = Link(2, EventKind.DECIDED, b"x" * 32, WHOLE[0].hash)
    assert Fault.BREAK in faults(check_run("run-1", [*WHOLE, other]))


@pytest.mark.parametrize("place", [1, 2, 3])
def test_an_event_that_names_another_one_before_it_is_a_break(place: int) -> None:
    links = list(WHOLE)
    links[place] = Link(place + 1, links[place].kind, links[place].hash, b"x" * 32)
    assert faults(check_run("run-1", links)) == [Fault.BREAK]


@pytest.mark.parametrize(
    "changed",
    [
        lambda links: [Link(1, EventKind.PINNED, links[0].hash, b"x" * 32), *links[1:]],
        lambda links: [links[0], Link(2, EventKind.DECIDED, links[1].hash, None), *links[2:]],
        lambda links: [Link(0, EventKind.PINNED, b"z" * 32, None), *links],
    ],
)
def test_the_first_event_and_only_it_names_none(changed: Callable[[list[Link]], list[Link]]) -> None:
    assert Fault.BREAK in faults(check_run("run-1", changed(WHOLE)))


def test_only_two_kinds_may_follow_the_outcome() -> None:
    allowed = chain_of(*STEPS, EventKind.OUTCOME, EventKind.SIGNAL_REFUSED, EventKind.ERASED)
    assert check_run("run-1", allowed).findings == ()
    for kind in (EventKind.DECIDED, EventKind.OUTCOME):
        assert faults(check_run("run-1", chain_of(EventKind.OUTCOME, kind))) == [Fault.AFTER_OUTCOME]


def test_a_beginning_may_be_cut_off_where_that_was_asked_for() -> None:
    chain = check_run("run-1", WHOLE[2:], from_start=False)
    assert chain.findings == ()
    assert chain.cut_off
    assert faults(check_run("run-1", [WHOLE[1], WHOLE[3]], from_start=False)) == [Fault.GAP]
    assert faults(check_run("run-1", WHOLE[2:])) == [Fault.GAP]


def test_a_stub_keeps_the_chain_whole() -> None:
    stub = Link(2, None, WHOLE[1].hash, None, stub=True)
    assert check_run("run-1", [WHOLE[0], stub, *WHOLE[2:]]).findings == ()
    lying = Link(2, None, b"x" * 32, None, stub=True)
    assert faults(check_run("run-1", [WHOLE[0], lying, *WHOLE[2:]])) == [Fault.BREAK]


def test_no_events_are_no_faults() -> None:
    assert check_run("run-1", []).findings == ()
