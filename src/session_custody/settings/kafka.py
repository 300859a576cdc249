"""Kafka: where, how and as whom to connect, the topics, and what nobody may set past us (DESIGN 15)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from session_custody.core.secret import Secret
from session_custody.settings.environment import wrong
from session_custody.settings.fields import HttpUrl, SecretTable, Section, Text, Topic, needed, upper

# Options of librdkafka that carry our guarantees or have a typed setting of their own. They are refused in
# `kafka.extra`, each with the reason that stands here.
TYPED: Final = "it has a setting of its own"
OWNED_OPTIONS: Final[Mapping[str, str]] = {
    "bootstrap.servers": TYPED,
    "metadata.broker.list": TYPED,
    "security.protocol": TYPED,
    "sasl.mechanism": TYPED,
    "sasl.mechanisms": TYPED,
    "sasl.username": TYPED,
    "sasl.password": TYPED,
    "sasl.oauthbearer.method": TYPED,
    "sasl.oauthbearer.client.id": TYPED,
    "sasl.oauthbearer.client.secret": TYPED,
    "sasl.oauthbearer.token.endpoint.url": TYPED,
    "sasl.oauthbearer.scope": TYPED,
    "ssl.ca.location": TYPED,
    "ssl.certificate.location": TYPED,
    "ssl.key.location": TYPED,
    "ssl.key.password": TYPED,
    "group.id": TYPED,
    "group.protocol": TYPED,
    "session.timeout.ms": TYPED,
    "group.instance.id": "a static member would keep the lanes of a dead worker",
    "group.remote.assignor": "lanes need the assignor that custody was tested with",
    "partition.assignment.strategy": "lanes need the assignor that custody was tested with",
    "heartbeat.interval.ms": "it follows from the session timeout",
    "max.poll.interval.ms": "the poll thread never waits for work; the watchdog counts on the value",
    "enable.auto.commit": "offsets are committed after the pin's transaction, never by a timer (I4)",
    "auto.commit.enable": "offsets are committed after the pin's transaction, never by a timer (I4)",
    "auto.commit.interval.ms": "offsets are committed after the pin's transaction, never by a timer (I4)",
    "enable.auto.offset.store": "offsets are committed after the pin's transaction, never by a timer (I4)",
    "auto.offset.reset": "the lane row says where intake goes on",
    "isolation.level": "an aborted event is no event (I9)",
    "enable.partition.eof": "the claim is waited for by its record",
    "transactional.id": "it names the lane, and fences its old owner (I9)",
    "transaction.timeout.ms": "publication and recovery count on the value",
    "enable.idempotence": "published exactly once (I9)",
    "enable.gapless.guarantee": "published exactly once (I9)",
    "acks": "an event counts when all in-sync replicas have it (I9)",
    "request.required.acks": "an event counts when all in-sync replicas have it (I9)",
    "max.in.flight": "per-run order (I9)",
    "max.in.flight.requests.per.connection": "per-run order (I9)",
    "retries": "published exactly once (I9)",
    "message.send.max.retries": "published exactly once (I9)",
    "delivery.timeout.ms": "publication counts on the value",
    "message.timeout.ms": "publication counts on the value",
    "partitioner": "key and partition of what we emit are part of the wire contract (DESIGN 15)",
    "delivery.report.only.error": "every delivery report is read",
    "allow.auto.create.topics": "a topic that appears by itself has the wrong number of partitions",
}


class TopicNames(Section):
    runs: Topic = "custody.runs"
    """Input: RunStart and RunResume."""
    steps: Topic = "custody.steps"
    """Output: step events."""
    outcomes: Topic = "custody.outcomes"
    """Output: outcome events."""
    dead_letters: Topic = "custody.dead-letters"
    """Output: records that could not be decoded or admitted."""
    cursors: Topic = "custody.cursors"
    """Compacted: claims and cursors of publication, one partition per lane."""

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        taken: dict[str, str] = {}
        for field in type(self).model_fields:
            twin = taken.setdefault(getattr(self, field), field)
            if twin != field:
                raise wrong(field, f"names the same topic as {twin}")
        return self


class KafkaSettings(Section):
    bootstrap_servers: Text | None = None
    """Brokers to begin with: host:port, host:port."""
    group: Text = "custody"
    """Consumer group, and the first part of every transactional id. The database remembers it."""
    security_protocol: Annotated[
        Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"], BeforeValidator(upper)
    ] = "PLAINTEXT"
    """How to talk to the brokers."""
    sasl_mechanism: (
        Annotated[
            Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI"],
            BeforeValidator(upper),
        ]
        | None
    ) = None
    """Needed with SASL_PLAINTEXT and SASL_SSL."""
    sasl_username: Text | None = None
    """For PLAIN and SCRAM."""
    sasl_password: Secret | None = None
    """For PLAIN and SCRAM."""
    sasl_oauth_client_id: Text | None = None
    """For OAUTHBEARER: the client of the token endpoint."""
    sasl_oauth_client_secret: Secret | None = None
    """For OAUTHBEARER."""
    sasl_oauth_token_url: HttpUrl | None = None
    """For OAUTHBEARER: the token endpoint."""
    sasl_oauth_scope: Text | None = None
    """For OAUTHBEARER."""
    ssl_ca_file: Path | None = None
    """PEM file with the authorities that may sign the brokers' certificates; the system's by default."""
    ssl_certificate_file: Path | None = None
    """PEM file with the client's certificate."""
    ssl_key_file: Path | None = None
    """PEM file with the client's private key."""
    ssl_key_password: Secret | None = None
    """Opens the client's private key."""
    extra: SecretTable = Field(default={})
    """Further options of librdkafka, by its names. Those that carry custody's guarantees are refused. Never
    printed.
    """
    topics: TopicNames = TopicNames()
    partitions: Annotated[int, Field(ge=1, le=10_000)] = 12
    """Partitions (lanes) that `custody topics create` gives the input and the cursors."""
    replication_factor: Annotated[int, Field(ge=1, le=100)] | None = Field(
        default=None, json_schema_extra={"default_text": "the broker's"}
    )
    """Replicas that `custody topics create` asks for."""
    session_timeout_s: Annotated[float, Field(ge=0.5, le=1800)] = 45.0
    """How long the group waits for a silent worker before others take its lanes."""
    group_protocol: Literal["classic", "consumer"] = "classic"
    """Kafka's rebalance protocol."""

    @model_validator(mode="after")
    def _whole(self) -> Self:
        for option in self.extra:
            reason = OWNED_OPTIONS.get(option.lower())
            if reason is not None:
                raise wrong("extra", f"the option {option.lower()} is not to be set here: {reason}")
        if self.security_protocol.startswith("SASL"):
            for field in self._needed_for_sasl():
                if getattr(self, field) is None:
                    raise wrong(field, f"is needed with {self.security_protocol}")
        elif self.sasl_mechanism is not None:
            raise wrong(
                "sasl_mechanism",
                f"means nothing with {self.security_protocol}; use SASL_SSL or SASL_PLAINTEXT",
            )
        if (self.ssl_certificate_file is None) != (self.ssl_key_file is None):
            missing = "ssl_key_file" if self.ssl_key_file is None else "ssl_certificate_file"
            raise wrong(missing, "certificate and key come together")
        return self

    def _needed_for_sasl(self) -> tuple[str, ...]:
        match self.sasl_mechanism:
            case None:
                return ("sasl_mechanism",)
            case "PLAIN" | "SCRAM-SHA-256" | "SCRAM-SHA-512":
                return ("sasl_username", "sasl_password")
            case "OAUTHBEARER":
                return ("sasl_oauth_client_id", "sasl_oauth_client_secret", "sasl_oauth_token_url")
            case "GSSAPI":
                return ()

    def connection_options(self) -> dict[str, str]:
        """What every librdkafka client of ours begins with: where, how, who, and `extra`.

        Reveals secrets: the caller hands the dictionary to one client and keeps it nowhere. Raises
        `SettingsError` without brokers.
        """
        said: dict[str, object] = {
            "bootstrap.servers": needed(self.bootstrap_servers, "kafka", "bootstrap_servers"),
            "security.protocol": self.security_protocol.lower(),
            "sasl.mechanism": self.sasl_mechanism,
            "sasl.username": self.sasl_username,
            "sasl.password": self.sasl_password,
            "ssl.ca.location": self.ssl_ca_file,
            "ssl.certificate.location": self.ssl_certificate_file,
            "ssl.key.location": self.ssl_key_file,
            "ssl.key.password": self.ssl_key_password,
            **self.extra,
        }
        if self.sasl_mechanism == "OAUTHBEARER":
            said |= {
                "sasl.oauthbearer.method": "oidc",
                "sasl.oauthbearer.client.id": self.sasl_oauth_client_id,
                "sasl.oauthbearer.client.secret": self.sasl_oauth_client_secret,
                "sasl.oauthbearer.token.endpoint.url": self.sasl_oauth_token_url,
                "sasl.oauthbearer.scope": self.sasl_oauth_scope,
            }
        return {
            name: value.reveal("kafka connection") if isinstance(value, Secret) else str(value)
            for name, value in said.items()
            if value is not None
        }
