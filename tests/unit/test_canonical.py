"""The fast way to canonical bytes writes what rfc8785 writes, and refuses what it refuses (DESIGN 11)."""

from __future__ import annotations

from typing import Any

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from session_custody.core.canonical import SAFE_INTEGER_MAX, canonical

TEXTS = st.text(st.characters())  # surrogates and controls too
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | TEXTS
DOCUMENTS = st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner), max_leaves=20)


def outcome(work: Any, value: Any) -> bytes | type[Exception]:
    try:
        return bytes(work(value))
    except ValueError as error:
        return type(error)


@given(DOCUMENTS)
def test_the_bytes_are_those_of_rfc8785(value: Any) -> None:
    assert outcome(canonical, value) == outcome(rfc8785.dumps, value)


@pytest.mark.parametrize(
    "value",
    [
        {"\ue000": 1, "\U00010000": 2},  # by UTF-16 units the second comes first
        {"b": '\x00\x1f\x7f\u2028"\\/\b\f\n\r\t', "a": [[], {}, ""]},
        [SAFE_INTEGER_MAX, -SAFE_INTEGER_MAX, True, None],
        {"a": 1e21, "b": -0.0, "c": 1.0},
    ],
)
def test_the_corners_are_written_alike(value: Any) -> None:
    assert canonical(value) == rfc8785.dumps(value)


@pytest.mark.parametrize(
    "value", [SAFE_INTEGER_MAX + 1, [-SAFE_INTEGER_MAX - 1], float("nan"), "\ud800", {"\ud800": 1}, {1: 2}]
)
def test_what_rfc8785_refuses_is_refused(value: Any) -> None:
    assert outcome(canonical, value) == outcome(rfc8785.dumps, value)
    assert isinstance(outcome(canonical, value), type)
