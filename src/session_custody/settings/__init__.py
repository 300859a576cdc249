"""All settings, one frozen value. `Settings.load()` is called once, in wiring; everybody else is handed a
section.

The variable of a setting follows from its place: `settings.kafka.sasl_username` is
`CUSTODY_KAFKA__SASL_USERNAME`. `Settings(…)` alone reads nothing from the environment, so a test says all
that counts. Whatever is wrong is a `SettingsError` that names the variable and never its value (DESIGN 18);
`environment.py` says where values come from.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import Field, ValidationError, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from session_custody.core import bounds
from session_custody.settings import environment
from session_custody.settings.environment import SettingRow, wrong
from session_custody.settings.fields import Seconds, needed
from session_custody.settings.kafka import KafkaSettings, TopicNames
from session_custody.settings.reference import reference_page
from session_custody.settings.sections import (
    AppSettings,
    AuditSettings,
    DevstackSettings,
    HttpSettings,
    LaneSettings,
    LimitSettings,
    LogSettings,
    ModelSettings,
    PostgresSettings,
    PublicationSettings,
    RedisSettings,
    ToolsSettings,
)

__all__ = [
    "AppSettings",
    "AuditSettings",
    "DevstackSettings",
    "HttpSettings",
    "KafkaSettings",
    "LaneSettings",
    "LimitSettings",
    "LogSettings",
    "ModelSettings",
    "PostgresSettings",
    "PublicationSettings",
    "RedisSettings",
    "SettingRow",
    "Settings",
    "ToolsSettings",
    "TopicNames",
    "needed",
]


def _default_drain(validated: dict[str, Any]) -> float:
    kafka = validated.get("kafka")
    return min(15.0, kafka.session_timeout_s / 3) if isinstance(kafka, KafkaSettings) else 15.0


class Settings(BaseSettings):
    """Every setting there is. Frozen; built by `load` in wiring, or by hand in tests."""

    model_config = SettingsConfigDict(
        env_prefix=environment.PREFIX,
        env_nested_delimiter=environment.NESTING,
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        validate_default=False,
    )

    deployment: Annotated[str, Field(pattern=bounds.ID_PATTERN)] = "custody"
    """Name of this installation, part of every ce_source."""
    ce_type_prefix: Annotated[str, Field(pattern=r"^[a-z0-9]+([.-][a-z0-9]+)*$", max_length=200)] = "custody"
    """First part of every ce_type; a domain of yours written backwards."""
    kafka: KafkaSettings = KafkaSettings()
    postgres: PostgresSettings = PostgresSettings()
    redis: RedisSettings = RedisSettings()
    audit: AuditSettings = AuditSettings()
    model: ModelSettings = ModelSettings()
    tools: ToolsSettings = ToolsSettings()
    app: AppSettings = AppSettings()
    http: HttpSettings = HttpSettings()
    log: LogSettings = LogSettings()
    limits: LimitSettings = LimitSettings()
    lanes: LaneSettings = LaneSettings()
    publication: PublicationSettings = PublicationSettings()
    devstack: DevstackSettings = DevstackSettings()
    drain_budget_s: Seconds = Field(
        default_factory=_default_drain,
        json_schema_extra={"default_text": "a third of the session timeout, at most 15"},
    )
    """What a revocation or SIGTERM gives the work under way. Below Kafka's session timeout and the pod's
    grace period.
    """

    fault: str | None = None
    """For tests alone: the fault points at which this process kills itself."""

    @model_validator(mode="after")
    def _drain_within_session(self) -> Self:
        if self.drain_budget_s >= self.kafka.session_timeout_s:
            raise wrong(
                "drain_budget_s",
                "is below kafka.session_timeout_s: longer, and the broker gives the lanes away",
            )
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Nothing ambient: `load` alone reads the environment."""
        return (init_settings,)

    @classmethod
    def load(cls, environ: Mapping[str, str] | None = None, **explicit: Any) -> Self:
        """Read everything once: explicit > environment > secrets folder > TOML file > default.

        `explicit` takes sections as dictionaries or as values. Raises `SettingsError`, nothing else.
        """
        values = environment.read(cls, os.environ if environ is None else environ, explicit)
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            problem = environment.explained(error, cls)
        raise problem  # outside the handler: the cause holds the input

    @classmethod
    def describe(cls) -> list[SettingRow]:
        """The reference: variable, kind, default and a sentence for every setting."""
        return environment.rows(cls)

    @classmethod
    def reference(cls) -> str:
        """docs/settings.md, whole. `python -m session_custody.settings` prints it."""
        return reference_page(cls.describe())
