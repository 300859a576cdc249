"""The bank's systems, played by one process that outlives the workers.

Run it with `python -m session_custody.demo.toolserver --port 0 --ledger DIR`. It prints `{"port": …}` and
serves until standard input closes. Two append-only ledgers are the truth for the checker, one JSON object a
line:

* `attempts.jsonl`: every request as it arrives: time, tool, key, outcome it will have.
* `effects.jsonl`: every write that took effect, once, with its key.

Two kinds of notes. `/alerts/{id}/notes` honours `Idempotency-Key`: the second request with a key gets the
first one's answer, also while the first is still at work. `/alerts/{id}/filings` knows no keys for
deduplication, but can be asked (`/filings/by-key/…`): done, or not found — and what it once called not found
it refuses for ever.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from pathlib import Path
from typing import Any, TextIO

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from session_custody.demo.sideserver import serve

HEADER_KEY = "idempotency-key"


class Ledger:
    """Append-only, flushed line by line: what stands in it has happened."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._attempts = self._open(folder / "attempts.jsonl")
        self._effects = self._open(folder / "effects.jsonl")

    @staticmethod
    def _open(path: Path) -> TextIO:
        return path.open("a", encoding="utf-8", buffering=1)

    def attempt(self, **facts: Any) -> None:
        self._attempts.write(json.dumps({"at": time.time(), **facts}) + "\n")

    def effect(self, **facts: Any) -> None:
        self._effects.write(json.dumps({"at": time.time(), **facts}) + "\n")


class Bank:
    """Notes by key, slow on purpose: an effect lands at once, its answer comes later."""

    def __init__(self, ledger: Ledger, read_s: float, write_s: float, seed: int) -> None:
        self.ledger = ledger
        self.read_s = read_s
        self.write_s = write_s
        self.random = random.Random(seed)  # noqa: S311 - delays, not secrets
        self.notes: dict[str, dict[str, Any]] = {}
        self.filings: dict[str, dict[str, Any]] = {}
        self.barred: set[str] = set()

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds * self.random.uniform(0.5, 1.5))

    async def alert(self, request: Request) -> JSONResponse:
        alert_id = request.path_params["alert_id"]
        self.ledger.attempt(tool="get_alert", key=request.headers.get(HEADER_KEY), about=alert_id)
        await self.pause(self.read_s)
        account = "acct-" + alert_id.removeprefix("alert-")
        return JSONResponse({"id": alert_id, "account": {"id": account}, "rule": "velocity", "amount": 1990})

    async def account(self, request: Request) -> JSONResponse:
        account_id = request.path_params["account_id"]
        self.ledger.attempt(tool="get_account", key=request.headers.get(HEADER_KEY), about=account_id)
        await self.pause(self.read_s)
        return JSONResponse({"id": account_id, "opened": "2019-04-02", "risk": "medium"})

    async def transactions(self, request: Request) -> JSONResponse:
        account_id = request.path_params["account_id"]
        self.ledger.attempt(tool="list_transactions", key=request.headers.get(HEADER_KEY), about=account_id)
        await self.pause(self.read_s)
        return JSONResponse({"account_id": account_id, "transactions": [{"id": f"t-{n}"} for n in range(5)]})

    async def add_note(self, request: Request) -> JSONResponse:
        key = request.headers.get(HEADER_KEY)
        alert_id = request.path_params["alert_id"]
        if not key:
            return JSONResponse({"error": "no Idempotency-Key"}, 400)
        known = self.notes.get(key)
        self.ledger.attempt(tool="add_note", key=key, about=alert_id, deduped=known is not None)
        if known is None:
            known = self.notes[key] = {"id": f"note-{len(self.notes) + 1}", "alert_id": alert_id}
            self.ledger.effect(tool="add_note", key=key, about=alert_id)
        await self.pause(self.write_s)
        return JSONResponse(known)

    async def file_note(self, request: Request) -> JSONResponse:
        key = request.headers.get(HEADER_KEY)
        alert_id = request.path_params["alert_id"]
        if not key:
            return JSONResponse({"error": "no Idempotency-Key"}, 400)
        self.ledger.attempt(tool="file_note", key=key, about=alert_id, barred=key in self.barred)
        if key in self.barred:
            return JSONResponse({"error": "this key was called not found and is barred"}, 409)
        # No deduplication: a second request with one key is a second effect, and the checker would see it.
        filing = {"id": f"filing-{len(self.filings) + 1}", "alert_id": alert_id}
        self.filings[key] = filing
        self.ledger.effect(tool="file_note", key=key, about=alert_id)
        await self.pause(self.write_s)
        return JSONResponse(filing)

    async def ask(self, request: Request) -> JSONResponse:
        key = request.path_params["key"]
        await self.pause(self.read_s)
        filing = self.filings.get(key)  # looked up after the pause: the answer and the bar are one moment
        self.ledger.attempt(tool="file_note.reconcile", key=key, found=filing is not None)
        if filing is None:
            self.barred.add(key)
            return JSONResponse({"error": "not found"}, 404)
        return JSONResponse(filing)

    def routes(self) -> list[Route]:
        return [
            Route("/alerts/{alert_id}", self.alert),
            Route("/accounts/{account_id}", self.account),
            Route("/accounts/{account_id}/transactions", self.transactions),
            Route("/alerts/{alert_id}/notes", self.add_note, methods=["POST"]),
            Route("/alerts/{alert_id}/filings", self.file_note, methods=["POST"]),
            Route("/filings/by-key/{key:path}", self.ask),
        ]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--port", type=int, default=0)
    arguments.add_argument("--ledger", type=Path, required=True)
    arguments.add_argument("--read-s", type=float, default=0.2)
    arguments.add_argument("--write-s", type=float, default=1.0)
    arguments.add_argument("--seed", type=int, default=1)
    given = arguments.parse_args()
    bank = Bank(Ledger(given.ledger), given.read_s, given.write_s, given.seed)
    serve(Starlette(routes=bank.routes()), given.port)


if __name__ == "__main__":
    main()
