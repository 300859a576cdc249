"""JSON Pointers (RFC 6901) of a manifest: what a call saves, and what an event may carry (DESIGN 7, 10)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pydantic import JsonValue


class _Nothing:
    pass


NOTHING = _Nothing()
"""No value stands at a pointer; JSON null is a value."""


def at(document: JsonValue, pointer: str) -> JsonValue | _Nothing:
    """The value at `pointer`, or NOTHING. What is no pointer finds nothing: the manifest was checked."""
    if pointer == "":
        return document
    if not pointer.startswith("/"):
        return NOTHING
    found: JsonValue = document
    for raw in pointer[1:].split("/"):
        token = raw.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict):
            if token not in found:
                return NOTHING
            found = found[token]
        elif isinstance(found, list):
            if not (token.isascii() and token.isdigit()) or (len(token) > 1 and token[0] == "0"):
                return NOTHING
            if len(token) > 9 or int(token) >= len(found):
                return NOTHING
            found = found[int(token)]
        else:
            return NOTHING
    return found


def shown(document: JsonValue, pointers: Iterable[str]) -> JsonValue:
    """`{pointer: value}` of those that stand in the document; None where there are none: no payload."""
    values = {pointer: at(document, pointer) for pointer in pointers}
    visible = {pointer: value for pointer, value in values.items() if not isinstance(value, _Nothing)}
    return visible or None


def saved(result: JsonValue, saves: Mapping[str, str]) -> dict[str, JsonValue]:
    """Working slots that this result fills."""
    values = {slot: at(result, pointer) for slot, pointer in saves.items()}
    return {slot: value for slot, value in values.items() if not isinstance(value, _Nothing)}
