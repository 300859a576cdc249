"""`custody topics`: the Kafka topics that custody reads and writes."""

from __future__ import annotations

from typing import Annotated

import typer

from session_custody.cli.output import Exit, Form, Output, say, show_rows

app = typer.Typer(help="Kafka topics.", no_args_is_help=True, rich_markup_mode="markdown")


@app.command()
def create(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be created.")] = False,
) -> None:
    """Create the topics that are missing, as the settings say.

    Example: `custody topics create --dry-run`
    """
    from session_custody.settings import Settings
    from session_custody.wiring import topic_admin

    created = topic_admin(Settings.load()).create(dry_run=dry_run)
    word = "would create" if dry_run else "created"
    say(f"{word} {', '.join(created)}" if created else "nothing to do: every topic is there")


@app.command()
def check(output: Output = Form.TABLE) -> None:
    """Compare the topics with what custody needs. Exit code 10 with findings.

    Example: `custody topics check -o json`
    """
    from session_custody.settings import Settings
    from session_custody.wiring import topic_admin

    findings = topic_admin(Settings.load()).check()
    rows = [
        {"topic": finding.topic, "problem": finding.problem, "cure": finding.cure} for finding in findings
    ]
    show_rows(rows, output, ("topic", "problem", "cure"), "topic")
    if findings:
        raise typer.Exit(Exit.PROBLEMS)
