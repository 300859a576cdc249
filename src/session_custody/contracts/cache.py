"""Contracts of the store as values, parsed once per process (I3).

A row never changes, so what was loaded stays true and is kept without asking again. Concurrent first loads of
one contract share one question. A digest that is not the pinned one means that this is not the contract the
run began with: `ContractMissing`, the run parks.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

from session_custody.contracts.document import Document, read_document
from session_custody.contracts.parse import parse_manifest, parse_policy
from session_custody.core import canonical
from session_custody.core.errors import ContractInvalid, ContractMissing
from session_custody.core.manifest import ContractKind, Manifest, PolicyBundle

CACHED_MAX: Final = 1_024

T = TypeVar("T")


class ContractSource(Protocol):
    """The two calls of `ports.RunStore` that loading needs."""

    async def load_contract(self, kind: ContractKind, name: str, version: str) -> tuple[str, str] | None: ...
    async def latest_version(self, kind: ContractKind, name: str) -> str | None: ...


class StoreContracts:
    """Implements `ports.Contracts`. Raises Unavailable as the store does."""

    def __init__(self, store: ContractSource) -> None:
        self._store = store
        self._manifests = _Cache(store, ContractKind.MANIFEST, parse_manifest)
        self._policies = _Cache(store, ContractKind.POLICY, parse_policy)

    async def manifest(self, manifest_id: str, version: str, digest: str | None) -> tuple[Manifest, str]:
        return await self._manifests.get(manifest_id, version, digest)

    async def policy(self, policy_profile: str, version: str, digest: str | None) -> tuple[PolicyBundle, str]:
        return await self._policies.get(policy_profile, version, digest)

    async def latest_version(self, kind: ContractKind, name: str) -> str | None:
        """Never cached: admission asks it once per run and freezes the answer."""
        return await self._store.latest_version(kind, name)


class _Cache(Generic[T]):
    def __init__(self, store: ContractSource, kind: ContractKind, parse: Callable[[Document], T]) -> None:
        self._store = store
        self._kind = kind
        self._parse = parse
        self._kept: OrderedDict[tuple[str, str], tuple[T, str]] = OrderedDict()
        self._loading: dict[tuple[str, str], asyncio.Task[tuple[T, str]]] = {}

    async def get(self, name: str, version: str, digest: str | None) -> tuple[T, str]:
        key = (name, version)
        kept = self._kept.get(key)
        if kept is None:
            kept = await self._load(key)
        else:
            self._kept.move_to_end(key)
        if digest is not None and kept[1] != digest:
            raise ContractMissing(
                self._kind.value, name, version, "is published with another digest than the pinned one"
            )
        return kept

    async def _load(self, key: tuple[str, str]) -> tuple[T, str]:
        task = self._loading.get(key)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._ask(key))
            self._loading[key] = task
            task.add_done_callback(lambda done: self._loaded(key, done))
        # shielded: one waiter that is cancelled does not take the answer from the others
        return await asyncio.shield(task)

    def _loaded(self, key: tuple[str, str], task: asyncio.Task[tuple[T, str]]) -> None:
        self._loading.pop(key, None)
        if task.cancelled() or task.exception() is not None:
            return  # not kept: what is missing now may be published later
        self._kept[key] = task.result()
        if len(self._kept) > CACHED_MAX:
            self._kept.popitem(last=False)

    async def _ask(self, key: tuple[str, str]) -> tuple[T, str]:
        name, version = key
        row = await self._store.load_contract(self._kind, name, version)
        if row is None:
            raise ContractMissing(self._kind.value, name, version)
        body, digest = row
        try:
            document = read_document(body, f"{self._kind.value} {name}@{version}")
            if canonical.digest(document.value).hex() != digest:
                raise ContractMissing(self._kind.value, name, version, "has content that is not its digest's")
            return self._parse(document), digest
        except ContractInvalid as error:
            detail = f"cannot be read by this version ({error})"
            raise ContractMissing(self._kind.value, name, version, detail) from None
