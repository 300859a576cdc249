"""The files' shape: what people write in a manifest or a policy bundle (API 1), as models.

These differ from the values in `core.manifest` in what is for people only: durations have units. The
published JSON Schema is generated from here, so it cannot say anything else than `check` does.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import Field, JsonValue, StringConstraints

from session_custody.core import durations
from session_custody.core.manifest import Effect, Idempotency, OnNotFound
from session_custody.core.pin import Frozen, Id, OnMaxLoopSteps

Duration = Annotated[
    str, StringConstraints(pattern=durations.PATTERN), Field(examples=["150ms", "10s", "2m", "24h"])
]
Pointer = Annotated[str, StringConstraints(pattern=r"^(/([^/~]|~[01])*)*$")]
CallPointer = Annotated[str, StringConstraints(pattern=r"^/(args|result)(/([^/~]|~[01])*)*$")]
SlotName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")]
PythonEndpoint = Annotated[
    str, StringConstraints(pattern=r"^python:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$")
]


class ToolInFile(Frozen):
    """One tool. What events may carry of its calls is `visible`: JSON Pointers into {args, result}."""

    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_-]{0,63}$")]
    description: str = ""
    effect: Effect
    idempotency: Idempotency | None = None
    overlap: Literal["safe"] | None = None
    on_not_found: OnNotFound = OnNotFound.IN_DOUBT
    on_in_doubt: Literal["hold", "notify"] | None = None
    timeout: Duration | None = None
    attempts: Annotated[int, Field(ge=1, le=100)] | None = None
    audience: Annotated[str, Field(min_length=1, max_length=2_000)] | None = None
    endpoint: PythonEndpoint
    input: dict[str, Any]
    saves: dict[SlotName, Pointer] = Field(default_factory=dict)
    policy_args: tuple[str, ...] = ()
    visible: tuple[CallPointer, ...] = ()


class QuestionsInFile(Frozen):
    """Who may answer the model's questions, until when, and what then."""

    answered_by: str | dict[str, JsonValue] = "subject"
    deadline: Duration
    on_deadline: str | dict[str, JsonValue] = "deny"


class LimitsInFile(Frozen):
    tool_timeout: Duration | None = None
    model_timeout: Duration | None = None
    model_attempts: Annotated[int, Field(ge=1, le=100)] | None = None
    tool_attempts: Annotated[int, Field(ge=1, le=100)] | None = None


class ManifestFile(Frozen):
    """A tool manifest: the contract of a run's tools, and nothing else is."""

    manifest_id: Id
    manifest_version: Id
    instructions: str | None = None
    on_max_loop_steps: OnMaxLoopSteps = OnMaxLoopSteps.PARTIAL
    visible: tuple[Literal["input", "text"], ...] = ()
    questions: QuestionsInFile | None = None
    limits: LimitsInFile = LimitsInFile()
    tools: tuple[ToolInFile, ...] = ()


class PolicyFile(Frozen):
    """A policy bundle."""

    policy_profile: Id
    policy_version: Id
    engine: Literal["allow-list"]
    allow: tuple[str, ...] = ()


DURATIONS: Final = {
    "timeout": "timeout_s",
    "tool_timeout": "tool_timeout_s",
    "model_timeout": "model_timeout_s",
    "deadline": "deadline_s",
}
"""Field in a file -> field of the value, whose unit is its last part."""
