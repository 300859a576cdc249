"""`python -m benchmarks`: a table for people, or `-o json`. Progress goes to standard error."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import Sequence
from typing import Final

from benchmarks.bare import Bare
from benchmarks.figures import Effect, Line, Round, line
from benchmarks.hotspots import Hotspot, hotspots
from benchmarks.memory import Memory, memory
from benchmarks.product import Product
from benchmarks.report import Report, ratios, table
from benchmarks.server import Counts, Observer, Server, fdatasync_us, server
from session_custody.telemetry import configure_logging

SETTINGS: Final[tuple[tuple[Effect, int], ...]] = (
    ("read", 1), ("read", 16), ("read", 128), ("write", 1), ("write", 16), ("write", 128),
)  # fmt: skip
EFFECTS: Final[tuple[Effect, ...]] = ("read", "write")
STEPS: Final = 12
RUNS_MAX: Final = 8_000
WARM_RUNS: Final = 128
ACTIVE_RUNS: Final = 1_000
PROFILED_RUNS: Final = 200
BACKENDS_END_S: Final = 5.0
REAPED_S: Final = 0.1
ROUNDS_BUDGET_S: Final = 270.0
"""No further round begins that would not end by then."""

Contestant = Product | Bare


def options(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "-o", choices=("table", "json"), default="table", dest="form", help="form of the output"
    )
    parser.add_argument("--seconds", type=float, default=3.0, help="of one measurement; there are 36 of them")
    parser.add_argument("--rounds", type=int, default=3, help="of which the medians are given")
    parser.add_argument("--quick", action="store_true", help="one round of a second each, and less memory")
    chosen = parser.parse_args(argv)
    if chosen.quick:
        chosen.seconds, chosen.rounds = 1.0, 1
    return chosen


def main() -> None:
    chosen = options()
    # A worker logs JSON at info: the lines are made here too, they only go nowhere.
    with open(os.devnull, "w", encoding="utf-8") as nowhere, server() as where:  # noqa: PTH123 - a device
        with contextlib.redirect_stderr(nowhere):
            configure_logging("json", "info")
        report = asyncio.run(
            measure(where, chosen.seconds, chosen.rounds, ACTIVE_RUNS if not chosen.quick else 200)
        )
    sys.stdout.write(
        (json.dumps(report.document(), indent=2) if chosen.form == "json" else table(report)) + "\n"
    )


async def measure(where: Server, seconds: float, rounds: int, active_runs: int) -> Report:
    """Everything, on one server, in one process."""
    began = time.monotonic()
    observer = Observer(where.dsn)
    try:
        observer.insist_on_durability()
        settings, flush_us = observer.settings(), fdatasync_us(where.folder)
        product, bare = Product(where.dsn), Bare(where.dsn)
        await product.migrate()
        lines = await _lines(observer, (product, bare), seconds, rounds)
        _say("profile")
        spots: dict[Effect, Sequence[Hotspot]] = {
            effect: await hotspots(product, effect, PROFILED_RUNS) for effect in EFFECTS
        }
        _say("memory")
        held: Memory = await memory(product, active_runs)
    finally:
        observer.close()
    return Report(
        settings=settings,
        fdatasync_us=flush_us,
        cpus=os.cpu_count() or 0,
        load=os.getloadavg()[0],
        lines=lines,
        ratios=ratios(lines),
        hotspots=spots,
        memory=held,
        took_s=time.monotonic() - began,
    )


async def _lines(
    observer: Observer, contestants: Sequence[Contestant], seconds: float, rounds: int
) -> list[Line]:
    """Rounds go over all settings, and the contestants take turns: both see the machine's moods."""
    rate: dict[tuple[str, Effect, int], float] = {}
    found: dict[tuple[str, Effect, int], list[Round]] = {}
    began = time.monotonic()
    for number in range(rounds + 1):  # the first only warms up, and tells how many runs a round needs
        took = time.monotonic() - began
        if number > 1 and took + took / number > ROUNDS_BUDGET_S:
            _say(f"a slow machine: {number - 1} rounds")
            break
        for effect, at_once in SETTINGS:
            for contestant in contestants if number % 2 else reversed(contestants):
                key = (contestant.name, effect, at_once)
                wanted = rate[key] * seconds / STEPS if number else min(WARM_RUNS, 4 * at_once)
                runs = min(max(int(wanted / at_once) + 1, 1) * at_once, RUNS_MAX)
                one = await _round(observer, contestant, effect, runs, at_once)
                rate[key] = one.steps / one.took_s
                if number:
                    found.setdefault(key, []).append(one)
                _say(
                    f"round {number}/{rounds}: {contestant.name} {effect} {at_once}: {rate[key]:,.0f} steps/s"
                )
        observer.vacuum()
    return [line(*key, rounds=each) for key, each in found.items()]


async def _round(
    observer: Observer, contestant: Contestant, effect: Effect, runs: int, at_once: int
) -> Round:
    ids = await contestant.prepare(effect, runs)
    before = await _quiet(observer)
    measured = await contestant.play(effect, ids, at_once)
    after = await _quiet(observer)
    return measured.beside(before, after)


async def _quiet(observer: Observer) -> Counts:
    """Counts once the contestant's backends have ended: only then have they told all."""
    ends = time.monotonic() + BACKENDS_END_S
    while observer.others() and time.monotonic() < ends:  # noqa: ASYNC110 - another process ends them
        await asyncio.sleep(0.02)
    await asyncio.sleep(REAPED_S)  # until then their CPU time belongs to nobody
    return observer.counts()


def _say(text: str) -> None:
    sys.stderr.write(f"bench: {text}\n")


if __name__ == "__main__":
    main()
