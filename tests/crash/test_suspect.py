"""A run that kills its worker is found out and parked; its neighbours finish (I16, DESIGN 4)."""

from __future__ import annotations

import signal

import pytest

from tests.crash.play import Part, single
from tests.crash.world import MakeWorld

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.postgres,
    pytest.mark.crash,
    pytest.mark.slow,
    pytest.mark.timeout(300),
]

KILLER = Part("killer", [[("deadly", "killer")]])
NEIGHBOURS = tuple(single(f"neighbour-{number}", "note") for number in range(4))
ONE_LANE = {
    "CUSTODY_KAFKA__PARTITIONS": "1",
    "CUSTODY_LANES__SUSPECT_MINUTE_S": "60",
    "CUSTODY_LANES__UNCLEAN_AFTER": "1",
}
DEATHS = 3
"""The first makes the lane's runs suspects; each further one adds to the count that parks at 3."""


def test_a_run_that_kills_its_worker_thrice_parks(make_world: MakeWorld) -> None:
    world = make_world([KILLER, *NEIGHBOURS], **ONE_LANE)
    try:
        world.start([part.start() for part in world.parts.values()])
        for _ in range(DEATHS):
            victim = world.worker()
            assert world.until_dead(victim) == -signal.SIGKILL, victim.tail()
        survivor = world.worker()
        ended = {"killer": "parked"} | {part.run_id: "succeeded" for part in NEIGHBOURS}
        world.until(lambda: world.statuses() == ended, f"{ended}")
        assert survivor.exit_code is None, survivor.tail()
        (row,) = world.rows(
            "select park_reason, suspect_count from custody.checkpoint where run_id = 'killer'"
        )
        assert (row["park_reason"], row["suspect_count"]) == ("suspect", DEATHS)
        assert set(world.effects().values()) == {1}
    finally:
        world.close()
