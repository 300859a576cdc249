"""`custody db`: the schema and its migrations."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated, Any

import typer

from session_custody.cli.output import Exit, Form, Output, say, show_rows

app = typer.Typer(help="The database's schema.", no_args_is_help=True, rich_markup_mode="markdown")


def _migrator() -> Any:
    from session_custody.settings import Settings
    from session_custody.wiring import migrator

    return migrator(Settings.load())


@app.command()
def migrate(
    show: Annotated[
        bool, typer.Option("--print", help="Print the SQL that would run, for a DBA; change nothing.")
    ] = False,
) -> None:
    """Bring the schema to the newest version. Safe when ten pods do it at once.

    Example: `custody db migrate --print > custody.sql`
    """
    tool = _migrator()
    if show:
        sys.stdout.write(tool.sql())
        return
    applied = asyncio.run(tool.migrate())
    say(f"applied {len(applied)} migrations" if applied else "nothing to do: the schema is the newest")


@app.command()
def status(output: Output = Form.TABLE) -> None:
    """List migrations, and which are applied.

    Example: `custody db status -o json`
    """
    rows = asyncio.run(_migrator().status())
    show_rows(rows, output, ("number", "name", "applied_at", "checksum"), "number")
    if any(row["applied_at"] is None for row in rows):
        raise typer.Exit(Exit.PROBLEMS)
