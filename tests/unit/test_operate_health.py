"""Health as operators and Kubernetes read it, over a real socket."""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
from collections.abc import Callable

import pytest

from session_custody.operate.health import Finding, Grade, Health, Probe, passed
from session_custody.operate.http import OperateServer


def finds(name: str, grade: Grade, detail: str = "") -> Probe:
    return lambda: Finding(name, grade, detail)


def broken() -> Finding:
    raise RuntimeError("password=hunter2")


def asked(health: Health, *paths: str) -> list[tuple[int, str]]:
    """Status and text of each path, asked while the server runs in a loop of its own."""

    def get(port: int, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    async def serve() -> list[tuple[int, str]]:
        server = OperateServer(health, "127.0.0.1", 0, {"version": "0.1.0"})
        server.start()
        try:
            return [await asyncio.to_thread(get, server.port, path) for path in paths]
        finally:
            await server.close()

    return asyncio.run(serve())


def test_what_only_makes_it_worse_keeps_a_worker_ready() -> None:
    health = Health(ready=[finds("redis", Grade.DEGRADED, "away"), finds("postgres", Grade.OK)])
    ((status, text),) = asked(health, "/readyz?verbose")
    assert status == 200
    assert text.splitlines() == ["[+]draining ok", "[~]redis degraded: away", "[+]postgres ok", "passed"]


def test_a_dependency_that_is_away_fails_ready_and_never_live() -> None:
    health = Health(live=[finds("poll-thread", Grade.OK)], ready=[finds("postgres", Grade.FAILED)])
    live, ready, verbose = asked(health, "/livez", "/readyz", "/readyz?verbose")
    assert live == (200, "ok\n")
    assert ready == (503, "failed\n")
    assert "[-]postgres failed" in verbose[1]


def test_a_draining_worker_is_alive_and_not_ready() -> None:
    live, ready = asked(Health(draining=True), "/livez", "/readyz")
    assert (live[0], ready[0]) == (200, 503)


@pytest.mark.parametrize("place", ["live", "ready"])
def test_a_probe_that_breaks_is_a_failed_finding_that_tells_no_text(place: str) -> None:
    health = Health()
    getattr(health, place).append(broken)
    ((status, text),) = asked(health, "/readyz?verbose")
    assert status == 503
    assert "[-]broken failed: RuntimeError" in text
    assert "hunter2" not in text


def test_the_server_answers_nothing_else_and_leaves_its_port() -> None:
    version, metrics, other = asked(Health(), "/version", "/metrics", "/runs")
    assert version == (200, '{"version": "0.1.0"}')
    assert metrics[0] == 200
    assert "custody_runs_live" in metrics[1]
    assert other[0] == 404


@pytest.mark.parametrize(
    ("grades", "good"), [((), True), ((Grade.DEGRADED,), True), ((Grade.FAILED,), False)]
)
def test_only_a_failed_finding_fails(grades: tuple[Grade, ...], good: bool) -> None:
    assert passed([Finding("x", grade) for grade in grades]) is good


def test_probes_are_asked_anew_each_time() -> None:
    grades = iter([Grade.OK, Grade.FAILED])
    probe: Callable[[], Finding] = lambda: Finding("flaps", next(grades))  # noqa: E731
    first, second = asked(Health(live=[probe]), "/livez", "/livez")
    assert (first[0], second[0]) == (200, 503)
