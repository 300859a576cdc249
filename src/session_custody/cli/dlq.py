"""`custody dlq`: records that could not be decoded or admitted."""

from __future__ import annotations

from typing import Annotated

import typer

from session_custody.cli.connect import with_store
from session_custody.cli.output import Form, Output, show_rows
from session_custody.core.errors import RejectReason

app = typer.Typer(help="Dead letters.", no_args_is_help=True, rich_markup_mode="markdown")

COLUMNS = ("dead_letter_id", "reason", "detail", "topic", "partition", "offset", "run_id", "recorded_at")


@app.command("list")
def list_dead_letters(
    reason: Annotated[RejectReason | None, typer.Option(help="Only this reason.")] = None,
    run: Annotated[str | None, typer.Option(help="Only of this run.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="At most so many.")] = 50,
    output: Output = Form.TABLE,
) -> None:
    """List dead letters, newest first. Never their content.

    Example: `custody dlq list --reason pin_conflict`
    """
    rows = with_store(lambda store: store.list_dead_letters(reason=reason, run_id=run, limit=limit))
    show_rows(rows, output, COLUMNS, "dead_letter_id")
