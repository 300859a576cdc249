"""Durations as people write them in contracts (`150ms`, `5s`, `24h`); inside they are seconds (API 1)."""

from __future__ import annotations

import re
from typing import Final

_UNITS_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
PATTERN: Final = r"^[0-9]{1,9}(\.[0-9]{1,3})?(ms|s|m|h|d)$"
_DURATION: Final = re.compile(PATTERN.strip("^$"))


def seconds_of(text: str) -> float:
    """`"2m"` -> 120.0. A number without its unit is refused: nobody should have to guess it."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ValueError("is a duration: a number and its unit, like 150ms, 5s, 2m, 24h or 7d")
    unit = found.group(2)
    return round(float(text[: -len(unit)]) * _UNITS_S[unit], 6)


def text_of(seconds: float) -> str:
    """The shortest text that reads back as the same seconds: 120.0 -> `"2m"`."""
    milliseconds = round(seconds * 1000)
    for unit in ("d", "h", "m", "s"):
        size = round(_UNITS_S[unit] * 1000)
        if milliseconds and milliseconds % size == 0:
            return f"{milliseconds // size}{unit}"
    return f"{milliseconds}ms"
