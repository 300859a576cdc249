"""Fixtures for every test: real servers, one of each per session; every test's database is migrated."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from uuid import uuid4

import pytest

from session_custody.devstack import Databases
from session_custody.store import Migrator

pytest_plugins = ["tests.servers", "tests.integration.rig"]


@pytest.fixture(scope="session")
def database_template(postgres_server: Databases) -> Iterator[str]:
    """What every test's own database is copied from: the schema as the migrations make it."""
    name = f"template_{uuid4().hex[:12]}"
    asyncio.run(Migrator(postgres_server.create(name)).migrate())
    yield name
    postgres_server.drop(name)
