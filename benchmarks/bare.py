"""The bare writer: the same run as rows alone. One fenced statement per group, binary parameters, no agent.

A read step is one commit (checkpoint and step row), a write step two, the last step one. State has the
product's weight: 0.4 KB in the checkpoint, 0.4 KB in the step. The connection and the arrays are the
product's own, so that the ratio is about what stands above them.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID, uuid4

import psycopg

from benchmarks.figures import Effect, Round
from benchmarks.tools import FINDING
from session_custody.store.arrays import BYTES, INT4, INT8, TEXT, UUIDS, columns
from session_custody.store.link import Call, Link, Prepared, Target, Timeouts

STEPS: Final = 12
LANES: Final = 4
ROWS_MAX: Final = 512
STATE: Final = json.dumps({"finding": FINDING, "step": 1})
BODY: Final = STATE.encode()

SCHEMA: Final = """
create schema bare;
create table bare.lane (lane_id bigint primary key, owner uuid not null, next_seq bigint not null)
  with (fillfactor = 20);
create table bare.checkpoint (run_id text primary key, lane_id bigint not null, version bigint not null,
  status text not null, loop_step int not null, working text) with (fillfactor = 70);
create table bare.step (run_id text, event_seq bigint, lane_id bigint not null, lane_seq bigint not null,
  kind text not null, hash bytea not null, body bytea not null, primary key (run_id, event_seq),
  unique (lane_id, lane_seq));
"""

COMMIT: Final = Prepared(
    "bare_commit",
    """
with la as (
  select * from unnest($1::int8[], $2::uuid[]) x(lane_id, owner)),
lk as materialized (
  select l.lane_id, l.next_seq from bare.lane l join la on la.lane_id = l.lane_id and la.owner = l.owner
   order by l.lane_id for no key update of l),
ck as (
  select * from unnest($3::int8[], $4::text[], $5::int8[], $6::text[], $7::int4[], $8::text[], $9::text[],
      $10::bytea[], $11::bytea[])
    with ordinality x(lane_id, run_id, version, status, loop_step, working, kind, hash, body, ord)),
u as (
  update bare.checkpoint c
     set version = c.version + 1, status = ck.status, loop_step = ck.loop_step, working = ck.working
    from ck join lk on lk.lane_id = ck.lane_id
   where c.run_id = ck.run_id and c.version = ck.version and c.lane_id = ck.lane_id
  returning ck.ord, c.lane_id),
nu as (
  select ck.*, lk.next_seq - 1 + row_number() over (partition by u.lane_id order by ck.ord) as lane_seq
    from ck join u on u.ord = ck.ord join lk on lk.lane_id = u.lane_id),
ins as (
  insert into bare.step (run_id, event_seq, lane_id, lane_seq, kind, hash, body)
  select run_id, version + 1, lane_id, lane_seq, kind, hash, body from nu),
nn as (select lane_id, count(*) as n from nu group by lane_id),
mv as (update bare.lane l set next_seq = l.next_seq + nn.n from nn where l.lane_id = nn.lane_id)
select count(*) from u
""",
)


@dataclass(frozen=True, slots=True)
class _Offer:
    row: tuple[object, ...]
    done: asyncio.Future[None]


class BareWriter:
    """Group commit as the store does it: whoever is ready goes with the next statement."""

    def __init__(self, dsn: str, owners: Sequence[UUID]) -> None:
        self._link = Link(Target(dsn), "bare", Timeouts(lock_ms=3_000))
        self._fence = [INT8.array(list(range(len(owners)))), UUIDS.array(owners)]
        self._queue: deque[_Offer] = deque()
        self._bell = asyncio.Event()
        self._task = asyncio.create_task(self._write())

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._link.close()

    async def commit(self, *row: object) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(_Offer(row, future))
        self._bell.set()
        await future

    async def _write(self) -> None:
        kinds = (INT8, TEXT, INT8, TEXT, INT4, TEXT, TEXT, BYTES, BYTES)
        while True:
            if not self._queue:
                self._bell.clear()
                await self._bell.wait()
                await asyncio.sleep(0)
            group = [self._queue.popleft() for _ in range(min(len(self._queue), ROWS_MAX))]
            params = [*self._fence, *columns(kinds, [offer.row for offer in group])]
            async with self._link.session() as session:
                ((answer,),) = await session.exchange([Call(COMMIT, params)])
            if answer[0] != str(len(group)).encode():
                raise AssertionError("the bare writer lost a row")
            for offer in group:
                offer.done.set_result(None)


class Bare:
    """The contestant. `open` makes its tables."""

    name = "bare"

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._owners = [uuid4() for _ in range(LANES)]
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(SCHEMA)
            with connection.cursor() as cursor:
                cursor.executemany("insert into bare.lane values (%s, %s, 1)", list(enumerate(self._owners)))

    async def prepare(self, effect: Effect, runs: int) -> list[str]:
        ids = [f"run-{uuid4().hex}" for _ in range(runs)]
        connection = await psycopg.AsyncConnection.connect(self._dsn, autocommit=True)
        async with connection, connection.cursor() as cursor:
            await cursor.executemany(
                "insert into bare.checkpoint values (%s, %s, 1, 'queued', 0, null)",
                [(run_id, place % LANES) for place, run_id in enumerate(ids)],
            )
        return ids

    async def play(self, effect: Effect, ids: Sequence[str], at_once: int) -> Round:
        """Drive the prepared runs, `at_once` at a time."""
        writer = BareWriter(self._dsn, self._owners)
        waiting = deque(enumerate(ids))
        run_s: list[float] = []

        async def driver() -> None:
            while waiting:
                place, run_id = waiting.popleft()
                began = time.perf_counter()
                await _run(writer, effect, run_id, place % LANES)
                run_s.append(time.perf_counter() - began)

        try:
            cpu, began = time.process_time(), time.perf_counter()
            await asyncio.gather(*(driver() for _ in range(at_once)))
            took, used = time.perf_counter() - began, time.process_time() - cpu
        finally:
            await writer.close()
        return Round(len(ids), len(ids) * STEPS, took, tuple(run_s), used)


async def _run(writer: BareWriter, effect: Effect, run_id: str, lane: int) -> None:
    version = 1
    for step in range(1, STEPS + 1):
        last = step == STEPS
        kinds = ("outcome",) if last else ("tool_result",) if effect == "read" else ("intent", "tool_result")
        for kind in kinds:
            digest = hashlib.sha256(BODY).digest()
            status = "succeeded" if last else "running"
            await writer.commit(lane, run_id, version, status, step, STATE, kind, digest, BODY)
            version += 1
