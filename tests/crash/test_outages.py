"""Servers go away for 20 seconds under a worker at work, and come back: the same process goes on (I4, I13).

On servers of their own: nobody else's tests stand on them.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from session_custody.devstack import KafkaServer, PostgresServer
from tests.crash.contracts import fill
from tests.crash.history import History
from tests.crash.play import PLAY, Part, single
from tests.crash.scenario import Baseline, compare
from tests.crash.serving import Serving
from tests.crash.world import Ground, MakeWorld, World

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.postgres,
    pytest.mark.crash,
    pytest.mark.slow,
    pytest.mark.timeout(400),
]

OUTAGE_S: Final = 20.0
LANES: Final = 2
WRITERS = tuple(
    Part(f"writer-{run}", [[("note", f"writer-{run}-{turn}")] for turn in range(6)]) for run in range(16)
)
OTHERS = tuple(single(f"later-{number}", "note") for number in range(4))


@dataclass(frozen=True, slots=True)
class Servers:
    kafka: KafkaServer
    postgres: PostgresServer
    ground: Ground


@pytest.fixture(scope="module")
def servers(ground: Ground) -> Iterator[Servers]:
    with KafkaServer() as kafka, PostgresServer() as postgres:
        environment = {**ground.environment, "CUSTODY_KAFKA__BOOTSTRAP_SERVERS": kafka.address.url}
        yield Servers(kafka, postgres, replace(ground, environment=environment))


def through_an_outage(
    servers: Servers,
    folder: Path,
    baseline: Baseline,
    what: str,
    take_away: Callable[[World], None],
    bring_back: Callable[[World], None],
) -> None:
    began = time.monotonic()
    name = f"outage-{what.replace(' ', '-')}"
    dsn = servers.postgres.create_database(name.replace("-", "_"))
    asyncio.run(fill(dsn, folder / "contracts"))
    world = World(servers.ground, name, dsn, folder, {}, [*PLAY, *OTHERS])
    try:
        serving = world.worker()
        world.start([part.start() for part in OTHERS])
        world.until_finished(serving)
        # Both lanes have published, so their write gates are open; a closed one waits for Kafka
        assert len(world.rows("select from custody.lane where published_seq > 0")) == LANES
        world.publish(PLAY)
        world.until(lambda: "running" in world.statuses().values(), "runs are under way")
        take_away(world)
        bring_back(world)
        finish_and_compare(world, serving, baseline, what, began)
    finally:
        servers.kafka.start()
        servers.postgres.start()
        world.close()


def finish_and_compare(
    world: World, serving: Serving, baseline: Baseline, what: str, began: float
) -> History:
    world.until_finished(serving)
    serving.wait_ready()
    assert len(world.workers) == 1, "nobody had to start another one"
    serving.stop()
    return compare(world, baseline, what, None, began)


def nothing_for_a_while(_: World) -> None:
    time.sleep(OUTAGE_S)  # sleeps: the outage itself


def runs_end_without_kafka(world: World) -> None:
    """Runs in memory go on and commit; their events wait in Postgres (DESIGN 4)."""
    gone = time.monotonic()
    ends = {run_id for run_id in world.parts if run_id not in {"parked", "slow"}}
    world.until(
        lambda: {run for run, status in world.statuses().items() if status == "succeeded"} >= ends,
        "runs end while Kafka is away",
    )
    assert world.unpublished() > 0
    time.sleep(max(0.0, OUTAGE_S - (time.monotonic() - gone)))  # sleeps: the outage itself


def test_postgres_gone_for_20_s(servers: Servers, tmp_path: Path, baseline: Baseline) -> None:
    def bring_back(world: World) -> None:
        nothing_for_a_while(world)
        servers.postgres.start()
        world.reconnect()

    through_an_outage(
        servers, tmp_path, baseline, "postgres gone", lambda _: servers.postgres.kill(), bring_back
    )
    assert servers.postgres.running


def test_kafka_gone_for_20_s(servers: Servers, tmp_path: Path, baseline: Baseline) -> None:
    def bring_back(world: World) -> None:
        runs_end_without_kafka(world)
        servers.kafka.start()

    through_an_outage(servers, tmp_path, baseline, "kafka gone", lambda _: servers.kafka.kill(), bring_back)
    assert servers.kafka.running


def test_both_gone_for_20_s(servers: Servers, tmp_path: Path, baseline: Baseline) -> None:
    def take_away(_: World) -> None:
        servers.postgres.kill()
        servers.kafka.kill()

    def bring_back(world: World) -> None:
        nothing_for_a_while(world)
        servers.postgres.start()
        world.reconnect()
        servers.kafka.start()

    through_an_outage(servers, tmp_path, baseline, "both gone", take_away, bring_back)
    assert servers.kafka.running
    assert servers.postgres.running


def test_writes_in_hand_when_both_go_wait_for_the_gate_and_not_for_a_person(
    servers: Servers, tmp_path: Path
) -> None:
    """An intent whose commit met the outage: no allowance is spent on a gate that waits for Kafka."""
    dsn = servers.postgres.create_database("outage_of_writes")
    asyncio.run(fill(dsn, tmp_path / "contracts"))
    world = World(servers.ground, "outage-of-writes", dsn, tmp_path, {}, [*OTHERS, *WRITERS])
    try:
        # frozen while both go, so that an intent is in hand when they are gone
        serving = world.worker(module="tests.crash.armed", CRASH_STOP="intent.before@12")
        world.start([part.start() for part in OTHERS])
        world.until_finished(serving)
        world.start([part.start() for part in WRITERS])
        world.until(lambda: serving.stopped, "an intent is about to be committed")
        servers.postgres.kill()
        servers.kafka.kill()
        servers.postgres.start()  # at once: only Kafka keeps the gates closed
        world.reconnect()
        serving.send(signal.SIGCONT)
        nothing_for_a_while(world)
        servers.kafka.start()
        world.until_finished(serving)
        assert world.rows("select from custody.step where kind in ('parked', 'in_doubt')") == []
        assert set(world.effects().values()) == {1}
        world.judge(world.history())
    finally:
        servers.kafka.start()
        servers.postgres.start()
        world.close()


def test_a_recreated_topic_under_a_live_consumer(make_world: MakeWorld, baseline: Baseline) -> None:
    """The group gets neither a rebalance nor an error; the topic's id tells (DESIGN 4)."""
    began = time.monotonic()
    world = make_world([*PLAY, *OTHERS])
    try:
        world.publish(PLAY)
        serving = world.worker()
        world.until_finished(serving)
        kafka = world.settings.kafka
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers or ""})
        admin.delete_topics([kafka.topics.runs])[kafka.topics.runs].result(20)
        world.until(lambda: kafka.topics.runs not in admin.list_topics(timeout=10).topics, "it is gone")
        admin.create_topics([NewTopic(kafka.topics.runs, kafka.partitions)])[kafka.topics.runs].result(20)
        world.until(lambda: kafka.topics.runs in admin.list_topics(timeout=10).topics, "it is back")
        # from offset 0 again, fewer than the consumer has seen: without the id it would skip them
        world.start([part.start() for part in (*OTHERS, PLAY[2])])
        history = finish_and_compare(world, serving, baseline, "topic recreated", began)
        assert set(history.statuses.values()) == {"succeeded"}
        assert set(history.statuses) == set(world.parts)
    finally:
        world.close()
