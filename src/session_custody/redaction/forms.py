"""The forms in which a known value may stand in a text: as it is, escaped, encoded, within an encoding."""

from __future__ import annotations

import base64
import json
import re
from typing import Final
from urllib.parse import quote, quote_plus

FORM_CHARS_MIN: Final = 8
"""Shorter pieces of an encoding stand in innocent texts too."""

_BITS_OF_BYTE: Final = 8
_BITS_OF_CHAR: Final = 6


def forms_of(value: str) -> set[str]:
    """Every form that can be told in advance. Escapes of single characters are `escaped_pattern`'s."""
    raw = value.encode("utf-8", "surrogatepass")
    forms = {value, repr(value)[1:-1], value.replace("'", "''"), raw.hex(), raw.hex().upper()}
    for ascii_only in (True, False):
        once = json.dumps(value, ensure_ascii=ascii_only)[1:-1]
        twice = json.dumps(once, ensure_ascii=ascii_only)[1:-1]
        forms |= {once, twice, once.replace("/", "\\/")}
    for encoded in (quote(raw, safe=""), quote(raw), quote_plus(raw)):
        forms |= {encoded, re.sub("%[0-9A-F]{2}", lambda found: found.group().lower(), encoded)}
    for offset in range(3):
        inside = _base64_inside(raw, offset)
        forms |= {inside, inside.replace("+", "-").replace("/", "_")}
    return {form for form in forms if len(form) >= FORM_CHARS_MIN}


def _base64_inside(raw: bytes, offset: int) -> str:
    """The characters that stand for this value alone when `offset` bytes (modulo 3) are before it."""
    text = base64.b64encode(b"\0" * offset + raw).decode()
    first = -(-offset * _BITS_OF_BYTE // _BITS_OF_CHAR)
    last = (offset + len(raw)) * _BITS_OF_BYTE // _BITS_OF_CHAR
    return text[first:last]


def escaped_pattern(value: str) -> str:
    r"""A pattern for the value with any of its characters written as \uXXXX or %XX, in either case."""
    return "".join(f"(?:{re.escape(char)}|{_unicode_escape(char)}|{_percent(char)})" for char in value)


def _percent(char: str) -> str:
    return "".join(f"%(?i:{byte:02x})" for byte in char.encode("utf-8", "surrogatepass"))


def _unicode_escape(char: str) -> str:
    units = char.encode("utf-16-be", "surrogatepass").hex()
    parts = (units[place : place + 4] for place in range(0, len(units), 4))
    return "".join(rf"\\+u(?i:{part})" for part in parts)
