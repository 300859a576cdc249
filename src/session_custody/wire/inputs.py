"""Station 2: a record of the input topic as RunStart or RunResume (DESIGN 5, 15).

Two steps, told apart by the reason that they refuse with. *Decoding*: framing, writer schema, every byte
(`undecodable`, `schema_unknown`, `too_large`). *Shape*: the models of `core.events`, and what stands beside
them in this module (`invalid_event`, `too_large`). A refusal names field paths and kinds of error, never a
value.

Pin fields are flat on the wire and nested in the model: the model keeps what is frozen together, the wire
keeps what producers write.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, Final, TypeVar

from pydantic import BaseModel, JsonValue, ValidationError

from session_custody.core import bounds
from session_custody.core.canonical import accept
from session_custody.core.errors import RecordRejected, RejectReason
from session_custody.core.events import ResumeKind, RunResume, RunStart
from session_custody.core.pin import SentPin
from session_custody.wire import schemas
from session_custody.wire.decoding import decode_with, writer_schema
from session_custody.wire.encoder import Encode, compile_encoder
from session_custody.wire.framing import SINGLE_OBJECT, Framing

RECORD_BYTES_MAX: Final = 1024 * 1024
TEXT_CHARS_MAX: Final = 2_000
ACTORS_MAX: Final = 16
ROLES_MAX: Final = 100
ERRORS_SHOWN_MAX: Final = 5

PIN_FIELDS: Final = tuple(SentPin.model_fields)
_DOCUMENTS: Final = frozenset({"input", "answer"})

Model = TypeVar("Model", bound=BaseModel)


def decode_input(value: bytes | None, framing: Framing = SINGLE_OBJECT) -> RunStart | RunResume:
    """Decode one value. Raises RecordRejected, and nothing else, for whatever bytes (I13, I16)."""
    if not value:
        raise RecordRejected(RejectReason.UNDECODABLE, "the record has no value")
    if len(value) > RECORD_BYTES_MAX:
        raise RecordRejected(
            RejectReason.TOO_LARGE, f"{len(value)} bytes; a record has at most {RECORD_BYTES_MAX}"
        )
    framed = framing.unframe(value)
    writer = writer_schema(framed.fingerprint)
    if writer.name not in {schemas.RUN_START, schemas.RUN_RESUME}:
        kind = writer.name.rpartition(".")[2]
        raise RecordRejected(RejectReason.INVALID_EVENT, f"a {kind} does not belong on the input topic")
    fields = decode_with(writer, framed.body)
    if writer.name == schemas.RUN_START:
        return start_from_fields(fields)
    return resume_from_fields(fields)


def start_from_fields(fields: dict[str, Any]) -> RunStart:
    """Shape of a start whose fields stand flat, as on the wire. Raises RecordRejected."""
    _check_texts(fields)
    _check_document(fields.get("input"), "input", bounds.INPUT_BYTES_MAX)
    flat = dict(fields)
    pin = {name: flat.pop(name) for name in PIN_FIELDS if name in flat}
    start = _parsed(RunStart, {**flat, "pin": pin})
    _check_list(start.subject.actor, "subject.actor", ACTORS_MAX)
    if start.tenant is not None and start.tenant != start.subject.tenant:
        raise _invalid("tenant: is not the subject's")
    return start


def resume_from_fields(fields: dict[str, Any]) -> RunResume:
    """Shape of a resume. Raises RecordRejected."""
    _check_texts(fields)
    if fields.get("kind") == "UNKNOWN":
        raise _invalid("kind: unknown")
    if fields.get("answer") is not None:
        _check_document(fields["answer"], "answer", bounds.ANSWER_BYTES_MAX)
    resume = _parsed(RunResume, fields)
    if (resume.answer is not None) != (resume.kind is ResumeKind.SIGNAL):
        raise _invalid("answer: stands with kind signal, and only there")
    if resume.subject is not None:
        _check_list(resume.subject.actor, "subject.actor", ACTORS_MAX)
        if resume.tenant is not None and resume.tenant != resume.subject.tenant:
            raise _invalid("tenant: is not the subject's")
    if resume.answered_by is not None:
        _check_list(resume.answered_by.roles, "answered_by.roles", ROLES_MAX)
    return resume


def parse_input(text: str) -> JsonValue:
    """The document in `input` or `answer`, by core.canonical's policy. RecordRejected: `invalid_event`."""
    return _document(text, "input")


def encode_start(start: RunStart, framing: Framing = SINGLE_OBJECT) -> bytes:
    """The value of a start record, as `decode_input` reads it."""
    fields = start.model_dump(exclude={"pin"}) | start.pin.model_dump()
    return framing.frame(schemas.current(schemas.RUN_START).fingerprint, _encoder(schemas.RUN_START)(fields))


def encode_resume(resume: RunResume, framing: Framing = SINGLE_OBJECT) -> bytes:
    """The value of a resume record, as `decode_input` reads it."""
    fields = resume.model_dump() | {"kind": resume.kind.value}
    return framing.frame(
        schemas.current(schemas.RUN_RESUME).fingerprint, _encoder(schemas.RUN_RESUME)(fields)
    )


@cache
def _encoder(name: str) -> Encode:
    return compile_encoder(schemas.current(name).parsed)


def _parsed(model: type[Model], fields: dict[str, Any]) -> Model:
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        found = [
            (".".join(map(str, detail["loc"])).removeprefix("pin."), detail["type"])
            for detail in error.errors(include_url=False, include_input=False, include_context=False)
        ]
    shown = "; ".join(f"{path}: {kind}" for path, kind in found[:ERRORS_SHOWN_MAX])
    more = len(found) - ERRORS_SHOWN_MAX
    raise _invalid(shown + (f"; {more} more" if more > 0 else ""))


def _check_texts(fields: dict[str, Any]) -> None:
    # Outside of documents a NUL can stand in no row, and an unbounded text in none either.
    for path, text in _texts(fields, ""):
        if "\x00" in text:
            raise _invalid(f"{path}: holds a NUL")
        if len(text) > TEXT_CHARS_MAX:
            raise _invalid(f"{path}: longer than {TEXT_CHARS_MAX} characters")


def _texts(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item, path)
    elif isinstance(value, dict):
        for name, item in value.items():
            if name not in _DOCUMENTS:
                yield from _texts(item, f"{path}.{name}" if path else name)


def _check_document(text: Any, field: str, bytes_max: int) -> None:
    if not isinstance(text, str):
        raise _invalid(f"{field}: is the text of a JSON document")
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > bytes_max:
        raise RecordRejected(RejectReason.TOO_LARGE, f"{field}: {size} bytes; at most {bytes_max}")
    _document(text, field)


def _document(text: str, field: str) -> JsonValue:
    try:
        return accept(text)
    except ValueError as error:
        problem = str(error)
    raise _invalid(f"{field}: {problem}")


def _check_list(items: tuple[str, ...], path: str, length_max: int) -> None:
    if len(items) > length_max:
        raise _invalid(f"{path}: {len(items)} entries; at most {length_max}")


def _invalid(detail: str) -> RecordRejected:
    return RecordRejected(RejectReason.INVALID_EVENT, detail)
