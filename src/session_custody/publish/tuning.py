"""Station 12: what publication can be told, with its defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from session_custody.core.errors import SettingsError

TRANSACTION_TIMEOUT_MAX_S: Final = 15.0
"""A dead owner's open transaction stalls every read_committed reader for so long."""


@dataclass(frozen=True, slots=True)
class PublishSettings:
    """`group` is the first part of every transactional id."""

    group: str
    mode: Literal["transactional", "at_least_once"] = "transactional"
    type_prefix: str = "custody"
    transaction_timeout_s: float = 10.0
    """Also the deadline of every single call to Kafka."""
    batch_rows_max: int = 500
    batch_bytes_max: int = 4 * 1024 * 1024
    poll_s: float = 2.0
    """How often the outbox is looked at when nobody rings."""
    floor_every_s: float = 0.25
    """The floor follows the cursor by so much and what the statement takes (DESIGN 6: within a second)."""
    idle_close_s: float = 900.0
    """A producer without work is closed: a broker forgets producers that were silent for days."""
    backoff_first_s: float = 0.1
    backoff_max_s: float = 5.0
    rebuilds_red: int = 5
    """So many failures within `rebuilds_window_s` are trouble that health shows."""
    rebuilds_window_s: float = 120.0
    recheck_s: float = 5.0
    """How often a lane that failed closed looks for an operator's word."""

    def __post_init__(self) -> None:
        if not 0 < self.transaction_timeout_s <= TRANSACTION_TIMEOUT_MAX_S:
            raise SettingsError(
                "transaction_timeout_s", f"above 0, at most {TRANSACTION_TIMEOUT_MAX_S:.0f} s"
            )

    @property
    def claim_wait_s(self) -> float:
        """On a shared cursor partition another lane's open transaction may hide the claim until its end."""
        return self.transaction_timeout_s + 5.0
