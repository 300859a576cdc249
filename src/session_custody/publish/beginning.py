"""Station 12, steps 1 and 2 of DESIGN 6: be the lane's only publisher, and compare Kafka with Postgres."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import assert_never
from uuid import UUID, uuid4

from session_custody.publish import options
from session_custody.publish.floor import Floor
from session_custody.publish.means import Closed, Means, Regate
from session_custody.publish.outlet import CursorRecord, Outlet, OutletGone, PlainOutlet, TransactionalOutlet
from session_custody.publish.protocol import (
    FailClosed,
    NotOwner,
    Ours,
    Proceed,
    StartAgain,
    judge,
    look,
)
from session_custody.publish.reader import read_cursors
from session_custody.wire import Claim, claim_key, encode_claim


@dataclass(frozen=True, slots=True)
class Begun:
    """Steps 1 and 2 have passed. `epoch` and `store_id` stand in every cursor written from here on."""

    outlet: Outlet
    store_id: UUID
    epoch: int
    cursor_partition: int
    after_seq: int
    skipped_to: int
    known_seq: int
    """The last lane_seq that Postgres had given out."""
    floor: Floor | None
    """Where the cursor stands, when the floor may be behind it."""


async def begin(means: Means) -> Begun:
    """Raises Regate, Closed, OutletGone; of the store LaneLost and Unavailable."""
    store, fence = means.store, means.fence
    store_id = await store.store_id()
    lane = await store.read_lane(fence.lane_id)
    if lane.owner not in means.owners():
        await means.ask_with_the_fence()
        raise Regate
    # An operator's adopt-floor lifts the epoch under a living owner.
    epoch = max(fence.epoch, lane.epoch)
    outlet = await means.thread.call(partial(open_outlet, means))
    try:
        nonce = uuid4()
        claim = encode_claim(Claim(fence.owner, epoch, nonce, store_id))
        record = CursorRecord(means.topics.cursors, lane.cursor_partition, claim_key(means.lane), claim)
        await means.thread.call(partial(outlet.claim, record))
        entries = await means.thread.call(
            partial(
                read_cursors,
                options.cursor_reader(
                    means.config,
                    group=means.settings.group,
                    client_id=_client_id(means),
                    on_error=means.heard,
                ),
                topic=means.topics.cursors,
                partition=lane.cursor_partition,
                offset=lane.cursor_offset,
                lane=means.lane,
                nonce=nonce,
                wait_s=means.settings.claim_wait_s,
                stopped=means.urgent.is_set,
            )
        )
        ours = Ours(means.owners(), epoch, store_id)
        sight = look(entries, nonce, ours, by_epoch=means.settings.mode == "at_least_once")
        check = await store.check_cursor(fence.lane_id, sight.cursor_seq)
        verdict = judge(sight, Ours(means.owners(), epoch, store_id), check)
        match verdict:
            case Proceed(after_seq, skipped_to):
                means.check()
            case NotOwner():
                await means.ask_with_the_fence()
                raise Regate
            case StartAgain():
                raise OutletGone("claim_unseen", "the claim did not show on the cursor topic in time")
            case FailClosed(fault):
                raise Closed(fault)
            case _:
                assert_never(verdict)
    except BaseException:
        means.thread.post(outlet.discard)
        raise
    floor = None
    if sight.cursor is not None and sight.cursor_offset is not None and after_seq == sight.cursor.lane_seq:
        floor = Floor(after_seq, sight.cursor.hash, sight.cursor_offset)
    return Begun(
        outlet, store_id, epoch, lane.cursor_partition, after_seq, skipped_to, check.next_seq - 1, floor
    )


def open_outlet(means: Means) -> Outlet:
    """In the thread: make a producer and initialise it. Raises OutletGone."""
    settings, key = means.settings, means.fence.key
    outlet: TransactionalOutlet | PlainOutlet
    if settings.mode == "transactional":
        made = options.transactional(
            means.config,
            transactional_id=f"{settings.group}.{key.topic}.{key.partition}",
            transaction_timeout_s=settings.transaction_timeout_s,
            client_id=_client_id(means),
            on_error=means.heard,
        )
        outlet = TransactionalOutlet(made, settings.transaction_timeout_s)
    else:
        made = options.at_least_once(
            means.config,
            transaction_timeout_s=settings.transaction_timeout_s,
            client_id=_client_id(means),
            on_error=means.heard,
        )
        outlet = PlainOutlet(made, settings.transaction_timeout_s)
    try:
        outlet.open()
    except BaseException:
        outlet.discard()
        raise
    return outlet


def _client_id(means: Means) -> str:
    return f"custody-publish-{means.fence.key.partition}"
