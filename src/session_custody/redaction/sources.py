"""Where known values come from: the settings' secrets and the process environment's."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final
from urllib.parse import unquote

from pydantic import BaseModel

from session_custody.core.secret import Secret

_SECRET_NAME: Final = re.compile(
    r"(^|_)(API_?KEY|KEY|TOKEN|SECRET|PASS|PASSWD|PASSWORD|PASSPHRASE|PWD|CREDENTIALS?|AUTH|DSN|JWT|COOKIE"
    r"|SIGNATURE|PAT)S?(_|$)|PASSWORD|SECRET|TOKEN",
    re.IGNORECASE,
)
_NO_VALUE: Final = re.compile(r"(_|^)(FILE|PATH|DIR|FOLDER|COMMAND|SOCK|ID|NAME|URL_PATTERN)$", re.IGNORECASE)
"""Names that say where a secret is, not what it is."""
_NOT_SECRET: Final = frozenset({"PWD", "OLDPWD"})
_USERINFO: Final = re.compile(r"://[^/?#\s@:]*:([^/?#\s]+)@")
_KEYWORD: Final = re.compile(
    r"(?:^|[\s?&;])(?:password|passwd|pwd|sslpassword)=('(?:[^'\\]|\\.)*'|[^\s&;]+)", re.IGNORECASE
)


def environment_secrets(environ: Mapping[str, str]) -> Iterator[str]:
    """Values of variables whose name says so, and passwords inside of any address or connection string."""
    for name, value in environ.items():
        yield from passwords_in(value)
        named = _SECRET_NAME.search(name) and not _NO_VALUE.search(name) and name not in _NOT_SECRET
        if named and "://" not in value and not value.startswith("/"):
            yield value


def passwords_in(text: str) -> Iterator[str]:
    """Passwords of an address or a libpq connection string, as written and as meant."""
    for found in _USERINFO.findall(text):
        yield found
        yield unquote(found)
    for found in _KEYWORD.findall(text):
        plain = found[1:-1].replace("\\'", "'").replace("\\\\", "\\") if found.startswith("'") else found
        yield plain
        yield unquote(plain)


def secrets_in(value: object) -> Iterator[str]:
    """Every Secret in a tree of settings, and the passwords inside of those that are addresses."""
    if isinstance(value, Secret):
        text = value.reveal("redaction")
        inner = tuple(passwords_in(text))
        yield from inner or (text,)
    elif isinstance(value, BaseModel):
        for name in type(value).model_fields:
            yield from secrets_in(getattr(value, name))
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from secrets_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from secrets_in(item)
