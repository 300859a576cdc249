"""`custody contract build`: a manifest drafted from the tools of a module, for people to complete."""

from __future__ import annotations

from types import ModuleType
from typing import Any, Final

import yaml
from pydantic import JsonValue

from session_custody.core import canonical, durations
from session_custody.core.errors import ContractInvalid
from session_custody.core.manifest import OnNotFound, ToolSpec
from session_custody.tools.registry import Registry

_HEAD: Final = """\
# Drafted from the decorators. Read it, complete it, then `custody contract check` and `publish`: from there
# on it is immutable. `visible` is what events may carry; without it they carry nothing of a call.
"""


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    style = "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)


def build(module: str | ModuleType, manifest_id: str, version: str) -> str:
    """The text of a manifest.yaml for every `@tool` of this module or package. Raises ContractInvalid."""
    specs = Registry.discover([module]).specs()
    if not specs:
        name = module if isinstance(module, str) else module.__name__
        raise ContractInvalid(name, "has no @tool functions")
    manifest: dict[str, JsonValue] = {
        "manifest_id": manifest_id,
        "manifest_version": version,
        "instructions": "Say here what the model is to do.\n",
        "on_max_loop_steps": "partial",
        "visible": [],
        "tools": [in_file(spec) for spec in specs],
    }
    text = yaml.dump(manifest, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
    return _HEAD + text


def in_file(spec: ToolSpec) -> dict[str, JsonValue]:
    """A tool as a manifest file writes it; what is the default stays unsaid."""
    tool: dict[str, JsonValue] = {
        "name": spec.name,
        "description": spec.description,
        "effect": spec.effect.value,
        "idempotency": None if spec.idempotency is None else spec.idempotency.value,
        "overlap": spec.overlap,
        "on_not_found": "resend" if spec.on_not_found is OnNotFound.RESEND else None,
        "on_in_doubt": spec.on_in_doubt,
        "timeout": None if spec.timeout_s is None else durations.text_of(spec.timeout_s),
        "attempts": spec.attempts,
        "audience": spec.audience,
        "endpoint": canonical.tame(spec.endpoint),
        "input": canonical.tame(spec.input),
        "saves": canonical.tame(spec.saves),
        "policy_args": list(spec.policy_args),
        "visible": list(spec.visible),
    }
    return {name: value for name, value in tool.items() if value is not None}
