"""Station 8, the PDP that the gate asks: the *pinned* bundle, handed with the request to its engine (I3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol
from uuid import uuid4

from session_custody.core.authorization import AuthorizationRequest, Decision
from session_custody.core.manifest import PolicyBundle
from session_custody.policy.allow_list import AllowList
from session_custody.ports import Contracts

NO_POLICY = "no_policy"
ENGINE_UNKNOWN = "engine_unknown"


class Engine(Protocol):
    """Decides by one bundle. Raises Unavailable when it could not be asked; anything unclean is a deny."""

    async def decide(self, bundle: PolicyBundle, request: AuthorizationRequest) -> Decision: ...


class PolicyRouter:
    """Implements `ports.PolicyDecisionPoint`. Deny by default.

    A run whose pin names no policy may call nothing. Raises ContractMissing when the pinned bundle is gone
    and Unavailable when it cannot be asked for: both park the run, neither is a decision.
    """

    def __init__(self, contracts: Contracts, engines: Mapping[str, Engine] | None = None) -> None:
        self._contracts = contracts
        self._engines: Mapping[str, Engine] = {"allow-list": AllowList(), **(engines or {})}

    async def decide(self, request: AuthorizationRequest) -> Decision:
        if request.policy_profile is None or request.policy_version is None:
            return _denied(NO_POLICY, request.policy_version)
        bundle, _ = await self._contracts.policy(request.policy_profile, request.policy_version, None)
        engine = self._engines.get(bundle.engine)
        if engine is None:
            return _denied(ENGINE_UNKNOWN, bundle.policy_version)
        return await engine.decide(bundle, request)


def _denied(reason: str, policy_version: str | None) -> Decision:
    return Decision(False, str(uuid4()), policy_version, reason)
