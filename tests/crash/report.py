"""A row per scenario, printed when the session ends (`make crash`)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Row:
    point: str
    exit_code: int | None
    statuses: Counter[str]
    attempts: int
    effects: int
    added: Counter[str]
    equal: bool
    seconds: float


ROWS: Final[list[Row]] = []
HEAD: Final = ("fault point", "fired", "exit", "statuses", "attempts", "effects", "added", "history", "s")


def table() -> str:
    lines = [HEAD, *(_cells(row) for row in ROWS)]
    widths = [max(len(line[place]) for line in lines) for place in range(len(HEAD))]
    text = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
    minutes = sum(row.seconds for row in ROWS) / 60
    return "\n".join([*text, f"{len(ROWS)} scenarios, {minutes:.1f} minutes"]) + "\n"


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.point,
        "yes" if row.exit_code is not None else "no",
        str(row.exit_code),
        _counts(row.statuses),
        str(row.attempts),
        str(row.effects),
        _counts(row.added) or "-",
        "equal" if row.equal else "DIFFERS",
        f"{row.seconds:.1f}",
    )


def _counts(counts: Counter[str]) -> str:
    return ", ".join(f"{number} {name}" for name, number in sorted(counts.items()))
