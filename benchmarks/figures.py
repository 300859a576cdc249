"""What one round of one contestant gave, and how rounds become one line."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Literal

from benchmarks.server import Counts

Effect = Literal["read", "write"]


@dataclass(frozen=True, slots=True)
class Round:
    """Seconds, bytes and counts of one round. `steps` are model turns, 12 a run."""

    runs: int
    steps: int
    took_s: float
    run_s: tuple[float, ...]
    client_cpu_s: float
    wal_bytes: int = 0
    flushes: int = 0
    server_cpu_s: float = 0.0

    def beside(self, before: Counts, after: Counts) -> Round:
        """With what the server counted meanwhile."""
        return replace(
            self,
            wal_bytes=after.wal_bytes - before.wal_bytes,
            flushes=after.flushes - before.flushes,
            server_cpu_s=after.cpu_s - before.cpu_s,
        )


@dataclass(frozen=True, slots=True)
class Line:
    """The medians of a contestant's rounds at one setting."""

    contestant: str
    effect: Effect
    at_once: int
    runs: int
    steps_per_s: float
    p50_ms: float
    p99_ms: float
    client_cpu_s_per_1000: float
    server_cpu_s_per_1000: float
    wal_bytes_per_step: float
    flushes_per_step: float


def line(contestant: str, effect: Effect, at_once: int, rounds: Sequence[Round]) -> Line:
    """Medians over the rounds, each figure for itself."""

    def per_step(figures: Sequence[float]) -> float:
        return median(figure / each.steps for figure, each in zip(figures, rounds, strict=True))

    return Line(
        contestant,
        effect,
        at_once,
        sum(each.runs for each in rounds),
        median(each.steps / each.took_s for each in rounds),
        median(percentile(each.run_s, 50) for each in rounds) * 1_000,
        median(percentile(each.run_s, 99) for each in rounds) * 1_000,
        per_step([each.client_cpu_s for each in rounds]) * 1_000,
        per_step([each.server_cpu_s for each in rounds]) * 1_000,
        per_step([each.wal_bytes for each in rounds]),
        per_step([each.flushes for each in rounds]),
    )


def percentile(values: Sequence[float], percent: int) -> float:
    """The nearest rank: a value that was measured."""
    ordered = sorted(values)
    return ordered[max(math.ceil(len(ordered) * percent / 100) - 1, 0)]
