"""Station 2: a record as a start or a resume, or as refused with its reason (I11, I13, I16, DESIGN 5).

Credentials come first: a record that carries one in a header is refused whatever its value is, and those
header values go no further, not even into its dead letter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from session_custody import faults
from session_custody.core import admission
from session_custody.core.errors import RecordRejected, RejectReason
from session_custody.core.events import RunResume, RunStart
from session_custody.intake.record import Headers, Record
from session_custody.telemetry import STATION_ERRORS, log
from session_custody.wire import InputHeaders, decode_input, input_headers, without_forbidden

UNREAD: Final = InputHeaders()


@dataclass(frozen=True, slots=True)
class Decoded:
    """`event` or `refused`, never both. `kept_headers` are those that may be stored."""

    record: Record
    order: int
    headers: InputHeaders
    kept_headers: Headers
    event: RunStart | RunResume | None
    refused: RecordRejected | None

    @property
    def type(self) -> str:
        """Label of metrics."""
        match self.event:
            case RunStart():
                return "start"
            case RunResume():
                return "resume"
            case _:
                return "unknown"


def decode(record: Record, order: int) -> Decoded:
    """Never raises: what our own bugs trip over is dead-lettered `internal`, its neighbours go on (I16)."""
    faults.reach("decode.before", offset=record.offset)
    headers, event, refused = UNREAD, None, None
    kept: Headers = ()
    try:
        headers = input_headers(record.headers)
        kept = tuple(without_forbidden(record.headers))
        event = _event(record, headers)
    except RecordRejected as rejected:
        refused = rejected
    except Exception as error:  # noqa: BLE001 - poison stays alone (I16)
        refused = unexpected("decode", error)
    faults.reach("decode.after", offset=record.offset)
    return Decoded(record, order, headers, kept, event, refused)


def unexpected(station: str, error: Exception) -> RecordRejected:
    """Our own bug with one record. The error's text may hold content: only its class is told."""
    STATION_ERRORS.labels(station, type(error).__name__).inc()
    log.error("a record tripped over a bug of ours", station=station, error=type(error).__name__)
    return RecordRejected(RejectReason.INTERNAL, f"{station}: {type(error).__name__}")


def _event(record: Record, headers: InputHeaders) -> RunStart | RunResume:
    if headers.forbidden:
        names = ", ".join(headers.forbidden)
        raise RecordRejected(RejectReason.TOKEN_REFUSED, f"headers that carry a credential: {names}")
    if record.unreadable:
        raise RecordRejected(RejectReason.UNDECODABLE, "a header's name is no UTF-8")
    event = decode_input(record.value)
    admission.check_key(record.key, event)
    admission.check_shape(event)
    return event
