"""A scenario: a worker that dies at a fault point, a successor, and what everybody finds afterwards."""

from __future__ import annotations

import json
import signal
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.crash import report
from tests.crash.history import Event, History
from tests.crash.play import READS
from tests.crash.serving import Serving
from tests.crash.world import World


@dataclass(frozen=True, slots=True)
class Baseline:
    """What happens when nothing does. `passages`: fault point -> how often it was passed."""

    history: History
    passages: Mapping[str, int]
    attempts: int


def uncrashed(world: World) -> Baseline:
    counts = world.folder / "passages.json"
    world.publish()
    serving = world.worker(module="tests.crash.armed", CRASH_COUNT=str(counts))
    world.until_finished(serving)
    serving.stop()
    history = world.history()
    assert set(history.runs) == set(world.parts)
    assert set(history.statuses.values()) == {"succeeded"}
    assert history.dead_letters == ["pin_conflict", "undecodable"]
    world.judge(history)
    return Baseline(history, json.loads(counts.read_text(encoding="utf-8")), len(world.attempts()))


def killed(world: World, *points: str) -> Serving:
    """Kill one worker after the other at these points; gives the one that is to finish."""
    for point in points:
        victim = world.worker(CUSTODY_FAULT=point)
        code = world.until_dead(victim)
        assert code == -signal.SIGKILL, f"{point}: exit code {code}: {victim.tail()}"
    return world.worker()


def compare(world: World, baseline: Baseline, what: str, code: int | None, began: float) -> History:
    """Print the row, then: the baseline's runs went as they did there, and the judge has no complaint."""
    history = world.history()
    different = differences(baseline.history, history)
    report.ROWS.append(
        report.Row(
            point=what,
            exit_code=code,
            statuses=Counter(history.statuses.values()),
            attempts=len(world.attempts()),
            effects=world.effects().total(),
            added=history.added,
            equal=not different,
            seconds=time.monotonic() - began,
        )
    )
    assert not different, "\n".join(different)
    check_effects(world, history)
    world.judge(history)
    return history


def crash_and_compare(world: World, baseline: Baseline, *points: str) -> History:
    """The play, with a worker dying at each point; its history is the uncrashed one's."""
    began = time.monotonic()
    world.publish()
    finisher = killed(world, *points)
    world.until_finished(finisher)
    finisher.stop()
    return compare(world, baseline, " ".join(points), -signal.SIGKILL, began)


def check_effects(world: World, history: History) -> None:
    """Every intended write took effect once; one that a person found not done, never."""
    intended = {
        f"{part.run_id}/{step}/{ordinal}"
        for part in world.parts.values()
        for step, turn in enumerate(part.turns, 1)
        for ordinal, (tool, _) in enumerate(turn)
        if tool not in READS
    }
    wanted = {write: 0 if write in history.not_done else 1 for write in intended}
    found = world.effects()
    assert {write: found[write] for write in wanted} == wanted
    assert set(found) <= intended
    single_shot = {run_id for run_id, part in world.parts.items() if "letter" in part.tools}
    assert {write.split("/")[0] for write in history.not_done} <= single_shot, "others can be asked"


def differences(expected: History, found: History) -> list[str]:
    """For people: what differs, run by run."""
    texts: list[str] = []
    statuses = {run_id: found.statuses.get(run_id) for run_id in expected.statuses}
    if expected.statuses != statuses:
        texts.append(f"statuses: {statuses}")
    if expected.dead_letters != found.dead_letters:
        texts.append(f"dead letters: {expected.dead_letters} != {found.dead_letters}")
    return texts + difference_of(expected.runs, found.runs)


def difference_of(expected: Mapping[str, Sequence[Event]], found: Mapping[str, Sequence[Event]]) -> list[str]:
    return [
        f"{run_id}: {_first_difference(events, found.get(run_id, []))}"
        for run_id, events in expected.items()
        if events != found.get(run_id)
    ]


def _first_difference(expected: Sequence[Event], found: Sequence[Event]) -> str:
    for place, (one, other) in enumerate(zip(expected, found, strict=False)):
        if one != other:
            names = {*one, *other}
            fields = {
                name: (one.get(name), other.get(name)) for name in names if one.get(name) != other.get(name)
            }
            return f"event {place} of kind {one['kind']}: {fields}"
    return f"kinds {[event['kind'] for event in expected]} != {[event['kind'] for event in found]}"
