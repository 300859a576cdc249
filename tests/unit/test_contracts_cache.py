"""Contracts as a worker loads them: by version and digest, once per process (I3)."""

from __future__ import annotations

import asyncio

import pytest

from session_custody.contracts import StoreContracts
from session_custody.contracts.document import read_document
from session_custody.core import canonical
from session_custody.core.errors import ContractMissing, Unavailable
from session_custody.core.manifest import ContractKind
from tests.unit.test_contracts_files import MANIFEST

BODY = canonical.canonical(read_document(MANIFEST, "m").value).decode()
DIGEST = canonical.digest(canonical.accept(BODY)).hex()


class Source:
    """The store's two calls; counts what it is asked, and waits until it may answer."""

    def __init__(self) -> None:
        self.rows: dict[tuple[ContractKind, str, str], tuple[str, str]] = {
            (ContractKind.MANIFEST, "m", "2026.08.1"): (BODY, DIGEST)
        }
        self.asked = 0
        self.down = False
        self.was_asked = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def load_contract(self, kind: ContractKind, name: str, version: str) -> tuple[str, str] | None:
        self.asked += 1
        self.was_asked.set()
        await self.may_answer.wait()
        if self.down:
            raise Unavailable("postgres")
        return self.rows.get((kind, name, version))

    async def latest_version(self, kind: ContractKind, name: str) -> str | None:
        self.asked += 1
        return max((v for k, n, v in self.rows if (k, n) == (kind, name)), default=None)


def test_a_contract_is_loaded_once_and_its_digest_told() -> None:
    async def run() -> None:
        source = Source()
        contracts = StoreContracts(source)
        manifest, digest = await contracts.manifest("m", "2026.08.1", None)
        again, _ = await contracts.manifest("m", "2026.08.1", digest)
        assert (again is manifest, digest, source.asked) == (True, DIGEST, 1)

    asyncio.run(run())


def test_concurrent_first_loads_ask_once_and_a_cancelled_one_does_not_spoil_it() -> None:
    async def run() -> None:
        source = Source()
        source.may_answer.clear()
        contracts = StoreContracts(source)
        waiting = [asyncio.create_task(contracts.manifest("m", "2026.08.1", None)) for _ in range(20)]
        await source.was_asked.wait()
        waiting[0].cancel()
        source.may_answer.set()
        loaded = await asyncio.gather(*waiting, return_exceptions=True)
        assert isinstance(loaded[0], asyncio.CancelledError)
        assert {digest for _, digest in loaded[1:]} == {DIGEST}  # type: ignore[misc]
        assert source.asked == 1

    asyncio.run(run())


def test_another_digest_than_the_pinned_one_is_a_missing_contract() -> None:
    async def run() -> None:
        contracts = StoreContracts(Source())
        for _ in range(2):  # loaded, then kept
            with pytest.raises(ContractMissing, match="another digest"):
                await contracts.manifest("m", "2026.08.1", "00" * 32)

    asyncio.run(run())


def test_content_that_is_not_its_digests_is_not_served() -> None:
    async def run() -> None:
        source = Source()
        source.rows[ContractKind.MANIFEST, "m", "2026.08.1"] = (BODY.replace("Do it.", "Do more."), DIGEST)
        with pytest.raises(ContractMissing, match="not its digest"):
            await StoreContracts(source).manifest("m", "2026.08.1", None)

    asyncio.run(run())


def test_a_contract_of_a_newer_version_of_custody_is_missing_here() -> None:
    async def run() -> None:
        source = Source()
        body = '{"manifest_id":"m","manifest_version":"2","novel":1}'
        digest = canonical.digest(canonical.accept(body)).hex()
        source.rows[ContractKind.MANIFEST, "m", "2"] = (body, digest)
        with pytest.raises(ContractMissing, match="cannot be read by this version"):
            await StoreContracts(source).manifest("m", "2", None)

    asyncio.run(run())


def test_what_is_missing_or_down_now_is_asked_for_again() -> None:
    async def run() -> None:
        source = Source()
        contracts = StoreContracts(source)
        row = source.rows.pop((ContractKind.MANIFEST, "m", "2026.08.1"))
        with pytest.raises(ContractMissing):
            await contracts.manifest("m", "2026.08.1", None)
        source.down = True
        with pytest.raises(Unavailable):
            await contracts.manifest("m", "2026.08.1", None)
        source.down = False
        source.rows[ContractKind.MANIFEST, "m", "2026.08.1"] = row
        assert (await contracts.manifest("m", "2026.08.1", DIGEST))[1] == DIGEST

    asyncio.run(run())


def test_what_is_newest_is_never_remembered() -> None:
    async def run() -> None:
        source = Source()
        contracts = StoreContracts(source)
        assert await contracts.latest_version(ContractKind.MANIFEST, "m") == "2026.08.1"
        source.rows[ContractKind.MANIFEST, "m", "2026.09.1"] = (BODY, DIGEST)
        assert await contracts.latest_version(ContractKind.MANIFEST, "m") == "2026.09.1"

    asyncio.run(run())
