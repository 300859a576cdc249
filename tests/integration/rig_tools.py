"""The tools of the rig's app: one of each kind, all at the rig's bench. Imported by real workers."""

from __future__ import annotations

from typing import Any

import httpx

from session_custody import ToolContext, ToolError, tool


@tool(effect="read", timeout="20s", saves={"alert_id": "/id", "account_id": "/account/id"})
async def get_alert(ctx: ToolContext, alert_id: str) -> dict[str, Any]:
    """Read one fraud alert by its id."""
    response = await ctx.http.get(f"/alerts/{alert_id}")
    if response.status_code == httpx.codes.NOT_FOUND:
        raise ToolError("alert_not_found", "There is no alert with this id.")
    response.raise_for_status()
    document: dict[str, Any] = response.json()
    return document


@tool(effect="read", timeout="5s")
def explode(ctx: ToolContext, alert_id: str) -> dict[str, Any]:
    """Raise what the author did not think of."""
    raise RuntimeError(f"inner detail of {alert_id}")


@tool(effect="read", timeout="5s")
async def forbidden(ctx: ToolContext, alert_id: str) -> dict[str, Any]:
    """Never allowed by the rig's policy."""
    return {"reached": alert_id}


@tool(effect="write", idempotency="key", overlap="safe", timeout="5s", visible=["/args/alert_id"])
async def add_note(ctx: ToolContext, alert_id: str, text: str) -> dict[str, Any]:
    """Append a note; the bench dedupes by key."""
    response = await ctx.http.post(
        f"/alerts/{alert_id}/notes", json={"text": text}, headers={"Idempotency-Key": ctx.idempotency_key}
    )
    response.raise_for_status()
    document: dict[str, Any] = response.json()
    return document


@tool(effect="write", idempotency="none", on_in_doubt="hold", timeout="2s")
async def open_case(ctx: ToolContext, alert_id: str) -> dict[str, Any]:
    """Open a case at a system that knows no keys and cannot be asked."""
    response = await ctx.http.post(f"/alerts/{alert_id}/cases", json={"key": ctx.idempotency_key})
    response.raise_for_status()
    document: dict[str, Any] = response.json()
    return document
