"""Station 12, the blocking side: a lane's producer, in transactions or (by setting) without them.

Everything here blocks and belongs to the lane's own thread. Every call has a deadline. What may come back is
named by what happens next (DESIGN 6, step 4):

    returns              the records and the cursor are committed
    BatchAborted         nothing of the batch will ever be seen; the same rows again
    RecordsRefused       the same, and these records would be refused again: cut them, then the same rows
    OutletGone           the outcome is unknown, or the producer is of no use: throw it away, back to step 1

A timeout of commit or abort is the last of these: librdkafka would let us call again, but the request may be
executed late, and only a newly initialised producer fences it off.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from session_custody import faults
from session_custody.publish.records import Headers, Outgoing
from session_custody.publish.refusals import GONE, REFUSED_FOR_EVER, TIMEOUTS, error_of, setting_of, told

QUEUE_FULL_POLL_S: Final = 0.1
RETRY_POLL_S: Final = 0.05
HEARD_ELSEWHERE: Final = (KafkaException, SystemError)
"""What poll and flush raise for a fatal error, which the next call on the transaction says better.
SystemError: the client has set the exception already and serves one more delivery report before it returns.
"""


class OutletGone(Exception):
    """Throw the producer away. `cause` is an error's name (a metric's label), `detail` for people."""

    def __init__(self, cause: str, detail: str) -> None:
        super().__init__(detail)
        self.cause = cause
        self.detail = detail


class BatchAborted(Exception):
    """Nothing of the batch counts; the producer is well."""

    def __init__(self, cause: str, detail: str) -> None:
        super().__init__(detail)
        self.cause = cause
        self.detail = detail


class RecordsRefused(Exception):
    """Nothing of the batch counts, and records among it are at fault: lane_seq -> the broker's word."""

    def __init__(self, words: dict[int, str]) -> None:
        super().__init__(f"{len(words)} record(s) were refused")
        self.words = words


@dataclass(frozen=True, slots=True)
class CursorRecord:
    """A claim or a cursor, and the explicit partition it belongs on."""

    topic: str
    partition: int
    key: bytes
    value: bytes


class Outlet(Protocol):
    def open(self) -> None:
        """Step 1: be the lane's only producer, and end whatever the one before left open."""

    def claim(self, record: CursorRecord) -> None:
        """The claim, by itself."""

    def publish(self, records: Sequence[Outgoing], cursor: CursorRecord) -> int:
        """Step 3. Returns the cursor's offset once everything is committed."""

    def discard(self) -> None:
        """Throw it away. Never blocks; an open transaction ends with the next `open` or by its timeout."""


class _Sender:
    """A librdkafka producer with its delivery reports sorted out."""

    def __init__(self, options: dict[str, Any], call_timeout_s: float) -> None:
        try:
            self._alive: Producer | None = Producer(options)
        except KafkaException as error:
            raise OutletGone(error_of(error).name(), _refused_options(error)) from None
        self._call_timeout_s = call_timeout_s
        self._failed: dict[int, KafkaError] = {}
        self._not_sent: KafkaError | None = None
        self._cursor_offset: int | None = None

    def _begin_batch(self) -> float:
        self._failed.clear()
        self._not_sent = None
        self._cursor_offset = None
        return time.monotonic() + self._call_timeout_s

    def _send_record(self, record: Outgoing, deadline: float) -> None:
        report = partial(self._report, record.lane_seq)
        self._send(
            record.topic, record.value, record.key, -1, record.headers, report, deadline, record.lane_seq
        )

    def _send_cursor(self, record: CursorRecord, deadline: float) -> None:
        self._send(
            record.topic, record.value, record.key, record.partition, [], self._report_cursor, deadline, 0
        )

    def _send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int,
        headers: Headers,
        report: Callable[[KafkaError | None, Message], None],
        deadline: float,
        lane_seq: int,
    ) -> None:
        while True:
            try:
                self._producer.produce(
                    topic, value, key, partition, on_delivery=report, headers=list(headers)
                )
                return
            except BufferError:  # the local queue is full: let delivery reports empty it
                if time.monotonic() >= deadline:
                    raise OutletGone("_QUEUE_FULL", "Kafka takes no records") from None
                self._poll(QUEUE_FULL_POLL_S)
            except KafkaException as exception:
                # too large for this client, or the transaction is broken already: then its end tells why
                self._failed[lane_seq] = self._not_sent = error_of(exception)
                return

    def _report(self, lane_seq: int, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self._failed[lane_seq] = error

    def _report_cursor(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._failed[0] = error
        else:
            self._cursor_offset = message.offset()

    def _raise_for_records(self, cause: str, detail: str) -> None:
        """Nothing counts: say whether a record is at fault. Always raises."""
        words = {
            lane_seq: error.name().lower()
            for lane_seq, error in self._failed.items()
            if lane_seq and error.code() in REFUSED_FOR_EVER
        }
        if words:
            raise RecordsRefused(words)
        for error in self._failed.values():
            if (text := setting_of(error)) is not None:
                raise BatchAborted(error.name(), text)
        raise BatchAborted(cause, detail)

    def _offset(self) -> int:
        if self._cursor_offset is None:
            raise OutletGone("no_report", "Kafka did not say where the cursor stands")
        return self._cursor_offset

    def _poll(self, wait_s: float = 0.0) -> None:
        """Let delivery reports and error_cb be heard. A fatal error is raised here too: the next call on the
        transaction says it better.
        """
        with contextlib.suppress(*HEARD_ELSEWHERE):
            self._producer.poll(wait_s)

    def _flush(self, deadline: float) -> int:
        """Records still under way at the deadline."""
        with contextlib.suppress(*HEARD_ELSEWHERE):
            return self._producer.flush(max(deadline - time.monotonic(), 0.001))
        return len(self._producer)

    @property
    def _producer(self) -> Producer:
        if self._alive is None:
            raise OutletGone("discarded", "the producer was thrown away")
        return self._alive

    def discard(self) -> None:
        producer, self._alive = self._alive, None
        if producer is not None:
            # not close(): it would wait for the end of what is thrown away. librdkafka's threads and
            # connections end when the last reference goes, here.
            with contextlib.suppress(*HEARD_ELSEWHERE):
                producer.purge(blocking=False)
                producer.poll(0)


class TransactionalOutlet(_Sender):
    """Exactly once to read_committed consumers (I9)."""

    def open(self) -> None:
        deadline = time.monotonic() + self._call_timeout_s
        while True:
            try:
                self._producer.init_transactions(max(deadline - time.monotonic(), 0.001))
                return
            except KafkaException as exception:
                error = error_of(exception)
                self._poll()
                if not error.retriable() or error.code() in TIMEOUTS or time.monotonic() >= deadline:
                    raise OutletGone(error.name(), told(error)) from None
                self._poll(RETRY_POLL_S)

    def claim(self, record: CursorRecord) -> None:
        deadline = self._begin_batch()
        self._begin()
        self._send_cursor(record, deadline)
        try:
            self._commit(deadline)
        except (BatchAborted, RecordsRefused) as error:
            raise OutletGone("claim", str(error)) from None

    def publish(self, records: Sequence[Outgoing], cursor: CursorRecord) -> int:
        deadline = self._begin_batch()
        self._begin()
        for record in records:
            self._send_record(record, deadline)
        self._send_cursor(cursor, deadline)
        # The commit would wait for them too; here the delivery reports are heard first. A record that never
        # entered the transaction must end it, or the commit would succeed without it; what failed on its way
        # makes the commit fail, and only that error tells why.
        self._flush(deadline)
        if self._not_sent is not None:
            self._abort(self._not_sent)
        faults.reach("publication.before", lane_seq=records[-1].lane_seq)
        self._commit(deadline)
        faults.reach("publication.after", lane_seq=records[-1].lane_seq)
        return self._offset()

    def _begin(self) -> None:
        try:
            self._producer.begin_transaction()
        except KafkaException as exception:
            raise OutletGone(error_of(exception).name(), told(error_of(exception))) from None

    def _commit(self, deadline: float) -> None:
        while True:
            try:
                self._producer.commit_transaction(max(deadline - time.monotonic(), 0.001))
                return
            except KafkaException as exception:
                error = error_of(exception)
            if error.code() in TIMEOUTS or error.code() in GONE or error.fatal():
                raise OutletGone(error.name(), self._why(error))
            if error.txn_requires_abort():
                self._abort(error)
            if not error.retriable() or time.monotonic() >= deadline:
                raise OutletGone(error.name(), self._why(error))
            self._poll(RETRY_POLL_S)

    def _abort(self, cause: KafkaError) -> None:
        """End the transaction without effect. Always raises."""
        deadline = time.monotonic() + self._call_timeout_s
        while True:
            try:
                self._producer.abort_transaction(max(deadline - time.monotonic(), 0.001))
                break
            except KafkaException as exception:
                error = error_of(exception)
            if error.code() in TIMEOUTS or not error.retriable() or time.monotonic() >= deadline:
                raise OutletGone(error.name(), self._why(error))
            self._poll(RETRY_POLL_S)
        if cause.code() in GONE:
            raise OutletGone(cause.name(), told(cause))
        self._raise_for_records(cause.name(), told(cause))

    def _why(self, error: KafkaError) -> str:
        """The delivery reports know more than the call that failed."""
        self._poll()
        for failed in self._failed.values():
            if (text := setting_of(failed)) is not None:
                return text
        return told(error)


class PlainOutlet(_Sender):
    """At least once, for brokers without transactions: records first, then the cursor (DESIGN 6, step 5).

    Killed in between, the next owner publishes the batch again; readers drop it by ce_id. When one record of
    a batch fails and later ones do not, the whole batch is sent again: a reader may meet a run's events out
    of order once, and drops the second ones.
    """

    def open(self) -> None:
        return

    def claim(self, record: CursorRecord) -> None:
        deadline = self._begin_batch()
        self._send_cursor(record, deadline)
        try:
            self._delivered(deadline)
        except (BatchAborted, RecordsRefused) as error:
            raise OutletGone("claim", str(error)) from None

    def publish(self, records: Sequence[Outgoing], cursor: CursorRecord) -> int:
        deadline = self._begin_batch()
        for record in records:
            self._send_record(record, deadline)
        self._delivered(deadline)
        faults.reach("publication.before", lane_seq=records[-1].lane_seq)
        self._send_cursor(cursor, deadline)
        self._delivered(deadline)
        faults.reach("publication.after", lane_seq=records[-1].lane_seq)
        return self._offset()

    def _delivered(self, deadline: float) -> None:
        left = self._flush(deadline)
        late = [error for error in self._failed.values() if error.code() in TIMEOUTS]
        if left or late:
            raise OutletGone("_TIMED_OUT", "Kafka did not take the records in time")
        if self._failed:
            self._raise_for_records("delivery", told(next(iter(self._failed.values()))))


def _refused_options(exception: KafkaException) -> str:
    error = error_of(exception)
    # the text names the option, never its value
    return f"CUSTODY_KAFKA__EXTRA: librdkafka refused an option ({error.name()})"
