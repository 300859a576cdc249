"""Where the event loop's thread spends its time: the ten functions with most time of their own."""

from __future__ import annotations

import cProfile
import pstats
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.figures import Effect
from benchmarks.product import Product

TOP: Final = 10
AT_ONCE: Final = 128


@dataclass(frozen=True, slots=True)
class Hotspot:
    """`share` of all profiled time, in percent. A profiler weighs small functions too heavily."""

    function: str
    calls_per_step: float
    share: float


async def hotspots(product: Product, effect: Effect, runs: int) -> list[Hotspot]:
    """Drive some runs under cProfile."""
    ids = await product.prepare(effect, runs)
    profile = cProfile.Profile()
    profile.enable()
    try:
        done = await product.play(effect, ids, min(AT_ONCE, runs))
    finally:
        profile.disable()
    stats: dict[tuple[str, int, str], tuple[int, int, float, float, Any]]
    stats = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    # waiting for the server is no work of ours
    busy = {key: value for key, value in stats.items() if "poll" not in key[2]}
    whole = sum(own for _, _, own, _, _ in busy.values())
    ordered = sorted(busy.items(), key=lambda item: item[1][2], reverse=True)
    return [
        Hotspot(_name(*key), calls / done.steps, own / whole * 100)
        for key, (_, calls, own, _, _) in ordered[:TOP]
    ]


def _name(file: str, line: int, function: str) -> str:
    if not line:
        return function
    return f"{'/'.join(Path(file).parts[-2:])}:{function}"
