"""`custody audit`: check the record itself, without trusting the service."""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta
from typing import Annotated

import typer

from session_custody.cli.output import Exit, Form, Output, show_record, show_rows

app = typer.Typer(help="Check the audit trail.", no_args_is_help=True, rich_markup_mode="markdown")


@app.callback()
def _group() -> None:
    """Keep `audit verify` a sub-command."""


@app.command()
def verify(
    since: Annotated[
        str, typer.Option(help="Only runs that began so long ago at most: 24h, 7d, 30m.")
    ] = "24h",
    output: Output = Form.TABLE,
) -> None:
    """Read both output topics, check numbers, hashes and signatures. Exit code 10 with findings.

    Example: `custody audit verify --since 24h -o json`
    """
    from session_custody.audit import verify_topics
    from session_custody.settings import Settings

    report = verify_topics(Settings.load(), _duration(since))
    record = asdict(report)
    if output is Form.TABLE:
        findings = record.pop("findings")
        show_record(record, output, "runs")
        if findings:
            show_rows(findings, output, ("run_id", "event_seq", "fault", "detail"), "run_id")
    else:
        show_record(record, output, "runs")
    if not report.ok:
        raise typer.Exit(Exit.PROBLEMS)


def _duration(text: str) -> timedelta:
    units = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
    try:
        return timedelta(**{units[text[-1]]: float(text[:-1])})
    except (KeyError, ValueError, IndexError):
        raise typer.BadParameter(f"{text} is no duration; write 24h, 7d or 30m") from None
