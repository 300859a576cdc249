"""Stations 1 and 5: Kafka's errors as people can use them. Codes only: their texts may hold addresses or
more.
"""

from __future__ import annotations

import time
from typing import Final

from confluent_kafka import KafkaError, KafkaException

FORGOTTEN_AFTER_S: Final = 60.0

_CURES: Final = {
    "_AUTHENTICATION": "CUSTODY_KAFKA__SASL_USERNAME: the broker refused these credentials",
    "_SSL": "CUSTODY_KAFKA__SSL_CA_FILE: the broker's certificate was not accepted, or ours was not",
    "TOPIC_AUTHORIZATION_FAILED": "CUSTODY_KAFKA__TOPICS__RUNS: no right to read this topic",
    "GROUP_AUTHORIZATION_FAILED": "CUSTODY_KAFKA__GROUP: no right to use this group",
    "UNKNOWN_TOPIC_OR_PART": "CUSTODY_KAFKA__TOPICS__RUNS: there is no such topic",
    "_UNKNOWN_TOPIC": "CUSTODY_KAFKA__TOPICS__RUNS: there is no such topic",
    "_RESOLVE": "CUSTODY_KAFKA__BOOTSTRAP_SERVERS: a name could not be resolved",
    "_ALL_BROKERS_DOWN": "CUSTODY_KAFKA__BOOTSTRAP_SERVERS: no broker answers",
}


def code_of(error: object) -> str:
    """A code of few values, fit for a label."""
    if isinstance(error, KafkaException) and error.args:
        error = error.args[0]
    return error.name() if isinstance(error, KafkaError) else type(error).__name__


class LastError:
    """What Kafka said last, for health. Written by the poll thread, read by any."""

    def __init__(self) -> None:
        self._said: tuple[str, float] | None = None

    @property
    def text(self) -> str | None:
        """None: nothing for a while; what still holds is said again."""
        said = self._said
        return said[0] if said is not None and time.monotonic() - said[1] < FORGOTTEN_AFTER_S else None

    def note(self, error: object) -> str:
        code = code_of(error)
        self._said = (f"{code}: {_CURES[code]}" if code in _CURES else code, time.monotonic())
        return code
