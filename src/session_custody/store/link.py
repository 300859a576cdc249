"""One connection of the store: how it is made, what is told to it, and how statements travel on it.

Two ways to speak. Cold statements go through psycopg as everybody's do. Hot ones (`exchange`) are prepared
by name, carry binary parameters, and several of them leave in **one flush**: psycopg's own pipeline sends
at each execute, so a lane would be locked while its COMMIT is still here (DESIGN 4). Answers count only
once ReadyForQuery was read: a statement's own answer comes before its implicit commit.

What can go wrong is told apart here, once:

| raised | what happened |
|---|---|
| `Broken` | the connection broke; if something was sent, it may have been done, or may still be |
| `Refused` | Postgres said no with a SQLSTATE and the connection lives: certainly not done |

Neither carries a DSN, a value or a server's sentence, only SQLSTATEs and class names.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import psycopg
from psycopg import AsyncConnection, errors, pq
from psycopg.abc import PQGen
from psycopg.rows import DictRow, dict_row
from psycopg.waiting import Ready, Wait

from session_custody.core.errors import Unavailable
from session_custody.store.queries import query

T = TypeVar("T")

CONNECT_TIMEOUT_S: Final = 5
IDLE_IN_TRANSACTION_MS: Final = 2_000
TCP_USER_TIMEOUT_MS: Final = 8_000
KEEPALIVES: Final = {"keepalives": 1, "keepalives_idle": 4, "keepalives_interval": 2, "keepalives_count": 3}
BLOCKER_LOOK_S: Final = 0.5

Password = Callable[[], str]
Row = tuple[bytes | None, ...]


class Broken(Exception):
    """The connection broke, or could not be made. `detail` is a SQLSTATE or a class name.

    `sent`: a statement was on its way, and may have been done or may still be.
    """

    def __init__(self, detail: str, *, sent: bool) -> None:
        super().__init__(detail)
        self.detail = detail
        self.sent = sent


class Refused(Exception):
    """Postgres refused a statement and rolled it back. `detail` is our own JSON where the SQLSTATE is of
    class CU.
    """

    def __init__(self, sqlstate: str, detail: str = "") -> None:
        super().__init__(sqlstate)
        self.sqlstate = sqlstate
        self.detail = detail

    @property
    def rows_own_fault(self) -> bool:
        """Classes 22, 23 (but not 23505) and 54 are about a row's own content, and so is a guard of ours; all
        else is an outage (DESIGN 5).
        """
        own = self.sqlstate[:2] in ("22", "23", "54") and self.sqlstate != UNIQUE_VIOLATION
        return own or self.sqlstate == NEVER_CHANGES


UNIQUE_VIOLATION: Final = "23505"
LOCK_TIMEOUT: Final = "55P03"
FENCE_FAILED: Final = "CU010"
NEVER_CHANGES: Final = "CU001"
SCHEMA_MISSING: Final = frozenset({"3F000", "42P01", "42883", "42703"})


@dataclass(frozen=True, slots=True)
class Prepared:
    """A hot statement: its name in queries.sql (and on the server) and its text. No name: sent as it
    stands.
    """

    name: str
    sql: str

    @classmethod
    def named(cls, name: str) -> Prepared:
        return cls(name, query(name))


@dataclass(frozen=True, slots=True)
class Call:
    """One hot statement with its parameters in binary form."""

    statement: Prepared
    params: Sequence[bytes | None] = ()


BEGIN: Final = Call(Prepared("", "begin"))
COMMIT: Final = Call(Prepared("", "commit"))
ROLLBACK: Final = Call(Prepared("", "rollback"))


@dataclass(frozen=True, slots=True)
class Target:
    """Where to connect. `password` is asked again at every connect (short-lived passwords)."""

    dsn: str = field(repr=False)
    password: Password | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Timeouts:
    """`lock_ms`: how long a statement waits for a lock. `transaction_ms` (0: for ever): how long one may
    last, also one whose client is frozen between statement and Sync; from PostgreSQL 17 on.
    """

    lock_ms: int
    transaction_ms: int = 0


async def ask(password: Password) -> str:
    """The password of now. Raises Broken: what went wrong with it may quote it."""
    try:
        return await asyncio.to_thread(password)
    except Exception as error:  # noqa: BLE001 - a file, a command, anybody's code
        raise Broken(f"no password: {type(error).__name__}", sent=False) from None


class Link:
    """One connection for one purpose, made when it is first needed and made again after it broke.

    `session()` gives it to one user at a time. `on_broken` is called each time it breaks.
    """

    def __init__(
        self,
        target: Target,
        purpose: str,
        timeouts: Timeouts,
        *,
        on_broken: Callable[[], None] = lambda: None,
    ) -> None:
        self._target = target
        self.purpose = purpose
        self._timeouts = timeouts
        self._on_broken = on_broken
        self._mutex = asyncio.Lock()
        self._connection: AsyncConnection[DictRow] | None = None
        self._prepared: set[str] = set()

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Session]:
        """The connection, for this block alone. Raises Broken and Refused."""
        async with self._mutex:
            session = Session(await self._open(), self._prepared)
            try:
                yield session
            except errors.Error as error:
                raise await self._sorted(error) from None
            except Broken:
                await self._drop(broke=True)
                raise
            except BaseException:
                # Cancelled, or a bug of ours, perhaps inside a transaction: nothing is known of it any more.
                if not self._idle():
                    await self._drop(broke=False)
                raise
            if not self._idle():
                await self._drop(broke=False)

    async def close(self) -> None:
        async with self._mutex:
            await self._drop(broke=False)

    def _idle(self) -> bool:
        connection = self._connection
        return connection is None or (
            not connection.closed and connection.pgconn.transaction_status == pq.TransactionStatus.IDLE
        )

    async def _open(self) -> AsyncConnection[DictRow]:
        if self._connection is not None and not self._connection.closed:
            return self._connection
        extra: dict[str, Any] = dict(KEEPALIVES)
        if self._target.password is not None:
            extra["password"] = await ask(self._target.password)
        try:
            connection = await AsyncConnection.connect(
                self._target.dsn,
                autocommit=True,
                prepare_threshold=5,
                row_factory=dict_row,
                connect_timeout=CONNECT_TIMEOUT_S,
                client_encoding="utf8",
                tcp_user_timeout=TCP_USER_TIMEOUT_MS,
                application_name=f"custody {self.purpose}",
                **extra,
            )
        except psycopg.Error as error:
            raise Broken(name_of(error), sent=False) from None
        try:
            await connection.execute(
                query("configure"),
                {
                    "idle_ms": IDLE_IN_TRANSACTION_MS,
                    "lock_ms": self._timeouts.lock_ms,
                    "transaction_ms": self._timeouts.transaction_ms,
                },
            )
        except psycopg.Error as error:
            await connection.close()
            raise Broken(name_of(error), sent=False) from None
        self._connection = connection
        self._prepared = set()
        return connection

    async def _sorted(self, error: errors.Error) -> Broken | Refused:
        """What this error means; a connection that broke, or stands in a transaction, is thrown away."""
        connection = self._connection
        if error.sqlstate is None or connection is None or connection.closed or connection.broken:
            await self._drop(broke=True)
            return Broken(name_of(error), sent=True)
        if not self._idle():
            await self._drop(broke=False)
        return refused(error)

    async def _drop(self, *, broke: bool) -> None:
        connection, self._connection = self._connection, None
        self._prepared = set()
        if connection is not None:
            await connection.close()
            if broke:
                self._on_broken()


class Session:
    """A `Link`'s connection while somebody has it."""

    def __init__(self, connection: AsyncConnection[DictRow], prepared: set[str]) -> None:
        self._connection = connection
        self._prepared = prepared

    @property
    def pid(self) -> int:
        """The backend's process id."""
        return self._connection.info.backend_pid

    async def rows(self, name: str, values: Mapping[str, object] | None = None) -> list[DictRow]:
        """One cold statement of queries.sql, by psycopg."""
        cursor = await self._connection.execute(query(name), values)
        return await cursor.fetchall() if cursor.description is not None else []

    async def notifies(self) -> AsyncIterator[str]:
        """Payloads of notifications, for as long as the connection lives."""
        async for notify in self._connection.notifies():
            yield notify.payload

    async def exchange(self, calls: Sequence[Call]) -> list[list[Row]]:
        """Send hot statements in one flush, return each one's rows (text form) after ReadyForQuery.

        Raises Refused for the first that failed (the later ones were not executed; an open transaction stands
        aborted), Broken when the connection went.
        """
        pgconn = self._connection.pgconn
        try:
            results = await self._connection.wait(_exchange(pgconn, calls, self._prepared))
        except errors.Error as error:
            raise Broken(name_of(error), sent=True) from None
        for result in results:
            if result.status == pq.ExecStatus.FATAL_ERROR:
                raise refused(errors.error_from_result(result))
        return [_rows(result) for result in results]


def _exchange(
    pgconn: pq.abc.PGconn, calls: Sequence[Call], prepared: set[str]
) -> PQGen[list[pq.abc.PGresult]]:
    """Results of `calls`, those of preparing taken out (a failed one stays in, in its statement's place)."""
    pgconn.enter_pipeline_mode()
    preparing: list[str | None] = []
    for call in calls:
        name = call.statement.name
        if name and name not in prepared and name not in preparing:
            pgconn.send_prepare(name.encode(), call.statement.sql.encode())
            preparing.append(name)
        if name:
            formats = [pq.Format.BINARY] * len(call.params)
            pgconn.send_query_prepared(name.encode(), call.params, param_formats=formats)
        else:
            pgconn.send_query_params(call.statement.sql.encode(), None)
        preparing.append(None)
    pgconn.pipeline_sync()
    while pgconn.flush():
        if (yield Wait.RW) & Ready.R:
            pgconn.consume_input()
    results = yield from _results(pgconn)
    pgconn.exit_pipeline_mode()
    kept = []
    for name_prepared, result in zip(preparing, results, strict=True):
        if name_prepared is not None and result.status == pq.ExecStatus.COMMAND_OK:
            prepared.add(name_prepared)
        elif name_prepared is None or result.status == pq.ExecStatus.FATAL_ERROR:
            kept.append(result)
    return kept


def _results(pgconn: pq.abc.PGconn) -> PQGen[list[pq.abc.PGresult]]:
    """Every result up to the synchronisation point: the server is ready, all is decided."""
    results: list[pq.abc.PGresult] = []
    while True:
        while pgconn.is_busy():
            if (yield Wait.R):
                pgconn.consume_input()
        result = pgconn.get_result()
        if pgconn.status == pq.ConnStatus.BAD:
            raise psycopg.OperationalError("the connection broke")
        if result is None:
            continue
        if result.status == pq.ExecStatus.PIPELINE_SYNC:
            return results
        results.append(result)


def _rows(result: pq.abc.PGresult) -> list[Row]:
    if result.status == pq.ExecStatus.COMMAND_OK and result.command_status == b"ROLLBACK":
        return [(b"ROLLBACK",)]
    columns = range(result.nfields)
    return [tuple(result.get_value(row, column) for column in columns) for row in range(result.ntuples)]


def name_of(error: BaseException) -> str:
    """All that may be said of a driver's error: its SQLSTATE, or its class."""
    return getattr(error, "sqlstate", None) or type(error).__name__


def refused(error: errors.Error) -> Refused:
    sqlstate = error.sqlstate or "XX000"
    detail = (error.diag.message_detail or "") if sqlstate.startswith("CU") else ""
    return Refused(sqlstate, detail)


def unavailable(error: Broken | Refused) -> Unavailable:
    """The outage as the other stations know it."""
    if isinstance(error, Refused) and error.sqlstate in SCHEMA_MISSING:
        return Unavailable("postgres", "its schema is not there or older: custody db migrate")
    return Unavailable("postgres", error.detail if isinstance(error, Broken) else error.sqlstate)


async def ending_blockers(work: Awaitable[T], pid: int, side: Link) -> T:
    """Await `work`, which waits on backend `pid`; every half second end backends that block it in ClientRead.

    They are frozen or dead clients that hold a lane (DESIGN 4); one at work is left to finish.
    """
    task = asyncio.ensure_future(work)
    try:
        while not (await asyncio.wait({task}, timeout=BLOCKER_LOOK_S))[0]:
            try:
                async with side.session() as session:
                    await session.rows("end_blockers", {"pid": pid})
            except (Broken, Refused):
                continue  # the next look, or the lock timeout, will do
        return task.result()
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
