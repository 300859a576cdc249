"""Stations 1 and 5: what the poll thread knows of one assigned partition. Touched by the poll
thread alone.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from session_custody.intake.options import WINDOW_BYTES, WINDOW_RECORDS
from session_custody.intake.record import Record

NO_TOKEN = 0


class Pause(Enum):
    """Why a partition is paused; it is resumed when no reason is left."""

    NOT_OPEN = auto()
    """Nobody admits for it yet (lane not acquired, recovery not listed), or nobody any more."""
    WINDOW = auto()
    OUTAGE = auto()
    BACKLOG = auto()


@dataclass(slots=True)
class Partition:
    """`token` names one opening: records, offsets and pauses of another one are not of this incarnation."""

    number: int
    committed: int | None
    token: int = NO_TOKEN
    reasons: set[Pause] = field(default_factory=lambda: {Pause.NOT_OPEN})
    paused: bool = True
    position: int = -1
    outstanding_records: int = 0
    outstanding_bytes: int = 0
    to_commit: int | None = None
    progress_at: float = field(default_factory=time.monotonic)

    def open(self, token: int, offset: int) -> None:
        self.token = token
        self.position = offset
        self.outstanding_records = self.outstanding_bytes = 0
        self.to_commit = None
        self.reasons.clear()
        self.progress_at = time.monotonic()

    def close(self) -> None:
        self.token = NO_TOKEN
        self.reasons.add(Pause.NOT_OPEN)

    def read(self, records: Sequence[Record]) -> None:
        self.position = records[-1].offset + 1
        self.outstanding_records += len(records)
        self.outstanding_bytes += sum(record.size for record in records)
        self.progress_at = time.monotonic()
        if self.outstanding_records >= WINDOW_RECORDS or self.outstanding_bytes >= WINDOW_BYTES:
            self.reasons.add(Pause.WINDOW)

    def done(self, records: int, size: int) -> None:
        self.outstanding_records -= records
        self.outstanding_bytes -= size
        if self.outstanding_records <= WINDOW_RECORDS // 2 and self.outstanding_bytes <= WINDOW_BYTES // 2:
            self.reasons.discard(Pause.WINDOW)
