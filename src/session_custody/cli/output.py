"""How commands speak: tables for people, JSON for programs, exit codes for scripts."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from enum import IntEnum, StrEnum
from typing import Annotated, Any
from uuid import UUID

import typer
from rich.console import Console
from rich.table import Table

from session_custody.core.errors import (
    ContractConflict,
    ContractInvalid,
    ContractMissing,
    CustodyError,
    SettingsError,
    Unavailable,
)


class Exit(IntEnum):
    """Exit codes of every command. `run watch` has its own for outcomes (API 5)."""

    OK = 0
    ERROR = 1
    USAGE = 2
    NOT_FOUND = 3
    CONFLICT = 4
    DENIED = 5
    UNAVAILABLE = 6
    TIMEOUT = 7
    PARTIAL = 8
    PROBLEMS = 10


class Form(StrEnum):
    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"
    ID = "id"


Output = Annotated[
    Form, typer.Option("--output", "-o", help="How to print: a table, JSON, JSON lines, ids only.")
]


def exit_code_of(error: CustodyError) -> Exit:
    match error:
        case SettingsError() | ContractInvalid():
            return Exit.USAGE
        case ContractMissing():
            return Exit.NOT_FOUND
        case ContractConflict():
            return Exit.CONFLICT
        case Unavailable():
            return Exit.UNAVAILABLE
        case _:
            return Exit.ERROR


def complain(text: str) -> None:
    """One line on standard error."""
    sys.stderr.write(f"custody: {text}\n")


def say(text: str) -> None:
    """Progress and talk, on standard error."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def fail(text: str, code: Exit) -> typer.Exit:
    """Complain, and give back what to raise."""
    complain(text)
    return typer.Exit(code)


def console() -> Console:
    """Standard output for people. NO_COLOR is honoured by rich itself."""
    return Console(soft_wrap=False, highlight=False, width=None if sys.stdout.isatty() else 160)


def write_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, default=_plain, ensure_ascii=False, indent=2) + "\n")


def show_rows(rows: Sequence[Mapping[str, Any]], form: Form, columns: Sequence[str], id_column: str) -> None:
    """Print rows in any form. The JSON forms hold every key, the table only `columns`."""
    match form:
        case Form.JSON:
            write_json(rows)
        case Form.JSONL:
            for row in rows:
                sys.stdout.write(json.dumps(row, default=_plain, ensure_ascii=False) + "\n")
        case Form.ID:
            for row in rows:
                sys.stdout.write(f"{row[id_column]}\n")
        case Form.TABLE:
            _table(rows, columns)


def show_record(record: Mapping[str, Any], form: Form, id_key: str) -> None:
    """Print one nested record."""
    match form:
        case Form.JSON:
            write_json(record)
        case Form.JSONL:
            sys.stdout.write(json.dumps(record, default=_plain, ensure_ascii=False) + "\n")
        case Form.ID:
            sys.stdout.write(f"{record[id_key]}\n")
        case Form.TABLE:
            out = console()
            for name, value in flat(record):
                out.print(f"[bold]{name:<32}[/bold] ", cell(value), sep="", markup=True)


def flat(record: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    """`pin.route_id` and the like, in order."""
    for key, value in record.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column.upper(), no_wrap=True)
    for row in rows:
        table.add_row(*(cell(row.get(column)) for column in columns))
    console().print(table)


def cell(value: Any) -> str:
    match value:
        case None:
            return "-"
        case datetime():
            return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")
        case dict() | list():
            return json.dumps(value, default=_plain, ensure_ascii=False)
        case _:
            return str(value)


def _plain(value: object) -> Any:
    match value:
        case datetime():
            return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
        case UUID():
            return str(value)
        case bytes():
            return value.hex()
        case set() | frozenset() | tuple():
            return list(value)
        case _:
            raise TypeError(type(value).__name__)
