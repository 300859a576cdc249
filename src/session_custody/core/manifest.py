"""Contracts as values: tool manifests and policy bundles (DESIGN 10, API 1). Reading files is `contracts`'
job.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal, Self

from pydantic import Field, JsonValue, model_validator

from session_custody.core import bounds
from session_custody.core.pin import Frozen, Id, OnMaxLoopSteps


class Effect(StrEnum):
    READ = "read"
    WRITE = "write"


class Idempotency(StrEnum):
    """How a write whose end is unknown is ended (DESIGN 8)."""

    KEY = "key"
    RECONCILE = "reconcile"
    NONE = "none"


class OnNotFound(StrEnum):
    RESEND = "resend"
    IN_DOUBT = "in_doubt"


class ToolSpec(Frozen):
    """One tool of a manifest. Durations are seconds (files may say `10s`)."""

    name: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_-]{0,63}$")
    description: str = ""
    effect: Effect
    idempotency: Idempotency | None = None
    overlap: Literal["safe"] | None = None
    on_not_found: OnNotFound = OnNotFound.IN_DOUBT
    on_in_doubt: Literal["hold", "notify"] | None = None
    timeout_s: float | None = Field(default=None, gt=0, le=bounds.TOOL_TIMEOUT_MAX_S)
    attempts: int | None = Field(default=None, ge=1, le=100)
    audience: str | None = None
    endpoint: str | dict[str, JsonValue]
    input: dict[str, Any]
    saves: dict[str, str] = Field(default_factory=dict)
    policy_args: tuple[str, ...] = ()
    visible: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _write_rules(self) -> Self:
        if self.effect is Effect.READ:
            if self.idempotency is not None:
                raise ValueError("idempotency: is for writes")
        elif self.idempotency is None:
            raise ValueError("a write needs idempotency: key, reconcile or none")
        elif self.idempotency is Idempotency.NONE and self.on_in_doubt is None:
            raise ValueError("a write with idempotency: none needs on_in_doubt: hold or notify")
        return self


class QuestionRule(Frozen):
    """Who may answer a model's question, until when, and what then. Absent: the model cannot ask."""

    answered_by: str | dict[str, JsonValue] = "subject"
    deadline_s: float = Field(gt=0)
    on_deadline: str | dict[str, JsonValue] = "deny"


class ManifestLimits(Frozen):
    tool_timeout_s: float | None = Field(default=None, gt=0, le=bounds.TOOL_TIMEOUT_MAX_S)
    model_timeout_s: float | None = Field(default=None, gt=0, le=bounds.TOOL_TIMEOUT_MAX_S)
    model_attempts: int | None = Field(default=None, ge=1, le=100)
    tool_attempts: int | None = Field(default=None, ge=1, le=100)


class Manifest(Frozen):
    """The contract of a run's tools (and nothing else is). Immutable once published."""

    manifest_id: Id
    manifest_version: Id
    instructions: str | None = None
    on_max_loop_steps: OnMaxLoopSteps = OnMaxLoopSteps.PARTIAL
    visible: tuple[Literal["input", "text"], ...] = ()
    questions: QuestionRule | None = None
    limits: ManifestLimits = ManifestLimits()
    tools: tuple[ToolSpec, ...] = ()

    @model_validator(mode="after")
    def _names_once(self) -> Self:
        names = [tool.name for tool in self.tools]
        if len(set(names)) != len(names):
            raise ValueError("tools: a name stands twice")
        return self

    def tool(self, name: str) -> ToolSpec | None:
        return next((tool for tool in self.tools if tool.name == name), None)


class PolicyBundle(Frozen):
    policy_profile: Id
    policy_version: Id
    engine: Literal["allow-list", "cedar", "authzen", "opa"]
    allow: tuple[str, ...] = ()


class ContractKind(StrEnum):
    MANIFEST = "manifest"
    WORKFLOW = "workflow"
    POLICY = "policy"
