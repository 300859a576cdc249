"""Migrations: numbered files, forward only, expand before contract (DESIGN 11).

Safe when ten processes boot at once: a session-level advisory lock, waited for until a deadline, whose error
names who holds it. Each migration and its row in custody.migration are one transaction. A number that is
applied with other content is an error; one that this version does not know is not (older code beside newer).
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from importlib.resources import files
from typing import Any, Final, LiteralString

import psycopg
from psycopg import AsyncConnection
from psycopg.rows import DictRow, dict_row

from session_custody.core.errors import CustodyError, Unavailable
from session_custody.store.link import CONNECT_TIMEOUT_S, Broken, Password, ask, name_of
from session_custody.store.queries import query

LOCK_KEY: Final = 4_202_517_355_182_943
"""Of pg_advisory_lock; chosen once at random, the same for every version."""
LOCK_WAIT_S: Final = 60.0
LOCK_LOOK_S: Final = 0.1

_FILE: Final = re.compile(r"^(\d{4})_([a-z0-9_]+)\.sql$")


class MigrationRefused(CustodyError):
    """The schema cannot be migrated as it stands; the sentence says what to do."""


@dataclass(frozen=True, slots=True)
class Migration:
    """One file of migrations/."""

    number: int
    name: str
    sql: LiteralString

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.sql.encode()).hexdigest()


def migrations() -> list[Migration]:
    """Every migration of this version, in order."""
    found = [
        Migration(int(match[1]), match[2], file.read_text(encoding="utf-8"))
        for file in files(__package__).joinpath("migrations").iterdir()
        if (match := _FILE.match(file.name))
    ]
    return sorted(found, key=lambda migration: migration.number)


class Migrator:
    """Migrates the database that `dsn` leads to, directly (not through a transaction pooler)."""

    def __init__(
        self, dsn: str, *, password: Password | None = None, lock_wait_s: float = LOCK_WAIT_S
    ) -> None:
        self._dsn = dsn
        self._password = password
        self._lock_wait_s = lock_wait_s
        self._known = migrations()

    async def migrate(self) -> list[str]:
        """Apply what is missing; returns the names of those. Raises MigrationRefused, Unavailable."""
        async with self._connected() as connection:
            await self._lock(connection)
            applied = await self._applied(connection)
            self._check(applied)
            missing = [migration for migration in self._known if migration.number not in applied]
            for migration in missing:
                async with connection.transaction():
                    await connection.execute(migration.sql)
                    await connection.execute(query("record_migration"), _recorded(migration))
            return [migration.name for migration in missing]

    async def status(self) -> list[dict[str, Any]]:
        """Number, name, applied_at (None: missing) and checksum (ok, differs, unknown) of each."""
        async with self._connected() as connection:
            applied = await self._applied(connection)
        known = {migration.number: migration for migration in self._known}
        found = []
        for number in sorted(known.keys() | applied.keys()):
            row, migration = applied.get(number), known.get(number)
            found.append(
                {
                    "number": number,
                    "name": row["name"] if migration is None and row else known[number].name,
                    "applied_at": _moment(row),
                    "checksum": _checksum(migration, row),
                }
            )
        return found

    async def verify(self) -> list[str]:
        """What is wrong with the schema, one sentence each; empty: nothing."""
        rows = await self.status()
        problems = [
            f"migration {row['number']} ({row['name']}) is not applied: custody db migrate"
            for row in rows
            if row["applied_at"] is None
        ]
        return problems + [
            f"migration {row['number']} ({row['name']}) was applied with other content"
            for row in rows
            if row["checksum"] == "differs"
        ]

    def sql(self) -> str:
        """Everything, for a DBA to run in an empty database with psql, each migration in its transaction."""
        parts = []
        for migration in self._known:
            row = _recorded(migration)
            parts.append(
                f"-- migration {migration.number}: {migration.name}\nbegin;\n\n{migration.sql}\n"
                "insert into custody.migration (number, name, sha256)\n"
                f"values ({row['number']}, '{row['name']}', '{row['sha256']}');\n\ncommit;\n"
            )
        return "\n".join(parts)

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[AsyncConnection[DictRow]]:
        extra: dict[str, Any] = {}
        if self._password is not None:
            try:
                extra["password"] = await ask(self._password)
            except Broken as error:
                raise Unavailable("postgres", error.detail) from None
        try:
            connection = await AsyncConnection.connect(
                self._dsn,
                autocommit=True,
                prepare_threshold=None,
                row_factory=dict_row,
                connect_timeout=CONNECT_TIMEOUT_S,
                application_name="custody migrate",
                **extra,
            )
        except psycopg.Error as error:
            raise Unavailable("postgres", name_of(error)) from None
        try:
            async with connection:
                yield connection
        except psycopg.OperationalError as error:
            raise Unavailable("postgres", name_of(error)) from None
        except psycopg.Error as error:
            raise MigrationRefused(f"Postgres refused a statement: {name_of(error)}") from None

    async def _lock(self, connection: AsyncConnection[DictRow]) -> None:
        """Held until the connection closes."""
        deadline = time.monotonic() + self._lock_wait_s
        while True:
            cursor = await connection.execute(query("try_migration_lock"), {"key": LOCK_KEY})
            row = await cursor.fetchone()
            if row is not None and row["got"]:
                return
            if time.monotonic() >= deadline:
                raise MigrationRefused(await self._holder(connection))
            await asyncio.sleep(LOCK_LOOK_S)

    async def _holder(self, connection: AsyncConnection[DictRow]) -> str:
        high, low = LOCK_KEY >> 32, LOCK_KEY & 0xFFFFFFFF
        cursor = await connection.execute(query("migration_lock_holder"), {"high": high, "low": low})
        row = await cursor.fetchone()
        who = "somebody" if row is None else f"pid {row['pid']} ({row['application_name'] or 'no name'})"
        return f"{who} has held the migration lock for {self._lock_wait_s:g} s; end it, or wait longer"

    async def _applied(self, connection: AsyncConnection[DictRow]) -> dict[int, DictRow]:
        cursor = await connection.execute(query("migration_table"))
        row = await cursor.fetchone()
        if row is None or not row["there"]:
            return {}
        cursor = await connection.execute(query("applied_migrations"))
        return {row["number"]: row for row in await cursor.fetchall()}

    def _check(self, applied: dict[int, DictRow]) -> None:
        for migration in self._known:
            row = applied.get(migration.number)
            if row is not None and row["sha256"] != migration.sha256:
                raise MigrationRefused(
                    f"migration {migration.number} ({migration.name}) was applied with other content"
                )


def _recorded(migration: Migration) -> dict[str, Any]:
    return {"number": migration.number, "name": migration.name, "sha256": migration.sha256}


def _moment(row: DictRow | None) -> datetime | None:
    moment: datetime | None = None if row is None else row["applied_at"]
    return moment


def _checksum(migration: Migration | None, row: DictRow | None) -> str:
    if migration is None:
        return "unknown"
    return "differs" if row is not None and row["sha256"] != migration.sha256 else "ok"
