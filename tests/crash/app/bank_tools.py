"""Tools of the crash rig: a read, and a write of each idempotency kind, at `tests.crash.bank`."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any
from urllib.parse import quote

import httpx

from session_custody import Done, NotFound, ToolContext, tool


def _headers(ctx: ToolContext[Any]) -> dict[str, str]:
    return {"Idempotency-Key": ctx.idempotency_key}


def _document(response: httpx.Response) -> dict[str, Any]:
    response.raise_for_status()
    document: dict[str, Any] = response.json()
    return document


@tool(effect="read", timeout="2s", saves={"about": "/about"})
async def look(ctx: ToolContext[Any], about: str) -> dict[str, Any]:
    """Look something up."""
    return _document(await ctx.http.get(f"facts/{about}", headers=_headers(ctx)))


@tool(effect="read", timeout="5s")
async def deadly(ctx: ToolContext[Any], about: str) -> dict[str, Any]:
    """Kills its worker, as a tool that eats all memory would: after a while, and its neighbours with it."""
    await asyncio.sleep(0.5)  # sleeps: the tool is slow
    os.kill(os.getpid(), signal.SIGKILL)
    return {"about": about}


@tool(effect="write", idempotency="key", timeout="1s", visible=["/args/about", "/result/id"])
async def note(ctx: ToolContext[Any], about: str) -> dict[str, Any]:
    """Write a note; the other side dedupes by key."""
    return _document(await ctx.http.post(f"notes/{about}", headers=_headers(ctx)))


@tool(effect="write", idempotency="key", overlap="safe", timeout="1s")
async def safe_note(ctx: ToolContext[Any], about: str) -> dict[str, Any]:
    """The same, where overlapping requests are deduped too."""
    return _document(await ctx.http.post(f"notes/{about}", headers=_headers(ctx)))


@tool(effect="write", idempotency="reconcile", on_not_found="resend", timeout="1s", visible=["/result/id"])
async def file(ctx: ToolContext[Any], about: str) -> dict[str, Any]:
    """File it with an archive that can be asked."""
    return _document(await ctx.http.post(f"filings/{about}", headers=_headers(ctx)))


@file.reconcile
async def _filed(ctx: ToolContext[Any], about: str) -> Done | NotFound:
    response = await ctx.http.get(f"filings/{about}/by-key/{quote(ctx.idempotency_key)}")
    return NotFound() if response.status_code == 404 else Done(_document(response))


@tool(effect="write", idempotency="none", on_in_doubt="hold", timeout="1s")
async def letter(ctx: ToolContext[Any], about: str) -> dict[str, Any]:
    """Send a letter: it can neither be sent again nor be asked for."""
    return _document(await ctx.http.post(f"letters/{about}", headers=_headers(ctx)))
