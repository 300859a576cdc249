"""A contract file as a document whose every value knows its line.

YAML as JSON with comments: of the words that YAML 1.1 turns into something else, only `true`, `false`, `null`
and numbers are (no `on`, no dates, no base 60), so what people read is what is published. Aliases, tags and
double keys are refused: a contract means one thing, and its digest covers all of it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Final

import yaml
from pydantic import JsonValue

from session_custody.core import canonical
from session_custody.core.errors import ContractInvalid

FILE_BYTES_MAX: Final = 1024 * 1024

Place = tuple[str | int, ...]


class _PlainLoader(yaml.SafeLoader):
    """SafeLoader without the words of YAML 1.1."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - as the library has it


_PlainLoader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(?:true|false)$"), list("tf"))
_PlainLoader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile(r"^(?:null|~|)$"), ["n", "~", ""])
_PlainLoader.add_implicit_resolver(
    "tag:yaml.org,2002:int", re.compile(r"^-?(?:0|[1-9][0-9]*)$"), list("-0123456789")
)
_PlainLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?$"),
    list("-0123456789"),
)

_TAGS: Final = frozenset(
    f"tag:yaml.org,2002:{kind}" for kind in ("str", "bool", "null", "int", "float", "map", "seq")
)


@dataclass(frozen=True, slots=True)
class Document:
    """`value` has passed the one policy for documents; `lines`: where each place begins, from 1."""

    name: str
    value: JsonValue
    lines: dict[Place, int] = field(default_factory=dict)

    def where(self, place: Place) -> str:
        """`manifest.yaml:12`, of the nearest place that stands in the file."""
        for length in range(len(place), -1, -1):
            line = self.lines.get(place[:length])
            if line is not None:
                return f"{self.name}:{line}"
        return self.name


def read_document(text: str, name: str) -> Document:
    """Parse YAML or JSON. Raises ContractInvalid naming file and line; no content in the message."""
    if len(text.encode("utf-8", "surrogatepass")) > FILE_BYTES_MAX:
        raise ContractInvalid(name, f"has more than {FILE_BYTES_MAX} bytes")
    reader = _Reader(name)
    try:
        raw = reader.read(text)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ContractInvalid(f"{name}:{line}", error.problem or "is no YAML") from None
    except yaml.YAMLError:
        raise ContractInvalid(name, "holds characters that YAML does not take") from None
    except RecursionError:
        raise ContractInvalid(name, "is nested too deeply") from None
    try:
        value = canonical.accept(canonical.compact(raw))
    except ValueError as error:
        raise ContractInvalid(name, str(error)) from None
    return Document(name, value, reader.lines)


class _Reader:
    def __init__(self, name: str) -> None:
        self.lines: dict[Place, int] = {}
        self._name = name
        self._seen: set[int] = set()

    def read(self, text: str) -> Any:
        loader = _PlainLoader(text)
        try:
            node = loader.get_single_node()
            # the tree stays whole meanwhile, so a node's id is its own
            return None if node is None else self._value(loader, node, ())
        finally:
            loader.dispose()

    def _value(self, loader: _PlainLoader, node: yaml.Node, place: Place) -> Any:
        # an alias is the node that it stands for: its own line is that of its key
        line = self.lines.get(place, node.start_mark.line + 1)
        if id(node) in self._seen:
            raise self._invalid(line, "aliases are not taken")
        self._seen.add(id(node))
        self.lines.setdefault(place, line)
        if node.tag not in _TAGS:
            raise self._invalid(line, "tags are not taken")
        if isinstance(node, yaml.MappingNode):
            return self._members(loader, node, place)
        if isinstance(node, yaml.SequenceNode):
            return [self._value(loader, item, (*place, number)) for number, item in enumerate(node.value)]
        return loader.construct_object(node)

    def _members(self, loader: _PlainLoader, node: yaml.MappingNode, place: Place) -> dict[str, Any]:
        members: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            key = loader.construct_object(key_node) if isinstance(key_node, yaml.ScalarNode) else None
            if not isinstance(key, str):
                raise self._invalid(line, "a key is no text; put it in quotes")
            if key in members:
                raise self._invalid(line, f"{path_of((*place, key))}: stands twice")
            self.lines[(*place, key)] = line
            members[key] = self._value(loader, value_node, (*place, key))
        return members

    def _invalid(self, line: int, detail: str) -> ContractInvalid:
        return ContractInvalid(f"{self._name}:{line}", detail)


def path_of(place: Place) -> str:
    """`("tools", 0, "timeout")` -> `tools.0.timeout`."""
    return ".".join(str(part) for part in place)
