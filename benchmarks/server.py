"""The server under both contestants: its settings as it answers, and what it counts."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import NamedTemporaryFile
from typing import Any, Final
from uuid import uuid4

import psycopg

from session_custody.devstack import DevStack, PostgresConfig

DURABLE: Final = ("fsync", "synchronous_commit", "full_page_writes")
SHOWN: Final = (*DURABLE, "server_version", "wal_sync_method", "shared_buffers", "max_wal_size")
FLUSH_TRIES: Final = 200
BLOCK: Final = b"\0" * 8_192
_TICK: Final = os.sysconf("SC_CLK_TCK")


class NotDurable(Exception):
    """The server would lose commits: figures of it are worth nothing."""


@dataclass(frozen=True, slots=True)
class Counts:
    """What the server has counted since it started."""

    wal_bytes: int
    flushes: int
    cpu_s: float


class Observer:
    """A connection of its own that asks the server; it takes no part in what is measured."""

    def __init__(self, dsn: str) -> None:
        self._connection: psycopg.Connection[Any] = psycopg.connect(dsn, autocommit=True)
        (self._backend,) = self._row("select pg_backend_pid()")
        (version,) = self._row("select current_setting('server_version_num')::int")
        self._flushes = (
            "select coalesce(sum(fsyncs), 0)::int8 from pg_stat_io where object = 'wal'"
            if version >= 180_000
            else "select wal_sync from pg_stat_wal"
        )

    def close(self) -> None:
        self._connection.close()

    def settings(self) -> dict[str, str]:
        return {name: self._row("select current_setting(%s)", name)[0] for name in SHOWN}

    def insist_on_durability(self) -> None:
        """Raises NotDurable unless every commit is on disk before it is answered."""
        off = [name for name, value in self.settings().items() if name in DURABLE and value != "on"]
        if off:
            raise NotDurable(f"not on: {', '.join(off)}")

    def counts(self) -> Counts:
        """Backends tell their flushes when they end: ask after the contestant has closed its connections."""
        (wal,) = self._row("select (pg_current_wal_insert_lsn() - '0/0')::int8")
        self._row("select pg_stat_force_next_flush()")
        (flushes,) = self._row(self._flushes)
        return Counts(wal, flushes, _family_cpu_s(self._backend))

    def vacuum(self) -> None:
        """Between rounds, so that no round pays for the one before."""
        self._connection.execute("vacuum (analyze)")
        self._connection.execute("checkpoint")

    def others(self) -> int:
        """Client backends beside this one."""
        (count,) = self._row(
            "select count(*) from pg_stat_activity"
            " where backend_type = 'client backend' and datname = current_database()"
            " and pid <> pg_backend_pid()"
        )
        return int(count)

    def _row(self, sql: Any, *values: object) -> tuple[Any, ...]:
        row: tuple[Any, ...] | None = self._connection.execute(sql, values).fetchone()
        assert row is not None
        return row


@dataclass(frozen=True, slots=True, repr=False)
class Server:
    """A database of the benchmark's own, and a folder on the disk that the server writes to."""

    dsn: str
    folder: Path | None


@contextmanager
def server() -> Iterator[Server]:
    """PostgreSQL as the dev stack gives it. Checkpoints are seldom, as on a server with room for WAL."""
    config = PostgresConfig(settings={"max_wal_size": "4GB", "checkpoint_timeout": "30min"})
    with DevStack(postgres=config) as stack:
        url = stack.start({"postgres"}).postgres_dsn
        own = stack.postgres_server
        name = f"bench_{uuid4().hex[:8]}"
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(psycopg.sql.SQL("create database {}").format(psycopg.sql.Identifier(name)))
        dsn = psycopg.conninfo.make_conninfo(url, dbname=name)
        try:
            yield Server(dsn, None if own is None else own.cluster.parent)
        finally:
            with psycopg.connect(url, autocommit=True) as connection:
                drop = psycopg.sql.SQL("drop database {} with (force)")
                connection.execute(drop.format(psycopg.sql.Identifier(name)))


def fdatasync_us(folder: Path | None) -> float:
    """Median microseconds of one fdatasync after a block was written."""
    took: list[float] = []
    with NamedTemporaryFile(dir=folder) as file:
        for _ in range(FLUSH_TRIES):
            os.pwrite(file.fileno(), BLOCK, 0)
            began = time.perf_counter()
            os.fdatasync(file.fileno())
            took.append(time.perf_counter() - began)
    return median(took) * 1e6


def _family_cpu_s(backend: int) -> float:
    """CPU seconds of the server's processes, ended ones included; 0 where it is not on this machine."""
    try:
        postmaster = int(_stat(backend)[1])
        own = sum(map(int, _stat(postmaster)[11:15]))
    except OSError:
        return 0.0
    living = 0
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            fields = _stat(int(folder.name))
            if int(fields[1]) == postmaster:
                living += sum(map(int, fields[11:13]))
    return (own + living) / _TICK


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat behind the name: state, ppid, …; [11:15] are utime, stime, cutime, cstime."""
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(") ")[2].split()
