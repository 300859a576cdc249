"""One tiny round of everything that the benchmark measures, so that it cannot rot. No times are asserted."""

from __future__ import annotations

import asyncio
import json

import pytest
from benchmarks.__main__ import options
from benchmarks.bare import Bare
from benchmarks.figures import Effect, Round, line, percentile
from benchmarks.hotspots import hotspots
from benchmarks.memory import memory
from benchmarks.product import Product
from benchmarks.report import Report, ratios, table
from benchmarks.server import NotDurable, Observer, fdatasync_us

RUNS = 3

pytestmark = pytest.mark.postgres


def test_both_contestants_drive_the_same_runs_and_the_report_shows_them(database: str) -> None:
    observer = Observer(database)
    before = observer.counts()

    async def play() -> tuple[dict[tuple[str, Effect], Round], Report]:
        product, bare = Product(database), Bare(database)
        await product.migrate()
        rounds: dict[tuple[str, Effect], Round] = {}
        effects: tuple[Effect, ...] = ("read", "write")
        for effect in effects:
            for contestant in (product, bare):
                ids = await contestant.prepare(effect, RUNS)
                done = await contestant.play(effect, ids, 2)
                rounds[contestant.name, effect] = done.beside(before, observer.counts())
        lines = [line(name, effect, 2, [each]) for (name, effect), each in rounds.items()]
        report = Report(
            settings=observer.settings(),
            fdatasync_us=fdatasync_us(None),
            cpus=1,
            load=0.0,
            lines=lines,
            ratios=ratios(lines),
            hotspots={"read": await hotspots(product, "read", RUNS)},
            memory=await memory(product, RUNS),
            took_s=1.0,
        )
        return rounds, report

    try:
        rounds, report = asyncio.run(asyncio.wait_for(play(), 100))
    finally:
        observer.close()
    assert {each.steps for each in rounds.values()} == {RUNS * 12}
    assert all(len(each.run_s) == RUNS and each.wal_bytes > 0 for each in rounds.values())
    assert [(each.effect, each.at_once) for each in report.ratios] == [("read", 2), ("write", 2)]
    assert len(report.hotspots["read"]) == 10
    assert report.memory.active_bytes > 0
    assert report.memory.waiting_tasks == 0
    assert json.loads(json.dumps(report.document()))["settings"]["full_page_writes"] == "on"
    assert "of bare" in table(report)


def test_a_server_that_may_lose_commits_is_refused(database: str) -> None:
    observer = Observer(database)  # the suite's server runs without fsync
    try:
        if observer.settings()["fsync"] == "on":
            pytest.skip("a server was given, and it is durable")
        with pytest.raises(NotDurable, match="not on: fsync"):
            observer.insist_on_durability()
    finally:
        observer.close()


def test_a_percentile_is_a_value_that_was_measured() -> None:
    assert (percentile([3.0, 1.0, 2.0], 50), percentile([3.0, 1.0, 2.0], 99), percentile([1.0], 50)) == (
        2,
        3,
        1,
    )


def test_quick_is_one_short_round() -> None:
    quick = options(["--quick", "-o", "json"])
    assert (quick.rounds, quick.seconds, quick.form) == (1, 1.0, "json")
