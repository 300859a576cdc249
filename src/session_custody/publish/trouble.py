"""Station 12: failures counted, waits between tries, what health is told."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from session_custody.publish.tuning import PublishSettings

SETTING: Final = "CUSTODY_"


class Trouble:
    """Failures of one lane's publication since it last went well."""

    def __init__(self, settings: PublishSettings, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._monotonic = monotonic
        self._recent: deque[float] = deque(maxlen=settings.rebuilds_red)
        self._in_a_row = 0
        self._detail: str | None = None
        self._setting: str | None = None

    def failed(self, detail: str) -> None:
        self._recent.append(self._monotonic())
        self._in_a_row += 1
        self._detail = detail if detail.startswith(SETTING) else self._setting or detail

    def heard(self, setting: str) -> None:
        """error_cb named a setting; called in the lane's thread."""
        self._setting = setting

    def went_well(self) -> None:
        """A batch was published, or steps 1 and 2 have passed."""
        self._in_a_row = 0
        self._setting = None

    def wait_s(self) -> float:
        """Back-off before the next try, with jitter: lanes that failed together do not come back together."""
        doubled: float = self._settings.backoff_first_s * 2 ** min(self._in_a_row - 1, 16)
        return min(doubled, self._settings.backoff_max_s) * random.uniform(0.5, 1.0)  # noqa: S311 - jitter

    @property
    def detail(self) -> str | None:
        """For health: many failures in a short time, and what the last one was."""
        oldest = self._monotonic() - self._settings.rebuilds_window_s
        if len(self._recent) < self._settings.rebuilds_red or self._recent[0] < oldest:
            return None
        return self._detail
