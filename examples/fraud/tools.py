"""Tools of the fraud investigation. They speak to the bank's systems at CUSTODY_TOOLS__BASE_URL.

Two kinds of writes, because there are two kinds of systems:

* notes dedupe by `Idempotency-Key`, so `add_note` may simply be sent again;
* filings do not, but can be asked by key, and refuse for ever a key that they once called not found. So
  `file_note` is asked after a crash, and sent again (under a new key) only after a "not found".
"""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import httpx
from pydantic import Field

from session_custody import Done, NotFound, ToolContext, ToolError, tool

AlertId = Annotated[str, Field(pattern=r"^alert-[A-Za-z0-9-]{1,60}$")]
AccountId = Annotated[str, Field(pattern=r"^acct-[A-Za-z0-9-]{1,60}$")]
NoteText = Annotated[str, Field(min_length=1, max_length=2_000)]

NO_EFFECT = frozenset({400, 404, 422})
"""What the bank answers to a write that it did not carry out."""


@tool(effect="read", timeout="5s", saves={"alert_id": "/id", "account_id": "/account/id"})
async def get_alert(ctx: ToolContext, alert_id: AlertId) -> dict[str, Any]:
    """Read one fraud alert by its id."""
    return _read(await ctx.http.get(f"/alerts/{alert_id}", headers=_named(ctx)), "alert")


@tool(effect="read", timeout="5s")
async def get_account(ctx: ToolContext, account_id: AccountId) -> dict[str, Any]:
    """Read an account: when it was opened, its risk class."""
    return _read(await ctx.http.get(f"/accounts/{account_id}", headers=_named(ctx)), "account")


@tool(effect="read", timeout="5s")
async def list_transactions(ctx: ToolContext, account_id: AccountId) -> dict[str, Any]:
    """List the latest transactions of an account."""
    response = await ctx.http.get(f"/accounts/{account_id}/transactions", headers=_named(ctx))
    return _read(response, "account")


@tool(
    effect="write",
    idempotency="key",
    overlap="safe",
    timeout="10s",
    policy_args=["alert_id"],
    visible=["/args/alert_id", "/result/id"],
)
async def add_note(ctx: ToolContext, alert_id: AlertId, text: NoteText) -> dict[str, Any]:
    """Append a note to an alert."""
    response = await ctx.http.post(
        f"/alerts/{alert_id}/notes",
        json={"text": text},
        headers=_named(ctx),
    )
    return _written(response)


@tool(
    effect="write",
    idempotency="reconcile",
    on_not_found="resend",
    timeout="10s",
    policy_args=["alert_id"],
    visible=["/args/alert_id", "/result/id"],
)
async def file_note(ctx: ToolContext, alert_id: AlertId, text: NoteText) -> dict[str, Any]:
    """File a note about an alert with the case archive."""
    response = await ctx.http.post(
        f"/alerts/{alert_id}/filings",
        json={"text": text},
        headers=_named(ctx),
    )
    return _written(response)


@file_note.reconcile
async def _filed(ctx: ToolContext, alert_id: AlertId, text: NoteText) -> Done | NotFound:
    """Ask the archive what became of this key. Its 404 is a promise: the key is refused from then on."""
    response = await ctx.http.get(f"/filings/by-key/{quote(ctx.idempotency_key)}")
    if response.status_code == httpx.codes.NOT_FOUND:
        return NotFound()
    response.raise_for_status()
    return Done(response.json())


def _named(ctx: ToolContext) -> dict[str, str]:
    """Reads name their call too: the bank's log and the audit trail can be laid side by side."""
    return {"Idempotency-Key": ctx.idempotency_key}


def _read(response: httpx.Response, what: str) -> dict[str, Any]:
    if response.status_code == httpx.codes.NOT_FOUND:
        raise ToolError(f"{what}_not_found", f"There is no {what} with this id.")
    response.raise_for_status()
    document: dict[str, Any] = response.json()
    return document


def _written(response: httpx.Response) -> dict[str, Any]:
    if response.status_code in NO_EFFECT:
        raise ToolError("note_refused", f"The bank did not take the note (status {response.status_code}).")
    # anything else that is no success says nothing about what took effect: the intent stays pending
    response.raise_for_status()
    document: dict[str, Any] = response.json()
    return document
