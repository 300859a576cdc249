"""The PDP: the pinned bundle decides, and what is not listed is denied (I12, DESIGN 13)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from session_custody.core.authorization import AuthorizationRequest, Decision
from session_custody.core.errors import ContractMissing
from session_custody.core.manifest import ContractKind, Manifest, PolicyBundle
from session_custody.policy import PolicyRouter
from tests.unit.tool_app import RUN, TRACE


class Bundles:
    """Contracts with one version of a bundle each for "7" and "8"."""

    def __init__(self, engine: Any = "allow-list") -> None:
        self.engine = engine
        self.asked: list[tuple[str, str]] = []

    async def policy(self, policy_profile: str, version: str, digest: str | None) -> tuple[PolicyBundle, str]:
        self.asked.append((policy_profile, version))
        allow = {"7": ("look",), "8": ("look", "note")}.get(version)
        if allow is None:
            raise ContractMissing("policy", policy_profile, version)
        bundle = PolicyBundle(
            policy_profile=policy_profile, policy_version=version, engine=self.engine, allow=allow
        )
        return bundle, "digest"

    async def manifest(self, manifest_id: str, version: str, digest: str | None) -> tuple[Manifest, str]:
        raise AssertionError

    async def latest_version(self, kind: ContractKind, name: str) -> str | None:
        raise AssertionError("nothing asks for what is newest after admission (I3)")


def decide(
    action: str, profile: str | None = "ops", version: str | None = "7", engine: Any = "allow-list"
) -> Decision:
    request = AuthorizationRequest(RUN.subject, action, "read", "app", profile, version, TRACE, "00", {})
    return asyncio.run(PolicyRouter(Bundles(engine)).decide(request))


def test_what_the_pinned_bundle_lists_is_allowed_and_the_rest_is_not() -> None:
    assert decide("look").allow is True
    assert (decide("note").allow, decide("note").reason) == (False, "not_listed")
    assert decide("note", version="8").allow is True
    assert decide("Look").allow is False


def test_every_decision_has_an_id_of_its_own_and_the_version_that_decided() -> None:
    first, second = decide("look"), decide("look")
    assert first.decision_id != second.decision_id
    assert first.policy_version == second.policy_version == "7"


@pytest.mark.parametrize(("profile", "version"), [(None, None), (None, "7"), ("ops", None)])
def test_a_run_without_a_pinned_policy_may_call_nothing(profile: str | None, version: str | None) -> None:
    decision = decide("look", profile, version)
    assert (decision.allow, decision.reason) == (False, "no_policy")


def test_an_engine_that_is_not_here_denies() -> None:
    decision = decide("look", engine="cedar")
    assert (decision.allow, decision.reason) == (False, "engine_unknown")


def test_a_bundle_that_is_gone_is_no_decision() -> None:
    with pytest.raises(ContractMissing):
        decide("look", version="9")
