"""Avro's binary encoding, compiled from a schema once, for the hot path (DESIGN 7).

An event has about forty fields, most of them null in a union. fastavro's general writer takes 100 us for one;
closures made once per schema take about 10, and what every event of a run repeats is encoded once per run.
Decoding stays fastavro's. The two must agree byte for byte: a property test says so over every schema.

Only what our schemas use is supported; anything else is refused when the encoder is compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from session_custody.core.canonical import tame

Encode = Callable[[Any], bytes]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_SMALL: Final = tuple(
    bytes([number << 1]) if number < 64 else bytes([(number << 1) & 0x7F | 0x80, number >> 6])
    for number in range(4096)
)
NULL: Final = b"\x00"


def compile_encoder(schema: Any) -> Encode:
    """An encoder for a parsed schema. Takes dictionaries for records; absent members count as null."""
    return _compile(schema, {})


def compile_fields(schema: Any, fields: Sequence[str]) -> Encode:
    """An encoder for some consecutive fields of a record, to be joined with the others by concatenation."""
    named: dict[str, Encode] = {}
    members = [(field["name"], _compile(field["type"], named)) for field in schema["fields"]]
    chosen = [(name, encode) for name, encode in members if name in fields]
    if [name for name, _ in chosen] != list(fields):
        raise ValueError("the fields are not in the order of the schema")
    return _joined(chosen)


def encode_long(value: int) -> bytes:
    """Avro int or long: zigzag, then seven bits to a byte."""
    if 0 <= value < 4096:
        return _SMALL[value]
    rest = (value << 1) ^ (value >> 63)
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def encode_bytes(value: bytes) -> bytes:
    return encode_long(len(value)) + value


def encode_string(value: str) -> bytes:
    try:
        data = value.encode()
    except UnicodeEncodeError:  # the policy for what models and tools return (core.canonical)
        data = str(tame(value)).encode()
    return encode_long(len(data)) + data


def encode_micros(value: datetime) -> bytes:
    """timestamp-micros of an aware datetime."""
    return encode_long((value - _EPOCH) // _MICROSECOND)


def enum_codes(schema: Any) -> dict[str, bytes]:
    """Bytes of each symbol of an enum; a StrEnum's member finds its own."""
    return {symbol: encode_long(place) for place, symbol in enumerate(schema["symbols"])}


def nullable(encode: Encode) -> Encode:
    """`["null", T]`: branch 0 is null, branch 1 the value."""

    def encode_union(value: Any) -> bytes:
        return NULL if value is None else b"\x02" + encode(value)

    return encode_union


def _compile(schema: Any, named: dict[str, Encode]) -> Encode:
    match schema:
        case ["null", inner]:
            return nullable(_compile(inner, named))
        case "string" | {"type": "string"}:
            return encode_string
        case "bytes" | {"type": "bytes"}:
            return encode_bytes
        case {"type": "long", "logicalType": "timestamp-micros"}:
            return encode_micros
        case "int" | "long" | {"type": "int" | "long"}:
            return encode_long
        case "boolean" | {"type": "boolean"}:
            return lambda value: b"\x01" if value else NULL
        case {"type": "enum", "name": name}:
            named[name] = enum_codes(schema).__getitem__
            return named[name]
        case {"type": "array", "items": items}:
            return _array(_compile(items, named))
        case {"type": "record", "name": name, "fields": fields}:
            members = [(field["name"], _compile(field["type"], named)) for field in fields]
            named[name] = _joined(members)
            return named[name]
        case str() if schema in named:
            return named[schema]
        case _:
            raise ValueError("a type of this schema has no encoder here")


def _array(encode: Encode) -> Encode:
    def encode_array(items: Sequence[Any]) -> bytes:
        if not items:
            return NULL
        return encode_long(len(items)) + b"".join(map(encode, items)) + NULL

    return encode_array


def _joined(members: Sequence[tuple[str, Encode]]) -> Encode:
    def encode_record(value: Mapping[str, Any]) -> bytes:
        get = value.get
        return b"".join([encode(get(name)) for name, encode in members])

    return encode_record
