"""Stations 1 and 5: how the group consumer is set up. Every option stands here, with its reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

POLL_WAIT_S: Final = 0.03
"""`consume` waits this long unless a whole batch is there: the latency that admission adds, at most."""
POLL_RECORDS_MAX: Final = 500
WINDOW_RECORDS: Final = 2_000
WINDOW_BYTES: Final = 16 * 1024 * 1024
"""Read but not admitted, per lane; beyond it the partition pauses, below half of it it is resumed."""
LEAST_HEARTBEAT_S: Final = 0.1
LEAST_POLL_INTERVAL_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class ConsumerSetup:
    """What settings say. `connect` gives where, how and as whom; it is called once for each consumer made,
    and
    its answer, which holds secrets, is kept nowhere.
    """

    connect: Callable[[], Mapping[str, str]]
    topic: str
    group: str
    session_timeout_s: float = 45.0
    group_protocol: Literal["classic", "consumer"] = "classic"
    drain_budget_s: float | None = None
    """How long a revocation may block the poll thread. Default: a quarter of the session timeout."""

    @property
    def drain_s(self) -> float:
        return self.session_timeout_s / 4 if self.drain_budget_s is None else self.drain_budget_s


def consumer_options(setup: ConsumerSetup) -> dict[str, object]:
    """Options of one consumer: the connection's first, ours last, so that ours stand."""
    options: dict[str, object] = {
        **setup.connect(),
        "group.id": setup.group,
        "client.id": "custody-intake",
        # Offsets are committed after the pin's transaction, never by a timer (I4).
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        # Where the lane's offset is no more (retention), the oldest record there is: never skip to the end.
        "auto.offset.reset": "earliest",
        # A producer's aborted start is no start.
        "isolation.level": "read_committed",
        # A topic that appears by itself has the wrong number of partitions, and so of lanes.
        "allow.auto.create.topics": False,
        "enable.partition.eof": False,
        # The poll thread waits for a drain at most; beyond this it hangs, and the group may have its lanes.
        "max.poll.interval.ms": _ms(max(2 * setup.session_timeout_s, LEAST_POLL_INTERVAL_S)),
        # Prefetched records wait in memory outside the window: a small share is enough for a poll.
        "queued.min.messages": 2 * POLL_RECORDS_MAX,
        "queued.max.messages.kbytes": 16 * 1024,
        # An idle fetch returns this often; a record ends the wait at once on a real broker.
        "fetch.wait.max.ms": 100,
        # A recreated or grown topic is seen within the time that the generation check takes anyway.
        "topic.metadata.refresh.interval.ms": 30_000,
        # Back within seconds when the broker is back.
        "reconnect.backoff.max.ms": 2_000,
        "group.protocol": setup.group_protocol,
    }
    if setup.group_protocol == "classic":
        # In the new protocol these are the group's settings; the client refuses them there.
        options |= {
            "session.timeout.ms": _ms(setup.session_timeout_s),
            "heartbeat.interval.ms": _ms(min(3.0, max(LEAST_HEARTBEAT_S, setup.session_timeout_s / 5))),
            # Cooperative: lanes that stay where they are go on through a rebalance.
            "partition.assignment.strategy": "cooperative-sticky",
        }
    return options


def _ms(seconds: float) -> int:
    return int(seconds * 1000)
