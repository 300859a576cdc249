"""Station 12: a lane's numbers on /metrics, computed when they are asked for."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from session_custody.telemetry import OUTBOX_OLDEST, OUTBOX_PENDING, OUTBOX_PUBLISHED, PUBLICATION_CLOSED


class LaneGauges:
    """`oldest`: when the oldest row known to be unpublished was recorded."""

    def __init__(self, lane: str, backlog: Callable[[], int]) -> None:
        self.lane = lane
        self.oldest: datetime | None = None
        OUTBOX_PENDING.labels(lane).set_function(backlog)
        OUTBOX_OLDEST.labels(lane).set_function(self.oldest_s)

    def oldest_s(self) -> float:
        """Age by this machine's clock; the row's time is the database's."""
        if self.oldest is None:
            return 0.0
        return max(0.0, (datetime.now(UTC) - self.oldest).total_seconds())

    def published(self, topics: Mapping[str, int]) -> None:
        for topic, rows in topics.items():
            OUTBOX_PUBLISHED.labels(topic).inc(rows)

    def remove(self) -> None:
        """The lane is not this process's any more."""
        for gauge in (OUTBOX_PENDING, OUTBOX_OLDEST, PUBLICATION_CLOSED):
            with contextlib.suppress(KeyError):
                gauge.remove(self.lane)
