"""The .avsc files as a contract: conventions, fingerprints, and room to grow (DESIGN 15)."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from session_custody import wire
from session_custody.core.events import EventDraft, EventKind, ResumeKind, RunResume, RunStart
from session_custody.core.pin import Limits, Resolved, SentPin, Subject
from session_custody.core.run import Status
from session_custody.core.trace import TraceFields
from session_custody.resources import schemas_dir
from session_custody.wire import schemas
from session_custody.wire.encoder import compile_encoder

RECORDS = ["RunStart", "RunResume", "StepEvent", "OutcomeEvent"]


def raw(record: str) -> Any:
    return json.loads((schemas_dir() / f"{record}.avsc").read_text(encoding="utf-8"))


def walk(schema: Any) -> Iterator[Any]:
    yield schema
    if isinstance(schema, list):
        for branch in schema:
            yield from walk(branch)
    elif isinstance(schema, dict):
        for field in schema.get("fields", ()):
            yield field
            yield from walk(field["type"])
        if "items" in schema:
            yield from walk(schema["items"])


def names(schema: Any) -> list[str]:
    return [field["name"] for field in schema["fields"]]


def nested(schema: Any, name: str) -> Any:
    return next(part for part in walk(schema) if is_named(part) and part["name"] == name)


def is_named(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") in ("record", "enum")


@pytest.mark.parametrize("record", RECORDS)
def test_the_conventions_hold(record: str) -> None:
    schema = raw(record)
    assert schema["namespace"] == "session_custody.v1"
    for part in walk(schema):
        if isinstance(part, list):
            assert part[0] == "null"
            assert len(part) == 2
        if isinstance(part, dict) and part.get("type") == "enum":
            assert part["default"] == part["symbols"][0] == "UNKNOWN"
        if isinstance(part, dict) and isinstance(part.get("type"), list):
            assert part["default"] is None
        if is_named(part):
            assert part["name"][0].isupper()
        elif isinstance(part, dict) and "name" in part:
            assert part["name"] == part["name"].lower()
            assert part["doc"]


def test_field_names_are_the_attributes() -> None:
    start, resume, step, outcome = map(raw, RECORDS)
    assert set(names(start)) == set(RunStart.model_fields) - {"pin"} | set(SentPin.model_fields)
    assert set(names(resume)) == set(RunResume.model_fields)
    assert set(names(nested(start, "Subject"))) == set(Subject.model_fields)
    assert names(nested(step, "Trace")) == list(TraceFields.__slots__)
    assert names(nested(outcome, "Trace")) == list(TraceFields.__slots__)
    assert names(nested(step, "Pin")) == list(SentPin.model_fields)
    assert set(names(nested(step, "Resolved"))) == set(Resolved.model_fields)
    assert "limits" in Resolved.model_fields
    assert Limits.model_fields


def test_the_enums_are_complete() -> None:
    assert nested(raw("RunResume"), "ResumeKind")["symbols"][1:] == [kind.value for kind in ResumeKind]
    for record in ("StepEvent", "OutcomeEvent"):
        assert nested(raw(record), "Status")["symbols"][1:] == [status.value for status in Status]
    kinds = [kind.value for kind in EventKind if kind is not EventKind.OUTCOME]
    assert nested(raw("StepEvent"), "StepKind")["symbols"][1:] == kinds
    assert EventDraft.__slots__


@pytest.mark.parametrize("record", ["StepEvent", "OutcomeEvent"])
def test_what_is_left_out_of_the_hash_stands_last(record: str) -> None:
    last = raw(record)["fields"][-3:]
    assert [field["name"] for field in last] == ["payload", "salt", "signature"]
    assert all(field["type"][0] == "null" for field in last)


def test_the_fingerprint_is_the_specifications() -> None:
    # the Avro project's own test vector: the schema "int" has the Rabin fingerprint 0x7275d51a3f395c8f
    assert schemas.fingerprint("int") == (0x7275D51A3F395C8F).to_bytes(8, "little")


def test_every_schema_is_found_by_its_fingerprint() -> None:
    assert {schema.name for schema in schemas.known().values()} == set(schemas.CURRENT)
    assert len({schemas.current(name).fingerprint for name in schemas.CURRENT}) == len(RECORDS)


# ------------------------------------------------------------------ values for any of our schemas


def values(schema: Any, named: dict[str, Any] | None = None) -> st.SearchStrategy[Any]:
    named = {} if named is None else named
    match schema:
        case ["null", inner]:
            return st.none() | values(inner, named)
        case "string":
            return st.text(st.characters(codec="utf-8"), max_size=70)
        case "bytes":
            return st.binary(max_size=70)
        case {"type": "long", "logicalType": "timestamp-micros"}:
            low, high = datetime(1900, 1, 1), datetime(2200, 1, 1)  # noqa: DTZ001
            return st.datetimes(low, high, timezones=st.just(UTC))
        case "int":
            return st.integers(-(2**31), 2**31 - 1)
        case "long":
            return st.integers(-(2**63), 2**63 - 1)
        case "boolean":
            return st.booleans()
        case {"type": "enum"}:
            named[schema["name"]] = st.sampled_from(schema["symbols"])
        case {"type": "array"}:
            return st.lists(values(schema["items"], named), max_size=70)
        case {"type": "record"}:
            members = {field["name"]: values(field["type"], named) for field in schema["fields"]}
            named[schema["name"]] = st.fixed_dictionaries(members)
        case _:
            return _strategy(named[schema])
    return _strategy(named[schema["name"]])


def _strategy(found: Any) -> st.SearchStrategy[Any]:
    assert isinstance(found, st.SearchStrategy)
    return found


@pytest.mark.parametrize("record", RECORDS)
@settings(max_examples=25)
@given(data=st.data())
def test_our_encoder_and_fastavro_agree_byte_for_byte(record: str, data: st.DataObject) -> None:
    schema = schemas.current(f"{schemas.NAMESPACE}.{record}")
    value = data.draw(values(raw(record)))
    stream = BytesIO()
    fastavro.schemaless_writer(stream, schema.parsed, value)
    assert compile_encoder(schema.parsed)(value) == stream.getvalue()


def test_a_type_that_is_not_supported_is_refused_when_compiled() -> None:
    with pytest.raises(ValueError, match="no encoder"):
        compile_encoder({"type": "map", "values": "string"})


# ------------------------------------------------------------------ FULL_TRANSITIVE: room to grow


def grown(record: str) -> Any:
    """Tomorrow's schema: one nullable field more, one enum symbol more."""
    schema = copy.deepcopy(raw(record))
    place = len(schema["fields"]) - 3
    schema["fields"].insert(place, {"name": "later", "type": ["null", "string"], "default": None, "doc": "."})
    for part in walk(schema):
        if isinstance(part, dict) and part.get("type") == "enum":
            part["symbols"].append("later")
    return fastavro.parse_schema(schema)


@pytest.mark.parametrize("record", RECORDS)
@settings(max_examples=25)
@given(data=st.data())
def test_a_nullable_field_can_be_added_both_ways(record: str, data: st.DataObject) -> None:
    today, tomorrow = schemas.current(f"{schemas.NAMESPACE}.{record}").parsed, grown(record)
    value = data.draw(values(raw(record)))
    assert resolved(today, tomorrow, value) == value | {"later": None}
    assert resolved(tomorrow, today, value | {"later": "x"}) == value


def test_an_enum_symbol_of_tomorrow_is_unknown_today() -> None:
    today, tomorrow = schemas.current(schemas.RUN_RESUME).parsed, grown("RunResume")
    fields: dict[str, Any] = dict.fromkeys(names(raw("RunResume")))
    assert resolved(tomorrow, today, fields | {"kind": "later"})["kind"] == "UNKNOWN"


def resolved(writer: Any, reader: Any, value: dict[str, Any]) -> dict[str, Any]:
    stream = BytesIO()
    fastavro.schemaless_writer(stream, writer, value)
    stream.seek(0)
    read = fastavro.schemaless_reader(stream, writer, reader)
    assert isinstance(read, dict)
    return read


def test_a_released_version_is_still_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a folder in which today's schema has grown and the one before is released."""
    for record in RECORDS:
        (tmp_path / f"{record}.avsc").write_text(json.dumps(raw(record)))
    (tmp_path / "released").mkdir()
    (tmp_path / "released" / "RunResume.v1.avsc").write_text(json.dumps(raw("RunResume")))
    later = raw("RunResume")
    later["fields"].append({"name": "later", "type": ["null", "string"], "default": None, "doc": "."})
    (tmp_path / "RunResume.avsc").write_text(json.dumps(later))
    value = wire.encode_resume(RunResume(correlation_id="run-1", kind=ResumeKind.CONTINUE))
    monkeypatch.setattr(schemas, "schemas_dir", lambda: tmp_path)
    caches = (schemas.current, schemas.known, schemas._today)
    for cached in caches:
        cached.cache_clear()
    try:
        decoded = wire.decode_body(value[2:10], value[10:])
    finally:
        monkeypatch.undo()
        for cached in caches:
            cached.cache_clear()
    assert decoded["correlation_id"] == "run-1"
    assert decoded["later"] is None
