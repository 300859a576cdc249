"""`CustodyClient`: publishes starts and resumes, waits for outcomes."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Self

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from pydantic import JsonValue

from session_custody.client.failures import (
    REFUSED,
    ClientError,
    DeliveryFailed,
    InvalidRecord,
    NotAllDelivered,
    OutcomeTimeout,
    delivery_failed,
)
from session_custody.client.outcomes import OutcomeReader
from session_custody.client.records import Outcome, RunStart, outcome_of, resume_of
from session_custody.core.canonical import compact
from session_custody.core.events import Answerer, ResumeKind
from session_custody.core.pin import Subject
from session_custody.settings import KafkaSettings, Settings
from session_custody.wire import encode_resume, encode_start, rfc3339
from session_custody.wire.headers import CONTENT_TYPE_AVRO

SOURCE_DEFAULT: Final = "//custody/client"
DELIVERY_TIMEOUT_S: Final = 60.0
TOPIC_APPEARS_S: Final = 5.0
"""How long an unknown topic may be one that was just created."""
CLOSE_S: Final = 10.0
QUEUE_RECORDS_MAX: Final = 10_000
METADATA_S: Final = 30.0
POLL_S: Final = 0.05

Headers = list[tuple[str, str | bytes | None]]


@dataclass(slots=True)
class _Delivery:
    """One record under way; `done` once its delivery report was served, by whichever thread polled."""

    run_id: str
    done: bool = False
    error: KafkaError | None = None

    def report(self, error: KafkaError | None, _: Message) -> None:
        self.error = error
        self.done = True


class CustodyClient:
    """Publishes to the input topic and reads the outcome topic. A context manager; `close` flushes."""

    def __init__(
        self, kafka: KafkaSettings, *, source: str = SOURCE_DEFAULT, type_prefix: str = "custody"
    ) -> None:
        """`source`: ce_source of what is sent. Name your service: a resume is known by it and its ce_id."""
        self._kafka = kafka
        self._source = source
        self._type_prefix = type_prefix
        self._refusal: tuple[str, str] | None = None
        self._closing = threading.Lock()
        self._producer: Producer | None = Producer(_producer_options(kafka), error_cb=self._on_error)

    @classmethod
    def from_env(cls, *, source: str = SOURCE_DEFAULT) -> Self:
        """As the settings in the environment say. Raises SettingsError that names the variable."""
        return cls.from_settings(Settings.load(), source=source)

    @classmethod
    def from_settings(cls, settings: Settings, *, source: str = SOURCE_DEFAULT) -> Self:
        return cls(settings.kafka, source=source, type_prefix=settings.ce_type_prefix)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Send what is queued, for at most CLOSE_S. Nothing can be sent afterwards."""
        with self._closing:
            producer, self._producer = self._producer, None
        if producer is not None:
            producer.flush(CLOSE_S)

    # ---------------------------------------------------------------- publish

    def start(self, start: RunStart, *, traceparent: str | None = None) -> str:
        """Publish a start; returns its run_id when the broker has acknowledged.

        Raises InvalidRecord before anything is sent, DeliveryFailed when no acknowledgement came.
        """
        return self._deliver(self._send_start(start, traceparent))

    def start_many(self, starts: Iterable[RunStart]) -> list[str]:
        """Publish many, a bounded number under way. Returns the acknowledged run_ids in the order given.

        Raises NotAllDelivered when some were not; InvalidRecord stops at the first invalid one, after those
        before it were acknowledged.
        """
        under_way: list[_Delivery] = []
        try:
            for start in starts:
                under_way.append(self._send_start(start, None))  # noqa: PERF401 - what was sent counts if one raises
        finally:
            for delivery in under_way:
                self._await(delivery)
        failed = {
            delivery.run_id: self._cause(delivery.error).code
            for delivery in under_way
            if delivery.error is not None
        }
        acknowledged = [delivery.run_id for delivery in under_way if delivery.error is None]
        if failed:
            raise NotAllDelivered(acknowledged, failed)
        return acknowledged

    def resume(
        self,
        run_id: str | None = None,
        *,
        session_id: str | None = None,
        ce_id: str | None = None,
        **more: Any,
    ) -> None:
        """Continue a run, or the newest waiting run of a session. `more`: further fields of RunResume."""
        self._resume(ResumeKind.CONTINUE, ce_id, correlation_id=run_id, session_id=session_id, **more)

    def answer(
        self,
        run_id: str | None = None,
        *,
        question_id: str | None = None,
        answer: JsonValue,
        by: Answerer,
        ce_id: str | None = None,
        **more: Any,
    ) -> None:
        """Answer a question of a run. Sending it twice with one `ce_id` is one answer."""
        try:
            text = compact(answer)
        except ValueError as error:
            raise InvalidRecord(f"answer: {error}") from None
        self._resume(
            ResumeKind.SIGNAL,
            ce_id,
            correlation_id=run_id,
            question_id=question_id,
            answer=text,
            answered_by=by.model_dump(),
            **more,
        )

    def cancel(self, run_id: str, *, reason: str, ce_id: str | None = None, **more: Any) -> None:
        """Ask a run to stop at its next boundary; with a write in doubt it ends after that is resolved."""
        self._resume(ResumeKind.CANCEL, ce_id, correlation_id=run_id, reason=reason, **more)

    # ---------------------------------------------------------------- wait

    def wait(self, run_id: str, *, timeout: float, since: datetime | None = None) -> Outcome:
        """The outcome of a run that has ended or ends within `timeout` seconds; else OutcomeTimeout.

        The topic is read from its beginning, or from `since` (time of record) where you know that to do.
        """
        return self.wait_many([run_id], timeout=timeout, since=since)[run_id]

    def wait_many(
        self,
        run_ids: Iterable[str],
        *,
        timeout: float,
        since: datetime | None = None,
        on_outcome: Callable[[Outcome], None] | None = None,
    ) -> dict[str, Outcome]:
        """Outcomes by run_id; OutcomeTimeout (with those that came) when one is missing at the end."""
        deadline = time.monotonic() + timeout
        missing = {run_id.encode(): run_id for run_id in run_ids}
        outcomes: dict[str, Outcome] = {}
        reader = OutcomeReader(self._kafka)
        try:
            reader.begin(since, min(METADATA_S, timeout))
            while missing and (left := deadline - time.monotonic()) > 0:
                for key, value in reader.read(min(left, 1.0)):
                    if key in missing:
                        outcome = outcome_of(value)
                        outcomes[missing.pop(key)] = outcome
                        if on_outcome is not None:
                            on_outcome(outcome)
        finally:
            reader.close()
        if missing:
            raise OutcomeTimeout(missing.values(), outcomes, timeout)
        return outcomes

    # ---------------------------------------------------------------- inside

    def _send_start(self, start: RunStart, traceparent: str | None) -> _Delivery:
        event = start.event()
        headers = self._headers("start", f"{event.correlation_id}/start", event.correlation_id, traceparent)
        if event.expires_at is not None:
            headers.append(("ce_expirytime", rfc3339(event.expires_at).encode()))
        return self._send(event.correlation_id, encode_start(event), headers)

    def _resume(self, kind: ResumeKind, ce_id: str | None, **fields: Any) -> None:
        traceparent = fields.pop("traceparent", None)
        subject = fields.get("subject")
        if isinstance(subject, Subject):
            fields["subject"] = subject.model_dump()
        resume = resume_of(kind, fields)
        key = resume.correlation_id or resume.session_id
        if key is None:
            raise InvalidRecord("correlation_id: a resume names a run or a session")
        headers = self._headers("resume", ce_id or str(uuid.uuid4()), key, traceparent)
        self._deliver(self._send(key, encode_resume(resume), headers))

    def _headers(self, what: str, ce_id: str, key: str, traceparent: str | None) -> Headers:
        headers = {
            "content-type": CONTENT_TYPE_AVRO,
            "ce_specversion": "1.0",
            "ce_id": ce_id,
            "ce_source": self._source,
            "ce_type": f"{self._type_prefix}.run.{what}.v1",
            "ce_subject": key,
            "ce_time": rfc3339(datetime.now(UTC)),
            "ce_correlationid": key,
            "ce_partitionkey": key,
            "traceparent": traceparent,
        }
        return [(name, value.encode()) for name, value in headers.items() if value is not None]

    def _send(self, key: str, value: bytes, headers: Headers) -> _Delivery:
        delivery = _Delivery(key)
        deadline = time.monotonic() + DELIVERY_TIMEOUT_S
        while True:
            producer = self._open_producer()
            if not len(producer):
                self._refusal = None  # of earlier times: nothing of now was refused yet
            try:
                producer.produce(
                    self._kafka.topics.runs,
                    key=key.encode(),
                    value=value,
                    headers=headers,
                    on_delivery=delivery.report,
                )
            except BufferError:
                if time.monotonic() > deadline:
                    raise DeliveryFailed(
                        "_QUEUE_FULL", "the broker takes nothing; the queue is full"
                    ) from None
                self._poll()
            except KafkaException as error:
                delivery.error, delivery.done = error.args[0], True
                return delivery
            else:
                producer.poll(0)
                return delivery

    def _deliver(self, delivery: _Delivery) -> str:
        self._await(delivery)
        if delivery.error is not None:
            raise self._cause(delivery.error)
        return delivery.run_id

    def _await(self, delivery: _Delivery) -> None:
        # The report comes to whichever thread polls; librdkafka's own timeout ends the waiting.
        while not delivery.done:
            self._poll()

    def _poll(self) -> None:
        producer = self._open_producer()
        producer.poll(POLL_S)
        if self._refusal is not None and len(producer):
            # What waits for a broker that refuses us would wait out its whole timeout. Reports follow.
            producer.purge(in_queue=True, in_flight=False)

    def _cause(self, error: KafkaError) -> DeliveryFailed:
        if error.code() == KafkaError._PURGE_QUEUE and self._refusal is not None:
            return DeliveryFailed(*self._refusal)
        return delivery_failed(error)

    def _open_producer(self) -> Producer:
        if self._producer is None:
            raise ClientError("the client is closed")
        return self._producer

    def _on_error(self, error: KafkaError) -> None:
        if error.code() in REFUSED:
            self._refusal = (error.name(), REFUSED[error.code()])
        elif error.fatal():
            self._refusal = (error.name(), "the producer cannot go on; make a new client")


def _producer_options(kafka: KafkaSettings) -> dict[str, Any]:
    return {
        **kafka.connection_options(),
        "acks": "all",
        "enable.idempotence": True,
        "partitioner": "murmur2_random",  # the Java client's: a start and its resumes share a partition
        "linger.ms": 2,
        "delivery.timeout.ms": int(DELIVERY_TIMEOUT_S * 1000),
        "topic.metadata.propagation.max.ms": int(TOPIC_APPEARS_S * 1000),
        "queue.buffering.max.messages": QUEUE_RECORDS_MAX,
        "allow.auto.create.topics": False,
    }
