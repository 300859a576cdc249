"""The crash rig's ground: one broker, one PostgreSQL and one bank per session; a world per scenario."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest

from session_custody.contracts import publish
from session_custody.demo.processes import Child
from session_custody.devstack import Address, Databases
from session_custody.store import Migrator, PostgresStore
from session_custody.wire import generate_signing_key
from tests.crash import report
from tests.crash.play import APP_FOLDER, write_contracts, write_script

pytest.register_assert_rewrite("tests.crash.scenario", "tests.crash.world", "tests.crash.history")

from tests.crash.scenario import Baseline, uncrashed  # noqa: E402 - so that its assertions say what they saw
from tests.crash.world import ROOT, Ground, World  # noqa: E402 - the same

MakeWorld = Callable[..., World]


@pytest.fixture(scope="session")
def crash_template(postgres_server: Databases, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A database with the schema and the contracts in it."""
    sys.path.insert(0, str(APP_FOLDER))  # the manifest is drafted from the tools
    name = f"crash_{uuid4().hex[:8]}"
    dsn = postgres_server.create(name)
    folder = tmp_path_factory.mktemp("contracts")
    write_contracts(folder)

    async def fill() -> None:
        await Migrator(dsn).migrate()
        store = await PostgresStore.open(dsn)
        try:
            await publish(store, folder)
        finally:
            await store.close()

    asyncio.run(fill())
    return name


@pytest.fixture(scope="session")
def ground(kafka_server: Address, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    folder = tmp_path_factory.mktemp("crash")
    generate_signing_key(folder / "signing-key.pem").export_public_key(folder / "public-keys")
    write_script(folder / "model.yaml")
    command = [sys.executable, "-m", "tests.crash.bank", "--ledger", str(folder / "ledgers")]
    bank = Child("bank", command, folder / "bank.log", {**os.environ, "PYTHONPATH": str(ROOT)})
    try:
        port = json.loads(bank.first_line())["port"]
        environment = {
            "CUSTODY_KAFKA__BOOTSTRAP_SERVERS": kafka_server.url,
            "CUSTODY_AUDIT__SIGNING_KEY_FILE": str(folder / "signing-key.pem"),
            "CUSTODY_AUDIT__PUBLIC_KEYS_DIR": str(folder / "public-keys"),
            "CUSTODY_MODEL__SCRIPTED_FILE": str(folder / "model.yaml"),
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

    def make(**more: str) -> World:
        name = f"w{uuid4().hex[:8]}"
        made.append(name)
        dsn = postgres_server.create(name, crash_template)
        return World(ground, name, dsn, tmp_path_factory.mktemp(name), more)

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
