"""Stations 7, 9 and 11: one run driven from its rows to where it leaves memory."""

from __future__ import annotations

from session_custody.loop.driver import Driver
from session_custody.loop.late import LateResults

__all__ = ["Driver", "LateResults"]
