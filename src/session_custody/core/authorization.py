"""What the PEP asks and what a PDP answers, AuthZEN-shaped (DESIGN 13)."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import JsonValue

from session_custody.core.pin import Subject
from session_custody.core.trace import TraceFields


@dataclass(frozen=True, slots=True)
class AuthorizationRequest:
    """subject = the run's pinned one; action = the tool; context = trace fields, arguments digest, declared
    arguments.
    """

    subject: Subject
    action: str
    effect: str
    resource: str
    policy_profile: str | None
    policy_version: str | None
    trace: TraceFields
    args_digest: str
    declared_args: dict[str, JsonValue]


@dataclass(frozen=True, slots=True)
class Decision:
    """A PDP's clean answer. Anything but `allow is True` is a deny (I12).

    `obligations` is a closed set; an unknown one is a deny. A PDP that cannot be asked raises `Unavailable`;
    one that answered something unclean returns allow=False with reason `policy_error`.
    """

    allow: bool
    decision_id: str
    policy_version: str | None = None
    reason: str | None = None
    obligations: tuple[str, ...] = ()
