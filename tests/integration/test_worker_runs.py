"""Runs through every station of a real worker, as an operator sees them (issue: "must show")."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.integration.bench import calls, says
from tests.integration.rig import Rig, wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.postgres, pytest.mark.valkey]

RECORD = json.loads((Path(__file__).parent / "records" / "run-9f3c.json").read_text(encoding="utf-8"))
ALERT = {"alert_id": "alert-88421"}


def kinds(steps: list[dict[str, Any]]) -> list[str]:
    return [step["kind"] for step in steps]


def test_a_run_without_tools_is_one_inference_and_one_outcome(rig: Rig) -> None:
    run_id = rig.start(says("Hello."), pattern_0=True, input="hi")
    rig.until(run_id, "succeeded")
    assert kinds(rig.steps(run_id)) == ["pinned", "inference", "outcome"]
    outcome = rig.client.wait(run_id, timeout=30)
    assert outcome.status == "succeeded"


def test_a_run_with_tools_reads_writes_once_and_succeeds(rig: Rig) -> None:
    run_id = rig.start(
        calls(("get_alert", ALERT), ("get_alert", {"alert_id": "alert-2"}), say="Two at once."),
        calls(("add_note", {**ALERT, "text": "Watch."})),
        says("The alert is noted."),
    )
    rig.until(run_id, "succeeded")
    assert kinds(rig.steps(run_id)) == [
        "pinned", "decided", "tool_result", "tool_result", "decided", "intent", "tool_result", "decided",
        "outcome",
    ]  # fmt: skip
    assert [key for _, key in rig.bench.writes if key.startswith(run_id)] == [f"{run_id}/2/0"]
    outcome = rig.client.wait(run_id, timeout=30)
    assert isinstance(outcome.payload, dict)
    assert outcome.payload["text"] == "The alert is noted."


def test_the_run_record_is_the_one_of_the_design(rig: Rig) -> None:
    run_id = "run-9f3c"
    read = calls(("get_alert", ALERT))
    with rig.bench.hold(f"model {run_id} 4") as fourth:
        rig.start(read, read, read, says("done"), run_id=run_id, session_id="sess-88")
        assert fourth.arrived.wait(60)
        got = rig.custody("run", "get", run_id, "-o", "json")
        assert got.code == 0
        record = got.json
    compare(RECORD, record, "")
    assert list(record)[: len(RECORD)] == list(RECORD)
    assert None not in record.values()
    assert abs(lasts(record) - lasts(RECORD)) < timedelta(seconds=1)
    rig.until(run_id, "succeeded")


TIMES = frozenset({".pinned_at", ".expires_at"})


def compare(wanted: dict[str, Any], got: dict[str, Any], where: str) -> None:
    """Every key of the design's record is there, nested so, with its value; times are of the run."""
    for key, value in wanted.items():
        place = f"{where}.{key}"
        assert key in got, f"{place} is missing"
        if isinstance(value, dict):
            compare(value, got[key], place)
        elif place in TIMES:
            assert moment(got[key]).tzinfo is not None
            assert got[key].endswith("Z")
        else:
            assert got[key] == value, place


def lasts(record: dict[str, Any]) -> timedelta:
    return moment(record["expires_at"]) - moment(record["pinned_at"])


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


def test_a_policys_no_is_a_fact_for_the_model_and_reaches_no_tool(rig: Rig) -> None:
    run_id = rig.start(calls(("forbidden", ALERT), ("get_alert", ALERT)), says("I may not, so I say so."))
    rig.until(run_id, "succeeded")
    denied, read = (step for step in rig.steps(run_id) if step["kind"] == "tool_result")
    assert (denied["tool"], denied["result"], denied["policy"]["decision"]) == ("forbidden", "denied", "deny")
    assert (read["tool"], read["result"]) == ("get_alert", "ok")
    assert "The policy does not allow this call." in told(rig, run_id)[0]


def test_malformed_calls_and_failing_tools_are_facts_that_cost_a_step_each(rig: Rig) -> None:
    run_id = rig.start(
        calls(("get_alert", "{no json")),
        calls(("get_alert", {"alert": 1}), ("no_such_tool", {})),
        calls(("explode", ALERT), ("get_alert", {"alert_id": "missing-1"})),
        says("Enough."),
    )
    record = rig.until(run_id, "succeeded")
    assert record["pin"]["loop_step"] == 4
    results = {
        (step["tool"], step["loop_step"]): (step["result"], step["code"])
        for step in rig.steps(run_id)
        if step["kind"] == "tool_result"
    }
    assert results == {
        ("get_alert", 1): ("malformed", "arguments_not_json"),
        ("get_alert", 2): ("malformed", "arguments_invalid"),
        ("no_such_tool", 2): ("malformed", "unknown_tool"),
        ("explode", 3): ("error", "tool_failed"),
        ("get_alert", 3): ("error", "alert_not_found"),
    }
    answers = told(rig, run_id)
    assert "There is no alert with this id." in answers[-1]
    assert not any("inner detail" in answer for answer in answers)


def told(rig: Rig, run_id: str) -> list[str]:
    """What the model was told by tools, as of its last asking."""
    last = rig.bench.told[run_id][-1]
    return [str(message["content"]) for message in last if message["role"] == "tool"]


@pytest.mark.parametrize(
    ("manifest_id", "status"), [("fraud-investigate-v2", "partial"), ("escalating", "escalated")]
)
def test_the_bound_of_loop_steps_ends_a_run_as_its_manifest_says(
    rig: Rig, manifest_id: str, status: str
) -> None:
    read = calls(("get_alert", ALERT), say="Still looking.")
    run_id = rig.start(read, manifest_id=manifest_id, max_loop_steps=2)
    record = rig.until(run_id, "partial", "escalated")
    assert (record["status"], record["pin"]["loop_step"]) == (status, 2)
    assert rig.steps(run_id)[-1]["code"] == "max_loop_steps"
    # the last proposal's calls are still made
    assert sum(step["kind"] == "tool_result" for step in rig.steps(run_id)) == 2


def test_a_cancel_ends_a_run_at_its_next_boundary(rig: Rig) -> None:
    run_id = f"run-cancelled-{rig.folder.name}"
    with rig.bench.hold(f"model {run_id} 2") as second:
        rig.start(calls(("get_alert", ALERT)), calls(("explode", ALERT)), run_id=run_id)
        assert second.arrived.wait(60)
        assert rig.custody("run", "cancel", run_id, "--reason", "customer called").code == 0
        assert wait_until(lambda: "cancel" in open_signals(rig, run_id))
        why = rig.custody("run", "why", run_id)
        assert "ends at its next boundary" in why.out.splitlines()[0]
    record = rig.until(run_id, "cancelled")
    assert record["checkpoint"]["last_tool"] == "get_alert"
    assert rig.steps(run_id)[-1]["kind"] == "outcome"


def open_signals(rig: Rig, run_id: str) -> list[str]:
    evidence = rig.ask(lambda store: store.run_evidence(run_id)) or {}
    return [signal["kind"] for signal in evidence.get("signals", ())]


def test_a_run_expires_at_its_time(rig: Rig) -> None:
    run_id = f"run-expired-{rig.folder.name}"
    soon = datetime.now(UTC) + timedelta(seconds=2)
    with rig.bench.hold(f"model {run_id} 1"):
        rig.start(calls(("get_alert", ALERT)), says("too late"), run_id=run_id, expires_at=soon)
        assert wait_until(lambda: rig.ask(lambda store: store.now()) > soon)
    rig.until(run_id, "expired")
    assert "tool_result" not in kinds(rig.steps(run_id)), "what it asked for is not called any more"


def test_a_run_without_its_model_parks_and_goes_on_when_it_is_back(rig: Rig) -> None:
    by_itself, by_hand = f"run-wakes-{rig.folder.name}", f"run-woken-{rig.folder.name}"
    rig.bench.down |= {by_itself, by_hand}
    rig.start(says("I am back."), run_id=by_itself)
    rig.start(says("I am back."), run_id=by_hand)
    for run_id in (by_itself, by_hand):
        record = rig.until(run_id, "parked")
        assert record["park_reason"] == "model_unavailable"
    rig.bench.down.discard(by_itself)
    rig.until(by_itself, "succeeded")
    # parked for the second time at least, its own waking is some way off: an operator's resume is not
    rig.until_run(by_hand, lambda record: record.get("status") == "parked" and record["head_seq"] >= 6)
    rig.bench.down.discard(by_hand)
    assert rig.custody("run", "resume", by_hand).code == 0
    rig.until(by_hand, "succeeded")
    resumed = [step for step in rig.steps(by_hand) if step["kind"] == "resumed"]
    assert "causation_id" in resumed[-1]
    assert "causation_id" not in resumed[0]
