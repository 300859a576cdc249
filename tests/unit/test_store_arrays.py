"""Arrays in binary: the same bytes that the driver itself would send, and exact times."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import pytest
from psycopg.adapt import PyFormat, Transformer

from session_custody.store.arrays import (
    BOOL,
    BYTES,
    FLOAT8,
    INT4,
    INT8,
    TEXT,
    TIMES,
    UUIDS,
    Column,
    columns,
)

BIG = 2**62
NOW = datetime(2026, 8, 14, 2, 11, 5, 123_457, tzinfo=UTC)


@pytest.mark.parametrize(
    ("column", "values"),
    [
        (INT8, [BIG, -BIG]),
        (TEXT, ["plain", "größer \U0001f600", None]),
        (BYTES, [b"\x00\xff", None, b""]),
        (BOOL, [True, None, False]),
        (FLOAT8, [1.5, None, -0.0]),
        (UUIDS, [UUID(int=1), None]),
        (TIMES, [NOW, None, datetime(1999, 12, 31, tzinfo=timezone(timedelta(hours=5, minutes=30)))]),
    ],
)
def test_an_array_is_what_the_driver_would_send(column: Column, values: list[Any]) -> None:
    dumper = Transformer().get_dumper(values, PyFormat.BINARY)
    assert dumper.dump(values) == column.array(values)
    assert dumper.oid == column.array_oid


def test_an_empty_array_names_its_type() -> None:
    """The driver gives an empty list no type, and its statement is planned once more."""
    for column in (INT4, INT8, TEXT):
        assert column.array(()) == b"\x00" * 8 + column.oid.to_bytes(4, "big")


def test_rows_are_turned_into_columns() -> None:
    turned = columns((INT4, TEXT), [(1, "a"), (None, "b")])
    assert turned == [INT4.array([1, None]), TEXT.array(["a", "b"])]
    assert columns((INT4, TEXT), []) == [INT4.array(()), TEXT.array(())]


def test_a_lone_surrogate_is_found_before_it_is_sent() -> None:
    with pytest.raises(UnicodeEncodeError):
        TEXT.array(["half \ud83d"])
