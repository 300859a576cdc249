"""What a setting may be: lists, tables, addresses and names as text, parsed once; and the section they stand
in.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from typing import Annotated, TypeVar
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field

from session_custody.core.errors import SettingsError
from session_custody.core.pin import Frozen
from session_custody.core.secret import Secret
from session_custody.settings.environment import variable_of


def _list(value: object) -> object:
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith("["):
        return _json(value)
    return tuple(part.strip() for part in value.split(",") if part.strip())


def _table(value: object) -> object:
    if isinstance(value, str):
        value = _json(value) if value.lstrip().startswith("{") else _pairs(value)
    if not isinstance(value, Mapping):
        return value
    return {name: _scalar(item) for name, item in value.items()}


def _pairs(value: str) -> dict[str, str]:
    pairs = [pair.partition("=") for pair in value.split(",") if pair.strip()]
    if not all(equals for _, equals, _ in pairs):
        raise ValueError("is a list name=value, name=value or a JSON object")
    return {name.strip(): item.strip() for name, _, item in pairs}


def _scalar(value: object) -> object:
    # TOML and JSON bring true and 5 where librdkafka wants their text
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


def _json(value: str) -> object:
    try:
        return json.loads(value)
    except json.JSONDecodeError:
        pass
    raise ValueError("begins like JSON and is none")  # outside the handler: its error holds the value


def _command(value: object) -> object:
    if not isinstance(value, str):
        return value
    return _json(value) if value.lstrip().startswith("[") else tuple(shlex.split(value))


def upper(value: object) -> object:
    return value.upper() if isinstance(value, str) else value


def _http_url(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError("is an http:// or https:// address")
    if parts.username is not None or parts.password is not None:
        raise ValueError("holds credentials; an address is printed, so they do not belong there")
    return value


def _topic(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,249}", value) or value in {".", ".."}:
        raise ValueError("is a topic name: 1-249 of letters, digits, '.', '_', '-'")
    return value


Names = Annotated[tuple[str, ...], BeforeValidator(_list)]
Command = Annotated[tuple[str, ...], BeforeValidator(_command)]
Table = Annotated[dict[str, str], BeforeValidator(_table)]
SecretTable = Annotated[dict[str, Secret], BeforeValidator(_table)]
HttpUrl = Annotated[str, AfterValidator(_http_url)]
Topic = Annotated[str, AfterValidator(_topic)]
Seconds = Annotated[float, Field(gt=0, le=366 * 24 * 3600)]
Rows = Annotated[int, Field(ge=1, le=100_000_000)]
Text = Annotated[str, Field(min_length=1, max_length=2_000)]


class Section(Frozen):
    """One level of settings. The docstring under a field is its line in the reference."""

    model_config = ConfigDict(allow_inf_nan=False, use_attribute_docstrings=True, validate_default=False)


T = TypeVar("T")


def needed(value: T | None, *path: str) -> T:
    """A setting that this command cannot do without. `needed(settings.postgres.dsn, "postgres", "dsn")`."""
    if value is None:
        raise SettingsError(variable_of(path), "is needed here and is not set")
    return value
