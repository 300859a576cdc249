"""The tools of the benchmark's app: one read, one write, both in process and without delay."""

from __future__ import annotations

from typing import Any

from session_custody import ToolContext, tool

FINDING = {"account": "acct-4412", "risk": "elevated", "note": "x" * 330}
"""About 0.4 KB of JSON. It stands twice in a commit: in the step's record and in the working slots."""


@tool(effect="read", saves={"finding": "/finding", "step": "/step"})
async def look_up(ctx: ToolContext[Any], alert_id: str, step: int) -> dict[str, Any]:
    """Look an alert up."""
    return {"finding": FINDING, "step": step}


@tool(effect="write", idempotency="key", saves={"finding": "/finding", "step": "/step"})
async def add_note(ctx: ToolContext[Any], alert_id: str, step: int) -> dict[str, Any]:
    """Add a note to an alert."""
    return {"finding": FINDING, "step": step}
