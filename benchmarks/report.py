"""The figures as a document and as a table for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.figures import Effect, Line
from benchmarks.hotspots import Hotspot
from benchmarks.memory import Memory


@dataclass(frozen=True, slots=True)
class Ratio:
    """The product's steps a second by the bare writer's; its p50 by the bare writer's."""

    effect: Effect
    at_once: int
    speed: float
    p50: float


@dataclass(frozen=True, slots=True)
class Report:
    """One run of the benchmark."""

    settings: Mapping[str, str]
    fdatasync_us: float
    cpus: int
    load: float
    lines: Sequence[Line]
    ratios: Sequence[Ratio]
    hotspots: Mapping[Effect, Sequence[Hotspot]]
    memory: Memory
    took_s: float

    def document(self) -> dict[str, Any]:
        return asdict(self)


def ratios(lines: Sequence[Line]) -> list[Ratio]:
    """Product beside bare writer at each setting."""
    bare = {(each.effect, each.at_once): each for each in lines if each.contestant == "bare"}
    found = []
    for each in lines:
        beside = bare.get((each.effect, each.at_once))
        if each.contestant == "product" and beside is not None:
            found.append(
                Ratio(
                    each.effect,
                    each.at_once,
                    each.steps_per_s / beside.steps_per_s,
                    each.p50_ms / beside.p50_ms,
                )
            )
    return found


def table(report: Report) -> str:
    """For people."""
    return "\n".join(_lines(report))


def _lines(report: Report) -> Iterator[str]:
    yield "server    " + ", ".join(f"{name} {value}" for name, value in report.settings.items())
    yield f"machine   {report.cpus} cpus, load {report.load:.1f}, fdatasync {report.fdatasync_us:.0f} us"
    yield ""
    yield (
        "                                     run, ms        CPU s a 1,000 steps  WAL B    flushes\n"
        "who      tool   at once   steps/s      p50      p99    client   server   a step   a step"
    )
    speed = {(each.effect, each.at_once): each.speed for each in report.ratios}
    for each in report.lines:
        ratio = speed.get((each.effect, each.at_once))
        shown = "" if each.contestant != "product" or ratio is None else f"   {ratio:.2f} of bare"
        yield (
            f"{each.contestant:8} {each.effect:5} {each.at_once:8} {each.steps_per_s:9,.0f}"
            f" {each.p50_ms:8.1f} {each.p99_ms:8.1f} {each.client_cpu_s_per_1000:9.3f}"
            f" {each.server_cpu_s_per_1000:8.3f} {each.wal_bytes_per_step:8,.0f}"
            f" {each.flushes_per_step:8.3f}{shown}"
        )
    held = report.memory
    yield ""
    yield (
        f"memory    {held.active_bytes / 1024:.1f} KB a run half way ({held.runs:,} of them), "
        f"{held.waiting_bytes / 1024:.1f} KB and {held.waiting_tasks} tasks once it rests"
    )
    for effect, spots in report.hotspots.items():
        yield ""
        yield f"profile   {effect}, 128 at once: share of the event loop's own time, calls a step"
        for spot in spots:
            yield f"          {spot.share:5.1f} % {spot.calls_per_step:9.1f}  {spot.function}"
    yield ""
    yield f"took {report.took_s:.0f} s"
