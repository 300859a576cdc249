"""`run why` from evidence alone: cells that a real run seldom stands in."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from session_custody.cli.why import explain, facts
from session_custody.core.run import TERMINAL, ParkReason, Status

NOW = datetime(2026, 8, 14, 2, 11, 5, tzinfo=UTC)


def evidence(status: str, **more: Any) -> dict[str, Any]:
    lane = {
        "lane_id": 3, "topic": "custody.runs", "partition": 2, "owner": "someone", "epoch": 7,
        "last_alive": NOW - timedelta(seconds=1), "went_back": False, "backlog": 0,
    }  # fmt: skip
    values: dict[str, Any] = {
        "run_id": "run-9f3c",
        "status": status,
        "now": NOW,
        "updated_at": NOW - timedelta(seconds=4),
        "expires_at": NOW + timedelta(hours=24),
        "pin": {
            "route_id": "fraud", "route_table_version": "2026.08.1", "model_profile": "m",
            "max_loop_steps": 12, "loop_step": 3,
        },
        "lane": lane | more.pop("lane", {}),
        "signals": [],
        "dead_letters": [],
    }  # fmt: skip
    return values | more


@pytest.mark.parametrize("status", ["queued", "running"])
def test_a_lane_that_nobody_owns_is_the_cause(status: str) -> None:
    sentence = explain(evidence(status, lane={"owner": None}))
    assert f"It is {status}" in sentence
    assert "no owner" in sentence
    assert "custody serve" in sentence


def test_a_silent_owner_is_the_cause() -> None:
    silent = {"last_alive": NOW - timedelta(seconds=40)}
    assert "silent for 40 s" in explain(evidence("running", lane=silent))


def test_a_write_under_way_says_when_it_may_be_sent_again() -> None:
    pending = {"tool": "add_note", "key": "run-9f3c/3/0"}
    not_after = NOW + timedelta(seconds=16)
    sentence = explain(evidence("running", pending=pending, not_after=not_after, attempts=2))
    for part in ("add_note", "run-9f3c/3/0", "attempt 2", "2026-08-14 02:11:21Z"):
        assert part in sentence


@pytest.mark.parametrize("reason", list(ParkReason))
def test_a_parked_run_says_why_and_what_wakes_it(reason: ParkReason) -> None:
    wake_at = NOW + timedelta(seconds=30) if reason.wakes_by_itself else None
    sentence = explain(evidence("parked", park_reason=reason.value, wake_at=wake_at))
    assert sentence.startswith("It is parked because ")
    assert "custody run resume run-9f3c" in sentence
    assert ("by itself at 2026-08-14 02:11:35Z" in sentence) is reason.wakes_by_itself


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        ("call_running", "thread still hangs"),
        ("attempts_spent", "as often as its manifest allows"),
        ("policy_denied", "policy"),
        ("not_found", "did not find it"),
        ("something_new", "something_new"),
    ],
)
def test_a_doubt_says_what_is_not_known_why_and_what_to_do(code: str, cause: str) -> None:
    last = {"event_seq": 9, "kind": "in_doubt", "code": code, "recorded_at": NOW}
    pending = {"tool": "add_note", "key": "run-9f3c/3/0"}
    sentence = explain(evidence("in_doubt", pending=pending, last_step=last, doubt_seq=9))
    for part in ("add_note", "run-9f3c/3/0", cause, "--done or --not-done", "event 9"):
        assert part in sentence


def test_a_not_done_that_is_too_early_is_said_with_its_time() -> None:
    early = explain(evidence("in_doubt", doubt_seq=9, not_after=NOW + timedelta(seconds=5)))
    assert "--not-done from 2026-08-14 02:11:10Z on" in early
    assert "--not-done from" not in explain(evidence("in_doubt", doubt_seq=9, not_after=NOW))
    hanging = explain(evidence("in_doubt", doubt_seq=9, not_after=NOW, call_running=True))
    assert "--not-done once its call has ended" in hanging


@pytest.mark.parametrize("status", sorted(TERMINAL))
def test_a_finished_run_says_how_and_why(status: Status) -> None:
    last = {"event_seq": 9, "kind": "outcome", "code": "max_loop_steps", "recorded_at": NOW}
    sentence = explain(evidence(status.value, last_step=last))
    assert sentence.startswith(f"It ended {status.value} at loop step 3 of 12")
    assert "max_loop_steps" in sentence


def test_a_cancel_that_nobody_has_read_yet_is_said() -> None:
    signal = {"kind": "cancel", "source": "kafka", "created_at": NOW}
    assert "A cancel has arrived" in explain(evidence("running", signals=[signal]))


def test_the_evidence_is_short_and_names_what_stands_in_the_way() -> None:
    letters = [
        {"reason": "pin_conflict", "topic": "custody.runs", "partition": 2, "offset": at, "recorded_at": NOW}
        for at in range(9)
    ]
    lane = {"went_back": True, "backlog": 12}
    lines = dict(facts(evidence("running", lane=lane, dead_letters=letters)))
    assert lines["lane"] == "lane 3 (custody.runs/2, epoch 7), owner someone alive 1.0 s ago"
    assert lines["loop steps"] == "3 of 12"
    assert lines["unpublished"].startswith("12 ")
    assert "adopt-floor" in lines["publication"]
    assert "custody dlq list --run run-9f3c" in lines["dead letters"]
    assert lines["expires"] == "2026-08-15 02:11:05Z"
