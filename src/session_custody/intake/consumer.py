"""Stations 1 and 5: the group consumer and the one thread that makes every call of it (DESIGN 4).

Theory of operation. A thread that loops in `consume` starves every consumer call of other threads, so all of
them are commands, run between two polls. The thread never waits for work: records go to the event loop by
`deliver`, and a partition whose records are not admitted fast enough is paused by its window. It blocks in
one
place only, on purpose: inside the revocation callback, for the drain budget, while the lanes let go.

A *token* names one opening of a partition by one incarnation. Records carry it, and so do offsets to be
committed: what belongs to an older opening is dropped here or at the event loop, never admitted or committed.

`abandon` closes the consumer without draining: the event loop hangs, so nobody could drain. The lanes' fences
stay as they are; a later owner takes them. The thread comes back once the event loop answers again.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, KafkaException, TopicPartition

from session_custody import faults
from session_custody.intake.kafkaerrors import LastError
from session_custody.intake.options import POLL_RECORDS_MAX, POLL_WAIT_S, ConsumerSetup, consumer_options
from session_custody.intake.partitions import Partition, Pause
from session_custody.intake.record import Record, from_message
from session_custody.ports import LaneAssignments
from session_custody.telemetry import ASSIGNED, CONSUMER_LAG, REBALANCES, STATION_ERRORS, log

COMMITTED_WAIT_S: Final = 2.0
RECREATE_FIRST_S: Final = 0.5
RECREATE_MAX_S: Final = 30.0
SEEK_TRIES_MAX: Final = 100
SAMPLE_INTERVAL_S: Final = 5.0
STALLED_AFTER_S: Final = 60.0
RETURN_JITTER_S: Final = (0.5, 3.0)

Command = Callable[[Consumer], None]
Deliver = Callable[[int, int, Sequence[Record]], None]
"""(partition, token, records), called on the poll thread; must not block or raise."""


@dataclass(frozen=True, slots=True)
class ConsumerState:
    """For health. `beat_age_s`: since the poll thread last went round. `red`: why this worker admits
    nothing.
    """

    assigned: frozenset[int]
    beat_age_s: float
    red: str | None
    stalled: tuple[int, ...]
    last_error: str | None


class GroupConsumer:
    """Every public method may be called from any thread and returns at once, but for `join`."""

    def __init__(self, setup: ConsumerSetup, lanes: LaneAssignments, deliver: Deliver) -> None:
        self._setup = setup
        self._lanes = lanes
        self._deliver = deliver
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._partitions: dict[int, Partition] = {}
        self._assigned: frozenset[int] = frozenset()
        self._stop = threading.Event()
        self._abandon = threading.Event()
        self._closed = threading.Event()
        self._may_return = threading.Event()
        self._left: str | None = None
        self._fatal: str | None = None
        self._stalled: tuple[int, ...] = ()
        self._errors = LastError()
        self._beat = time.monotonic()
        self._sampled = self._beat
        self._thread = threading.Thread(target=self._run, name="custody-poll", daemon=True)

    # -------------------------------------------------------------- any thread

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Close the consumer and end. The lanes were drained before (DESIGN 4)."""
        self._stop.set()
        self._may_return.set()

    def join(self, timeout_s: float) -> bool:
        """Blocks. False: the thread still runs."""
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def leave(self, cause: str) -> None:
        """Leave the group for good; the thread goes on, health is red."""
        self._left = cause

    def abandon(self) -> None:
        self._may_return.clear()
        self._closed.clear()
        self._abandon.set()

    def abandoned(self) -> bool:
        return self._closed.is_set()

    def may_return(self) -> None:
        """The event loop answers again: join the group anew, after a jitter."""
        self._may_return.set()

    def is_assigned(self, partition: int) -> bool:
        return partition in self._assigned

    def state(self) -> ConsumerState:
        return ConsumerState(
            assigned=self._assigned,
            beat_age_s=max(0.0, time.monotonic() - self._beat),
            red=self._left or self._fatal,
            stalled=self._stalled,
            last_error=self._errors.text,
        )

    def open(self, partition: int, token: int, offset: int) -> None:
        """Go to `offset` and resume; records come with `token` from now on."""
        self._commands.put(lambda consumer: self._opened(consumer, partition, token, offset, 1))

    def close_partition(self, partition: int, token: int) -> None:
        """Pause; what was read under `token` is nobody's any more."""

        def close(consumer: Consumer) -> None:
            if (part := self._current(partition, token)) is not None:
                part.close()
                self._apply_pause(consumer, part)

        self._commands.put(close)

    def pause(self, partition: int, token: int, reason: Pause, paused: bool) -> None:
        def change(consumer: Consumer) -> None:
            if (part := self._current(partition, token)) is not None:
                (part.reasons.add if paused else part.reasons.discard)(reason)
                self._apply_pause(consumer, part)

        self._commands.put(change)

    def done(self, partition: int, token: int, records: int, size: int, offset: int | None) -> None:
        """Records are admitted: the window moves, and `offset` (the lane's input_offset) is to be
        committed.
        """

        def move(consumer: Consumer) -> None:
            if (part := self._current(partition, token)) is not None:
                part.done(records, size)
                if offset is not None:
                    part.to_commit = offset
                self._apply_pause(consumer, part)

        self._commands.put(move)

    # -------------------------------------------------------------- the poll thread

    def _run(self) -> None:
        failures = 0
        while not self._stop.is_set():
            began = time.monotonic()
            try:
                self._live()
            except Exception as error:  # noqa: BLE001 - the loop survives; a new consumer is made
                self._fatal = f"the consumer failed: {self._errors.note(error)}"
                STATION_ERRORS.labels("record", type(error).__name__).inc()
                log.error("the group consumer failed and is made anew", error=self._errors.text)
            failures = 0 if time.monotonic() - began > RECREATE_MAX_S else failures + 1
            self._wait_to_return(failures)
        self._closed.set()

    def _wait_to_return(self, failures: int) -> None:
        if self._abandon.is_set():
            self._abandon.clear()
            self._closed.set()
            while not self._may_return.wait(POLL_WAIT_S):
                self._beat = time.monotonic()
            self._pause_for(random.uniform(*RETURN_JITTER_S))  # noqa: S311 - spreads returns, no secret
        elif self._left is not None:
            log.error("this worker has left the group", cause=self._left)
            self._pause_for(float("inf"))
        elif not self._stop.is_set():
            self._pause_for(min(RECREATE_MAX_S, RECREATE_FIRST_S * 2 ** min(failures, 10)))

    def _pause_for(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self._stop.wait(POLL_WAIT_S):
            self._beat = time.monotonic()

    def _live(self) -> None:
        """One consumer from its making to its end."""
        self._sampled = time.monotonic()
        consumer = Consumer(
            consumer_options(self._setup)
            | {"error_cb": self._heard_error, "on_commit": self._offsets_committed},
            logger=logging.getLogger("session_custody.librdkafka"),
        )
        try:
            consumer.subscribe(
                [self._setup.topic],
                on_assign=self._on_assign,
                on_revoke=self._on_revoke,
                on_lost=self._on_lost,
            )
            while not (self._stop.is_set() or self._abandon.is_set() or self._left is not None):
                self._beat = time.monotonic()
                self._run_commands(consumer)
                self._commit_offsets(consumer)
                self._read(consumer)
                self._sample(consumer)
        finally:
            try:
                consumer.close()  # callbacks run in here: drained lanes let go quickly
            finally:
                if self._partitions:
                    self._forget(self._partitions, "lost")

    def _read(self, consumer: Consumer) -> None:
        messages = consumer.consume(POLL_RECORDS_MAX, POLL_WAIT_S)
        if not messages:
            return
        self._fatal = None
        by_partition: defaultdict[int, list[Record]] = defaultdict(list)
        for message in messages:
            error = message.error()
            if error is None:
                by_partition[message.partition() or 0].append(from_message(message))
            elif error.fatal():
                raise KafkaException(error)
            else:
                self._heard_error(error)
        for number, records in by_partition.items():
            part = self._partitions.get(number)
            # Between a close and the next open a few records may still arrive: the next open seeks back.
            if part is None or Pause.NOT_OPEN in part.reasons:
                continue
            faults.reach("record.before", partition=number)
            part.read(records)
            self._apply_pause(consumer, part)
            self._deliver(number, part.token, records)
            faults.reach("record.after", partition=number)

    def _run_commands(self, consumer: Consumer) -> None:
        for _ in range(self._commands.qsize()):  # those that came before: a command may put itself back
            try:
                command = self._commands.get_nowait()
            except queue.Empty:
                return
            try:
                command(consumer)
            except KafkaException as error:
                STATION_ERRORS.labels("record", self._errors.note(error)).inc()

    def _opened(self, consumer: Consumer, number: int, token: int, offset: int, attempt: int) -> None:
        part = self._partitions.get(number)
        if part is None or part.token > token:
            return  # revoked meanwhile, or opened by a later incarnation
        if part.committed is not None and part.committed > offset:
            # Postgres went back, or an older group was reused: the lane row is the truth (DESIGN 4).
            STATION_ERRORS.labels("offset", "group_ahead").inc()
            log.warning(
                "the group's offset is ahead of the lane's: intake goes back",
                partition=number,
                group_offset=part.committed,
                input_offset=offset,
            )
        part.committed = None
        try:
            consumer.seek(TopicPartition(self._setup.topic, number, offset))
        except KafkaException as error:
            # _STATE until the assignment has reached the fetcher
            if attempt >= SEEK_TRIES_MAX:
                raise KafkaException(error.args[0]) from None
            self._commands.put(lambda again: self._opened(again, number, token, offset, attempt + 1))
            return
        part.open(token, offset)
        self._apply_pause(consumer, part)

    def _current(self, number: int, token: int) -> Partition | None:
        """Late completions of an older opening, or of a partition that is gone, find nothing."""
        part = self._partitions.get(number)
        return part if part is not None and part.token == token else None

    def _apply_pause(self, consumer: Consumer, part: Partition) -> None:
        wanted = bool(part.reasons)
        if wanted != part.paused:
            place = [TopicPartition(self._setup.topic, part.number)]
            (consumer.pause if wanted else consumer.resume)(place)
            part.paused = wanted

    def _commit_offsets(self, consumer: Consumer) -> None:
        """Asynchronous: the lane row is the truth, so nobody waits for the broker here."""
        due = [part for part in self._partitions.values() if part.to_commit is not None]
        if not due:
            return
        places = [
            TopicPartition(self._setup.topic, part.number, part.to_commit)
            for part in due
            if part.to_commit is not None
        ]
        for part in due:
            part.to_commit = None
        faults.reach("offset.before")
        try:
            consumer.commit(offsets=places, asynchronous=True)
        except KafkaException as error:
            STATION_ERRORS.labels("offset", self._errors.note(error)).inc()
        faults.reach("offset.after")

    # -------------------------------------------------------------- callbacks, on the poll thread

    def _on_assign(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        REBALANCES.labels("assigned").inc()
        if not places:
            return  # happens; the client then does what is needed
        committed = self._group_offsets(consumer, places)
        # At a definite offset: a seek on a partition without one fails. Paused: nobody admits for it yet.
        consumer.incremental_assign(
            [
                TopicPartition(self._setup.topic, place.partition, max(0, committed.get(place.partition, 0)))
                for place in places
            ]
        )
        consumer.pause([TopicPartition(self._setup.topic, place.partition) for place in places])
        for place in places:
            self._partitions[place.partition] = Partition(place.partition, committed.get(place.partition))
        self._tell_assigned()
        self._lanes.assigned([place.partition for place in places])

    def _group_offsets(self, consumer: Consumer, places: list[TopicPartition]) -> dict[int, int]:
        """Only to notice a group that is ahead; without an answer intake starts at the lane's offset all
        the same.
        """
        try:
            found = consumer.committed(places, timeout=COMMITTED_WAIT_S)
        except KafkaException as error:
            self._errors.note(error)
            return {}
        return {place.partition: place.offset for place in found if place.offset > OFFSET_INVALID}

    def _on_revoke(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        REBALANCES.labels("revoked").inc()
        numbers = [place.partition for place in places]
        if not numbers:
            return
        if not self._abandon.is_set():
            self._beat = time.monotonic() + self._setup.drain_s  # blocked on purpose: no reason for a restart
            self._lanes.revoked(numbers, self._setup.drain_s)
            self._beat = time.monotonic()
            self._run_commands(consumer)  # the drain's last admissions
            self._commit_offsets(consumer)
            self._forget(numbers, None)
        else:
            self._forget(numbers, "lost")
        self._unassign(consumer, places)

    def _on_lost(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        REBALANCES.labels("lost").inc()
        self._forget([place.partition for place in places], "lost")
        self._unassign(consumer, places)

    def _unassign(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        with contextlib.suppress(KafkaException):  # the group moved on meanwhile
            consumer.incremental_unassign(places)

    def _forget(self, numbers: Sequence[int] | dict[int, Partition], event: str | None) -> None:
        known = [number for number in list(numbers) if self._partitions.pop(number, None) is not None]
        for number in known:
            with contextlib.suppress(KeyError):  # a lag that nobody measures any more is no lag
                CONSUMER_LAG.remove(self._setup.topic, str(number))
        self._tell_assigned()
        if known and event == "lost":
            self._lanes.lost(known)

    def _tell_assigned(self) -> None:
        self._assigned = frozenset(self._partitions)
        ASSIGNED.set(len(self._assigned))

    def _heard_error(self, error: KafkaError) -> None:
        STATION_ERRORS.labels("record", self._errors.note(error)).inc()

    def _offsets_committed(self, error: KafkaError | None, places: list[TopicPartition]) -> None:
        # Counted, not retried: ILLEGAL_GENERATION and its kin mean that the lane is somebody else's by now.
        for failed in [error, *(place.error for place in places)]:
            if failed is not None:
                STATION_ERRORS.labels("offset", self._errors.note(failed)).inc()

    def _sample(self, consumer: Consumer) -> None:
        """Lag, and whether a partition that should move stands still."""
        now = time.monotonic()
        if now - self._sampled < SAMPLE_INTERVAL_S:
            return
        self._sampled = now
        self._fatal = None  # this consumer has lived for a while
        stalled = []
        for part in self._partitions.values():
            try:
                _, high = consumer.get_watermark_offsets(
                    TopicPartition(self._setup.topic, part.number), cached=True
                )
            except KafkaException:
                continue
            if high < 0 or part.position < 0:
                continue
            lag = max(0, high - part.position)
            CONSUMER_LAG.labels(self._setup.topic, str(part.number)).set(lag)
            if lag and not part.reasons and now - part.progress_at > STALLED_AFTER_S:
                stalled.append(part.number)
        self._stalled = tuple(stalled)
