"""The command tree. Each group lives in a module of its own and imports what it needs when it runs."""

from __future__ import annotations

import sys
from importlib.metadata import version as distribution_version
from pathlib import Path
from typing import Annotated

import typer

from session_custody.cli import audit, contract, db, dlq, lane, run, topics
from session_custody.cli.output import Exit, Form, Output, fail, show_record, show_rows

app = typer.Typer(
    name="custody",
    help="Keeps agent runs safe: started by Kafka, checkpointed in Postgres, continued by whoever is alive.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    add_completion=True,
)
app.add_typer(run.app, name="run")
app.add_typer(lane.app, name="lane")
app.add_typer(dlq.app, name="dlq")
app.add_typer(contract.app, name="contract")
app.add_typer(topics.app, name="topics")
app.add_typer(db.app, name="db")
app.add_typer(audit.app, name="audit")

AppOption = Annotated[
    list[str] | None,
    typer.Option("--app", help="Package or module whose @tool functions are served. Repeatable."),
]


@app.command()
def version(output: Output = Form.TABLE) -> None:
    """Print the version of this installation.

    Example: `custody version -o json`
    """
    known = {"version": distribution_version("session-custody"), "python": sys.version.split()[0]}
    if output is Form.TABLE:
        sys.stdout.write(f"session-custody {known['version']} (Python {known['python']})\n")
    else:
        show_record(known, output, "version")


@app.command()
def serve(
    app_modules: AppOption = None,
    until_stdin_closes: Annotated[
        bool, typer.Option("--until-stdin-closes", help="Drain when standard input ends (for supervisors).")
    ] = False,
) -> None:
    """Run one worker until SIGTERM. Settings come from `CUSTODY_*`; `docs/settings.md` lists them.

    Example: `custody serve --app my_app`
    """
    from session_custody.wiring import serve as run_worker

    run_worker(app_modules or [], until_stdin_closes=until_stdin_closes)


@app.command()
def dev(
    app_modules: AppOption = None,
    folder: Annotated[
        Path | None, typer.Option(help="Keep keys and logs there; a temporary folder by default.")
    ] = None,
) -> None:
    """Start Kafka, PostgreSQL, Valkey and one worker; print where they are; stay until Ctrl-C.

    Example: `custody dev --app my_app`
    """
    from session_custody.cli.dev import stay

    stay(app_modules or [], folder)


@app.command()
def demo(
    runs: Annotated[int, typer.Option(min=4, max=20_000, help="Runs to start.")] = 200,
    seed: Annotated[int, typer.Option(help="Seed of ids, order, duplicates and delays.")] = 1,
    workers: Annotated[int, typer.Option(min=1, max=8, help="Workers to begin with.")] = 1,
    kills: Annotated[int, typer.Option(min=1, max=7, help="How many of them are SIGKILLed.")] = 1,
    keep: Annotated[Path | None, typer.Option(help="Keep logs, ledgers and keys in this folder.")] = None,
    output: Output = Form.TABLE,
) -> None:
    """Run the main job, kill its worker in the middle, and let a checker that is not ours judge the rest.

    Examples: `custody demo` · `custody demo --workers 3 --kills 2 -o json`
    """
    from session_custody.demo.options import DemoOptions
    from session_custody.demo.show import run_demo

    if kills >= workers > 1:
        raise fail("--kills must leave a worker alive: fewer than --workers", Exit.USAGE)
    options = DemoOptions(runs=runs, seed=seed, workers=workers, kills=kills, keep=keep)
    if not run_demo(options, as_json=output is not Form.TABLE):
        raise typer.Exit(Exit.ERROR)


@app.command()
def config(
    output: Output = Form.TABLE,
) -> None:
    """List every setting: its variable, what it may be, its default.

    Example: `custody config -o json`
    """
    from session_custody.settings import Settings

    rows = [
        {"variable": row.variable, "kind": row.kind, "default": row.default, "text": row.text}
        for row in Settings.describe()
    ]
    if output is Form.TABLE:
        for row in rows:
            sys.stdout.write(
                f"{row['variable']}  ({row['kind']}; default {row['default'] or 'none'})\n    {row['text']}\n"
            )
    else:
        show_rows(rows, output, ("variable", "kind", "default", "text"), "variable")
