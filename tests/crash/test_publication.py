"""Publication under kills: what read_committed shows is whole, once, in order (I9). The judge looks."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sqlite3
import subprocess
import time
from pathlib import Path

import pytest

from session_custody.devstack import Address
from tests.crash.play import single
from tests.crash.world import MakeWorld
from tests.integration.publish_world import Running, child, until
from tests.integration.publish_world import World as Lane

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.postgres,
    pytest.mark.crash,
    pytest.mark.slow,
    pytest.mark.timeout(600),
]

WORKER_KILLS = 8
PUBLISHER_KILLS = 40
PUBLISHER_STOPS = 15
SEED = 4
LOCKED_LOOKS_MAX = 50


def test_whole_workers_killed_around_the_transaction_commit(make_world: MakeWorld) -> None:
    chance = random.Random(SEED)
    rounds = [[single(f"round-{number}-{name}", "note") for name in "ab"] for number in range(WORKER_KILLS)]
    parts = [part for pair in rounds for part in pair]
    world = make_world(parts, CUSTODY_LANES__UNCLEAN_AFTER="100")
    fired = 0
    try:
        for pair in rounds:
            world.start([part.start() for part in pair])
            side, passage = chance.choice(("before", "after")), chance.randint(1, 4)
            victim = world.worker(CUSTODY_FAULT=f"publication.{side}@{passage}")
            fired += world.until_dead(victim) == -signal.SIGKILL
            victim.stop()
        world.until_finished(world.worker())
        assert set(world.statuses().values()) == {"succeeded"}
        assert set(world.effects().values()) == {1}
        world.judge(world.history())
        assert fired > WORKER_KILLS // 2
    finally:
        world.close()


@pytest.fixture
def lane(kafka_server: Address, tmp_path: Path) -> Lane:
    return Lane.create(kafka_server.url, tmp_path)


async def finish(lane: Lane) -> None:
    fence = lane.ledger.acquire()
    publisher = lane.publisher(fence)
    async with Running(publisher, fence):
        last = lane.ledger.lane()["next_seq"] - 1
        await until(lambda: lane.ledger.lane()["published_seq"] == last, "the last row")


def test_a_publisher_killed_at_random_again_and_again(lane: Lane) -> None:
    chance = random.Random(SEED)
    for _ in range(PUBLISHER_KILLS):
        lane.ledger.commit(10)
        victim = child(lane, batch_rows_max=2)
        time.sleep(chance.uniform(0.0, 0.4))  # sleeps: at random is the point
        victim.kill()
        assert victim.wait(30) == -signal.SIGKILL
    asyncio.run(finish(lane))
    assert len(lane.check_published()) > 0


def away_from_the_ledger(zombie: subprocess.Popen[bytes], lane: Lane) -> None:
    """Its other thread may hold the lock of the file that stands for Postgres here: frozen a little later."""
    for _ in range(LOCKED_LOOKS_MAX):
        try:
            lane.ledger.do("update lane set epoch = epoch")
            return
        except sqlite3.OperationalError:
            zombie.send_signal(signal.SIGCONT)
            time.sleep(0.01)
            zombie.send_signal(signal.SIGSTOP)
            os.waitpid(zombie.pid, os.WUNTRACED)
    raise AssertionError("the zombie holds the file for ever")


def test_a_publisher_frozen_again_and_again_and_continued_after_its_successor(lane: Lane) -> None:
    chance = random.Random(SEED)
    zombies = []
    try:
        for _ in range(PUBLISHER_STOPS):
            lane.ledger.commit(10)
            point = f"stop:publication.{chance.choice(('before', 'after'))}@{chance.randint(1, 4)}"
            zombie = child(lane, point, batch_rows_max=2)
            zombies.append(zombie)
            _, status = os.waitpid(zombie.pid, os.WUNTRACED)
            assert os.WIFSTOPPED(status)
            away_from_the_ledger(zombie, lane)
            asyncio.run(finish(lane))
            lane.ledger.commit(3)
            zombie.send_signal(signal.SIGCONT)
            assert zombie.wait(60) == 0, "it finds that it owns nothing, and stops by itself"
        asyncio.run(finish(lane))
        assert len(lane.check_published()) > 0
    finally:
        for zombie in zombies:
            zombie.kill()
            zombie.wait()
