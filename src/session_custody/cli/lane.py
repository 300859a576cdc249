"""`custody lane`: who owns what, how far it is, and an operator's word when the store went back."""

from __future__ import annotations

from typing import Annotated

import typer

from session_custody.cli.connect import with_store
from session_custody.cli.output import Exit, Form, Output, fail, say, show_rows
from session_custody.core.pin import LaneId

app = typer.Typer(help="Lanes: one per input partition.", no_args_is_help=True, rich_markup_mode="markdown")

COLUMNS = (
    "lane_id",
    "topic",
    "partition",
    "epoch",
    "owner",
    "last_alive",
    "input_offset",
    "next_seq",
    "published_seq",
    "backlog",
    "oldest_unpublished_at",
    "unclean_ends",
    "went_back",
)


@app.command("list")
def list_lanes(output: Output = Form.TABLE) -> None:
    """List lanes: owner, epoch, how far intake and publication are.

    Example: `custody lane list -o json`
    """
    rows = with_store(lambda store: store.list_lanes())
    show_rows(rows, output, COLUMNS, "lane_id")


@app.command("adopt-floor")
def adopt_floor(
    lane: Annotated[int, typer.Argument(help="lane_id of `custody lane list`.")],
    reason: Annotated[str, typer.Option(help="Why it is right to go on; stands in the record.")],
    start: Annotated[
        int | None,
        typer.Option(
            "--from", help="Publish again from this lane_seq on, instead of what Kafka's cursor shows."
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Accept what Kafka shows as published after Postgres went back in time, and open the lane again.

    Example: `custody lane adopt-floor 3 --reason "restored from the 02:00 backup, see INC-7"`
    """
    from session_custody.cli.adopt import adopt

    if not yes and not typer.confirm(f"Open lane {lane} again? Events that Postgres lost stay published."):
        raise fail("nothing was changed", Exit.ERROR)
    said = adopt(LaneId(lane), reason, start)
    say(said)
