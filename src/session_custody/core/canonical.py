"""Documents: one policy at the boundary, one canonical form, one digest (DESIGN 11).

A *document* is a JSON value that a person, a model or a tool gave us. The same value must stand in the
row, in the event and under the hash, so it passes `accept` or `tame` exactly once, where it comes in:

| found | in what a producer sends (`accept`) | in what a model or tool returns (`tame`) |
|---|---|---|
| NUL in a string or key | kept (rows hold JSON text, where it is an escape) | kept |
| lone surrogate | refused | replaced by U+FFFD |
| NaN, Infinity | refused | the string "NaN", "Infinity", "-Infinity" |
| integer beyond 2^53 - 1 | refused | its decimal string |
| nesting deeper than JSON_DEPTH_MAX | refused | `ValueError`: the result is a failed one |
| duplicate keys | refused | cannot be told: already parsed |

`rfc8785` is the one import beside pydantic in `core`: it is a pure function, and a second canonical
form of our own would be a second truth.
"""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any

import rfc8785
from pydantic import JsonValue

from session_custody.core.bounds import JSON_DEPTH_MAX

SAFE_INTEGER_MAX = 2**53 - 1

_SORTED = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False)
_COMPACT = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)
_ATOMS = frozenset({str, bool, type(None)})


def accept(text: str) -> JsonValue:
    """Parse a document that a producer sent. Raises ValueError, with a reason and no content of it."""
    try:
        value = json.loads(
            text, object_pairs_hook=_unique_keys, parse_constant=_refuse_constant, parse_int=_safe_integer
        )
    except RecursionError:
        raise ValueError(f"nested deeper than {JSON_DEPTH_MAX}") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"no JSON at character {error.pos}") from None
    return _checked(value, 0)


def tame(value: object) -> JsonValue:
    """Bring what a tool or model returned into a document. Raises ValueError when it is no JSON or too
    deep.
    """
    return _tamed(value, 0)


def canonical(value: JsonValue) -> bytes:
    """RFC 8785 bytes of a document that has passed `accept` or `tame`.

    Almost every document is plain, and then the standard library's encoder in C writes the very same bytes
    ten times faster (a property test compares the two). Everything else is left to `rfc8785`.
    """
    if _plain(value):
        try:
            return _SORTED.encode(value).encode()
        except UnicodeEncodeError:
            pass  # a lone surrogate: rfc8785 says what is wrong
    return rfc8785.dumps(value)


def _plain(value: object) -> bool:
    """No float (ECMAScript writes them in its own way), no integer that is refused, and keys whose order by
    code points is their order by UTF-16 units.
    """
    kind = type(value)
    if kind in _ATOMS:
        return True
    if kind is int:
        return -SAFE_INTEGER_MAX <= value <= SAFE_INTEGER_MAX  # type: ignore[operator]
    if kind is dict:
        for key, item in value.items():  # type: ignore[attr-defined]
            if type(key) is not str or not key.isascii():
                return False
            if type(item) not in _ATOMS and not _plain(item):
                return False
        return True
    if kind is list:
        return all(type(item) in _ATOMS or _plain(item) for item in value)  # type: ignore[attr-defined]
    return False


def compact(value: JsonValue) -> str:
    """The text that rows hold: short, key order kept, never a raw NUL (Postgres text refuses it)."""
    return _COMPACT.encode(value)


def digest(value: JsonValue) -> bytes:
    """SHA-256 of the canonical form: sent digests, arguments digests, contract digests."""
    return hashlib.sha256(canonical(value)).digest()


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("an object names a key twice")
    return members


def _refuse_constant(_: str) -> float:
    raise ValueError("NaN and Infinity are no JSON")


def _safe_integer(digits: str) -> int:
    # int() of a long digit string is quadratic: look at its length first.
    if len(digits) > 17 or abs(int(digits)) > SAFE_INTEGER_MAX:
        raise ValueError("an integer is beyond 2^53 - 1; send it as a string")
    return int(digits)


def _checked(value: Any, depth: int) -> JsonValue:
    if depth > JSON_DEPTH_MAX:
        raise ValueError(f"nested deeper than {JSON_DEPTH_MAX}")
    if isinstance(value, str):
        _refuse_surrogates(value)
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError("a number is not finite")  # 1e999 parses to infinity
    elif isinstance(value, list):
        for item in value:
            _checked(item, depth + 1)
    elif isinstance(value, dict):
        for key, item in value.items():
            _refuse_surrogates(key)
            _checked(item, depth + 1)
    return value  # type: ignore[no-any-return]


def _refuse_surrogates(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("a string holds a lone surrogate") from None


def _tamed(value: object, depth: int) -> JsonValue:
    if depth > JSON_DEPTH_MAX:
        raise ValueError(f"nested deeper than {JSON_DEPTH_MAX}")
    match value:
        case None | bool():
            return value
        case str():
            return _whole_text(value)
        case int():
            return int(value) if abs(value) <= SAFE_INTEGER_MAX else str(value)
        case float():
            return float(value) if math.isfinite(value) else _named_number(value)
        case list() | tuple():
            return [_tamed(item, depth + 1) for item in value]
        case dict():
            return {_whole_text(str(key)): _tamed(item, depth + 1) for key, item in value.items()}
        case _:
            raise ValueError(f"a {type(value).__name__} is no JSON")


def _named_number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def _whole_text(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return str(text)
