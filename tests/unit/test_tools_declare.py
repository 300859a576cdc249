"""`@tool` and the registry: what an app team declares, and what is refused at import (API 1)."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import pytest
import yaml
from pydantic import BaseModel, Field

from session_custody import Done, NotFound, ToolContext, tool
from session_custody.contracts.document import read_document
from session_custody.contracts.parse import parse_manifest
from session_custody.core.errors import ContractInvalid
from session_custody.core.manifest import Effect, Idempotency
from session_custody.tools.draft import build
from session_custody.tools.registry import Registry, build_id_of


class Size(StrEnum):
    SMALL = "small"
    LARGE = "large"


class Place(BaseModel):
    """Where."""

    title: str
    lines: list[str] = Field(default_factory=list)


@tool(effect="read", timeout="2m")
async def find(
    ctx: ToolContext,
    name: Annotated[str, Field(min_length=1, description="Whose.")],
    size: Size = Size.SMALL,
    *,
    place: Place | None = None,
) -> dict[str, Any]:
    """Find something.

    In two paragraphs.
    """
    return {"name": name, "size": size.value, "place": place, "run": ctx.run_id}


def test_the_input_schema_comes_from_the_type_hints_and_the_description_from_the_docstring() -> None:
    assert find.spec.description == "Find something.\n\nIn two paragraphs."
    assert (find.spec.effect, find.spec.timeout_s) == (Effect.READ, 120.0)
    assert find.spec.endpoint == f"python:{__name__}:find"
    assert find.spec.input == {
        "type": "object",
        "additionalProperties": False,
        "required": ["name"],
        "properties": {
            "name": {"type": "string", "minLength": 1, "description": "Whose."},
            "size": {"$ref": "#/$defs/Size", "default": "small"},
            "place": {"anyOf": [{"$ref": "#/$defs/Place"}, {"type": "null"}], "default": None},
        },
        "$defs": {
            "Size": {"type": "string", "enum": ["small", "large"]},
            "Place": {
                "type": "object",
                "description": "Where.",
                "required": ["title"],
                "properties": {
                    "title": {"type": "string"},
                    "lines": {"type": "array", "items": {"type": "string"}},
                },
            },
        },
    }


def a_read(ctx: ToolContext, n: int) -> int:
    return n


def no_context() -> int:
    return 1


def no_hint(ctx: ToolContext, n) -> int:  # type: ignore[no-untyped-def]
    return 1


def star(ctx: ToolContext, *n: int) -> int:
    return 1


def odd_hint(ctx: ToolContext, n: Callable[[], int]) -> int:
    return 1


@pytest.mark.parametrize(
    ("declared", "function", "said"),
    [
        ({"effect": "write"}, a_read, "idempotency: key, reconcile or none"),
        ({"effect": "write", "idempotency": "none"}, a_read, "on_in_doubt: hold or notify"),
        ({"effect": "read", "idempotency": "key"}, a_read, "is for writes"),
        ({"effect": "sometimes"}, a_read, "effect: "),
        ({"effect": "read", "timeout": "5"}, a_read, "timeout: is a duration"),
        ({"effect": "read", "timeout": "2h"}, a_read, "timeout_s: "),
        ({"effect": "read"}, no_context, "first parameter"),
        ({"effect": "read"}, no_hint, "n: has no type hint"),
        ({"effect": "read"}, star, "n: every argument of a tool has a name"),
        ({"effect": "read"}, odd_hint, "no JSON Schema"),
    ],
)
def test_a_declaration_that_cannot_be_kept_fails_at_import_and_names_the_field(
    declared: dict[str, Any], function: Callable[..., Any], said: str
) -> None:
    with pytest.raises(ContractInvalid, match=said) as caught:
        tool(**declared)(function)
    assert caught.value.where.startswith(f"python:{__name__}:")


def test_a_reconciler_takes_the_arguments_of_its_tool_and_there_is_one() -> None:
    freeze = tool(effect="write", idempotency="reconcile")(a_read)
    with pytest.raises(ContractInvalid, match="idempotency: reconcile needs a reconciler"):
        Registry([freeze])
    with pytest.raises(ContractInvalid, match="other arguments"):
        freeze.reconcile(no_context)

    @freeze.reconcile
    def _(ctx: ToolContext, n: int) -> Done | NotFound:
        return NotFound()

    assert len(Registry([freeze])) == 1
    with pytest.raises(ContractInvalid, match="two reconcilers"):
        freeze.reconcile(a_read)


def test_the_declared_function_can_be_called_by_its_own_tests() -> None:
    plain = tool(effect="read")(a_read)
    assert plain(None, 3) == 3  # type: ignore[arg-type]


APP = '''
from session_custody import tool, ToolContext

@tool(effect="read")
async def {name}(ctx: ToolContext, n: int) -> int:
    """Read n."""
    return n
'''


@pytest.fixture
def my_app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    package = tmp_path / "my_app"
    (package / "tools").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "other.py").write_text("raise RuntimeError('nobody asked for this module')")
    (package / "tools" / "__init__.py").write_text(APP.format(name="top"))
    (package / "tools" / "more.py").write_text(APP.format(name="inner"))
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield package
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in {"my_app", "flat_app", "broken_app"}:
            del sys.modules[name]


def test_discovery_imports_the_app_and_its_tools_and_nothing_else(my_app: Path) -> None:
    registry = Registry.discover(["my_app"])
    assert [spec.endpoint for spec in registry.specs()] == [
        "python:my_app.tools.more:inner",
        "python:my_app.tools:top",
    ]
    assert "my_app.other" not in sys.modules


def test_a_flat_module_is_an_app_too_and_a_tool_that_is_imported_twice_is_one(my_app: Path) -> None:
    (my_app.parent / "flat_app.py").write_text("from my_app.tools import top\n" + APP.format(name="own"))
    registry = Registry.discover(["flat_app", "my_app"])
    assert {spec.name for spec in registry.specs()} == {"own", "top", "inner"}


def test_an_app_that_cannot_be_imported_is_named(my_app: Path) -> None:
    with pytest.raises(ContractInvalid, match="no_such_app"):
        Registry.discover(["no_such_app"])
    (my_app.parent / "broken_app.py").write_text("import no_such_library")
    with pytest.raises(ContractInvalid, match="broken_app: cannot be imported"):
        Registry.discover(["broken_app"])


def test_two_tools_of_one_name_in_one_module_are_refused() -> None:
    module = types.ModuleType("twins")
    one, two = tool(effect="read")(a_read), tool(effect="read")(a_read)
    vars(module).update(one=one, two=two)
    with pytest.raises(ContractInvalid, match="two tools have this name"):
        Registry.discover([module])


def test_the_build_id_is_that_of_the_source(my_app: Path) -> None:
    Registry.discover(["my_app"])
    before = build_id_of("my_app.tools")
    assert before == build_id_of("my_app.tools")
    (my_app / "tools" / "__init__.py").write_text(APP.format(name="top") + "# changed\n")
    assert build_id_of("my_app.tools") != before


def test_a_drafted_manifest_is_well_formed_and_the_tools_fit_it(my_app: Path) -> None:
    text = build("my_app", "mine", "2026.08.1")
    manifest = parse_manifest(read_document(text, "manifest.yaml"))
    assert (manifest.manifest_id, manifest.manifest_version) == ("mine", "2026.08.1")
    Registry.discover(["my_app"]).compare(manifest)
    assert yaml.safe_load(text)["tools"][0]["name"] == "inner"


def test_a_module_without_tools_gives_no_manifest() -> None:
    with pytest.raises(ContractInvalid, match="has no @tool functions"):
        build(types.ModuleType("empty"), "m", "1")


def test_a_write_stays_what_it_is_in_the_draft() -> None:
    module = types.ModuleType("writes")
    vars(module)["w"] = tool(
        effect="write", idempotency="none", on_in_doubt="notify", timeout="1500ms", attempts=2
    )(a_read)
    drafted = yaml.safe_load(build(module, "m", "1"))["tools"][0]
    assert (drafted["idempotency"], drafted["on_in_doubt"]) == (Idempotency.NONE.value, "notify")
    assert (drafted["timeout"], drafted["attempts"]) == ("1500ms", 2)
