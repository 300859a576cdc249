"""The fraud example with what stands around it: the bank's server, the model's server, a gate."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from session_custody.core.errors import ContractConflict
from session_custody.core.manifest import ContractKind
from session_custody.demo.processes import side_server
from session_custody.resources import examples_dir
from session_custody.tools.registry import Registry


class Bank:
    """The tool server and its ledger."""

    def __init__(self, url: str, ledger: Path) -> None:
        self.url = url
        self._ledger = ledger

    def effects(self) -> list[str]:
        """Keys of what took effect, in order."""
        lines = (self._ledger / "effects.jsonl").read_text(encoding="utf-8").splitlines()
        return [json.loads(line)["key"] for line in lines]


@contextmanager
def a_bank(folder: Path, write_s: float) -> Iterator[Bank]:
    ledger = folder / "ledger"
    slow = ("--read-s", "0", "--write-s", str(write_s))
    child, port = side_server("toolserver", folder / "bank.log", "--ledger", str(ledger), *slow)
    try:
        yield Bank(f"http://127.0.0.1:{port}", ledger)
    finally:
        child.stop()


@contextmanager
def a_model(folder: Path) -> Iterator[tuple[str, Path]]:
    """Its address and the log of what it was asked."""
    log = folder / "asked.jsonl"
    child, port = side_server("modelserver", folder / "model.log", "--think-s", "0", "--log", str(log))
    try:
        yield f"http://127.0.0.1:{port}/v1", log
    finally:
        child.stop()


@contextmanager
def fraud_tools(monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    monkeypatch.syspath_prepend(examples_dir())
    try:
        yield Registry.discover(["fraud"])
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "fraud"]:
            del sys.modules[name]


class ContractTable:
    """The contract calls of the store, in memory."""

    def __init__(self) -> None:
        self.rows: dict[tuple[ContractKind, str, str], tuple[str, str]] = {}

    async def publish_contract(
        self, kind: ContractKind, name: str, version: str, body: str, digest: str
    ) -> bool:
        new = (kind, name, version) not in self.rows
        if self.rows.setdefault((kind, name, version), (body, digest))[1] != digest:
            raise ContractConflict(kind.value, name, version)
        return new

    async def load_contract(self, kind: ContractKind, name: str, version: str) -> tuple[str, str] | None:
        return self.rows.get((kind, name, version))

    async def latest_version(self, kind: ContractKind, name: str) -> str | None:
        raise AssertionError("nothing asks for what is newest after admission (I3)")
