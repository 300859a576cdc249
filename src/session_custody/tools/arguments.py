"""Station 8, first thing: the arguments against the pinned manifest's JSON Schema (API 1).

Compiled once per schema. A `$ref` that leaves the document is never fetched: it does not resolve.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, ValidationError
from pydantic import JsonValue
from referencing import Registry
from referencing.exceptions import Unresolvable

ERRORS_SHOWN_MAX: Final = 5
RULE_CHARS_MAX: Final = 200
_NOTHING_ELSE: Final[Registry[Any]] = Registry()


class SchemaUnusable(ValueError):
    """The manifest's input schema is none, or points outside of itself."""


class InputSchema:
    """One compiled schema."""

    def __init__(self, schema: dict[str, Any]) -> None:
        try:
            Draft202012Validator.check_schema(schema)
        except SchemaError as error:
            raise SchemaUnusable(f"/{'/'.join(str(part) for part in error.absolute_path)}") from None
        self._validator = Draft202012Validator(schema, registry=_NOTHING_ELSE)

    def problems(self, arguments: dict[str, JsonValue]) -> str | None:
        """What is wrong, for the model: places and rules of the schema, never a value. None: nothing."""
        try:
            found = list(_first(self._validator.iter_errors(arguments)))
        except Unresolvable:
            raise SchemaUnusable("a $ref leads out of the schema") from None
        return "; ".join(_sentence(error) for error in found) or None


def _first(errors: Iterable[ValidationError]) -> Iterable[ValidationError]:
    for number, error in enumerate(errors):
        if number == ERRORS_SHOWN_MAX:
            return
        yield error


def _sentence(error: ValidationError) -> str:
    place = "/" + "/".join(str(part) for part in error.absolute_path)
    match error.validator:
        case "required":
            wanted: Any = error.validator_value
            given: Any = error.instance
            missing = [name for name in wanted if name not in given]
            return f"{place}: needs {', '.join(missing)}"
        case "additionalProperties":
            return f"{place}: takes no other keys"
        case rule:
            return f"{place}: {rule} {json.dumps(error.validator_value, ensure_ascii=False)[:RULE_CHARS_MAX]}"
