"""A document to the value it means: shape, then rules between fields. Errors name file, line and field."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError
from pydantic import BaseModel, JsonValue, ValidationError

from session_custody.contracts.document import Document, Place, path_of
from session_custody.contracts.shape import DURATIONS, ManifestFile, PolicyFile, ToolInFile
from session_custody.core import durations
from session_custody.core.errors import ContractInvalid
from session_custody.core.manifest import ContractKind, Manifest, PolicyBundle

IDENTITY: Final[Mapping[ContractKind, tuple[str, str]]] = {
    ContractKind.MANIFEST: ("manifest_id", "manifest_version"),
    ContractKind.WORKFLOW: ("workflow_id", "workflow_version"),
    ContractKind.POLICY: ("policy_profile", "policy_version"),
}
"""Fields that name a contract and its version."""
_ONLY_IN_A_START: Final = ("route_id", "correlation_id", "model_profile")


def kind_of(value: JsonValue) -> ContractKind | None:
    """Which contract this document is; None: it is none (a RunStart names a manifest too).

    The name or the version is enough: a manifest that forgot its id is one with a finding, not another file.
    """
    if not isinstance(value, dict) or any(name in value for name in _ONLY_IN_A_START):
        return None
    return next((kind for kind, names in IDENTITY.items() if any(name in value for name in names)), None)


def parse_manifest(document: Document) -> Manifest:
    """Raises ContractInvalid."""
    _raise_first(document, problems(document, ContractKind.MANIFEST))
    return Manifest.model_validate(_as_value(document.value))


def parse_policy(document: Document) -> PolicyBundle:
    """Raises ContractInvalid."""
    _raise_first(document, problems(document, ContractKind.POLICY))
    return PolicyBundle.model_validate(document.value)


def problems(document: Document, kind: ContractKind) -> list[tuple[Place, str]]:
    """Everything that is wrong, each with its place, in the order of the file."""
    match kind:
        case ContractKind.MANIFEST:
            found = list(_shape(ManifestFile, document.value)) or list(_manifest_rules(document.value))
        case ContractKind.POLICY:
            found = list(_shape(PolicyFile, document.value))
        case ContractKind.WORKFLOW:
            found = [((), "workflows are not served by this version")]
    return sorted(found, key=lambda problem: document.lines.get(problem[0], 0))


def _raise_first(document: Document, found: list[tuple[Place, str]]) -> None:
    for place, text in found:
        raise ContractInvalid(document.where(place), _sentence(place, text))


def _sentence(place: Place, text: str) -> str:
    return f"{path_of(place)}: {text}" if place else text


def _shape(model: type[BaseModel], value: JsonValue) -> Iterator[tuple[Place, str]]:
    try:
        model.model_validate(value)
    except ValidationError as error:
        for detail in error.errors(include_url=False, include_input=False):
            # a union adds the names of its branches to the place: they stand in no file
            place = tuple(part for part in detail["loc"] if not str(part).endswith("]"))
            yield place, _said(detail["type"], detail["msg"], detail.get("ctx", {}))


def _said(kind: str, sentence: str, context: Mapping[str, Any]) -> str:
    match kind:
        case "extra_forbidden":
            return "there is no such field"
        case "missing":
            return "is missing"
        case "string_pattern_mismatch" if context.get("pattern") == durations.PATTERN:
            return "is a duration: a number and its unit, like 150ms, 5s, 2m or 24h"
        case "string_type":
            return "is text; put it in quotes"
        case _:
            return sentence.removeprefix("Value error, ")


def _manifest_rules(value: JsonValue) -> Iterator[tuple[Place, str]]:
    """What no single field shows."""
    manifest = ManifestFile.model_validate(value)
    names: set[str] = set()
    for number, tool in enumerate(manifest.tools):
        place: Place = ("tools", number)
        if tool.name in names:
            yield (*place, "name"), "stands twice"
        names.add(tool.name)
        for inner, text in _tool_rules(tool):
            yield (*place, *inner), text
    # what is left are the rules of the value itself
    if isinstance(value, dict):
        try:
            Manifest.model_validate(_as_value(value))
        except ValidationError as error:
            for detail in error.errors(include_url=False, include_input=False):
                place = tuple(_in_file(part) for part in detail["loc"])
                yield place, detail["msg"].removeprefix("Value error, ")


def _tool_rules(tool: ToolInFile) -> Iterator[tuple[Place, str]]:
    try:
        Draft202012Validator.check_schema(tool.input)
    except SchemaError as error:
        yield ("input", *error.absolute_path), "is no JSON Schema"
        return
    if tool.input.get("type") != "object":
        yield ("input",), "has type: object; arguments have names"
    for place, reference in _references(tool.input, ("input",)):
        if not reference.startswith("#"):
            yield place, "a reference stays inside the schema; nothing is fetched"
    properties = tool.input.get("properties", {})
    for number, name in enumerate(tool.policy_args):
        if name not in properties:
            yield ("policy_args", number), "names no argument"


def _references(schema: Any, place: Place) -> Iterator[tuple[Place, str]]:
    if isinstance(schema, dict):
        for key, inner in schema.items():
            if key in {"$ref", "$dynamicRef"} and isinstance(inner, str):
                yield (*place, key), inner
            elif key not in {"const", "enum", "default", "examples"}:
                yield from _references(inner, (*place, key))
    elif isinstance(schema, list):
        for number, inner in enumerate(schema):
            yield from _references(inner, (*place, number))


def _as_value(value: JsonValue) -> dict[str, Any]:
    """Durations to seconds, where a manifest has them; everything else stays."""
    assert isinstance(value, dict)
    manifest: dict[str, Any] = dict(value)
    if "tools" in manifest:
        manifest["tools"] = [_seconds(tool) for tool in manifest["tools"]]
    for section in ("limits", "questions"):
        if isinstance(manifest.get(section), dict):
            manifest[section] = _seconds(manifest[section])
    return manifest


def _seconds(section: Mapping[str, Any]) -> dict[str, Any]:
    return {
        DURATIONS.get(name, name): durations.seconds_of(inner)
        if name in DURATIONS and isinstance(inner, str)
        else inner
        for name, inner in section.items()
    }


def _in_file(part: str | int) -> str | int:
    return next((name for name, inner in DURATIONS.items() if inner == part), part)
