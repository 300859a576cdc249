"""How commands speak: tables for people, JSON for programs, exit codes for scripts."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from enum import IntEnum, StrEnum
from typing import Annotated, Any, Final
from uuid import UUID

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from session_custody.core.errors import (
    ContractConflict,
    ContractInvalid,
    ContractMissing,
    CustodyError,
    SettingsError,
    SignalRefused,
    Unavailable,
)

WIDTH_MAX: Final = 4_000
SENTENCE_CHARS_MAX: Final = 72
SENTENCES: Final = frozenset({"detail", "reason", "problem", "cure", "text"})


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
        case SignalRefused():
            return Exit.CONFLICT
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
    """Standard output for people. NO_COLOR is honoured by rich itself.

    As wide as what is printed: an id that is cut off cannot be copied. A terminal wraps by itself.
    """
    return Console(highlight=False, markup=False, emoji=False, width=WIDTH_MAX)


def write_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, default=_plain, ensure_ascii=False, indent=2) + "\n")


def write_line(value: Any) -> None:
    """One JSON document on a line, at once."""
    write_text(json.dumps(value, default=_plain, ensure_ascii=False))


def write_text(line: str) -> None:
    """One line of data, at once: whoever reads a pipe sees it now."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


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
            if rows:
                _table(rows, columns)
            else:
                say("none")


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
            lines = list(flat(record))
            _named([(name, cell(value)) for name, value in lines])


def show_facts(sentence: str, facts: Iterable[tuple[str, str]]) -> None:
    """A sentence, and under it what it rests on, for people."""
    console().print(Text(printable(sentence), style="bold"), soft_wrap=True)
    _named([(name, cell(text)) for name, text in facts])


def _named(lines: Sequence[tuple[str, str]]) -> None:
    width = max((len(name) for name, _ in lines), default=0)
    out = console()
    for name, text in lines:
        out.print(Text.assemble((f"{name:<{width}}", "bold"), "  ", text), soft_wrap=True)


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
        table.add_row(*(_short(column, cell(row.get(column))) for column in columns))
    console().print(table)


def _short(column: str, text: str) -> str:
    """Sentences are cut in tables, ids never; `-o json` has all of it."""
    cut = column in SENTENCES and len(text) > SENTENCE_CHARS_MAX
    return text[: SENTENCE_CHARS_MAX - 1] + "…" if cut else text


def cell(value: Any) -> str:
    match value:
        case None:
            return "-"
        case datetime():
            return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")
        case dict() | list() | tuple():
            return printable(json.dumps(value, default=_plain, ensure_ascii=False))
        case _:
            return printable(str(value))


def printable(text: str) -> str:
    """Without control characters: what a stranger wrote must not steer this terminal."""
    return "".join(char if char.isprintable() else "\ufffd" for char in text)


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
