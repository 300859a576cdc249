"""`lane adopt-floor`: read what Kafka shows of a lane, and store it as accepted (DESIGN 6)."""

from __future__ import annotations

import asyncio
from typing import Any

from session_custody.cli.output import Exit, fail
from session_custody.core.pin import LaneId
from session_custody.publish import read_shown
from session_custody.settings import Settings
from session_custody.wiring import open_store


def adopt(lane_id: LaneId, reason: str, start: int | None) -> str:
    """What was accepted, as a sentence."""
    settings = Settings.load()
    return asyncio.run(_adopt(settings, lane_id, reason, start))


async def _adopt(settings: Settings, lane_id: LaneId, reason: str, start: int | None) -> str:
    store = await open_store(settings)
    try:
        lanes: list[dict[str, Any]] = await store.list_lanes()
        lane = next((row for row in lanes if row["lane_id"] == lane_id), None)
        if lane is None:
            raise fail(f"there is no lane {lane_id}", Exit.NOT_FOUND)
        shown = await asyncio.to_thread(
            read_shown,
            settings.kafka.connection_options(),
            group=settings.kafka.group,
            cursors=settings.kafka.topics.cursors,
            topic=lane["topic"],
            partition=lane["partition"],
            cursor_partition=lane["cursor_partition"],
        )
        row = await store.adopt_floor(
            lane_id,
            seq=shown.cursor.lane_seq if shown.cursor else None,
            hash_=shown.cursor.hash if shown.cursor else None,
            epoch=shown.epoch,
            reason=reason,
            floor=None if start is None else start - 1,
        )
    finally:
        await store.close()
    cursor = f"lane_seq {shown.cursor.lane_seq}" if shown.cursor else "that Kafka shows no cursor"
    return f"lane {lane_id}: accepted {cursor}, floor {row.published_seq}, next {row.next_seq}"
