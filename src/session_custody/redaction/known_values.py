"""The registry of known values, and the mask over every text that leaves.

A value becomes `[redacted:<mark>]`. The mark is keyed with a random key of this process: it tells two secrets
apart in one log and is of no use to somebody who wants to guess.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import threading
from collections.abc import Callable, Iterable
from typing import Final

from session_custody.core.secret import Secret
from session_custody.redaction.forms import escaped_pattern, forms_of
from session_custody.telemetry import REDACTIONS

VALUE_CHARS_MIN: Final = 8
WORD_CHARS_MIN: Final = 12
VALUE_CHARS_MAX: Final = 64 * 1024
VALUES_MAX: Final = 2_000
MARK_CHARS: Final = 8
SAYS_AGAIN: Final = frozenset({"inference"})
"""Sinks that are given a whole conversation in every turn."""
REMEMBERED_MAX: Final = 8_192
REMEMBERED_CHARS_MAX: Final = 2_048
_WORD: Final = re.compile(r"[A-Za-z]+|[0-9]+")
_ESCAPE: Final = re.compile(r"\\u[0-9A-Fa-f]{4}|%[0-9A-Fa-f]{2}")


class KnownValues:
    """Thread-safe. Reading never waits: a new value swaps in a new table."""

    def __init__(self, values: Iterable[str | Secret] = ()) -> None:
        self._lock = threading.Lock()
        self._key = secrets.token_bytes(16)
        self._values: dict[str, str] = {}
        self._forms: tuple[str, ...] = ()
        self._shortest = 0
        self._clean: set[str] = set()
        self._marks: dict[str, str] = {}
        self._pattern: re.Pattern[str] | None = None
        self._escaped: tuple[tuple[re.Pattern[str], str], ...] = ()
        self.add(*values)

    def add(self, *values: str | Secret) -> None:
        """Know these values from now on. One that is too short or a plain word is not taken: masking it would
        spoil innocent texts everywhere.
        """
        with self._lock:
            for given in values:
                value = given.reveal("redaction") if isinstance(given, Secret) else given
                if _worth_it(value) and len(self._values) < VALUES_MAX:
                    self._values.setdefault(value, self._mark(value))
            marks = {form: mark for value, mark in self._values.items() for form in forms_of(value)}
            # longest first, so that a form is not cut by another one inside of it
            forms = tuple(sorted(marks, key=len, reverse=True))
            # first: values are only added, so whoever reads meanwhile looks into more texts, never into fewer
            self._shortest = min(map(len, forms), default=0)
            self._pattern = re.compile("|".join(map(re.escape, forms))) if forms else None
            self._escaped = tuple(
                (re.compile(escaped_pattern(value)), mark) for value, mark in self._values.items()
            )
            self._marks = marks
            self._forms = forms
            # last: a text that was judged by the values of before goes into the set of before
            self._clean = set()

    def __len__(self) -> int:
        return len(self._values)

    def mask_again(self, text: str, location: str) -> str:
        """`mask` for a sink that is given the same texts again and again: those without any value are
        remembered until a value is added.
        """
        clean = self._clean
        if text in clean:
            return text
        masked = self.mask(text, location)
        if masked == text and self._shortest <= len(text) <= REMEMBERED_CHARS_MAX:
            if len(clean) >= REMEMBERED_MAX:
                clean.clear()
            clean.add(text)
        return masked

    def mask(self, text: str, location: str = "text") -> str:
        """The text without any known value. Almost every text has none: that is a search for each form."""
        if len(text) < self._shortest:
            return text  # no form of any value has room in it
        masked = text
        pattern, marks = self._pattern, self._marks
        if pattern is not None and any(form in masked for form in self._forms):
            masked = pattern.sub(lambda found: marks.get(found.group(), "[redacted]"), masked)
        if _ESCAPE.search(masked) is not None:
            for escaped, mark in self._escaped:
                masked = escaped.sub(mark, masked)
        if masked != text:
            REDACTIONS.labels(location).inc()
        return masked

    def at(self, location: str) -> Callable[[str], str]:
        """`mask` for one sink, counted under its name."""
        if location in SAYS_AGAIN:
            return lambda text: self.mask_again(text, location)
        return lambda text: self.mask(text, location)

    def _mark(self, value: str) -> str:
        data = value.encode("utf-8", "surrogatepass")
        digest = hashlib.blake2s(data, key=self._key).hexdigest()[:MARK_CHARS]
        return f"[redacted:{digest}]"


def _worth_it(value: str) -> bool:
    if not VALUE_CHARS_MIN <= len(value) <= VALUE_CHARS_MAX:
        return False
    return len(value) >= WORD_CHARS_MIN or _WORD.fullmatch(value) is None
