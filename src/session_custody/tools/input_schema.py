"""Station 8, a tool's input: JSON Schema and argument values from the type hints of its function (API 1)."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Final, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from session_custody.core.errors import ContractInvalid

ERRORS_SHOWN_MAX: Final = 5


class ArgumentsRefused(ValueError):
    """The arguments do not fit the type hints. The text names places, never values."""


def input_model(function: Callable[..., Any], where: str) -> type[BaseModel]:
    """The model of everything behind the context. Raises ContractInvalid naming the parameter."""
    parameters = list(inspect.signature(function).parameters.values())
    if not parameters or parameters[0].kind not in (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
    ):
        raise ContractInvalid(where, "the first parameter of a tool is its ToolContext")
    try:
        hints = get_type_hints(function, include_extras=True)
    except NameError as error:
        raise ContractInvalid(where, f"the type hint {error.name} is not known at run time") from None
    fields: dict[str, Any] = {}
    for parameter in parameters[1:]:
        if parameter.kind not in (
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            inspect.Parameter.KEYWORD_ONLY,
        ):
            raise ContractInvalid(where, f"{parameter.name}: every argument of a tool has a name")
        if parameter.name not in hints:
            raise ContractInvalid(where, f"{parameter.name}: has no type hint")
        default = ... if parameter.default is inspect.Parameter.empty else parameter.default
        fields[parameter.name] = (hints[parameter.name], default)
    try:
        return create_model(f"{function.__name__}_input", __config__=_CONFIG, **fields)
    except Exception as error:  # noqa: BLE001 - pydantic names what it cannot do in many types of its own
        raise ContractInvalid(where, f"the type hints are no JSON Schema ({type(error).__name__})") from None


_CONFIG: Final = ConfigDict(extra="forbid", hide_input_in_errors=True, arbitrary_types_allowed=False)


def schema_of(model: type[BaseModel], where: str) -> dict[str, Any]:
    """Its JSON Schema without the titles that pydantic makes up: every one would be tokens at each turn."""
    try:
        schema = model.model_json_schema()
    except Exception as error:  # noqa: BLE001 - as above
        raise ContractInvalid(where, f"the type hints are no JSON Schema ({type(error).__name__})") from None
    schema.setdefault("additionalProperties", False)
    return _untitled(schema)


def _untitled(schema: dict[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "title" and isinstance(value, str):
            continue
        if key in {"properties", "$defs", "patternProperties"} and isinstance(value, dict):
            kept[key] = {name: _untitled(inner) for name, inner in value.items()}
        elif key in {"default", "const", "enum", "examples"}:
            kept[key] = value
        elif isinstance(value, dict):
            kept[key] = _untitled(value)
        elif isinstance(value, list):
            kept[key] = [_untitled(item) if isinstance(item, dict) else item for item in value]
        else:
            kept[key] = value
    return kept


def read_arguments(model: type[BaseModel], arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments as the function takes them (dates, enums, models). Raises ArgumentsRefused."""
    try:
        value = model.model_validate(arguments)
    except ValidationError as error:
        raise ArgumentsRefused(_sentences(error)) from None
    except Exception as error:  # noqa: BLE001 - a validator of the app's own failed: still only its arguments
        raise ArgumentsRefused(f"could not be read ({type(error).__name__})") from None
    return {name: getattr(value, name) for name in type(value).model_fields}


def _sentences(error: ValidationError) -> str:
    found = error.errors(include_url=False, include_input=False, include_context=False)
    return "; ".join(
        f"/{'/'.join(str(part) for part in detail['loc'])}: {detail['type']}"
        for detail in found[:ERRORS_SHOWN_MAX]
    )
