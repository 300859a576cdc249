"""The run pin: what a route froze, what admission resolved beside it, and for whom (I2, I3, DESIGN 5, 12)."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, NewType

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from session_custody.core import bounds

RunId = NewType("RunId", str)
LaneId = NewType("LaneId", int)

Id = Annotated[str, StringConstraints(pattern=bounds.ID_PATTERN)]


class Frozen(BaseModel):
    """A value that exists is valid, and stays as it is. Errors never repeat their input."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class Subject(Frozen):
    """On whose behalf a run acts. The PEP sees the same one before and after a resume (I12)."""

    id: Id
    tenant: Id | None = None
    actor: tuple[Id, ...] = ()


class MemoryProfile(Frozen):
    """Frozen as sent (DESIGN 10)."""

    name: str
    loop: str | None = None
    isolation: str | None = None
    ttl_hours: int | None = None
    long_term_recall: bool | None = None


class SentPin(Frozen):
    """The pointers as the producer copied them from the route pin. Part of the sent digest, never changed."""

    route_id: Id
    route_table_version: Id
    activation_target: str | None = Field(default=None, max_length=2_000)
    manifest_id: Id | None = None
    manifest_version: Id | None = None
    workflow_id: Id | None = None
    workflow_version: Id | None = None
    policy_profile: Id | None = None
    policy_version: Id | None = None
    model_profile: Id
    memory_profile: MemoryProfile | None = None
    max_loop_steps: int | None = Field(default=None, ge=bounds.LOOP_STEPS_MIN, le=bounds.LOOP_STEPS_MAX)


class Pattern(StrEnum):
    """Which of the four shapes of DESIGN 9 a run has; follows from its pin (API 1)."""

    INFERENCE = "0"
    LOOP = "1"
    STAGES = "2"
    STAGED_PLANNERS = "3"


class OnMaxLoopSteps(StrEnum):
    """What a run that has used up its proposals ends as."""

    PARTIAL = "partial"
    ESCALATE = "escalate"


class Limits(Frozen):
    """Bounds, timeouts and budgets frozen into the run at admission (I3). Seconds unless the name says
    bytes.
    """

    tool_timeout_s: float = bounds.TOOL_TIMEOUT_DEFAULT_S
    model_timeout_s: float = bounds.MODEL_TIMEOUT_DEFAULT_S
    model_attempts: int = bounds.MODEL_ATTEMPTS_DEFAULT
    tool_attempts: int = bounds.TOOL_ATTEMPTS_DEFAULT
    start_allowance_s: float = bounds.START_ALLOWANCE_DEFAULT_S
    not_after_margin_s: float = bounds.NOT_AFTER_MARGIN_DEFAULT_S
    arguments_bytes: int = bounds.ARGUMENTS_BYTES_MAX
    result_bytes: int = bounds.RESULT_BYTES_MAX
    working_bytes: int = bounds.WORKING_BYTES_MAX
    proposal_calls: int = bounds.PROPOSAL_CALLS_MAX
    suspect_at: int = bounds.SUSPECT_AT


class Resolved(Frozen):
    """What admission looked up once and recorded (I3). A digest that is None is recorded at the first
    load.
    """

    pattern: Pattern | None = None
    manifest_version: str | None = None
    manifest_digest: str | None = None
    workflow_version: str | None = None
    workflow_digest: str | None = None
    policy_version: str | None = None
    policy_digest: str | None = None
    model_target: str | None = None
    """What the model profile meant at admission (a gateway alias); None: the profile is sent as it stands."""
    on_max_loop_steps: OnMaxLoopSteps = OnMaxLoopSteps.PARTIAL
    limits: Limits = Limits()


class RunPin(Frozen):
    """Sent pointers and what they were resolved to. Written once, immutable by trigger (I2)."""

    sent: SentPin
    resolved: Resolved

    @property
    def manifest_version(self) -> str | None:
        return self.sent.manifest_version or self.resolved.manifest_version

    @property
    def workflow_version(self) -> str | None:
        return self.sent.workflow_version or self.resolved.workflow_version

    @property
    def policy_version(self) -> str | None:
        return self.sent.policy_version or self.resolved.policy_version

    @property
    def max_loop_steps(self) -> int | None:
        return self.sent.max_loop_steps
