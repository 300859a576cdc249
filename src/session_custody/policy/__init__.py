"""Station 8, who decides: the PDP behind the gate (DESIGN 13). The pinned bundle names its engine."""

from session_custody.policy.allow_list import AllowList
from session_custody.policy.router import Engine, PolicyRouter

__all__ = ["AllowList", "Engine", "PolicyRouter"]
