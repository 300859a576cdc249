"""DESIGN 6: claims and cursors as they stand on the cursor topic."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from session_custody import wire

CLAIM = wire.Claim(owner=UUID(int=1), epoch=3, nonce=UUID(int=2), store_id=UUID(int=3))
CURSOR = wire.Cursor(lane_seq=17, hash=b"h" * 32, store_id=UUID(int=3), epoch=3, owner=UUID(int=1))
LANE = wire.lane_text("custody.runs", 3)

CURSORS = st.builds(
    wire.Cursor,
    lane_seq=st.integers(1, 2**63 - 1),
    hash=st.binary(min_size=32, max_size=32),
    store_id=st.uuids(),
    epoch=st.integers(0, 2**63 - 1),
    owner=st.uuids(),
)


def test_a_lane_has_two_keys_so_that_compaction_keeps_both() -> None:
    assert wire.claim_key(LANE) == b"custody.runs/3/claim"
    assert wire.cursor_key(LANE) == b"custody.runs/3/cursor"


@given(CURSORS)
def test_a_cursor_comes_back(cursor: wire.Cursor) -> None:
    assert wire.decode_cursor(wire.encode_cursor(cursor)) == cursor


def test_a_record_says_by_its_key_what_it_is() -> None:
    assert wire.decode_record(wire.claim_key(LANE), wire.encode_claim(CLAIM)) == (LANE, CLAIM)
    assert wire.decode_record(wire.cursor_key(LANE), wire.encode_cursor(CURSOR)) == (LANE, CURSOR)
    for key in (None, b"", b"junk", b"/cursor", b"\xff/x"):
        with pytest.raises(wire.CursorUnreadable):
            wire.decode_record(key, wire.encode_cursor(CURSOR))


def test_nothing_published_yet_is_a_cursor_at_zero() -> None:
    empty = wire.Cursor(lane_seq=0, hash=b"", store_id=UUID(int=3), epoch=1, owner=UUID(int=1))
    assert wire.decode_cursor(wire.encode_cursor(empty)) == empty
    with pytest.raises(ValueError, match="hash of 0 bytes"):
        wire.encode_cursor(
            wire.Cursor(lane_seq=1, hash=b"", store_id=UUID(int=3), epoch=1, owner=UUID(int=1))
        )


@pytest.mark.parametrize(
    "changed",
    [
        {"v": 2}, {"lane_seq": -1}, {"lane_seq": True}, {"lane_seq": "17"}, {"lane_seq": 2**63},
        {"hash": "zz"}, {"hash": "ab"}, {"hash": None},
        {"store_id": "x"}, {"owner": 5}, {"epoch": 1.5}, {"epoch": None},
    ],
)  # fmt: skip
def test_a_damaged_cursor_is_never_taken_for_one(changed: dict[str, Any]) -> None:
    fields = json.loads(wire.encode_cursor(CURSOR)) | changed
    with pytest.raises(wire.CursorUnreadable):
        wire.decode_cursor(json.dumps(fields).encode())


@pytest.mark.parametrize("value", [None, b"", b"[]", b"{", b"\xff", b" " * 5000])
def test_junk_is_no_claim(value: bytes | None) -> None:
    with pytest.raises(wire.CursorUnreadable):
        wire.decode_claim(value)


def test_further_members_are_for_later() -> None:
    fields = json.loads(wire.encode_claim(CLAIM)) | {"new": 1}
    assert wire.decode_claim(json.dumps(fields).encode()) == CLAIM
