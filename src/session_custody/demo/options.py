"""What the demo can be told, and what it must reach."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

RUNS_DEFAULT: Final = 200
MID_LOOP_AT_KILL_MIN: Final = 50
PENDING_AT_KILL_MIN: Final = 5
LANDED_AT_KILL_MIN: Final = 1
SESSION_TIMEOUT_S: Final = 3.0
DUPLICATE_SHARE: Final = 0.2
KILL_WAIT_S: Final = 90.0
FINISH_WAIT_S: Final = 240.0


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """`workers` begin; `kills` of them are SIGKILLed. With one worker a second one is started after the
    kill.
    """

    runs: int = RUNS_DEFAULT
    seed: int = 1
    workers: int = 1
    kills: int = 1
    keep: Path | None = None
    """Keep logs, ledgers and keys in this folder."""
    read_s: float = 0.4
    write_s: float = 2.0
    think_s: float = 0.3

    @property
    def mid_loop_min(self) -> int:
        """The condition of the kill, also for a demo of fewer runs than that (tests)."""
        return min(MID_LOOP_AT_KILL_MIN, self.runs // 4)

    @property
    def pending_min(self) -> int:
        return min(PENDING_AT_KILL_MIN, max(1, self.runs // 40))
