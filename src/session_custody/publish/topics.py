"""Station 12: the topics, made and looked at (`custody topics create|check`, DESIGN 15).

What must be so, and why:

    cursors       compacted, never deleted from      the cursor is the only memory of what was published
                  min.compaction.lag.ms >= a day     a zombie's late claim must not clear its successor's away
                  as many partitions as the input    else a dead neighbour's open transaction hides a claim
    all others    never compacted                    many records share a key; compaction would lose events
    dead letters  take larger records than the rest  a refused record is published with headers of ours

Every call has a deadline. Errors name the setting: with a wrong password a call only times out, and the cause
comes through `error_cb`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as LateError
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.admin._topic import TopicDescription
from confluent_kafka.cimpl import NewTopic

from session_custody.core.errors import SettingsError, Unavailable
from session_custody.publish.options import RECORD_BYTES_MAX, KafkaConfig, silent
from session_custody.publish.records import Topics
from session_custody.publish.refusals import CREDENTIALS, error_of, setting_of

ANSWER_S: Final = 15.0
KNOWN_LOOK_S: Final = 0.05
COMPACTION_LAG_MS: Final = 24 * 3600 * 1000
DEAD_LETTER_BYTES: Final = RECORD_BYTES_MAX + 4096
CREATE: Final = "custody topics create"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the settings say. `replication_factor` None: the broker's default."""

    runs: str
    outputs: Topics
    partitions: int = 12
    replication_factor: int | None = None

    @property
    def names(self) -> tuple[str, ...]:
        out = self.outputs
        return (self.runs, out.steps, out.outcomes, out.dead_letters, out.cursors)


@dataclass(frozen=True, slots=True)
class TopicFinding:
    """One thing that is not as custody needs it, with its cure."""

    topic: str
    problem: str
    cure: str


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """A topic as the cluster describes it; `topic_id` is its generation (DESIGN 4)."""

    topic_id: str
    partitions: int
    replicas: int
    config: Mapping[str, str]

    def number(self, name: str) -> int:
        text = self.config.get(name, "")
        return int(text) if text.lstrip("-").isdigit() else 0

    @property
    def cleanup(self) -> frozenset[str]:
        return frozenset(part.strip() for part in self.config.get("cleanup.policy", "").split(",") if part)


class TopicAdmin:
    """Blocking; for commands and start-up. Raises Unavailable("kafka") and SettingsError."""

    def __init__(self, connection: KafkaConfig, wanted: Wanted) -> None:
        self._wanted = wanted
        self._heard: KafkaError | None = None
        self._lock = threading.Lock()
        made: dict[str, Any] = {
            **connection,
            "client.id": "custody-topics",
            "error_cb": self._hear,
            "log_level": 0,
        }
        self._admin = AdminClient(made, logger=silent())

    def _hear(self, error: KafkaError) -> None:
        with self._lock:
            if self._heard is None or self._heard.code() not in CREDENTIALS:
                self._heard = error

    # ------------------------------------------------------------------ what there is

    def cluster_id(self) -> str:
        """The cluster's id, part of every lane's identity."""
        found = self._answer(self._admin.describe_cluster(request_timeout=ANSWER_S))
        if not found.cluster_id:
            raise Unavailable("kafka", "the cluster does not tell its id")
        return str(found.cluster_id)

    def facts(self) -> Mapping[str, TopicFacts]:
        """Every wanted topic that is there."""
        names = list(self._wanted.names)
        described = self._admin.describe_topics(TopicCollection(names), request_timeout=ANSWER_S)
        there: dict[str, TopicDescription] = {}
        for name, future in described.items():
            found = self._answer_or_missing(future)
            if found is not None:
                there[name] = found
        if not there:
            return {}
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in there]
        configs = self._admin.describe_configs(resources, request_timeout=ANSWER_S)
        read = {
            resource.name: {entry.name: str(entry.value) for entry in self._answer(future).values()}
            for resource, future in configs.items()
        }
        return {
            name: TopicFacts(
                str(found.topic_id),
                len(found.partitions),
                min((len(partition.replicas) for partition in found.partitions), default=0),
                read[name],
            )
            for name, found in there.items()
        }

    def topic_ids(self) -> Mapping[str, str]:
        """topic -> generation, of those that are there."""
        return {name: facts.topic_id for name, facts in self.facts().items()}

    # ------------------------------------------------------------------ create and check

    def create(self, *, dry_run: bool = False) -> Sequence[str]:
        """Create what is missing and return its names; what is there is left as it is."""
        there = self.facts()
        missing = [name for name in self._wanted.names if name not in there]
        if missing and not dry_run:
            new = [self._new(name, there) for name in missing]
            made = self._admin.create_topics(new, operation_timeout=ANSWER_S, request_timeout=ANSWER_S)
            for future in made.values():
                self._answer(future, fine=KafkaError.TOPIC_ALREADY_EXISTS)
            self._wait_until_known(missing)
        return missing

    def _wait_until_known(self, names: Sequence[str]) -> None:
        """A created topic is known to every broker some moments later."""
        deadline = time.monotonic() + ANSWER_S
        while not set(names) <= set(self.facts()):
            if time.monotonic() >= deadline:
                raise Unavailable("kafka", "created topics do not show up")
            time.sleep(KNOWN_LOOK_S)

    def _new(self, name: str, there: Mapping[str, TopicFacts]) -> NewTopic:
        wanted = self._wanted
        lanes = there[wanted.runs].partitions if wanted.runs in there else wanted.partitions
        return NewTopic(
            name,
            num_partitions=lanes if name == wanted.outputs.cursors else wanted.partitions,
            replication_factor=wanted.replication_factor or -1,
            config=_config(name, wanted.outputs),
        )

    def check(self) -> Sequence[TopicFinding]:
        """Everything that is not as it must be; empty: all is well."""
        return findings(self._wanted, self.facts())

    # ------------------------------------------------------------------ answers

    def _answer_or_missing(self, future: Future[T]) -> T | None:
        try:
            return future.result(ANSWER_S + 1)
        except KafkaException as exception:
            if error_of(exception).code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                return None
            raise self._meaning(error_of(exception)) from None
        except LateError:
            raise self._meaning(KafkaError(KafkaError._TIMED_OUT)) from None

    def _answer(self, future: Future[T], fine: int | None = None) -> T:
        try:
            return future.result(ANSWER_S + 1)
        except KafkaException as exception:
            error = error_of(exception)
            if fine is not None and error.code() == fine:
                return None  # type: ignore[return-value]  # only create_topics, whose answer is None
            raise self._meaning(error) from None
        except LateError:
            raise self._meaning(KafkaError(KafkaError._TIMED_OUT)) from None

    def _meaning(self, error: KafkaError) -> Unavailable | SettingsError:
        self._admin.poll(0)  # error_cb is called from here
        with self._lock:
            heard = self._heard
        for one in (error, heard):
            text = setting_of(one) if one is not None else None
            if one is not None and text is not None:
                setting, _, words = text.partition(": ")
                if one.code() in CREDENTIALS:
                    return SettingsError(setting, words)
                return Unavailable("kafka", text)
        return Unavailable("kafka", error.name())


def _config(name: str, outputs: Topics) -> dict[str, str]:
    if name == outputs.cursors:
        return {"cleanup.policy": "compact", "min.compaction.lag.ms": str(COMPACTION_LAG_MS)}
    if name == outputs.dead_letters:
        return {"cleanup.policy": "delete", "max.message.bytes": str(DEAD_LETTER_BYTES)}
    return {"cleanup.policy": "delete"}


def findings(wanted: Wanted, there: Mapping[str, TopicFacts]) -> Sequence[TopicFinding]:
    """Pure: what `check` says about these facts."""
    found: list[TopicFinding] = []
    for name in wanted.names:
        facts = there.get(name)
        if facts is None:
            found.append(TopicFinding(name, "is not there", CREATE))
            continue
        if wanted.replication_factor is not None and facts.replicas < wanted.replication_factor:
            found.append(
                TopicFinding(
                    name,
                    f"has {facts.replicas} replica(s), CUSTODY_KAFKA__REPLICATION_FACTOR says"
                    f" {wanted.replication_factor}",
                    "reassign its partitions",
                )
            )
        if name == wanted.outputs.cursors:
            found += _cursor_findings(name, facts, there.get(wanted.runs))
        elif "compact" in facts.cleanup:
            found.append(
                TopicFinding(
                    name, "is compacted: records that share a key are lost", "set cleanup.policy=delete"
                )
            )
    runs, dead = there.get(wanted.runs), there.get(wanted.outputs.dead_letters)
    if runs and dead and dead.number("max.message.bytes") <= runs.number("max.message.bytes"):
        found.append(
            TopicFinding(
                wanted.outputs.dead_letters,
                "takes no larger records than the input: a large one is published without its value",
                f"set max.message.bytes={max(DEAD_LETTER_BYTES, 2 * runs.number('max.message.bytes'))}",
            )
        )
    return found


def _cursor_findings(name: str, facts: TopicFacts, runs: TopicFacts | None) -> list[TopicFinding]:
    found = []
    if facts.cleanup != {"compact"}:
        found.append(
            TopicFinding(
                name, "is not compacted only: a lane's cursor can vanish", "set cleanup.policy=compact"
            )
        )
    if facts.number("min.compaction.lag.ms") < COMPACTION_LAG_MS:
        found.append(
            TopicFinding(
                name,
                "is compacted too early: a claim can clear its successor's away",
                f"set min.compaction.lag.ms={COMPACTION_LAG_MS}",
            )
        )
    if runs is not None and facts.partitions < runs.partitions:
        found.append(
            TopicFinding(
                name,
                f"has {facts.partitions} partition(s) for {runs.partitions} lanes: recovery may wait for a "
                "neighbour's transaction",
                f"raise its partitions to {runs.partitions}",
            )
        )
    return found
