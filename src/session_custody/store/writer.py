"""Group commit: the hot path of stations 7, 9 and 11 (DESIGN 6).

One writer per worker takes what its runs want committed, and writes a group as one fenced autocommit
statement in one round trip. Order of events for a group, and what is lost when it stops there:

1. taken from the queue                         nothing is written; the runs wait
2. the statement is sent                        settled: the rows themselves are asked for
3. the answer is read, up to ReadyForQuery      committed; futures not answered yet are lost with the
   process only
4. fences hear what the lane answered, publishers are woken, futures are answered

A lane that is busy past the lock timeout fails the whole statement and is not named: the group is offered
again with `skip locked`, and lanes absent from *that* answer alone, before they count as lost. A row that
Postgres refuses for its content is found by halving. A run's next commit is offered only after the answer
to the one before, so a group never holds a run twice.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from session_custody.core.errors import Unavailable
from session_custody.core.pin import LaneId
from session_custody.ports import CommitAnswer, LaneFence, RunCommit
from session_custody.store.commit_rows import CommitRows, commit_rows, group_params
from session_custody.store.fences import Fences
from session_custody.store.link import (
    LOCK_TIMEOUT,
    UNIQUE_VIOLATION,
    Broken,
    Call,
    Link,
    Prepared,
    Refused,
    Row,
)
from session_custody.store.queries import query
from session_custody.store.settling import BACKOFF_FIRST_S, BACKOFF_MAX_S, Question, Settling
from session_custody.telemetry import COMMIT_GROUP

COMMIT_ROWS_MAX: Final = 512
COMMIT_BYTES_MAX: Final = 4 * 1024 * 1024
ALONE_TRIES_MAX: Final = 3

_WAIT: Final = Prepared.named("commit_group")
_SKIP: Final = Prepared(
    "commit_group_skip", query("commit_group").replace("/* skip locked */", "skip locked")
)


@dataclass(eq=False, slots=True)
class Offer:
    """One run's commit on its way. `sent` is the owner it was last sent under."""

    commit: RunCommit
    answer: asyncio.Future[CommitAnswer]
    rows: CommitRows
    sent: UUID
    tries: int = 0

    @property
    def lane_id(self) -> LaneId:
        return self.commit.fence.lane_id

    def question(self, order: int) -> Question:
        last = self.commit.events[-1] if self.commit.events else None
        event = None if last is None else (last.event_seq, last.hash)
        return Question(order, self.commit.run_id, self.commit.checkpoint.version, event)


Group = Sequence[Offer]


class Writer:
    """Takes commits with `commit`, writes them with one task of its own between `start` and `close`."""

    def __init__(
        self, link: Link, fences: Fences, settling: Settling, *, commit_rows_max: int = COMMIT_ROWS_MAX
    ) -> None:
        self._link = link
        self._fences = fences
        self._settling = settling
        self._rows_max = commit_rows_max
        self._queue: deque[Offer] = deque()
        self._alone: deque[Offer] = deque()
        self._open: set[Offer] = set()
        self._bell = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.closing = False

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="store writer")

    async def close(self) -> None:
        """Write what was offered, if Postgres answers; what stays undecided raises Unavailable."""
        self.closing = True
        self._bell.set()
        if self._task is not None:
            await self._task

    async def commit(self, commit: RunCommit) -> CommitAnswer:
        """Offer one run's commit; answers when it is decided, also across an outage and a settling."""
        if commit.fence.lost:
            return CommitAnswer.LANE_LOST
        if self.closing:
            raise Unavailable("postgres", "the store was closed")
        self._fences.know(commit.fence)
        future: asyncio.Future[CommitAnswer] = asyncio.get_running_loop().create_future()
        try:
            written = commit_rows(commit)
        except UnicodeEncodeError:
            return CommitAnswer.UNSTORABLE
        offer = Offer(commit, future, written, commit.fence.owner)
        self._open.add(offer)
        future.add_done_callback(lambda _: self._open.discard(offer))
        self._queue.append(offer)
        self._bell.set()
        return await future

    async def _run(self) -> None:
        try:
            await self._write_all()
        except Unavailable:
            pass  # closing, and a COMMIT could not be settled: the next owner will see what became of it
        finally:
            self.closing = True
            for offer in list(self._open):
                if not offer.answer.done():
                    offer.answer.set_exception(Unavailable("postgres", "the writer has stopped"))

    async def _write_all(self) -> None:
        backoff = BACKOFF_FIRST_S
        while True:
            if not self._queue and not self._alone:
                if self.closing:
                    return
                self._bell.clear()
                await self._bell.wait()
                await asyncio.sleep(0)  # whoever is ready to commit in this turn of the loop comes along
                continue
            try:
                if group := self._take():
                    await self._write(group, _WAIT)
                await self._write_alone()
                backoff = BACKOFF_FIRST_S
            except (Broken, Refused):
                if self.closing:
                    return
                await asyncio.sleep(backoff)
                backoff = min(backoff * 2, BACKOFF_MAX_S)

    def _take(self) -> list[Offer]:
        group: list[Offer] = []
        size = 0
        while self._queue and len(group) < self._rows_max and size < COMMIT_BYTES_MAX:
            offer = self._queue.popleft()
            if offer.commit.fence.lost:
                _answer(offer, CommitAnswer.LANE_LOST)
            else:
                size += offer.rows.size
                group.append(offer)
        return group

    def _again(self, group: Group) -> None:
        self._queue.extendleft(reversed(group))

    async def _write_alone(self) -> None:
        """Lanes that were busy: each with a statement of its own, which may wait for the lock."""
        waiting, self._alone = list(self._alone), deque()
        by_lane: dict[LaneId, list[Offer]] = {}
        for offer in waiting:
            by_lane.setdefault(offer.lane_id, []).append(offer)
        lanes = list(by_lane.values())
        while lanes:
            group = lanes.pop()
            try:
                await self._write(group, _WAIT, alone=True)
            except (Broken, Refused):
                self._alone.extend(offer for rest in lanes for offer in rest)
                raise

    async def _write(self, group: Group, statement: Prepared, *, alone: bool = False) -> None:
        """Write one group to its end. Raises Broken or Refused for an outage after putting the group back."""
        tickets = {offer.lane_id: self._fences.ticket(offer.lane_id) for offer in group}
        for offer in group:
            offer.sent = offer.commit.fence.owner
        COMMIT_GROUP.observe(len(group))
        call = Call(statement, group_params(_fences(group), [offer.rows for offer in group]))
        try:
            async with self._link.session() as session:
                answers = (await session.exchange([call]))[0]
        except Broken as outage:
            if not outage.sent:
                self._again(group)
                raise
            await self._settle(group)
            return
        except Refused as refusal:
            await self._refused(group, statement, refusal, alone=alone)
            return
        absent = self._heard(group, answers, tickets)
        if absent and statement is _SKIP:
            self._alone.extend(absent)
        elif absent:
            await self._lost(absent)

    async def _refused(self, group: Group, statement: Prepared, refusal: Refused, *, alone: bool) -> None:
        """The statement was rolled back as a whole: find out whose fault it is."""
        if refusal.sqlstate == LOCK_TIMEOUT:
            if alone:
                self._alone.extend(group)
                raise refusal
            if statement is _SKIP:  # not a lane, then: something else holds what we need
                self._again(group)
                raise refusal
            await self._write(group, _SKIP)
        elif refusal.rows_own_fault and len(group) == 1:
            _answer(group[0], CommitAnswer.UNSTORABLE)
        elif refusal.rows_own_fault:
            half = len(group) // 2
            await self._write(group[:half], statement, alone=alone)
            await self._write(group[half:], statement, alone=alone)
        elif refusal.sqlstate == UNIQUE_VIOLATION:
            await self._unique(group, statement, alone=alone)
        else:
            self._again(group)
            raise refusal

    async def _unique(self, group: Group, statement: Prepared, *, alone: bool) -> None:
        """A unique violation of ours is never the row's own fault: it is there already, or was a moment
        ago.
        """
        if len(group) > 1:
            half = len(group) // 2
            await self._write(group[:half], statement, alone=alone)
            await self._write(group[half:], statement, alone=alone)
            return
        offer = group[0]
        offer.tries += 1
        if offer.tries > ALONE_TRIES_MAX:
            _answer(offer, CommitAnswer.STALE)  # another event stands at its event_seq: load the run anew
            return
        await self._settle(group)

    async def _settle(self, group: Group) -> None:
        """The COMMIT was lost. Present rows are committed, absent ones are offered again under the new
        owner.
        """
        fences = _fences(group)
        before = {fence.lane_id: fence.last_seen for fence, _ in fences}
        settled = await self._settling.settle(
            fences, [offer.question(order) for order, offer in enumerate(group)]
        )
        again: list[Offer] = []
        for order, offer in enumerate(group):
            if offer.lane_id not in settled.kept:
                _answer(offer, CommitAnswer.LANE_LOST)
            elif order in settled.present:
                _answer(offer, CommitAnswer.COMMITTED)
            else:
                again.append(offer)
        self._again(again)
        for fence, _ in fences:
            if not fence.lost and fence.last_seen > before[fence.lane_id]:
                fence.wake()

    async def _lost(self, absent: Group) -> None:
        """The fence failed for these lanes, unless settling has moved their owner meanwhile."""
        for offer in absent:
            fence = offer.commit.fence
            if await self._fences.moved_on(fence, offer.sent):
                self._queue.append(offer)
            else:
                self._fences.lose(fence)
                _answer(offer, CommitAnswer.LANE_LOST)

    def _heard(self, group: Group, answers: Sequence[Row], tickets: dict[LaneId, int | None]) -> list[Offer]:
        """Tell fences and runs what the statement answered; returns the offers of lanes that are absent
        from it.
        """
        fences = {fence.lane_id: fence for fence, _ in _fences(group)}
        refused: set[int] = set()
        numbered: list[LaneFence] = []
        present: set[LaneId] = set()
        for row in answers:
            lane_id = LaneId(_number(row[0]))
            present.add(lane_id)
            fence = fences[lane_id]
            count = _number(row[5])
            fence.last_seen = max(fence.last_seen, _number(row[4]) + count - 1)
            fence.went_back = fence.went_back or row[6] == b"t"
            self._fences.saw(fence, tickets[lane_id], _number(row[3]))
            refused.update(_numbers(row[7]))
            if count:
                numbered.append(fence)
        absent: list[Offer] = []
        for order, offer in enumerate(group, start=1):
            if offer.lane_id not in present:
                absent.append(offer)
            else:
                _answer(offer, CommitAnswer.STALE if order in refused else CommitAnswer.COMMITTED)
        for fence in numbered:
            fence.wake()
        return absent


def _answer(offer: Offer, answer: CommitAnswer) -> None:
    if not offer.answer.done():
        offer.answer.set_result(answer)


def _fences(group: Group) -> list[tuple[LaneFence, UUID]]:
    """Each lane of the group once, with the owner it was sent under."""
    by_lane = {offer.lane_id: (offer.commit.fence, offer.sent) for offer in group}
    return [by_lane[lane_id] for lane_id in sorted(by_lane)]


def _number(text: bytes | None) -> int:
    return int(text or b"0")


def _numbers(array: bytes | None) -> Iterable[int]:
    inner = (array or b"{}")[1:-1]
    return (int(part) for part in inner.split(b",")) if inner else ()
