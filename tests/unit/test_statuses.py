"""One transition table: docs, SQL and code say the same (I14, DESIGN 9)."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from session_custody.core.errors import InvariantBroken
from session_custody.core.run import DRIVEN, TERMINAL, TRANSITIONS, ParkReason, Status, check_transition

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = ROOT / "src/session_custody/store/schema.sql"


def diagram() -> str:
    """The state diagram of ARCHITECTURE.md. Terminal statuses are one state: all of them absorb."""
    lines = ["```mermaid", "stateDiagram-v2", "    [*] --> queued", "    [*] --> parked"]
    for before, after in itertools.product(Status, Status):
        if before is not after and not after.terminal and after in TRANSITIONS[before]:
            lines.append(f"    {before.value} --> {after.value}")
    lines += [f"    {status.value} --> ended" for status in Status if not status.terminal]
    lines += [f"    ended : {' | '.join(status.value for status in Status if status.terminal)}"]
    return "\n".join([*lines, "    ended --> [*]", "```"])


def test_the_diagram_in_the_docs_is_the_table() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    found = re.search(r"<!-- statuses -->\n(.*?)\n<!-- end -->", text, re.DOTALL)
    assert found is not None
    assert found[1] == diagram(), f"put this there:\n{diagram()}"


def test_i14_terminal_statuses_absorb() -> None:
    for before, after in itertools.product(TERMINAL, Status):
        with pytest.raises(InvariantBroken):
            check_transition(before, after)


def test_every_status_that_is_not_terminal_can_end_in_every_way() -> None:
    for before in set(Status) - TERMINAL:
        assert TRANSITIONS[before] >= TERMINAL


def test_nothing_goes_back_to_queued_but_what_rested() -> None:
    resting = set(Status) - TERMINAL - DRIVEN
    for before in Status:
        may = Status.QUEUED in TRANSITIONS[before] and before is not Status.QUEUED
        assert may == (before in resting)


def test_sql_lists_the_same_statuses() -> None:
    schema = SCHEMA.read_text(encoding="utf-8")
    check = re.search(r"constraint checkpoint_status check \(status in \((.*?)\)\)", schema, re.DOTALL)
    ended = re.search(r"function custody\.is_terminal.*?status in \((.*?)\)", schema, re.DOTALL)
    assert check is not None
    assert ended is not None
    assert set(re.findall(r"'(\w+)'", check[1])) == {status.value for status in Status}
    assert set(re.findall(r"'(\w+)'", ended[1])) == {status.value for status in TERMINAL}


def test_sql_knows_every_park_reason() -> None:
    schema = SCHEMA.read_text(encoding="utf-8")
    check = re.search(r"park_reason in \((.*?)\)", schema, re.DOTALL)
    assert check is not None
    assert set(re.findall(r"'(\w+)'", check[1])) == {reason.value for reason in ParkReason}
