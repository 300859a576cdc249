"""Errors, told apart by what happens next (DESIGN 18).

No message here ever carries a secret, a DSN password or a record's content: callers pass codes,
field paths and sizes.
"""

from __future__ import annotations

from enum import StrEnum


class RejectReason(StrEnum):
    """Why a record is dead-lettered. The list is closed (DESIGN 5)."""

    UNDECODABLE = "undecodable"
    SCHEMA_UNKNOWN = "schema_unknown"
    KEY_MISMATCH = "key_mismatch"
    INVALID_EVENT = "invalid_event"
    TOO_LARGE = "too_large"
    PIN_CONFLICT = "pin_conflict"
    STALE_START = "stale_start"
    EXPIRED_ON_ARRIVAL = "expired_on_arrival"
    FOREIGN_TARGET = "foreign_target"
    ORPHAN_RESUME = "orphan_resume"
    SUBJECT_MISMATCH = "subject_mismatch"
    TOKEN_REFUSED = "token_refused"  # noqa: S105 - a reason, not a token
    CREDENTIAL_IN_BODY = "credential_in_body"
    CONTRACT_UNKNOWN = "contract_unknown"
    ROUTE_PIN_MISMATCH = "route_pin_mismatch"
    INTERNAL = "internal"


class CustodyError(Exception):
    """Base of every error that custody raises on purpose."""


class RecordRejected(CustodyError):
    """One record is at fault: dead-letter it and go on (I13, I16)."""

    def __init__(self, reason: RejectReason, detail: str) -> None:
        super().__init__(f"{reason.value}: {detail}")
        self.reason = reason
        self.detail = detail


class Unavailable(CustodyError):
    """A dependency is not there: pause, back off, try again. Never dead-letters (I13)."""

    def __init__(self, what: str, detail: str = "") -> None:
        super().__init__(f"{what} is not available{': ' + detail if detail else ''}")
        self.what = what
        self.detail = detail


class LaneLost(CustodyError):
    """The fence of a lane failed: somebody else owns it. Drop what was in hand (I8)."""

    def __init__(self, lane_id: int) -> None:
        super().__init__(f"lane {lane_id} has another owner")
        self.lane_id = lane_id


class ToolFailed(CustodyError):
    """A tool said that nothing took effect: a fact for the loop. Code and text may be read by the model."""

    def __init__(self, code: str, text: str = "") -> None:
        super().__init__(code)
        self.code = code
        self.text = text


class ContractInvalid(CustodyError):
    """A manifest, workflow or policy bundle is not well-formed. Names the place in the file."""

    def __init__(self, where: str, detail: str) -> None:
        super().__init__(f"{where}: {detail}")
        self.where = where
        self.detail = detail


class ContractMissing(CustodyError):
    """A pinned contract is not there (or its digest or build differs): the run parks, never falls back
    (I3).
    """

    def __init__(self, kind: str, name: str, version: str, detail: str = "is not published") -> None:
        super().__init__(f"{kind} {name}@{version} {detail}")
        self.kind = kind
        self.name = name
        self.version = version


class ContractConflict(CustodyError):
    """Other content stands already under a published version: refused (DESIGN 10)."""

    def __init__(self, kind: str, name: str, version: str) -> None:
        super().__init__(f"{kind} {name}@{version} is published with other content")


class ModelProfileUnknown(CustodyError):
    """Nobody serves this model profile: the run parks `model_unavailable`, it never falls back (I3)."""

    def __init__(self, model_profile: str) -> None:
        super().__init__(f"model profile {model_profile} is not served")
        self.model_profile = model_profile


class RowRefused(CustodyError):
    """Postgres refused one row's own content (SQLSTATE classes 22, 23, 54): the record at `order` is at
    fault.
    """

    def __init__(self, order: int, sqlstate: str) -> None:
        super().__init__(f"row {order} of the batch was refused with SQLSTATE {sqlstate}")
        self.order = order
        self.sqlstate = sqlstate


class SignalRefused(CustodyError):
    """A run cannot hear this now (I8). Codes, closed: run_unknown, run_ended, not_in_doubt, other_doubt,
    too_early, call_running.
    """

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail


class SettingsError(CustodyError):
    """A setting is wrong: refuse to start and name it, never its value."""

    def __init__(self, setting: str, message: str) -> None:
        super().__init__(f"{setting}: {message}")
        self.setting = setting


class InvariantBroken(CustodyError):
    """Our own bug. Crash: a restart recovers from Postgres, going on may not be safe."""
