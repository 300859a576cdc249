"""What a run learns at its contracts' first load, when admission could not (I3, DESIGN 5)."""

from __future__ import annotations

from session_custody.core.manifest import Manifest
from session_custody.core.pin import Pattern, Resolved


def with_contracts(
    resolved: Resolved,
    manifest: Manifest | None,
    manifest_digest: str | None,
    policy_digest: str | None,
) -> Resolved:
    """`resolved` with every digest, and where the manifest was missing at admission with what it says.

    Digests that stand already are not touched: the load compared them. Limits of the manifest win over the
    defaults that admission froze, as they would have there.
    """
    learned: dict[str, object] = {}
    if resolved.manifest_digest is None and manifest_digest is not None:
        learned["manifest_digest"] = manifest_digest
    if resolved.policy_digest is None and policy_digest is not None:
        learned["policy_digest"] = policy_digest
    if resolved.pattern is None:
        learned["pattern"] = Pattern.LOOP if manifest is not None and manifest.tools else Pattern.INFERENCE
        if manifest is not None:
            learned["on_max_loop_steps"] = manifest.on_max_loop_steps
            learned["limits"] = resolved.limits.model_copy(
                update=manifest.limits.model_dump(exclude_none=True)
            )
    return resolved.model_copy(update=learned) if learned else resolved
