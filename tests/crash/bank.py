"""The systems that the crash rig's tools speak to: one process for the whole session, outliving every worker.

Run it with `python -m tests.crash.bank --ledger DIR`. It prints `{"port": …}` and serves until standard input
closes. Each world has a ledger of its own (`/w/<world>/…`), in the form that the demo's checker reads:
`attempts.jsonl`, every request as it arrives; `effects.jsonl`, every write that took effect.

Results are the same for the same write, whatever is asked when: histories are compared.

| path | what it is |
|---|---|
| `/facts/{about}` | a read |
| `/notes/{about}` | honours Idempotency-Key, also of overlapping requests |
| `/filings/{about}` | dedupes nothing, can be asked by key, and bars a key it once called not found |
| `/letters/{about}` | can neither dedupe nor be asked; `slow` in the name: the answer comes too late |
"""

from __future__ import annotations

import argparse
import asyncio
from collections import defaultdict
from pathlib import Path
from typing import Any, Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route

from session_custody.demo.sideserver import serve
from session_custody.demo.toolserver import HEADER_KEY, Ledger

SLOW_S: Final = 3.0
"""Beyond every timeout of the rig's manifests."""


class World:
    """What one scenario's systems remember."""

    def __init__(self, folder: Path) -> None:
        self.ledger = Ledger(folder)
        self.notes: set[str] = set()
        self.filings: set[str] = set()
        self.barred: set[str] = set()


class Bank:
    def __init__(self, root: Path, read_s: float, write_s: float) -> None:
        self.read_s = read_s
        self.write_s = write_s
        self.worlds: defaultdict[str, World] = _Worlds(root)

    async def fact(self, request: Request) -> JSONResponse:
        world, about, key = self._asked(request)
        world.ledger.attempt(tool="look", key=key, about=about)
        await asyncio.sleep(self.read_s)  # sleeps: the tool is slow
        return JSONResponse({"about": about, "risk": "medium"})

    async def note(self, request: Request) -> JSONResponse:
        world, about, key = self._asked(request)
        known = key in world.notes
        world.ledger.attempt(tool="note", key=key, about=about, deduped=known)
        if not known:
            world.notes.add(key)
            world.ledger.effect(tool="note", key=key, about=about)
        await asyncio.sleep(self.write_s)  # sleeps: the tool is slow
        return JSONResponse({"id": f"note on {about}"})

    async def filing(self, request: Request) -> JSONResponse:
        world, about, key = self._asked(request)
        world.ledger.attempt(tool="file", key=key, about=about, barred=key in world.barred)
        if key in world.barred:
            return JSONResponse({"error": "this key was called not found and is barred"}, 409)
        world.filings.add(key)  # no deduplication: a second request would be a second effect
        world.ledger.effect(tool="file", key=key, about=about)
        await asyncio.sleep(self.write_s)  # sleeps: the tool is slow
        return JSONResponse({"id": f"filing on {about}"})

    async def ask(self, request: Request) -> JSONResponse:
        world, about, _ = self._asked(request)
        key = request.path_params["key"]
        await asyncio.sleep(self.read_s)  # sleeps: the tool is slow
        found = key in world.filings
        world.ledger.attempt(tool="file.reconcile", key=key, about=about, found=found)
        if not found:
            world.barred.add(key)
            return JSONResponse({"error": "not found"}, 404)
        return JSONResponse({"id": f"filing on {about}"})

    async def letter(self, request: Request) -> JSONResponse:
        world, about, key = self._asked(request)
        world.ledger.attempt(tool="letter", key=key, about=about)
        world.ledger.effect(tool="letter", key=key, about=about)
        await asyncio.sleep(SLOW_S if "slow" in about else self.write_s)  # sleeps: the tool is slow
        return JSONResponse({"id": f"letter on {about}"})

    def _asked(self, request: Request) -> tuple[World, str, str]:
        world = self.worlds[request.path_params["world"]]
        return world, request.path_params["about"], request.headers.get(HEADER_KEY, "")

    def routes(self) -> list[Mount]:
        post: dict[str, Any] = {"methods": ["POST"]}
        inside = [
            Route("/facts/{about}", self.fact),
            Route("/notes/{about}", self.note, **post),
            Route("/filings/{about}", self.filing, **post),
            Route("/filings/{about}/by-key/{key:path}", self.ask),
            Route("/letters/{about}", self.letter, **post),
        ]
        return [Mount("/w/{world}", routes=inside)]


class _Worlds(defaultdict[str, World]):
    def __init__(self, root: Path) -> None:
        super().__init__()
        self.root = root

    def __missing__(self, name: str) -> World:
        self[name] = made = World(self.root / name)
        return made


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--ledger", type=Path, required=True)
    arguments.add_argument("--read-s", type=float, default=0.02)
    arguments.add_argument("--write-s", type=float, default=0.1)
    given = arguments.parse_args()
    bank = Bank(given.ledger, given.read_s, given.write_s)
    serve(Starlette(routes=bank.routes()), 0)


if __name__ == "__main__":
    main()
