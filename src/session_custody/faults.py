"""Named fault points: `<station name>.<before|after>` (DESIGN 3). One dictionary look-up when off.

`before` stands right before the station's commit, send or call, `after` right behind it. A test process arms
them through `CUSTODY_FAULT` (wiring reads it): `result.before@3` kills this process with SIGKILL at the third
passage. The names are a closed list, so a misspelt one is an error and not a test that never fires.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Mapping
from typing import Final

STATIONS: Final = (
    "record",
    "decode",
    "admission",
    "pin",
    "offset",
    "lane",
    "decide",
    "pep",
    "intent",
    "tool",
    "result",
    "publication",
)
POINTS: Final = frozenset(f"{station}.{side}" for station in STATIONS for side in ("before", "after"))

Hook = Callable[[Mapping[str, object]], None]
_armed: dict[str, Hook] = {}


def reach(point: str, **facts: object) -> None:
    """Pass a fault point. `facts` (run_id, loop_step, …) let a hook choose its victim."""
    if _armed and (hook := _armed.get(point)) is not None:
        hook(facts)


def arm(point: str, hook: Hook) -> None:
    """Install a hook; tests only."""
    if point not in POINTS:
        raise ValueError(f"no fault point {point}")
    _armed[point] = hook


def disarm() -> None:
    _armed.clear()


def arm_kill(spec: str) -> None:
    """Arm `point[@n]`: SIGKILL this process at the n-th passage (1 = the first)."""
    point, _, count = spec.partition("@")
    left = int(count or "1")
    lock = threading.Lock()

    def kill(_: Mapping[str, object]) -> None:
        nonlocal left
        with lock:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    arm(point, kill)
