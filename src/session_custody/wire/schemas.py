"""The Avro schemas by name and by fingerprint (DESIGN 15).

`schemas/*.avsc` are today's: what we write, and the reader's side of every resolution. `schemas/released/`
holds frozen versions: a record written with one of them is still read. Nothing else is known here: a
fingerprint that is in neither is `schema_unknown`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from fastavro.schema import fingerprint as avro_fingerprint
from fastavro.schema import parse_schema, to_parsing_canonical_form

from session_custody.resources import schemas_dir

NAMESPACE: Final = "session_custody.v1"
RUN_START: Final = f"{NAMESPACE}.RunStart"
RUN_RESUME: Final = f"{NAMESPACE}.RunResume"
STEP_EVENT: Final = f"{NAMESPACE}.StepEvent"
OUTCOME_EVENT: Final = f"{NAMESPACE}.OutcomeEvent"
CURRENT: Final = (RUN_START, RUN_RESUME, STEP_EVENT, OUTCOME_EVENT)


@dataclass(frozen=True, slots=True, eq=False)
class WireSchema:
    """One parsed schema. `fingerprint`: CRC-64-AVRO of the parsing canonical form, 8 bytes little-endian."""

    name: str
    fingerprint: bytes
    parsed: Any
    text: str


def read_schema(file: Path) -> WireSchema:
    """Parse one .avsc file."""
    return parse(file.read_text(encoding="utf-8"))


def parse(text: str) -> WireSchema:
    """Parse the text of an .avsc file."""
    raw = json.loads(text)
    parsed: Any = parse_schema(raw)
    return WireSchema(parsed["name"], fingerprint(raw), parsed, text)


def fingerprint(schema: Any) -> bytes:
    """CRC-64-AVRO of the parsing canonical form, as the 8 bytes that stand in a single-object header."""
    # fastavro prints the fingerprint's bytes in the order in which they stand in that header.
    return bytes.fromhex(avro_fingerprint(to_parsing_canonical_form(schema), "CRC-64-AVRO"))


@cache
def current(name: str) -> WireSchema:
    """Today's version of one record type, by its full name."""
    return _today()[name]


@cache
def known() -> dict[bytes, WireSchema]:
    """Every writer schema that can be read: today's and the released ones."""
    schemas = {schema.fingerprint: schema for schema in _today().values()}
    for file in sorted((schemas_dir() / "released").rglob("*.avsc")):
        schema = read_schema(file)
        schemas.setdefault(schema.fingerprint, schema)
    return schemas


@cache
def _today() -> dict[str, WireSchema]:
    files = (schemas_dir() / f"{name.rpartition('.')[2]}.avsc" for name in CURRENT)
    return {schema.name: schema for schema in map(read_schema, files)}
