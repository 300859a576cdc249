"""How commands speak: data that can be copied, JSON that parses, and nothing that steers a terminal."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from session_custody.cli.output import (
    SENTENCE_CHARS_MAX,
    Exit,
    Form,
    exit_code_of,
    show_facts,
    show_record,
    show_rows,
)
from session_custody.cli.root import app
from session_custody.core.errors import (
    ContractConflict,
    ContractMissing,
    CustodyError,
    InvariantBroken,
    SettingsError,
    SignalRefused,
    Unavailable,
)

LONG_ID = "run-" + "x" * 196
ROW = {
    "run_id": LONG_ID,
    "detail": "y" * 300,
    "note": "[bold]\x1b[31mred[/x]",
    "at": datetime(2026, 8, 14, tzinfo=UTC),
}


def test_a_table_never_cuts_an_id_and_cuts_sentences(capsys: pytest.CaptureFixture[str]) -> None:
    show_rows([ROW], Form.TABLE, ("run_id", "detail", "at"), "run_id")
    out = capsys.readouterr().out
    assert LONG_ID in out
    assert "y" * (SENTENCE_CHARS_MAX - 1) + "…" in out
    assert "2026-08-14 00:00:00Z" in out
    show_rows([], Form.TABLE, ("run_id",), "run_id")
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "none\n")


def test_what_a_stranger_wrote_is_neither_markup_nor_a_control_sequence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show_rows([ROW], Form.TABLE, ("note",), "run_id")
    show_record({"note": ROW["note"], "rows": [ROW["note"]]}, Form.TABLE, "note")
    show_facts(f"Because {ROW['note']}.", [("note", str(ROW["note"]))])
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert out.count("[bold]") == 5


@pytest.mark.parametrize("rows", [[], [ROW], [ROW, ROW]])
def test_json_is_one_document_and_jsonl_one_a_line(
    rows: list[dict[str, object]], capsys: pytest.CaptureFixture[str]
) -> None:
    show_rows(rows, Form.JSON, ("run_id",), "run_id")
    assert len(json.loads(capsys.readouterr().out)) == len(rows)
    show_rows(rows, Form.JSONL, ("run_id",), "run_id")
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["detail"] for line in lines] == [row["detail"] for row in rows]


def test_times_are_utc_with_z_and_ids_are_texts_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    record = {
        "at": datetime(2026, 8, 14, 2, 11, 5, tzinfo=UTC),
        "id": UUID(int=7),
        "bytes": b"\x01",
        "set": (1,),
    }
    show_record(record, Form.JSON, "id")
    assert json.loads(capsys.readouterr().out) == {
        "at": "2026-08-14T02:11:05Z",
        "id": "00000000-0000-0000-0000-000000000007",
        "bytes": "01",
        "set": [1],
    }


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (SettingsError("CUSTODY_X", "is wrong"), 2),
        (ContractMissing("manifest", "m", "1"), 3),
        (ContractConflict("manifest", "m", "1"), 4),
        (SignalRefused("not_in_doubt", "it stands elsewhere"), 4),
        (Unavailable("postgres"), 6),
        (InvariantBroken("our bug"), 1),
    ],
)
def test_an_error_has_the_exit_code_of_the_conventions(error: CustodyError, code: int) -> None:
    assert exit_code_of(error) == code


def test_exit_codes_are_those_of_the_conventions() -> None:
    assert [code.value for code in Exit] == [0, 1, 2, 3, 4, 5, 6, 7, 8, 10]


def commands() -> Iterator[tuple[str, Any]]:
    def below(name: str, command: Any) -> Iterator[tuple[str, Any]]:
        if isinstance(command, TyperGroup):
            for inner, child in command.commands.items():
                yield from below(f"{name} {inner}", child)
        else:
            yield name, command

    yield from below("custody", get_command(app))


COMMANDS = dict(commands())


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_a_sentence_and_an_example_and_explains_each_option(name: str) -> None:
    command = COMMANDS[name]
    text = command.help or ""
    assert text.splitlines()[0].endswith((".", ":"))
    assert "Example" in text
    assert f"`{name}" in text, "the example is of this command"
    for parameter in command.params:
        assert getattr(parameter, "help", None), f"{name} {parameter.name}"


def test_the_commands_of_the_issue_are_there() -> None:
    wanted = (
        "dev", "demo", "serve", "version", "config", "db:migrate,status", "topics:create,check",
        "contract:build,check,publish", "run:start,resume,cancel,list,get,steps,why,resolve,watch",
        "lane:list,adopt-floor", "dlq:list", "audit:verify",
    )  # fmt: skip
    names = set()
    for word in wanted:
        group, _, inner = word.partition(":")
        names |= {f"custody {group} {each}" for each in inner.split(",")} if inner else {f"custody {group}"}
    assert names <= set(COMMANDS)
