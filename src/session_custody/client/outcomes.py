"""Reading the outcome topic, every partition, without a group."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Final, NoReturn

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from session_custody.client.failures import REFUSED, OutcomesUnreadable
from session_custody.settings import KafkaSettings

CONSUME_RECORDS_MAX: Final = 500


class OutcomeReader:
    """The outcome topic, every partition, without a group: nothing is committed, nothing is rebalanced."""

    def __init__(self, kafka: KafkaSettings) -> None:
        self._topic = kafka.topics.outcomes
        self._refusal: str | None = None
        self._consumer = Consumer(
            {
                **kafka.connection_options(),
                "group.id": f"custody-client-{uuid.uuid4()}",  # librdkafka wants one; it is never joined
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "allow.auto.create.topics": False,
            },
            error_cb=self._on_error,
        )

    def begin(self, since: datetime | None, timeout: float) -> None:
        try:
            found = self._consumer.list_topics(self._topic, timeout).topics[self._topic]
            if found.error is not None:
                self._unreadable(found.error)
            self._consumer.assign(self._positions(list(found.partitions), since, timeout))
        except KafkaException as error:
            self._unreadable(error.args[0])

    def _positions(self, numbers: list[int], since: datetime | None, timeout: float) -> list[TopicPartition]:
        if since is None:
            return [TopicPartition(self._topic, number, OFFSET_BEGINNING) for number in numbers]
        # "No record that late" is answered with a logical end. Taken as such, it is resolved later than it
        # was true and skips what comes between: so the ends are asked first.
        ends = [self._end(number, timeout) for number in numbers]
        moment = int(since.timestamp() * 1000)
        asked = [TopicPartition(self._topic, number, moment) for number in numbers]
        found = self._consumer.offsets_for_times(asked, timeout)
        return [
            place if place.offset >= 0 else TopicPartition(self._topic, place.partition, end)
            for place, end in zip(found, ends, strict=True)
        ]

    def _end(self, number: int, timeout: float) -> int:
        marks = self._consumer.get_watermark_offsets(TopicPartition(self._topic, number), timeout)
        if marks is None:
            raise OutcomesUnreadable(f"{self._topic}: its end was not told in time")
        return int(marks[1])

    def read(self, timeout: float) -> list[tuple[bytes | None, bytes]]:
        """(key, value) of what is there; waits for the first one only."""
        records: list[tuple[bytes | None, bytes]] = []
        first = self._consumer.poll(timeout)
        more = self._consumer.consume(CONSUME_RECORDS_MAX, 0) if first is not None else []
        for message in [first, *more] if first is not None else []:
            error = message.error()
            if error is not None and not error.retriable():
                self._unreadable(error)
            value = message.value()
            if error is None and value is not None:
                records.append((message.key(), value))
        if self._refusal is not None:
            raise OutcomesUnreadable(self._refusal)
        return records

    def close(self) -> None:
        self._consumer.close()

    def _on_error(self, error: KafkaError) -> None:
        self._refusal = REFUSED.get(error.code(), self._refusal)

    def _unreadable(self, error: KafkaError) -> NoReturn:
        raise OutcomesUnreadable(self._refusal or f"{self._topic}: {error.name()}") from None
