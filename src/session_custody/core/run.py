"""The run: statuses, the one transition table, and the checkpoint (DESIGN 9, 11).

Rules of this file: every change of status anywhere is checked against `TRANSITIONS`; the diagram in docs and
the CHECK in `store/schema.sql` are generated from, or compared with, it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from pydantic import JsonValue

from session_custody.core.errors import InvariantBroken


class Status(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"
    PARKED = "parked"
    IN_DOUBT = "in_doubt"
    SUCCEEDED = "succeeded"
    PARTIAL = "partial"
    ESCALATED = "escalated"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"

    @property
    def terminal(self) -> bool:
        return self in TERMINAL


TERMINAL: Final = frozenset(
    {Status.SUCCEEDED, Status.PARTIAL, Status.ESCALATED, Status.FAILED, Status.CANCELLED, Status.EXPIRED}
)
DRIVEN: Final = frozenset({Status.QUEUED, Status.RUNNING})
"""Statuses in which the lane's owner drives the run; in the other non-terminal ones it holds no slot."""

_ENDS: Final = TERMINAL
TRANSITIONS: Final[dict[Status, frozenset[Status]]] = {
    Status.QUEUED: frozenset({Status.QUEUED, Status.RUNNING, Status.WAITING, Status.PARKED, Status.IN_DOUBT})
    | _ENDS,
    Status.RUNNING: frozenset({Status.RUNNING, Status.WAITING, Status.PARKED, Status.IN_DOUBT}) | _ENDS,
    Status.WAITING: frozenset({Status.WAITING, Status.QUEUED, Status.RUNNING, Status.IN_DOUBT}) | _ENDS,
    Status.PARKED: frozenset({Status.PARKED, Status.QUEUED, Status.RUNNING, Status.IN_DOUBT}) | _ENDS,
    Status.IN_DOUBT: frozenset({Status.IN_DOUBT, Status.QUEUED, Status.RUNNING, Status.PARKED}) | _ENDS,
    **{status: frozenset() for status in TERMINAL},
}


def check_transition(before: Status, after: Status) -> None:
    """Raise InvariantBroken unless the table allows it. Terminal statuses absorb (I14)."""
    if after not in TRANSITIONS[before]:
        raise InvariantBroken(f"no transition from {before.value} to {after.value}")


class ParkReason(StrEnum):
    """Why a run is parked; closed (DESIGN 5)."""

    POLICY_UNAVAILABLE = "policy_unavailable"
    CONTRACT_MISSING = "contract_missing"
    MODEL_UNAVAILABLE = "model_unavailable"
    AWAITING_AUTH = "awaiting_auth"
    SUSPECT = "suspect"
    NOT_STARTED = "not_started"
    OPERATOR = "operator"

    @property
    def wakes_by_itself(self) -> bool:
        return self in _SELF_WAKING


_SELF_WAKING: Final = frozenset(
    {ParkReason.POLICY_UNAVAILABLE, ParkReason.CONTRACT_MISSING, ParkReason.MODEL_UNAVAILABLE}
)


@dataclass(frozen=True, slots=True)
class PendingIntent:
    """A write whose intent is committed and whose end is not (I5, I6, DESIGN 8).

    `not_found` counts the tool's NotFounds: the key's suffix after the first (`run_id/loop_step/ordinal/n`).
    `sent` says that a send may have left: anything but a return value of a later send leaves it pending.
    """

    loop_step: int
    ordinal: int
    key: str
    args_digest: str
    tool: str
    not_found: int = 0


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The hot row of a run, small (a row beyond 2 KB is two to three times slower). Absolute values only.

    `attempts` counts sends of the pending write, or failed askings of the model in this turn when none is
    pending. `parks` counts parks in a row (the back-off's exponent); a fact zeroes it.
    `wake_at` is set only while waiting or parked; `not_after` only while an intent is pending.
    `loaded` holds contracts that admission could not resolve yet and the first load recorded, as JSON of
    `Resolved`.
    """

    status: Status
    loop_step: int
    stage: str
    version: int
    head_seq: int
    head_hash: bytes
    attempts: int = 0
    parks: int = 0
    suspect_count: int = 0
    stop_requested: str | None = None
    """None, 'cancel' or 'expiry': the run ends so at its next boundary, or once its pending intent has
    ended.
    """
    park_reason: ParkReason | None = None
    wake_at: datetime | None = None
    pending: PendingIntent | None = None
    not_after: datetime | None = None
    call_running: bool = False
    doubt_seq: int | None = None
    """event_seq of the in_doubt that stands; a resolve names it."""
    last_tool: str | None = None
    working: dict[str, JsonValue] | None = None
    loaded: str | None = None
    format: int = 1
