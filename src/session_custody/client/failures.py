"""What the client raises. The type says what to do next; the text names cause and setting, never content."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaError

from session_custody.core.errors import CustodyError

if TYPE_CHECKING:
    from session_custody.client.records import Outcome

# What librdkafka tells error_cb, and a delivery report only after its timeout: waiting will not mend it.
REFUSED: Final[Mapping[int, str]] = {
    KafkaError._AUTHENTICATION: (
        "CUSTODY_KAFKA__SASL_USERNAME, CUSTODY_KAFKA__SASL_PASSWORD: the broker refused these credentials"
    ),
    KafkaError._SSL: "CUSTODY_KAFKA__SSL_CA_FILE: no TLS connection to the broker",
    KafkaError.SASL_AUTHENTICATION_FAILED: "CUSTODY_KAFKA__SASL_USERNAME: the broker refused them",
}


class ClientError(CustodyError):
    """Base of what the client raises."""


class InvalidRecord(ClientError, ValueError):
    """The start or resume would be refused; nothing was sent. Names field paths, never values."""


class DeliveryFailed(ClientError):
    """The broker did not acknowledge; the record may have arrived all the same.

    `code` is Kafka's name of the cause.
    """

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code


class NotAllDelivered(DeliveryFailed):
    """Some of many starts were not acknowledged. `failed`: run_id -> Kafka's name of the cause."""

    def __init__(self, acknowledged: list[str], failed: Mapping[str, str]) -> None:
        code = next(iter(failed.values()))
        super().__init__(code, f"{len(failed)} starts were not acknowledged, {len(acknowledged)} were")
        self.acknowledged = acknowledged
        self.failed = dict(failed)


class OutcomesUnreadable(ClientError):
    """The outcome topic is missing, may not be read, or could not be reached."""


class OutcomeTimeout(ClientError, TimeoutError):
    """No outcome within the time. `missing`: the run_ids without one; `outcomes`: what did come."""

    def __init__(self, missing: Collection[str], outcomes: Mapping[str, Outcome], timeout: float) -> None:
        some = ", ".join(sorted(missing)[:3])
        super().__init__(f"no outcome of {len(missing)} runs ({some}) within {timeout:g} s")
        self.missing = frozenset(missing)
        self.outcomes = dict(outcomes)


def delivery_failed(error: KafkaError) -> DeliveryFailed:
    return DeliveryFailed(error.name(), REFUSED.get(error.code(), error.str()))
