"""The run store on Postgres: one object, a connection per purpose (DESIGN 11).

| connection | speaks | why its own |
|---|---|---|
| writer | the group commit | one statement in flight, never behind anything |
| admission | batches | two round trips inside a transaction |
| lanes | heartbeat, floor, signals, release | short autocommit statements |
| acquire, settle | new owners | they may wait for a lock, and then somebody ends blockers beside them |
| reads, outbox | loading, publication | a long read delays neither commits nor heartbeats |
| side | ends blockers | free while the others wait |

They are made when first needed: a command that only reads has one.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Self
from uuid import UUID, uuid4

from session_custody.core import canonical
from session_custody.core.errors import ContractConflict, LaneLost, Unavailable
from session_custody.core.manifest import ContractKind
from session_custody.core.pin import LaneId, RunId
from session_custody.ports import (
    AdmissionBatch,
    Admitted,
    CommitAnswer,
    CursorCheck,
    KnownRun,
    LaneFence,
    LaneKey,
    LaneRow,
    LoadedRun,
    NewSignal,
    OffsetMoved,
    OutboxRow,
    RunCommit,
    Signal,
    SignalKind,
    StepRecord,
)
from session_custody.store import rows
from session_custody.store.admission import Admission
from session_custody.store.fences import Fences
from session_custody.store.link import (
    LOCK_TIMEOUT,
    Broken,
    Link,
    Password,
    Refused,
    Target,
    Timeouts,
    ending_blockers,
    unavailable,
)
from session_custody.store.settling import Settling
from session_custody.store.views import OperatorViews
from session_custody.store.writer import COMMIT_ROWS_MAX, Writer

ORPHANS_MAX: Final = 500

LINKS: Final[Mapping[str, Timeouts]] = {
    "writer": Timeouts(lock_ms=250, transaction_ms=10_000),
    "admission": Timeouts(lock_ms=3_000, transaction_ms=10_000),
    "lanes": Timeouts(lock_ms=3_000, transaction_ms=10_000),
    "acquire": Timeouts(lock_ms=8_000),
    "settle": Timeouts(lock_ms=8_000, transaction_ms=20_000),
    "reads": Timeouts(lock_ms=3_000),
    "outbox": Timeouts(lock_ms=3_000),
    "side": Timeouts(lock_ms=3_000),
}
"""The writer waits for a lock but shortly: one busy lane must not hold up the others."""


class PostgresStore(OperatorViews):
    """`RunStore` on Postgres. Use `open`, and `close` it in the end. Event loop only."""

    def __init__(self, target: Target, direct: Target, *, commit_rows_max: int = COMMIT_ROWS_MAX) -> None:
        self._direct = direct
        self._fences = Fences()
        self._links = {
            purpose: Link(target, purpose, timeouts, on_broken=self._fences.broken)
            for purpose, timeouts in LINKS.items()
        }
        settling = Settling(self._links["settle"], self._links["side"], self._fences, lambda: self._closing)
        self._writer = Writer(self._links["writer"], self._fences, settling, commit_rows_max=commit_rows_max)
        self._admission = Admission(self._links["admission"], self._fences, settling)

    @classmethod
    async def open(
        cls,
        dsn: str,
        *,
        direct_dsn: str | None = None,
        password: Password | None = None,
        commit_rows_max: int = COMMIT_ROWS_MAX,
    ) -> Self:
        """Connect once, to find out; raises Unavailable. `password` is asked at every connect."""
        store = cls(
            Target(dsn, password), Target(direct_dsn or dsn, password), commit_rows_max=commit_rows_max
        )
        try:
            await store.now()
        except BaseException:
            await store.close()
            raise
        store._writer.start()
        return store

    async def close(self) -> None:
        """Write what was offered, then close every connection."""
        await self._writer.close()
        for link in self._links.values():
            await link.close()

    @property
    def _closing(self) -> bool:
        return self._writer.closing

    async def _rows(
        self, link: str, name: str, values: Mapping[str, object] | None = None
    ) -> list[dict[str, Any]]:
        """One statement on one connection; an outage as the other stations know it."""
        try:
            async with self._links[link].session() as session:
                return await session.rows(name, values)
        except (Broken, Refused) as outage:
            raise unavailable(outage) from None

    # -------------------------------------------------------------- lanes

    async def ensure_lane(self, key: LaneKey, topic_id: str, cursor_partition: int) -> LaneRow:
        values = {
            "cluster_id": key.cluster_id,
            "topic": key.topic,
            "partition": key.partition,
            "topic_id": topic_id,
            "cursor_partition": cursor_partition,
        }
        await self._rows("lanes", "ensure_lane", values)
        return rows.lane_row((await self._rows("lanes", "lane_by_key", values))[0])

    async def read_lane(self, lane_id: LaneId) -> LaneRow:
        """Raises KeyError for a lane that is not there."""
        found = await self._rows("lanes", "lane_by_id", {"lane_id": lane_id})
        if not found:
            raise KeyError(lane_id)
        return rows.lane_row(found[0])

    async def acquire(
        self,
        lane_id: LaneId,
        owner: UUID,
        expected_epoch: int,
        mine: Sequence[UUID],
        *,
        adopter: LaneId | None = None,
    ) -> LaneRow | None:
        """As the port says. A lost answer raises Unavailable: read the lane, try again with a fresh uuid.

        `adopter`: the lane whose owner acquires this one for it; without it, adopted_by is cleared (DESIGN
        4).
        """
        values = {
            "lane_id": lane_id,
            "owner": owner,
            "epoch": expected_epoch,
            "mine": list(mine),
            "adopter": adopter,
        }
        try:
            async with self._links["acquire"].session() as session:
                taken = await ending_blockers(
                    session.rows("acquire", values), session.pid, self._links["side"]
                )
        except Refused as refusal:
            if refusal.sqlstate == LOCK_TIMEOUT:
                return None
            raise unavailable(refusal) from None
        except Broken as outage:
            raise unavailable(outage) from None
        return rows.lane_row(taken[0]) if taken else None

    async def set_topic_generation(self, fence: LaneFence, topic_id: str, input_offset: int) -> None:
        row = await self._fenced(
            fence, "set_topic_generation", {"topic_id": topic_id, "input_offset": input_offset}
        )
        fence.topic_id, fence.input_offset = row.topic_id, row.input_offset

    async def heartbeat(self, fence: LaneFence, *, clear_unclean: bool) -> LaneRow:
        return await self._fenced(fence, "heartbeat", {"clear_unclean": clear_unclean})

    async def release(self, fence: LaneFence) -> None:
        self._fences.forget(fence)
        async with self._fences.settling:
            owners = [fence.owner, *fence.tried]
        await self._rows("lanes", "release", {"lane_id": fence.lane_id, "owners": owners})

    async def _fenced(self, fence: LaneFence, name: str, values: Mapping[str, object]) -> LaneRow:
        """One fenced update of the lane row; returns it. Raises LaneLost when it was refused for good."""
        ticket = self._fences.ticket(fence.lane_id)
        row = rows.lane_row(await self._fenced_row(fence, name, values))
        self._fences.saw(fence, ticket, row.input_offset)
        return row

    async def _fenced_row(self, fence: LaneFence, name: str, values: Mapping[str, object]) -> dict[str, Any]:
        self._fences.know(fence)
        while not fence.lost:
            sent = fence.owner
            carried = {"lane_id": fence.lane_id, "owner": sent, "last_seen": fence.last_seen}
            found = await self._rows("lanes", name, {**carried, **values})
            if found:
                fence.went_back = fence.went_back or found[0]["went_back"]
                return found[0]
            if not await self._fences.moved_on(fence, sent):
                self._fences.lose(fence)
        raise LaneLost(fence.lane_id)

    # -------------------------------------------------------------- admission and the hot path

    async def known_runs(self, run_ids: Sequence[RunId]) -> Sequence[KnownRun]:
        found = await self._rows("reads", "known_runs_read", {"run_ids": list(run_ids)})
        return [rows.known_run(row) for row in found]

    async def admit(self, batch: AdmissionBatch) -> Admitted | OffsetMoved:
        return await self._admission.admit(batch)

    async def commit(self, commit: RunCommit) -> CommitAnswer:
        return await self._writer.commit(commit)

    # -------------------------------------------------------------- signals and recovery

    async def insert_signal(self, signal: NewSignal) -> int | None:
        """As the port says. Raises SignalRefused when the run cannot hear it."""
        body = dict(signal.body)
        values = {
            "run_id": signal.run_id,
            "kind": signal.kind.value,
            "body": canonical.compact(body),
            "source": signal.source,
            "dedupe_source": signal.dedupe_source,
            "dedupe_id": signal.dedupe_id,
            "dedupe_digest": signal.dedupe_digest,
            "causation_id": signal.causation_id,
            "recorded_at": signal.recorded_at,
            "event_seq": body.get("event_seq") if signal.kind is SignalKind.RESOLVE else None,
            "done": body.get("done") is True,
        }
        (row,) = await self._rows("lanes", "insert_signal", values)
        if not row["allowed"]:
            raise rows.signal_refused(signal, row)
        signal_id: int | None = row["signal_id"]
        return signal_id

    async def due_runs(
        self, lane_ids: Sequence[LaneId], live: Sequence[RunId], limit: int
    ) -> Sequence[tuple[RunId, LaneId]]:
        values = {"lanes": list(lane_ids), "live": list(live), "limit": limit}
        found = await self._rows("reads", "due_runs", values)
        return [(RunId(row["run_id"]), LaneId(row["lane_id"])) for row in found]

    async def load_runs(self, run_ids: Sequence[RunId]) -> Sequence[LoadedRun]:
        """In the order asked; runs that are not there are left out."""
        values = {"run_ids": list(run_ids)}
        try:
            async with self._links["reads"].session() as session:
                heads = await session.rows("load_runs", values)
                step_rows = await session.rows("load_steps", values)
                signal_rows = await session.rows("load_signals", values)
        except (Broken, Refused) as outage:
            raise unavailable(outage) from None
        steps: dict[str, list[StepRecord]] = {}
        for row in step_rows:
            steps.setdefault(row["run_id"], []).append(rows.step_record(row))
        signals: dict[str, list[Signal]] = {}
        for row in signal_rows:
            signals.setdefault(row["run_id"], []).append(rows.signal(row))
        by_id = {row["run_id"]: row for row in heads}
        return [
            rows.loaded_run(by_id[run_id], steps.get(run_id, ()), signals.get(run_id, ()))
            for run_id in run_ids
            if run_id in by_id
        ]

    async def signals_for(self, run_ids: Sequence[RunId]) -> Sequence[Signal]:
        found = await self._rows("reads", "load_signals", {"run_ids": list(run_ids)})
        return [rows.signal(row) for row in found]

    async def notifications(self) -> AsyncGenerator[RunId | None, None]:
        """Ids of runs that were signalled. None comes first, once LISTEN stands: scan now. Ends by
        Unavailable.

        On the direct connection: a transaction pooler knows no LISTEN. It only makes polling faster.
        """
        link = Link(self._direct, "listen", LINKS["reads"])
        try:
            async with link.session() as session:
                await session.rows("listen")
                yield None
                async for payload in session.notifies():
                    yield RunId(payload)
        except (Broken, Refused) as outage:
            raise unavailable(outage) from None
        finally:
            await link.close()

    async def sweep_orphans(self, fence: LaneFence, hold_s: float, limit: int = ORPHANS_MAX) -> int:
        """Dead-letter resumes of this lane whose start did not come within the hold; how many (DESIGN 5).

        Fenced and numbered like every row of the lane. Raises LaneLost.
        """
        await self._rows("lanes", "bind_late")
        held = await self._rows(
            "lanes", "held_too_long", {"lane_id": fence.lane_id, "hold_s": hold_s, "limit": limit}
        )
        if not held:
            return 0
        detail = rows.orphan_detail(hold_s)
        letters = [(uuid4(), rows.orphan_letter(row, detail)) for row in held]
        values = {
            "signal_ids": [row["signal_id"] for row in held],
            "dead_letter_ids": [letter_id for letter_id, _ in letters],
            "hashes": [
                rows.dead_letter_hash(letter_id, fence.lane_id, letter) for letter_id, letter in letters
            ],
            "details": [detail] * len(held),
        }
        row = await self._fenced_row(fence, "sweep_orphans", values)
        swept: int = row["swept"]
        fence.last_seen = max(fence.last_seen, row["next_seq"] + swept - 1)
        if swept:
            fence.wake()
        return swept

    async def now(self) -> datetime:
        (row,) = await self._rows("reads", "now")
        now: datetime = row["now"]
        return now

    # -------------------------------------------------------------- publication

    async def outbox(self, lane_id: LaneId, after_seq: int, limit: int) -> Sequence[OutboxRow]:
        values = {"lane_id": lane_id, "after": after_seq, "limit": limit}
        found = await self._rows("outbox", "outbox", values)
        return [
            rows.outbox_event(row) if row["dead_letter_id"] is None else rows.outbox_dead_letter(row)
            for row in found
        ]

    async def check_cursor(self, lane_id: LaneId, cursor_seq: int | None) -> CursorCheck:
        (row,) = await self._rows("outbox", "check_cursor", {"lane_id": lane_id, "seq": cursor_seq})
        return CursorCheck(**row)

    async def save_floor(self, fence: LaneFence, seq: int, hash_: bytes, cursor_offset: int) -> None:
        await self._fenced(fence, "save_floor", {"seq": seq, "hash": hash_, "cursor_offset": cursor_offset})

    async def mark_went_back(self, fence: LaneFence) -> None:
        await self._fenced(fence, "mark_went_back", {})

    async def store_id(self) -> UUID:
        (row,) = await self._rows("reads", "store_id")
        store_id: UUID = row["store_id"]
        return store_id

    # -------------------------------------------------------------- contracts

    async def publish_contract(
        self, kind: ContractKind, name: str, version: str, body: str, digest: str
    ) -> bool:
        values = {"kind": kind.value, "name": name, "version": version, "body": body, "digest": digest}
        if await self._rows("lanes", "publish_contract", values):
            return True
        stands = await self.load_contract(kind, name, version)
        if stands is None:
            raise Unavailable("postgres", "a contract vanished")
        if stands[1] != digest:
            raise ContractConflict(kind.value, name, version)
        return False

    async def load_contract(self, kind: ContractKind, name: str, version: str) -> tuple[str, str] | None:
        values = {"kind": kind.value, "name": name, "version": version}
        found = await self._rows("reads", "load_contract", values)
        return (found[0]["body"], found[0]["digest"]) if found else None

    async def latest_version(self, kind: ContractKind, name: str) -> str | None:
        found = await self._rows("reads", "latest_version", {"kind": kind.value, "name": name})
        return found[0]["version"] if found else None
