"""Station 8, the simplest engine: tools that the bundle lists may be called; everything else is denied."""

from __future__ import annotations

from uuid import uuid4

from session_custody.core.authorization import AuthorizationRequest, Decision
from session_custody.core.manifest import PolicyBundle

NOT_LISTED = "not_listed"


class AllowList:
    """`engine: allow-list`. Needs nothing but the bundle, so it can always be asked."""

    async def decide(self, bundle: PolicyBundle, request: AuthorizationRequest) -> Decision:
        allowed = request.action in bundle.allow
        return Decision(
            allow=allowed,
            decision_id=str(uuid4()),
            policy_version=bundle.policy_version,
            reason=None if allowed else NOT_LISTED,
        )
