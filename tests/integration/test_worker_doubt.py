"""`run why` in five real states, and the operator's word on a write in doubt (DESIGN 8)."""

from __future__ import annotations

import signal
from datetime import datetime

import pytest

from session_custody.demo.processes import Worker
from tests.integration.bench import calls, says
from tests.integration.rig import Rig, Said, wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.postgres, pytest.mark.valkey]

ALERT = {"alert_id": "alert-88421"}


def why(rig: Rig, run_id: str) -> str:
    """The sentence: the first line of what a person sees, the same as `-o json` says."""
    seen, told = rig.custody("run", "why", run_id), rig.custody("run", "why", run_id, "-o", "json")
    assert (seen.code, told.code) == (0, 0)
    sentence = seen.out.splitlines()[0]
    assert told.json["run_id"] == run_id
    assert told.json["why"].split(";")[0] == sentence.split(";")[0]
    assert len(seen.out.splitlines()) <= 16, "short evidence follows, not everything there is"
    return sentence


def test_why_a_run_is_running_and_why_it_ended(rig: Rig) -> None:
    run_id = f"run-why-{rig.folder.name}"
    read = calls(("get_alert", ALERT))
    with rig.bench.hold(f"model {run_id} 4") as fourth:
        rig.start(read, read, read, says("done"), run_id=run_id)
        assert fourth.arrived.wait(60)
        sentence = why(rig, run_id)
        assert sentence.startswith("It is running at loop step 3 of 12 on lane ")
        assert "next is the model's answer for step 4" in sentence
    rig.until(run_id, "succeeded")
    assert why(rig, run_id) == "It ended succeeded at loop step 4 of 12; nothing more happens in it."


def test_why_a_run_is_parked(rig: Rig) -> None:
    run_id = f"run-why-parked-{rig.folder.name}"
    rig.bench.down.add(run_id)
    rig.start(says("back"), run_id=run_id)
    record = rig.until(run_id, "parked")
    sentence = why(rig, run_id)
    assert "parked because the model could not be asked" in sentence
    assert "it tries again by itself at " in sentence
    assert f"custody run resume {run_id}" in sentence
    rig.bench.down.discard(run_id)
    assert record["wake_at"] > record["updated_at"]
    rig.until(run_id, "succeeded")


def in_doubt(rig: Rig, run_id: str) -> int:
    """Bring a run's keyless write to where nobody knows its end; gives the event_seq of the doubt."""
    with rig.bench.hold(f"POST /alerts/{run_id}/cases"):
        rig.start(calls(("open_case", {"alert_id": run_id})), says("Well."), run_id=run_id)
        return int(rig.until(run_id, "in_doubt")["doubt_seq"])


def resolve(rig: Rig, run_id: str, *words: str) -> Said:
    return rig.custody("run", "resolve", run_id, "--reason", "seen in the case system", *words)


def test_a_write_in_doubt_ends_by_an_operators_word_about_that_doubt(rig: Rig) -> None:
    run_id = f"run-doubt-{rig.folder.name}"
    seq = in_doubt(rig, run_id)
    sentence = why(rig, run_id)
    assert f"nobody knows whether open_case with key {run_id}/1/0 took effect" in sentence
    assert "knows no keys and cannot be asked" in sentence
    assert f"custody run resolve {run_id} --done or --not-done" in sentence

    wrong = resolve(rig, run_id, "--done", "--event-seq", str(seq + 1))
    assert wrong.code == 4
    assert str(seq) in wrong.err
    assert rig.run(run_id)["status"] == "in_doubt"

    assert resolve(rig, run_id, "--done").code == 0
    rig.until(run_id, "succeeded")
    (resolved,) = (step for step in rig.steps(run_id) if step["kind"] == "resolved")
    assert (resolved["result"], resolved["reason"]) == ("done", "seen in the case system")
    assert [path for path, key in rig.bench.writes if key.startswith(run_id)] == [f"/alerts/{run_id}/cases"]
    assert resolve(rig, run_id, "--done").code == 4, "there is nothing in doubt any more"


def test_a_write_that_cannot_take_effect_any_more_is_told_to_the_model_as_not_done(rig: Rig) -> None:
    run_id = f"run-not-done-{rig.folder.name}"
    in_doubt(rig, run_id)
    assert resolve(rig, run_id, "--not-done").code == 0
    rig.until(run_id, "succeeded")
    last = rig.bench.told[run_id][-1]
    assert "did not take effect" in str(last[-1]["content"])


def test_a_cancelled_run_in_doubt_ends_only_after_the_resolve(rig: Rig) -> None:
    run_id = f"run-doubt-cancelled-{rig.folder.name}"
    in_doubt(rig, run_id)
    assert rig.custody("run", "cancel", run_id, "--reason", "customer called").code == 0
    record = rig.until_run(run_id, lambda record: record.get("stop_requested") == "cancel")
    assert record["status"] == "in_doubt"
    assert "cancel was requested" in why(rig, run_id)
    assert resolve(rig, run_id, "--done").code == 0
    rig.until(run_id, "cancelled")


# ---------------------------------------------------------------- with workers that die


def queued_without_a_worker(rig: Rig, worker: Worker) -> str:
    """A run that was admitted by a worker which then died: queued, and no owner is alive."""
    run_id = "run-left"
    with rig.bench.hold(f"model {run_id} 1") as first:
        rig.start(says("late"), run_id=run_id)
        assert first.arrived.wait(60)
        assert worker.kill() == signal.SIGKILL
    return run_id


@pytest.mark.crash
def test_a_keyless_write_whose_worker_dies_is_in_doubt_for_the_next_one(own_rig: Rig) -> None:
    rig = own_rig
    first = rig.worker()
    run_id = "run-killed"
    with rig.bench.hold(f"POST /alerts/{run_id}/cases") as sent:
        rig.start(calls(("open_case", {"alert_id": run_id})), says("Well."), run_id=run_id)
        assert sent.arrived.wait(60)
        early = rig.custody("run", "resolve", run_id, "--done", "--reason", "too early", "--event-seq", "3")
        assert early.code == 4
        sentence = why(rig, run_id)
        assert f"in the middle of a write: open_case with key {run_id}/1/0" in sentence
        left = queued_without_a_worker(rig, first)
    assert why(rig, left).startswith("It is queued on lane ")
    killed_at = rig.ask(lambda store: store.now())
    rig.worker()
    rig.until(left, "succeeded")
    rig.until(run_id, "in_doubt")
    (doubt,) = (step for step in rig.steps(run_id) if step["kind"] == "in_doubt")
    assert doubt["code"] == "outcome_unknown"
    assert isinstance(doubt["recorded_at"], datetime)
    assert doubt["recorded_at"] > killed_at
    assert wait_until(lambda: resolve(rig, run_id, "--not-done").code == 0)
    rig.until(run_id, "succeeded")
    assert len([key for _, key in rig.bench.writes if key.startswith(run_id)]) == 1
