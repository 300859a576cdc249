"""The crash rig's ground: one broker, one PostgreSQL and one bank per session; a world per scenario."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator, Sequence
from uuid import uuid4

import pytest

from session_custody.demo.processes import Child
from session_custody.devstack import Address, Databases
from session_custody.wire import generate_signing_key
from tests.crash import report
from tests.crash.contracts import fill
from tests.crash.play import PLAY, Part

pytest.register_assert_rewrite("tests.crash.scenario", "tests.crash.world", "tests.crash.history")

from tests.crash.scenario import Baseline, uncrashed  # noqa: E402 - so that its assertions say what they saw
from tests.crash.world import ROOT, Ground, MakeWorld, World  # noqa: E402 - the same


@pytest.fixture(scope="session")
def crash_template(postgres_server: Databases, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A database with the schema and the contracts in it."""
    name = f"crash_{uuid4().hex[:8]}"
    asyncio.run(fill(postgres_server.create(name), tmp_path_factory.mktemp("contracts")))
    return name


@pytest.fixture(scope="session")
def ground(kafka_server: Address, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    folder = tmp_path_factory.mktemp("crash")
    generate_signing_key(folder / "signing-key.pem").export_public_key(folder / "public-keys")
    command = [sys.executable, "-m", "tests.crash.bank", "--ledger", str(folder / "ledgers")]
    bank = Child("bank", command, folder / "bank.log", {**os.environ, "PYTHONPATH": str(ROOT)})
    try:
        port = json.loads(bank.first_line())["port"]
        environment = {
            "CUSTODY_KAFKA__BOOTSTRAP_SERVERS": kafka_server.url,
            "CUSTODY_AUDIT__SIGNING_KEY_FILE": str(folder / "signing-key.pem"),
            "CUSTODY_AUDIT__PUBLIC_KEYS_DIR": str(folder / "public-keys"),
        }
        yield Ground(environment, f"http://127.0.0.1:{port}", folder / "ledgers", folder / "public-keys")
    finally:
        bank.stop()


@pytest.fixture(scope="session")
def make_world(
    ground: Ground, postgres_server: Databases, crash_template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MakeWorld]:
    """Called with settings, makes a world; its test closes it. Databases go when the session ends."""
    made: list[str] = []

    def make(parts: Sequence[Part] = PLAY, **more: str) -> World:
        name = f"w{uuid4().hex[:8]}"
        made.append(name)
        dsn = postgres_server.create(name, crash_template)
        return World(ground, name, dsn, tmp_path_factory.mktemp(name), more, parts)

    yield make
    for name in made:
        postgres_server.drop(name)


@pytest.fixture
def world(make_world: MakeWorld) -> Iterator[World]:
    made = make_world()
    yield made
    made.close()


@pytest.fixture(scope="session")
def baseline(make_world: MakeWorld) -> Baseline:
    """The same play without a crash."""
    made = make_world()
    try:
        return uncrashed(made)
    finally:
        made.close()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if report.ROWS:
        terminalreporter.section("fault points")
        terminalreporter.write(report.table())
