"""Half of the store in memory: lanes, what they publish, contracts. `memory.py` has the runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

from session_custody.core.errors import ContractConflict, LaneLost
from session_custody.core.manifest import ContractKind
from session_custody.core.pin import LaneId
from session_custody.ports import (
    CursorCheck,
    LaneFence,
    LaneKey,
    LaneRow,
    NewDeadLetter,
    OutboxDeadLetter,
    OutboxRow,
)
from session_custody.store import rows


@dataclass(slots=True)
class _Lane:
    row: LaneRow
    published_hash: bytes | None = None
    adopted_seq: int | None = None
    adopted_hash: bytes | None = None
    outbox: list[OutboxRow] = field(default_factory=list)


class MemoryLanes:
    """Lanes by id, each with its outbox in the order of its sequence."""

    def __init__(self, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._clock = clock
        self.shift = timedelta()
        self._lanes: dict[LaneId, _Lane] = {}
        self._contracts: dict[tuple[ContractKind, str, str], tuple[str, str]] = {}
        self._store_id = uuid4()

    def _now(self) -> datetime:
        return self._clock() + self.shift

    # -------------------------------------------------------------- lanes

    async def ensure_lane(self, key: LaneKey, topic_id: str, cursor_partition: int) -> LaneRow:
        for lane in self._lanes.values():
            if lane.row.key == key:
                return lane.row
        lane_id = LaneId(len(self._lanes) + 1)
        row = LaneRow(
            lane_id,
            key,
            topic_id,
            epoch=0,
            owner=None,
            adopted_by=None,
            next_seq=1,
            input_offset=0,
            published_seq=0,
            cursor_partition=cursor_partition,
            cursor_offset=0,
            unclean_ends=0,
            went_back=False,
            last_alive=None,
        )
        self._lanes[lane_id] = _Lane(row)
        return row

    async def read_lane(self, lane_id: LaneId) -> LaneRow:
        return self._lanes[lane_id].row

    async def acquire(
        self, lane_id: LaneId, owner: UUID, expected_epoch: int, mine: Sequence[UUID]
    ) -> LaneRow | None:
        row = self._lanes[lane_id].row
        if row.epoch != expected_epoch:
            return None
        unclean = 0 if row.owner is None or row.owner in mine else 1
        return self._set(
            lane_id,
            epoch=row.epoch + 1,
            owner=owner,
            unclean_ends=row.unclean_ends + unclean,
            adopted_by=None,
            last_alive=self._now(),
        )

    def _set(self, lane_id: LaneId, **values: object) -> LaneRow:
        lane = self._lanes[lane_id]
        lane.row = replace(lane.row, **values)  # type: ignore[arg-type]
        return lane.row

    def _fenced(self, fence: LaneFence) -> _Lane:
        """The lane, if the fence holds; marks what went back. Raises LaneLost."""
        lane = self._lanes[fence.lane_id]
        if fence.lost or lane.row.owner != fence.owner:
            if not fence.lost:
                fence.lost, fence.gate_open = True, False
                fence.on_lost()
            raise LaneLost(fence.lane_id)
        if fence.last_seen >= lane.row.next_seq:
            self._set(fence.lane_id, went_back=True)
        fence.went_back = fence.went_back or lane.row.went_back
        fence.input_offset = lane.row.input_offset
        return lane

    async def set_topic_generation(self, fence: LaneFence, topic_id: str, input_offset: int) -> None:
        self._fenced(fence)
        self._set(fence.lane_id, topic_id=topic_id, input_offset=input_offset)
        fence.topic_id, fence.input_offset = topic_id, input_offset

    async def heartbeat(self, fence: LaneFence, *, clear_unclean: bool) -> LaneRow:
        lane = self._fenced(fence)
        unclean = 0 if clear_unclean else lane.row.unclean_ends
        return self._set(fence.lane_id, last_alive=self._now(), unclean_ends=unclean)

    async def release(self, fence: LaneFence) -> None:
        if self._lanes[fence.lane_id].row.owner in (fence.owner, *fence.tried):
            self._set(fence.lane_id, owner=None)

    def _number(self, fence: LaneFence) -> int:
        lane_seq = self._lanes[fence.lane_id].row.next_seq
        self._set(fence.lane_id, next_seq=lane_seq + 1)
        fence.last_seen = lane_seq
        return lane_seq

    def _dead_letter(self, fence: LaneFence, letter: NewDeadLetter) -> bool:
        lane = self._lanes[fence.lane_id]
        key = lane.row.key
        for row in lane.outbox:
            # The place of a row is (lane, generation, offset); the fake keeps the generation in `topic`.
            if isinstance(row, OutboxDeadLetter) and (row.topic, row.offset) == (key.topic, letter.offset):
                return False
        letter_id = uuid4()
        lane.outbox.append(
            OutboxDeadLetter(
                self._number(fence),
                letter_id,
                letter.reason,
                letter.detail,
                key.topic,
                key.partition,
                letter.offset,
                letter.key,
                letter.value,
                tuple(letter.headers),
                self._now(),
                letter.recorded_at,
                letter.run_id,
                rows.dead_letter_hash(letter_id, fence.lane_id, letter),
            )
        )
        return True

    # -------------------------------------------------------------- publication

    async def outbox(self, lane_id: LaneId, after_seq: int, limit: int) -> Sequence[OutboxRow]:
        return [row for row in self._lanes[lane_id].outbox if row.lane_seq > after_seq][:limit]

    async def check_cursor(self, lane_id: LaneId, cursor_seq: int | None) -> CursorCheck:
        lane = self._lanes[lane_id]
        row = lane.row
        named = next((item.hash for item in lane.outbox if item.lane_seq == cursor_seq), None)
        return CursorCheck(
            row.owner,
            row.epoch,
            row.published_seq,
            lane.published_hash,
            row.next_seq,
            row.went_back,
            named,
            lane.adopted_seq,
            lane.adopted_hash,
        )

    async def save_floor(self, fence: LaneFence, seq: int, hash_: bytes, cursor_offset: int) -> None:
        lane = self._fenced(fence)
        if seq >= lane.row.published_seq:
            lane.published_hash = hash_
            self._set(fence.lane_id, published_seq=seq, cursor_offset=cursor_offset)

    async def mark_went_back(self, fence: LaneFence) -> None:
        self._fenced(fence)
        self._set(fence.lane_id, went_back=True)
        fence.went_back = True

    async def store_id(self) -> UUID:
        return self._store_id

    # -------------------------------------------------------------- contracts

    async def publish_contract(
        self, kind: ContractKind, name: str, version: str, body: str, digest: str
    ) -> bool:
        stands = self._contracts.get((kind, name, version))
        if stands is None:
            self._contracts[kind, name, version] = (body, digest)
            return True
        if stands[1] != digest:
            raise ContractConflict(kind.value, name, version)
        return False

    async def load_contract(self, kind: ContractKind, name: str, version: str) -> tuple[str, str] | None:
        return self._contracts.get((kind, name, version))

    async def latest_version(self, kind: ContractKind, name: str) -> str | None:
        return next((key[2] for key in reversed(self._contracts) if key[:2] == (kind, name)), None)
