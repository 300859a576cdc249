"""Every section but Kafka's."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from session_custody.core import bounds
from session_custody.core.secret import Secret
from session_custody.settings.environment import wrong
from session_custody.settings.fields import (
    Command,
    HttpUrl,
    Names,
    Rows,
    Seconds,
    Section,
    Table,
    Text,
    upper,
)


class PostgresSettings(Section):
    dsn: Secret | None = None
    """Connection string or postgresql:// address. Without it DATABASE_URL counts, then PGHOST and its kin."""
    direct_dsn: Secret | None = None
    """For LISTEN and migrations when `dsn` leads to a transaction pooler; the same as `dsn` by default."""
    password_file: Path | None = None
    """File with the password, read again at every connect."""
    password_command: Command | None = None
    """Command that prints the password (a short-lived one), run again at every connect; no shell."""

    @model_validator(mode="after")
    def _one_password(self) -> Self:
        if self.password_file is not None and self.password_command is not None:
            raise wrong("password_command", "there is a password_file as well; one of them decides")
        return self


class RedisSettings(Section):
    url: Secret | None = None
    """redis:// or rediss:// address of the router's route pins; without it none are read."""
    route_pin_pattern: Text = "custody:route-pin:{<session_id>}"
    """Key of a session's route pin; `<session_id>` stands for the session, everything else is taken as it is.
    """

    @model_validator(mode="after")
    def _names_the_session(self) -> Self:
        if self.route_pin_pattern.count("<session_id>") != 1:
            raise wrong("route_pin_pattern", "holds <session_id> once")
        return self

    def route_pin_key(self, session_id: str) -> str:
        """The key under which the router keeps this session's pin."""
        return self.route_pin_pattern.replace("<session_id>", session_id)


class AuditSettings(Section):
    signing_key_file: Path | None = None
    """PEM file with the Ed25519 private key that signs outcomes. `custody serve` does not start without one.
    """
    public_keys_dir: Path | None = None
    """Folder with the public keys, retired ones too, that `custody audit verify` accepts."""


class ModelSettings(Section):
    kind: Literal["http", "scripted"] = "http"
    """An OpenAI-compatible gateway, or answers from a file (demos and tests)."""
    url: HttpUrl | None = None
    """The gateway: address up to and without /chat/completions. Needed with `http`."""
    api_key: Secret | None = None
    """Bearer key of the gateway itself; never a user's token."""
    scripted_file: Path | None = None
    """YAML with the answers by turn. Needed with `scripted`."""
    profiles: Table = Field(default={})
    """model_profile=name at the gateway. Empty: every profile is sent as it is; else an unlisted one is
    unknown.
    """


class ToolsSettings(Section):
    base_url: HttpUrl | None = None
    """What relative addresses of `ctx.http` and of `http:` endpoints are relative to."""
    sync_threads: Annotated[int, Field(ge=1, le=1_000)] = 16
    """Threads for tools that are plain functions."""


class AppSettings(Section):
    targets: Names = ()
    """activation_target values that are this app, as exact texts."""
    shared_runtime: bool = True
    """Whether records without an activation_target are ours."""
    foreign: Literal["skip", "dead_letter"] = "skip"
    """What becomes of a record whose activation_target is another app."""


class HttpSettings(Section):
    host: Text = "127.0.0.1"
    """Address that /livez, /readyz and /metrics listen on."""
    port: Annotated[int, Field(ge=0, le=65_535)] = 8080
    """Port of the same; 0 takes a free one."""


class LogSettings(Section):
    format: Literal["json", "console"] | None = Field(
        default=None, json_schema_extra={"default_text": "console on a terminal, else json"}
    )
    """How a log line looks."""
    level: Annotated[Literal["DEBUG", "INFO", "WARNING", "ERROR"], BeforeValidator(upper)] = "INFO"
    """The least that is logged."""


class LimitSettings(Section):
    """What admission takes a run's limits from, and how much a worker takes on."""

    default_expiry_s: Seconds = bounds.EXPIRY_DEFAULT_S
    """Life of a run whose start names no expires_at."""
    dedupe_horizon_s: Seconds = bounds.DEDUPE_HORIZON_S
    """Age from which a start is stale; finished runs are remembered longer than that."""
    orphan_hold_s: Seconds = bounds.ORPHAN_HOLD_S
    """How long a resume waits for its run. At least the retention of the input topic."""
    start_allowance_s: Seconds = bounds.START_ALLOWANCE_DEFAULT_S
    """Within this a write's call must have started, counted from before its intent was committed."""
    not_after_margin_s: Seconds = bounds.NOT_AFTER_MARGIN_DEFAULT_S
    """Added to start allowance and tool timeout before anybody asks what became of a write."""
    run_slots: Annotated[int, Field(ge=1, le=100_000)] = 256
    """Runs that one worker drives at the same time; the others wait in Postgres."""


class LaneSettings(Section):
    """When a lane suspects its runs, and when it holds its timers (DESIGN 4, 11)."""

    unclean_after: Annotated[int, Field(ge=1, le=100)] = bounds.UNCLEAN_ENDS_AT
    """Unclean ends of a lane's owners from which its runs are driven as suspects."""
    suspect_at: Annotated[int, Field(ge=1, le=100)] = bounds.SUSPECT_AT
    """Times a run was in hand when its worker died, from which it is parked."""
    suspects_at_once: Annotated[int, Field(ge=1, le=1_000)] = bounds.SUSPECTS_AT_ONCE
    """Suspects that one lane drives at the same time."""
    suspect_minute_s: Seconds = bounds.SUSPECT_MINUTE_S
    """Time alive after which a lane's unclean ends are forgotten."""
    clock_hold_s: Annotated[float, Field(ge=0, le=3_600)] = 60.0
    """How long timers are held after the database's clock has jumped."""


class PublicationSettings(Section):
    mode: Literal["transactional", "at_least_once"] = "transactional"
    """`at_least_once` is for brokers without transactions; readers then drop duplicates by ce_id."""
    backlog_soft: Rows = 20_000
    """Unpublished rows of a lane from which no new run is dispatched."""
    backlog_hard: Rows = 100_000
    """Unpublished rows of a lane from which its intake pauses."""

    @model_validator(mode="after")
    def _soft_below_hard(self) -> Self:
        if self.backlog_soft >= self.backlog_hard:
            raise wrong("backlog_soft", "is below backlog_hard")
        return self


class DevstackSettings(Section):
    cache: Path | None = Field(
        default=None, json_schema_extra={"default_text": "session-custody in the user's cache folder"}
    )
    """Where `custody dev`, the demo and the tests keep the servers' files between runs."""
