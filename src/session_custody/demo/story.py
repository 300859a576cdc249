"""One run, as a person wants to see it: pin card, step timeline, what recovery loaded, outcome."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from rich.console import Console
from rich.panel import Panel
from rich.table import Table


def tell(
    out: Console, record: Mapping[str, Any], steps: Sequence[Mapping[str, Any]], killed_at: datetime
) -> None:
    """Print the run. A line marks where its worker died."""
    out.print(_pin_card(record))
    out.print(_timeline(steps, killed_at))
    out.print(_loaded(record, steps, killed_at))


def _pin_card(record: Mapping[str, Any]) -> Panel:
    pin = record["pin"]
    lines = Table.grid(padding=(0, 2))
    for name in (
        "route_id",
        "route_table_version",
        "manifest_id",
        "manifest_version",
        "policy_profile",
        "policy_version",
        "model_profile",
        "max_loop_steps",
        "loop_step",
    ):
        if pin.get(name) is not None:
            lines.add_row(f"[dim]{name}[/dim]", str(pin[name]))
    title = f"{record['run_id']}  [bold]{record['status']}[/bold]"
    return Panel(lines, title=title, title_align="left", expand=False)


def _timeline(steps: Sequence[Mapping[str, Any]], killed_at: datetime) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("seq", "after", "step", "event", "what"):
        table.add_column(column)
    began: datetime = steps[0]["recorded_at"]
    marked = False
    for step in steps:
        if not marked and step["recorded_at"] > killed_at:
            marked = True
            table.add_row(
                "", _after(killed_at, began), "", "[red]worker SIGKILLed[/red]", "the next owner goes on"
            )
        table.add_row(
            str(step["event_seq"]),
            _after(step["recorded_at"], began),
            str(step["loop_step"]),
            step["kind"],
            _what(step),
        )
    return table


def _after(moment: datetime, began: datetime) -> str:
    return f"{(moment - began).total_seconds():6.2f}s"


def _what(step: Mapping[str, Any]) -> str:
    names = ("tool", "result", "code") if step.get("tool") else ("code", "status")
    parts = [str(step[name]) for name in names if step.get(name)]
    if step.get("idempotency_key"):
        parts.append(f"key {step['idempotency_key']}")
    if step.get("attempt", 1) > 1:
        parts.append(f"attempt {step['attempt']}")
    return "  ".join(parts)


def _loaded(record: Mapping[str, Any], steps: Sequence[Mapping[str, Any]], killed_at: datetime) -> str:
    pin = record["pin"]
    builds = sorted({step["build_id"] for step in steps if step.get("build_id")})
    resumed = next((step for step in steps if step["recorded_at"] > killed_at), None)
    where = f"at loop step {resumed['loop_step']}" if resumed else "before the kill"
    loaded = [f"manifest {pin.get('manifest_id')}@{pin.get('manifest_version')}"]
    if pin.get("policy_profile"):
        loaded.append(f"policy {pin['policy_profile']}@{pin.get('policy_version')}")
    if builds:
        loaded.append(f"tool build {', '.join(builds)}")
    loaded_text = "; ".join(loaded)
    return f"[dim]went on {where} with {loaded_text}: as pinned; a newer version was out[/dim]"
