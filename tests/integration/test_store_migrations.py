"""Migrations: many processes at once, a holder that is named, content that stays (DESIGN 11)."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

import psycopg
import pytest

from session_custody.core.errors import Unavailable
from session_custody.devstack import Databases
from session_custody.store import MigrationRefused, Migrator, PostgresStore
from session_custody.store.migrator import LOCK_KEY, migrations
from tests.integration.store_world import migrate

pytestmark = pytest.mark.postgres


@pytest.fixture(scope="module")
def database_template(postgres_server: Databases) -> str:
    """Empty, unlike everybody else's."""
    name = "template_empty"
    postgres_server.create(name)
    return name


BOOT = (
    "import asyncio, os; from session_custody.store import Migrator;"
    "print(*asyncio.run(Migrator(os.environ['DSN']).migrate()))"
)


def test_ten_processes_that_boot_at_once_migrate_once(database: str) -> None:
    children = [
        subprocess.Popen(
            [sys.executable, "-c", BOOT],
            env={**os.environ, "DSN": database},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(10)
    ]
    said = [child.communicate(timeout=90) for child in children]
    assert [child.returncode for child in children] == [0] * 10, said
    applied = [line for out, _ in said for line in out.split()]
    assert applied == [migration.name for migration in migrations()]
    assert asyncio.run(Migrator(database).verify()) == []


def test_who_holds_the_lock_is_named(database: str) -> None:
    with psycopg.connect(database, autocommit=True, application_name="a stuck deploy") as holder:
        holder.execute("select pg_advisory_lock(%s)", (LOCK_KEY,))
        with pytest.raises(MigrationRefused) as refused:
            asyncio.run(Migrator(database, lock_wait_s=0.3).migrate())
        assert f"pid {holder.info.backend_pid} (a stuck deploy)" in str(refused.value)
    assert asyncio.run(Migrator(database).migrate()) == [migration.name for migration in migrations()]


def test_status_tells_before_and_after(database: str) -> None:
    migrator = Migrator(database)
    before = asyncio.run(migrator.status())
    assert [(row["number"], row["applied_at"]) for row in before] == [(1, None)]
    assert len(asyncio.run(migrator.verify())) == 1
    asyncio.run(migrator.migrate())
    (after,) = asyncio.run(migrator.status())
    assert after["applied_at"] is not None
    assert after["checksum"] == "ok"
    assert asyncio.run(migrator.migrate()) == []


def test_a_migration_that_was_applied_with_other_content_is_refused(database: str) -> None:
    migrate(database)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("update custody.migration set sha256 = 'other' where number = 1")
    with pytest.raises(MigrationRefused, match="other content"):
        asyncio.run(Migrator(database).migrate())
    assert asyncio.run(Migrator(database).status())[0]["checksum"] == "differs"


def test_a_newer_schema_does_not_stop_older_code(database: str) -> None:
    """Expand, then contract: pods of two versions run side by side."""
    migrate(database)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("insert into custody.migration (number, name, sha256) values (9999, 'later', 'x')")
    assert asyncio.run(Migrator(database).migrate()) == []
    assert asyncio.run(Migrator(database).verify()) == []
    assert [row["checksum"] for row in asyncio.run(Migrator(database).status())] == ["ok", "unknown"]


def test_a_dba_can_run_the_printed_sql(database: str, postgres_server: Databases) -> None:
    done = subprocess.run(
        [str(postgres_server.binaries / "psql"), "-XAtq", "-v", "ON_ERROR_STOP=1", database],
        input=Migrator(database).sql(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert asyncio.run(Migrator(database).migrate()) == []
    assert asyncio.run(Migrator(database).verify()) == []


def test_an_outage_says_nothing_of_the_address(database: str) -> None:
    wrong = database.replace("@127.0.0.1", ":hunter2@127.0.0.1") + "_missing"
    with pytest.raises(Unavailable) as outage:
        asyncio.run(Migrator(wrong).migrate())
    with pytest.raises(Unavailable) as other:
        asyncio.run(PostgresStore.open(wrong))
    for error in (outage.value, other.value):
        assert "hunter2" not in str(error)
        assert error.__cause__ is None
        assert error.__suppress_context__
