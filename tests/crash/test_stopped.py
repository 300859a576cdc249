"""A run is cancelled while nobody knows what became of its write: the write ends first (I14, DESIGN 8)."""

from __future__ import annotations

import signal

import pytest

from session_custody.client import CustodyClient
from tests.crash.play import Part, single
from tests.crash.world import MakeWorld, World

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.postgres,
    pytest.mark.crash,
    pytest.mark.slow,
    pytest.mark.timeout(300),
]


PATIENT = {"CUSTODY_LIMITS__NOT_AFTER_MARGIN_S": "60", "CUSTODY_LANES__CLOCK_HOLD_S": "0"}
"""Nobody asks what became of the write before the test moves the database's clock."""


def cancelled_over_a_write(make_world: MakeWorld, part: Part, point: str) -> World:
    """Its worker dies at `point`; its successor hears of the cancel while the write's not_after is ahead."""
    world = make_world([part], **PATIENT)
    world.start([part.start()])
    victim = world.worker(CUSTODY_FAULT=point)
    assert world.until_dead(victim) == -signal.SIGKILL, victim.tail()
    successor = world.worker()
    with CustodyClient.from_settings(world.settings) as client:
        client.cancel(part.run_id, reason="the customer called")
    sql = "select from custody.checkpoint where stop_requested = 'cancel' and pending is not null"
    world.until(lambda: world.rows(sql), "the run is to stop")
    world.rows("insert into custody.clock (shift) values ('2 minutes') returning shift")
    world.until_finished(successor)
    return world


def kinds(world: World) -> list[str]:
    return [row["kind"] for row in world.rows("select kind from custody.step order by event_seq")]


def test_a_landed_letter_in_doubt_is_resolved_before_the_run_is_cancelled(make_world: MakeWorld) -> None:
    world = cancelled_over_a_write(make_world, single("once", "letter"), "tool.after@2")
    try:
        assert world.statuses() == {"once": "cancelled"}
        assert kinds(world)[-4:] == ["in_doubt", "resolved", "resumed", "outcome"]
        assert world.effects() == {"once/2/0": 1}
        world.judge(world.history())
    finally:
        world.close()


def test_a_filing_that_never_landed_is_barred_and_not_sent_again(make_world: MakeWorld) -> None:
    world = cancelled_over_a_write(make_world, single("ask", "file"), "tool.before@2")
    try:
        assert world.statuses() == {"ask": "cancelled"}
        assert kinds(world)[-2:] == ["tool_result", "outcome"]
        assert world.effects() == {}
        assert [line["tool"] for line in world.attempts()] == ["look", "file.reconcile"]
    finally:
        world.close()
