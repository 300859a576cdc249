"""How settings are read: variables, a folder of mounted secrets, a TOML file; and how an error names its
variable.

Nothing here knows which settings exist: everything follows from the model that it is handed. Precedence,
strongest first: explicit, environment, secrets folder, TOML file, default. An empty variable counts as not
set (compose files write `${X:-}`). No value is ever part of an error.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticCustomError

from session_custody.core.errors import SettingsError
from session_custody.core.secret import Secret

PREFIX: Final = "CUSTODY_"
NESTING: Final = "__"

CONFIG_FILE: Final = "CUSTODY_CONFIG_FILE"
SECRETS_DIR: Final = "CUSTODY_SECRETS_DIR"
ALLOW_UNKNOWN: Final = "CUSTODY_ALLOW_UNKNOWN"

SECRET_FILE_BYTES_MAX: Final = 64 * 1024
CONFIG_FILE_BYTES_MAX: Final = 1024 * 1024

# A Kubernetes Service named `custody` puts CUSTODY_SERVICE_HOST, CUSTODY_PORT=tcp://… and the like into every
# pod of its namespace. They are nobody's settings and must not keep us from starting.
_SERVICE_LINK: Final = re.compile(
    r"CUSTODY_(?:[A-Z0-9]+_)*?(?:SERVICE_HOST|SERVICE_PORT(?:_[A-Z0-9_]+)?|PORT_\d+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?)"
)
_SERVICE_LINK_URL: Final = re.compile(r"(?:tcp|udp|sctp)://[^/]*")

# What libpq reads by itself, as the connection string would say it.
_LIBPQ: Final = {
    "PGHOST": "host",
    "PGHOSTADDR": "hostaddr",
    "PGPORT": "port",
    "PGDATABASE": "dbname",
    "PGUSER": "user",
    "PGPASSWORD": "password",
    "PGSERVICE": "service",
}
_LIBPQ_NAMES_A_SERVER: Final = frozenset({"PGHOST", "PGHOSTADDR", "PGDATABASE", "PGSERVICE"})

Tree = dict[str, Any]


@dataclass(frozen=True, slots=True)
class SettingRow:
    """One setting as the reference table shows it. `default` is text and never a secret."""

    variable: str
    kind: str
    default: str
    text: str
    secret: bool


def variable_of(path: Iterable[str]) -> str:
    """`("kafka", "sasl_username")` -> `CUSTODY_KAFKA__SASL_USERNAME`."""
    return PREFIX + NESTING.join(part.upper() for part in path)


def wrong(field: str, text: str) -> PydanticCustomError:
    """An error about one field of a section, for use in a validator of the whole section."""
    return PydanticCustomError("setting", "{text}", {"field": field, "text": text})


def leaves(model: type[BaseModel], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], FieldInfo]]:
    """Every setting of a model with its path, sections first opened, in the order of declaration."""
    for name, field in model.model_fields.items():
        section = field.annotation
        if isinstance(section, type) and issubclass(section, BaseModel):
            yield from leaves(section, (*path, name))
        else:
            yield (*path, name), field


def rows(model: type[BaseModel]) -> list[SettingRow]:
    """The reference table: what `custody config` prints and docs/settings.md holds."""
    return [
        SettingRow(
            variable=variable_of(path),
            kind=_kind(field.annotation),
            default=_shown_default(field),
            text=" ".join((field.description or "").split()),
            secret=_holds_secret(field.annotation),
        )
        for path, field in leaves(model)
    ]


def read(model: type[BaseModel], environ: Mapping[str, str], explicit: Mapping[str, Any]) -> Tree:
    """Merge all sources into the nested values that `model` is built from. Raises `SettingsError`."""
    known = {variable_of(path): path for path, _ in leaves(model)}
    tolerant = _flag(ALLOW_UNKNOWN, environ.get(ALLOW_UNKNOWN, ""))
    merged: Tree = {}
    if environ.get(CONFIG_FILE):
        _merge(merged, _toml(Path(environ[CONFIG_FILE])))
    if environ.get(SECRETS_DIR):
        _merge(merged, _placed(_secret_files(Path(environ[SECRETS_DIR])), known, tolerant=tolerant))
    _merge(merged, _borrowed(environ, known))
    _merge(merged, _placed(environ, known, tolerant=tolerant))
    _merge(merged, explicit)
    return merged


def explained(error: ValidationError, model: type[BaseModel]) -> SettingsError:
    """The same finding in our words: variables in place of field paths, no input, no cause that holds one."""
    known = {variable_of(path) for path, _ in leaves(model)}
    findings = [_finding(detail, known) for detail in error.errors(include_url=False, include_input=False)]
    (variable, text), rest = findings[0], findings[1:]
    return SettingsError(variable, "; ".join([text, *(f"{name}: {also}" for name, also in rest)]))


def _finding(detail: ErrorDetails, known: set[str]) -> tuple[str, str]:
    # A list or a dictionary adds its index or key: the variable is the longest prefix that is one. The key
    # itself is input, so it is not repeated.
    path = [str(part) for part in detail["loc"]]
    field = detail.get("ctx", {}).get("field")
    if field is not None:
        path.append(str(field))
    if detail["type"] == "extra_forbidden":
        variable = variable_of(path)
        return variable, _unknown(variable, known)
    for length in range(len(path), 0, -1):
        if variable_of(path[:length]) in known:
            return variable_of(path[:length]), _sentence(detail)
    return variable_of(path[:1]), _sentence(detail)


def _sentence(detail: ErrorDetails) -> str:
    if detail["type"] == "model_type":
        return "is a section; set its fields one by one"
    return detail["msg"].removeprefix("Value error, ")


def _placed(values: Mapping[str, str], known: Mapping[str, tuple[str, ...]], *, tolerant: bool) -> Tree:
    tree: Tree = {}
    for variable, value in sorted(values.items()):
        if not variable.startswith(PREFIX) or variable in {CONFIG_FILE, SECRETS_DIR, ALLOW_UNKNOWN}:
            continue
        path = known.get(variable)
        if path is not None:
            if value:
                _put(tree, path, value)
        elif not tolerant and not _is_service_link(variable, value):
            raise SettingsError(variable, _unknown(variable, set(known)))
    return tree


def _unknown(variable: str, known: set[str]) -> str:
    near = difflib.get_close_matches(variable, sorted(known), n=1, cutoff=0.0)
    return f"there is no such setting; the nearest is {near[0]} ({ALLOW_UNKNOWN}=true lets unknown ones pass)"


def _is_service_link(variable: str, value: str) -> bool:
    if _SERVICE_LINK.fullmatch(variable):
        return True
    return variable.endswith("_PORT") and _SERVICE_LINK_URL.fullmatch(value) is not None


def _borrowed(environ: Mapping[str, str], known: Mapping[str, tuple[str, ...]]) -> Tree:
    """DATABASE_URL, else libpq's own PG* variables, as the Postgres connection string."""
    path = known.get("CUSTODY_POSTGRES__DSN")
    if path is None:
        return {}
    tree: Tree = {}
    if environ.get("DATABASE_URL"):
        _put(tree, path, environ["DATABASE_URL"])
    elif any(environ.get(name) for name in _LIBPQ_NAMES_A_SERVER):
        said = ((word, environ.get(name, "")) for name, word in _LIBPQ.items())
        _put(tree, path, " ".join(f"{word}={_quoted(value)}" for word, value in said if value))
    return tree


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _secret_files(folder: Path) -> dict[str, str]:
    """Files named like the variables they stand for, in either case; others stay unread."""
    values: dict[str, str] = {}
    try:
        for file in sorted(folder.iterdir()):
            variable = file.name.upper()
            if variable.startswith(PREFIX) and file.is_file():
                values[variable] = (
                    _text(file, variable, SECRET_FILE_BYTES_MAX).removesuffix("\n").removesuffix("\r")
                )
    except OSError as error:
        raise SettingsError(SECRETS_DIR, f"the folder cannot be read ({type(error).__name__})") from None
    return values


def _toml(file: Path) -> Tree:
    text = _text(file, CONFIG_FILE, CONFIG_FILE_BYTES_MAX)
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        place = re.search(r"line \d+, column \d+|end of document", str(error))
        problem = f"the file is not TOML ({place.group() if place else 'place unknown'})"
    raise SettingsError(CONFIG_FILE, problem)  # outside the handler: the cause may quote the file


def _text(file: Path, variable: str, bytes_max: int) -> str:
    try:
        with file.open("rb") as stream:
            data = stream.read(bytes_max + 1)
    except OSError as error:
        raise SettingsError(variable, f"the file cannot be read ({type(error).__name__})") from None
    if len(data) > bytes_max:
        raise SettingsError(variable, f"the file has more than {bytes_max} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError:
        problem = "the file is not UTF-8"
    raise SettingsError(variable, problem)


def _flag(variable: str, value: str) -> bool:
    if value.lower() in {"", "0", "false", "no", "off"}:
        return False
    if value.lower() in {"1", "true", "yes", "on"}:
        return True
    raise SettingsError(variable, "is true or false")


def _put(tree: Tree, path: tuple[str, ...], value: object) -> None:
    for part in path[:-1]:
        tree = tree.setdefault(part, {})
    tree[path[-1]] = value


def _merge(into: Tree, more: Mapping[str, Any]) -> None:
    for name, value in more.items():
        before = into.get(name)
        if isinstance(value, BaseModel):
            # A section given as a value replaces what the sources said about it as a whole.
            into[name] = value
        elif isinstance(before, dict) and isinstance(value, Mapping):
            _merge(before, value)
        else:
            into[name] = dict(value) if isinstance(value, Mapping) else value


def _kind(annotation: Any) -> str:
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in args)
    if origin is dict:
        return "name=value, … or a JSON object"
    if origin is tuple:
        return "a, b, … or a JSON array"
    if origin is Annotated:
        return _kind(args[0])
    if args:
        return " or ".join(_kind(arg) for arg in args if arg is not type(None))
    plain = {
        str: "text",
        Secret: "secret",
        int: "whole number",
        float: "number",
        bool: "true or false",
        Path: "path",
    }
    return plain[annotation]


def _holds_secret(annotation: Any) -> bool:
    return annotation is Secret or any(_holds_secret(arg) for arg in get_args(annotation))


def _shown_default(field: FieldInfo) -> str:
    extra = field.json_schema_extra
    if isinstance(extra, dict) and "default_text" in extra:
        return str(extra["default_text"])
    default = field.get_default(call_default_factory=False)
    if default is None or default in ((), {}, ""):
        return ""
    return str(default).lower() if isinstance(default, bool) else str(default)
