"""SIGKILL before and after every commit of every station; a second process finishes; the history is the same.

The few that run always are the ones between an effect and its record. All of them: `make crash`.
"""

from __future__ import annotations

import pytest

from session_custody import faults
from tests.crash.scenario import Baseline, crash_and_compare
from tests.crash.world import World

pytestmark = [pytest.mark.kafka, pytest.mark.postgres, pytest.mark.crash, pytest.mark.timeout(300)]

ALWAYS = (
    "pin.before@1",
    "pin.after@1",
    "intent.after@3",
    "tool.after@14",
    "result.before@9",
    "result.after@12",
    "publication.after@2",
)


CHAINS = (
    ("intent.after@3", "result.before@2"),
    ("tool.after@8", "lane.after@2"),
    ("result.after@10", "publication.before@1"),
)


def test_every_fault_point_is_passed_by_the_play(baseline: Baseline) -> None:
    """Else a kill test below would wait for a kill that never comes."""
    assert {point for point in faults.POINTS if not baseline.passages.get(point)} == set()


@pytest.mark.parametrize("point", ALWAYS)
def test_killed_at(point: str, world: World, baseline: Baseline) -> None:
    assert crash_and_compare(world, baseline, point).runs == baseline.history.runs


@pytest.mark.slow
@pytest.mark.parametrize("point", sorted(faults.POINTS))
def test_killed_at_the_first_passage(point: str, world: World, baseline: Baseline) -> None:
    assert crash_and_compare(world, baseline, f"{point}@1").runs == baseline.history.runs


@pytest.mark.slow
@pytest.mark.parametrize("point", sorted(faults.POINTS))
def test_killed_half_way(point: str, world: World, baseline: Baseline) -> None:
    passage = max(2, baseline.passages[point] // 2)  # there are two lanes: nothing is passed once only
    assert crash_and_compare(world, baseline, f"{point}@{passage}").runs == baseline.history.runs


@pytest.mark.slow
@pytest.mark.parametrize("points", CHAINS, ids=" ".join)
def test_the_successor_is_killed_too(points: tuple[str, ...], world: World, baseline: Baseline) -> None:
    """From the second unclean end on the lanes' runs are driven as suspects; none of them is one."""
    assert crash_and_compare(world, baseline, *points).runs == baseline.history.runs
