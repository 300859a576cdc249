"""A worker is frozen, outlived, and continued: it is fenced, nothing it still wants is seen (I6, I8).

A frozen process is the worst zombie: it believes in its lanes, its open transactions and its clocks.
"""

from __future__ import annotations

import signal
import time

import pytest

from tests.crash.history import History
from tests.crash.play import PLAY, single
from tests.crash.scenario import Baseline, compare, difference_of
from tests.crash.world import MakeWorld

pytestmark = [pytest.mark.kafka, pytest.mark.postgres, pytest.mark.crash, pytest.mark.timeout(300)]

AFTERWARDS = tuple(single(f"later-{number}", "note") for number in range(4))
SLOW = (
    "pin.before@1",
    "offset.before@1",
    "decide.after@5",
    "tool.before@14",
    "tool.after@12",
    "result.before@8",
    "publication.before@2",
    "publication.after@1",
)


def freeze_and_compare(make_world: MakeWorld, baseline: Baseline, point: str) -> History:
    began = time.monotonic()
    world = make_world([*PLAY, *AFTERWARDS])
    try:
        world.publish(PLAY)
        zombie = world.worker(module="tests.crash.armed", CRASH_STOP=point)
        while not zombie.stopped:
            assert zombie.exit_code is None, zombie.tail()
            assert not world.finished(), f"{point} was not passed"
            world.act()
            time.sleep(0.05)
        successor = world.worker()
        world.until_finished(successor)
        before = world.attempts(), world.effects(), world.history().runs
        zombie.send(signal.SIGCONT)
        zombie.wait_ready()
        successor.wait_ready()
        assert (world.attempts(), world.effects()) == before[:2], "the zombie called a tool"
        assert not difference_of(before[2], world.history().runs), "the zombie wrote"
        # both are members of the group now, and the lanes that the zombie has got are its own again
        world.start([part.start() for part in AFTERWARDS])
        world.until_finished(successor)
        for serving in (zombie, successor):
            assert serving.exit_code is None, serving.tail()
            serving.stop()
        return compare(world, baseline, f"SIGSTOP {point}", None, began)
    finally:
        world.close()


def test_frozen_between_an_intents_commit_and_its_send(make_world: MakeWorld, baseline: Baseline) -> None:
    history = freeze_and_compare(make_world, baseline, "intent.after@3")
    assert set(history.statuses.values()) == {"succeeded"}


@pytest.mark.slow
@pytest.mark.parametrize("point", SLOW)
def test_frozen_at(point: str, make_world: MakeWorld, baseline: Baseline) -> None:
    history = freeze_and_compare(make_world, baseline, point)
    assert set(history.statuses.values()) == {"succeeded"}
