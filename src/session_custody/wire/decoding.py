"""Reading Avro: writer schema by fingerprint, every byte consumed, today's schema as the reader's (I13).

fastavro may raise nearly anything for hostile bytes (EOFError, IndexError, OverflowError,
UnicodeDecodeError); all of it means one thing: this value is no record of that schema. Its text may quote
content, so it is dropped.
"""

from __future__ import annotations

from functools import cache
from io import BytesIO
from typing import Any

from fastavro import parse_schema, schemaless_reader

from session_custody.core.errors import RecordRejected, RejectReason
from session_custody.wire import schemas
from session_custody.wire.schemas import WireSchema


def writer_schema(fingerprint: bytes) -> WireSchema:
    """The schema of a fingerprint. Raises RecordRejected `schema_unknown`."""
    schema = schemas.known().get(fingerprint)
    if schema is None:
        raise RecordRejected(
            RejectReason.SCHEMA_UNKNOWN, f"no schema with fingerprint {fingerprint.hex()} is known here"
        )
    return schema


def decode_body(fingerprint: bytes, body: bytes) -> dict[str, Any]:
    """An unframed body as today's record: fields added since are null, unknown enum symbols are UNKNOWN.

    Times come as aware datetimes. Raises RecordRejected: `schema_unknown`, `undecodable`.
    """
    return decode_with(writer_schema(fingerprint), body)


def decode_with(writer: WireSchema, body: bytes) -> dict[str, Any]:
    """`decode_body` where the writer schema is in hand."""
    today = schemas.current(writer.name) if writer.name in schemas.CURRENT else writer
    reader = None if today.fingerprint == writer.fingerprint else today.parsed
    stream = BytesIO(body)
    record = _read(stream, writer.parsed, reader, writer.name)
    left = len(body) - stream.tell()
    if left:
        raise RecordRejected(
            RejectReason.UNDECODABLE, f"{left} bytes are left after a whole {_short(writer.name)}"
        )
    return record


def decode_trace(fingerprint: bytes, body: bytes) -> dict[str, Any]:
    """Only the 11 trace fields of an event: its first fields are read, the rest is not looked at."""
    writer = writer_schema(fingerprint)
    trace: dict[str, Any] = _read(BytesIO(body), _until_trace(fingerprint), None, writer.name)["trace"]
    return trace


@cache
def _until_trace(fingerprint: bytes) -> Any:
    parsed = writer_schema(fingerprint).parsed
    names = [field["name"] for field in parsed["fields"]]
    plain = {key: value for key, value in parsed.items() if not key.startswith("__")}
    return parse_schema({**plain, "fields": parsed["fields"][: names.index("trace") + 1]})


def _read(stream: BytesIO, writer: Any, reader: Any, name: str) -> dict[str, Any]:
    try:
        record = schemaless_reader(stream, writer, reader)
    except Exception as error:  # noqa: BLE001 - see the module's docstring
        kind = type(error).__name__
    else:
        if isinstance(record, dict):
            return record
        kind = "not a record"
    # outside the handler: the cause may quote the value
    raise RecordRejected(RejectReason.UNDECODABLE, f"the body is no {_short(name)} ({kind})")


def _short(name: str) -> str:
    return name.rpartition(".")[2]
