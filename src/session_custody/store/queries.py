"""The named statements of queries.sql, read once. A block begins with `-- name: <name>`."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Final, LiteralString

_NAME: Final = re.compile(r"^-- name: (\w+)\s*$", re.MULTILINE)


def _read() -> dict[str, str]:
    pieces = _NAME.split(files(__package__).joinpath("queries.sql").read_text(encoding="utf-8"))
    names = pieces[1::2]
    if len(set(names)) != len(names):
        raise ValueError("queries.sql names a statement twice")
    return dict(zip(names, (text.strip() for text in pieces[2::2]), strict=True))


_QUERIES: Final = _read()


def query(name: str) -> LiteralString:
    """One statement's text, with %(name)s or $1 for its values. It is ours, so it counts as literal."""
    return _QUERIES[name]


def names() -> frozenset[str]:
    return frozenset(_QUERIES)
