"""`custody run`: start, look at, and speak to runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml
from pydantic import ValidationError

from session_custody.cli.connect import producer, with_store
from session_custody.cli.output import (
    Exit,
    Form,
    Output,
    fail,
    say,
    show_facts,
    show_record,
    show_rows,
)
from session_custody.core.errors import SignalRefused
from session_custody.core.run import Status

if TYPE_CHECKING:
    from session_custody.client import RunStart

app = typer.Typer(
    help="Start, look at, and speak to runs.", no_args_is_help=True, rich_markup_mode="markdown"
)

RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="run_id, which is the correlation_id.")]
LIST_COLUMNS = (
    "run_id",
    "status",
    "route_id",
    "loop_step",
    "park_reason",
    "session_id",
    "pinned_at",
    "updated_at",
)
STEP_COLUMNS = (
    "event_seq",
    "recorded_at",
    "kind",
    "status",
    "loop_step",
    "tool",
    "result",
    "code",
    "reason",
    "attempt",
    "idempotency_key",
)


@app.command()
def start(
    file: Annotated[Path, typer.Option("--file", "-f", help="YAML or JSON with the fields of a RunStart.")],
    output: Output = Form.ID,
) -> None:
    """Publish a RunStart, and nothing else. Prints the run_id once the broker has it.

    Example: `custody run start -f start.yaml`
    """
    begin = _read_start(file)
    with producer() as client:
        run_id = client.start(begin)
    show_record({"run_id": run_id}, output, "run_id")


def _read_start(file: Path) -> RunStart:
    """The start in a file. Whatever is wrong is said with its field or line, never with its value."""
    from session_custody.client import RunStart
    from session_custody.client.failures import InvalidRecord

    try:
        fields: Any = yaml.safe_load(file.read_text(encoding="utf-8"))
        if not isinstance(fields, dict):
            raise fail(f"{file}: holds no fields of a RunStart", Exit.USAGE)
        begin = RunStart(**fields)
        begin.event()
    except OSError as error:
        problem = error.strerror or type(error).__name__
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        problem = f"{line}{error.problem or 'is no YAML'}"
    except ValidationError as error:
        problem = "; ".join(_findings(error))
    except (InvalidRecord, TypeError, UnicodeDecodeError, yaml.YAMLError) as error:
        problem = str(error).splitlines()[0]
    else:
        return begin
    raise fail(f"{file}: {problem}", Exit.USAGE)


def _findings(error: ValidationError) -> list[str]:
    found = error.errors(include_url=False, include_input=False, include_context=False)
    return [f"{'.'.join(str(part) for part in one['loc'])}: {one['msg'].lower()}" for one in found]


@app.command()
def resume(run: RunArgument) -> None:
    """Publish a `continue`: wakes a parked run with a renewed retry budget; a run under way does not mind.

    Example: `custody run resume run-9f3c`
    """
    with producer() as client:
        client.resume(run)
    say(f"published: continue {run}")


@app.command()
def cancel(run: RunArgument, reason: Annotated[str, typer.Option(help="Why; stands in the record.")]) -> None:
    """Publish a cancel: the run ends at its next boundary.

    With a write in doubt it ends once that is resolved.

    Example: `custody run cancel run-9f3c --reason "customer called"`
    """
    with producer() as client:
        client.cancel(run, reason=reason)
    say(f"published: cancel {run}")


@app.command("list")
def list_runs(
    status: Annotated[Status | None, typer.Option(help="Only runs in this status.")] = None,
    route: Annotated[str | None, typer.Option(help="Only runs of this route_id.")] = None,
    session: Annotated[str | None, typer.Option(help="Only runs of this session_id.")] = None,
    before: Annotated[
        str | None, typer.Option(help="Only runs older than this run_id: the next page.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="At most so many.")] = 50,
    output: Output = Form.TABLE,
) -> None:
    """List runs, newest first.

    Example: `custody run list --status parked -o json`
    """
    from session_custody.ports import RunFilter

    chosen = RunFilter(status=status, route_id=route, session_id=session, limit=limit, before=before)
    rows = with_store(lambda store: store.list_runs(chosen))
    show_rows(rows, output, LIST_COLUMNS, "run_id")


@app.command()
def get(run: RunArgument, output: Output = Form.TABLE) -> None:
    """Show one run: its pin, its checkpoint, what it waits for.

    Example: `custody run get run-9f3c -o json`
    """
    record = with_store(lambda store: store.get_run(run))
    if record is None:
        raise fail(f"there is no run {run}", Exit.NOT_FOUND)
    show_record(record, output, "run_id")


@app.command()
def steps(run: RunArgument, output: Output = Form.TABLE) -> None:
    """Show a run's steps in order: what was decided, called, answered.

    Example: `custody run steps run-9f3c`
    """
    rows = with_store(lambda store: store.steps(run))
    if not rows:
        raise fail(f"there is no run {run}", Exit.NOT_FOUND)
    show_rows(rows, output, STEP_COLUMNS, "event_seq")


@app.command()
def why(run: RunArgument, output: Output = Form.TABLE) -> None:
    """Say in one sentence why a run is where it is, then the evidence.

    Example: `custody run why run-9f3c`
    """
    from session_custody.cli.why import explain, facts

    evidence = with_store(lambda store: store.run_evidence(run))
    if evidence is None:
        raise fail(f"there is no run {run}", Exit.NOT_FOUND)
    sentence = explain(evidence)
    if output is Form.TABLE:
        show_facts(sentence, facts(evidence))
    else:
        show_record({"run_id": run, "why": sentence, **evidence}, output, "run_id")


@app.command()
def watch(
    run: RunArgument,
    timeout: Annotated[
        float | None, typer.Option(min=0.1, help="Give up after so many seconds, with exit code 7.")
    ] = None,
    output: Output = Form.TABLE,
) -> None:
    """Show a run's steps as they are committed, until it has ended.

    Exit code: 0 succeeded, 20 partial, 21 escalated, 22 failed, 23 cancelled, 24 expired.

    Example: `custody run watch run-9f3c --timeout 60`
    """
    from session_custody.cli.watch import watch_run

    raise typer.Exit(with_store(lambda store: watch_run(store, run, timeout, output)))


@app.command()
def resolve(
    run: RunArgument,
    reason: Annotated[str, typer.Option(help="What you know, and from where. Stands in the record.")],
    done: Annotated[
        bool, typer.Option("--done/--not-done", help="The write took effect, or has not and cannot any more.")
    ],
    event_seq: Annotated[
        int | None,
        typer.Option(help="event_seq of the in_doubt that you saw; the one that stands by default."),
    ] = None,
) -> None:
    """End an in_doubt run's write by your word.

    `--not-done` says that the write has not taken effect **and cannot any more**: its sender is gone or its
    call has ended. `custody run why` names that process.

    Example: `custody run resolve run-9f3c --done --reason "seen in the ledger"`
    """
    from session_custody.cli.resolve import resolve_run

    try:
        seen = with_store(
            lambda store: resolve_run(store, run, done=done, reason=reason, event_seq=event_seq)
        )
    except SignalRefused as refusal:
        raise fail(str(refusal), Exit.CONFLICT) from None
    if seen is None:
        raise fail(f"there is no run {run}", Exit.NOT_FOUND)
    say(f"told: {run} in_doubt at event {seen} is {'done' if done else 'not done'}")
