"""Station 8, which tools this process has, and whether they are the pinned ones (I3, DESIGN 5, 10)."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import pkgutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from session_custody.core import canonical
from session_custody.core.errors import ContractInvalid, ContractMissing
from session_custody.core.manifest import Idempotency, Manifest, ToolSpec
from session_custody.tools.declare import Tool

BUILD_ID_CHARS: Final = 16
PYTHON: Final = "python:"


@dataclass(frozen=True, slots=True)
class Registered:
    """A tool of this process. `build_id`: SHA-256 of its module's source, shortened; on each of its steps."""

    tool: Tool[..., Any]
    build_id: str | None
    schema_digest: bytes


class Registry:
    """Tools by endpoint. Built once at start; nothing is added later."""

    def __init__(self, tools: Iterable[Tool[..., Any]]) -> None:
        self._tools: dict[str, Registered] = {}
        builds: dict[str, str | None] = {}
        for tool in tools:
            known = self._tools.get(tool.endpoint)
            if known is not None:
                if known.tool is tool:
                    continue
                raise ContractInvalid(tool.endpoint, "two tools have this name")
            if tool.spec.idempotency is Idempotency.RECONCILE and tool.reconciler is None:
                raise ContractInvalid(tool.endpoint, "idempotency: reconcile needs a reconciler")
            module = tool.function.__module__
            if module not in builds:
                builds[module] = build_id_of(module)
            digest = canonical.digest(canonical.tame(tool.spec.input))
            self._tools[tool.endpoint] = Registered(tool, builds[module], digest)

    @classmethod
    def discover(cls, apps: Iterable[str | ModuleType]) -> Registry:
        """Import each app and, of a package, its submodule or subpackage `tools`; collect their tools.

        Raises ContractInvalid naming the app for what cannot be imported.
        """
        return cls(tool for app in apps for module in _modules(app) for tool in _tools_in(module))

    def __len__(self) -> int:
        return len(self._tools)

    def get(self, endpoint: object) -> Registered | None:
        return self._tools.get(endpoint) if isinstance(endpoint, str) else None

    def specs(self) -> tuple[ToolSpec, ...]:
        """What the decorators say, ordered by name: what a manifest is drafted from."""
        return tuple(sorted((entry.tool.spec for entry in self._tools.values()), key=lambda spec: spec.name))

    def compare(self, manifest: Manifest) -> None:
        """Every tool of the manifest is here and the same. Raises ContractMissing naming tool and field."""
        for spec in manifest.tools:
            self.match(manifest, spec)

    def match(self, manifest: Manifest, spec: ToolSpec) -> Registered:
        """The running tool that this one is pinned to. Raises ContractMissing naming the field."""

        def differs(detail: str) -> ContractMissing:
            where = f"{manifest.manifest_id}/{spec.name}"
            return ContractMissing("tool", where, manifest.manifest_version, detail)

        if not (isinstance(spec.endpoint, str) and spec.endpoint.startswith(PYTHON)):
            raise differs("has an endpoint that this version cannot call")
        entry = self._tools.get(spec.endpoint)
        if entry is None:
            raise differs(f"is not in this app ({spec.endpoint})")
        here = entry.tool.spec
        if here.effect is not spec.effect:
            raise differs(f"differs in effect: {spec.effect.value} is pinned, {here.effect.value} is here")
        if here.idempotency is not spec.idempotency:
            pinned, mine = (
                each.idempotency.value if each.idempotency else "none given" for each in (spec, here)
            )
            raise differs(f"differs in idempotency: {pinned} is pinned, {mine} is here")
        if canonical.digest(canonical.tame(spec.input)) != entry.schema_digest:
            raise differs("differs in input: the schema is not the one of the function here")
        return entry


def build_id_of(module_name: str) -> str | None:
    """First characters of the SHA-256 over the module's source bytes; None where it has no source."""
    module = importlib.import_module(module_name)
    file = inspect.getsourcefile(module)
    if file is None or not Path(file).is_file():
        return None
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()[:BUILD_ID_CHARS]


def _modules(app: str | ModuleType) -> Iterator[ModuleType]:
    module = _imported(app) if isinstance(app, str) else app
    yield module
    if not hasattr(module, "__path__"):
        return
    name = f"{module.__name__}.tools"
    if importlib.util.find_spec(name) is not None:
        inner = _imported(name)
        yield inner
        for found in pkgutil.walk_packages(getattr(inner, "__path__", []), f"{name}."):
            yield _imported(found.name)


def _imported(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        detail = f"cannot be imported ({error.name or type(error).__name__} is missing)"
        raise ContractInvalid(name, detail) from error


def _tools_in(module: ModuleType) -> Iterator[Tool[..., Any]]:
    return (value for value in vars(module).values() if isinstance(value, Tool))
