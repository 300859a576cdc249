"""Station 12: what a broker's error means for the person who has to act: the setting's name (DESIGN 18).

Exceptions of librdkafka's calls say little: with a wrong password `init_transactions` times out, and without
the right to write a topic `commit_transaction` is inconsistent. The cause comes through `error_cb` and the
delivery reports; both are read and translated here.
"""

from __future__ import annotations

from typing import Final

from confluent_kafka import KafkaError, KafkaException

_NO_TOPIC: Final = "CUSTODY_KAFKA__TOPICS: a topic is not there; `custody topics create` makes it"

_BY_CODE: Final = {
    KafkaError._AUTHENTICATION: (
        "CUSTODY_KAFKA__SASL_USERNAME: the broker refused these credentials "
        "(or CUSTODY_KAFKA__SECURITY_PROTOCOL does not fit its listener)"
    ),
    KafkaError.SASL_AUTHENTICATION_FAILED: "CUSTODY_KAFKA__SASL_USERNAME: these credentials were refused",
    KafkaError._SSL: (
        "CUSTODY_KAFKA__SSL_CA_FILE: TLS with the broker failed (authority, certificate or host name)"
    ),
    KafkaError._RESOLVE: "CUSTODY_KAFKA__BOOTSTRAP_SERVERS: the host is not known",
    KafkaError._TRANSPORT: "CUSTODY_KAFKA__BOOTSTRAP_SERVERS: no connection to the broker",
    KafkaError._ALL_BROKERS_DOWN: "CUSTODY_KAFKA__BOOTSTRAP_SERVERS: no broker can be reached",
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: (
        "CUSTODY_KAFKA__GROUP: no right to write with transactional ids that begin with it"
    ),
    KafkaError.GROUP_AUTHORIZATION_FAILED: "CUSTODY_KAFKA__GROUP: no right to read as this group",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "CUSTODY_KAFKA__TOPICS: no right to use the topic",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "CUSTODY_KAFKA__SASL_USERNAME: no right to do this",
    KafkaError.UNKNOWN_TOPIC_OR_PART: _NO_TOPIC,
    KafkaError._UNKNOWN_TOPIC: _NO_TOPIC,
    KafkaError._UNKNOWN_PARTITION: (
        "CUSTODY_KAFKA__TOPICS__CURSORS: the topic has too few partitions; see `custody topics check`"
    ),
}

CREDENTIALS: Final = frozenset(
    {
        KafkaError._AUTHENTICATION,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError._SSL,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    }
)
"""Waiting does not help: a setting, or an ACL, has to change."""

TIMEOUTS: Final = frozenset(
    {
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._MSG_TIMED_OUT,
        KafkaError.REQUEST_TIMED_OUT,
    }
)

GONE: Final = frozenset(
    {
        KafkaError._FENCED,
        KafkaError._FATAL,
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.INVALID_PRODUCER_ID_MAPPING,
        KafkaError.UNKNOWN_PRODUCER_ID,
        KafkaError.INVALID_TXN_STATE,
    }
)
"""A producer that hears one of these is thrown away, whatever librdkafka says of aborting (DESIGN 6, 4)."""

REFUSED_FOR_EVER: Final = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.INVALID_MSG,
        KafkaError.INVALID_MSG_SIZE,
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError._INVALID_ARG,
    }
)
"""The record itself is at fault: it would be refused again. It is published as a stub."""


def error_of(exception: KafkaException) -> KafkaError:
    """The KafkaError that librdkafka's exceptions carry."""
    error = exception.args[0] if exception.args else None
    return error if isinstance(error, KafkaError) else KafkaError(KafkaError._FAIL)


def setting_of(error: KafkaError) -> str | None:
    """The setting to look at, with what the broker said in our words; None: no setting is to blame."""
    return _BY_CODE.get(error.code())


def told(error: KafkaError) -> str:
    """For health and logs. The broker's own text stays out: it may name hosts and principals."""
    return setting_of(error) or f"Kafka said {error.name()}"
