"""`custody serve` as a platform engineer sees it: health, metrics, drain, take-over, logs, audit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

import pytest
from redis import Redis

from session_custody.demo.processes import Worker, free_port
from session_custody.wire import decode_event
from tests.integration.bench import calls, says
from tests.integration.rig import APP, MODEL_KEY, PARTITIONS, ROOT, Rig, wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.postgres, pytest.mark.valkey]

TRACE = (
    "session_id", "run_id", "correlation_id", "route_id", "route_table_version", "manifest_version",
    "policy_profile", "model_profile", "orchestration_step", "loop_step", "max_loop_steps",
)  # fmt: skip
DRAIN_S = 15.0


@dataclass(frozen=True)
class Page:
    status: int
    text: str


def page(worker: Worker, path: str) -> Page:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{worker.http_port}{path}", timeout=5) as answer:
            return Page(answer.status, answer.read().decode())
    except urllib.error.HTTPError as error:
        with error:
            return Page(error.code, error.read().decode())


def end(worker: Worker) -> int:
    """SIGTERM, and the exit code within the time that a drain may take."""
    worker.send(signal.SIGTERM)
    return worker.wait(DRAIN_S)


def log_lines(worker: Worker) -> list[dict[str, Any]]:
    return [json.loads(line) for line in worker.log_path.read_text(encoding="utf-8").splitlines()]


def owners(rig: Rig) -> list[Any]:
    return [lane["owner"] for lane in rig.ask(lambda store: store.list_lanes())]


def test_health_and_metrics_of_a_worker(rig: Rig) -> None:
    worker = rig.workers[0]
    run_id = rig.start(calls(("get_alert", {"alert_id": "a"})), says("fine"))
    rig.until(run_id, "succeeded")
    assert page(worker, "/livez") == Page(200, "ok\n")
    ready = page(worker, "/readyz?verbose")
    assert ready.status == 200
    lines = ready.text.splitlines()
    assert lines[-1] == "passed"
    for name in ("poll-thread", "draining", "postgres", "kafka-consumer", "lanes", "publication", "clock"):
        assert any(line.startswith(f"[+]{name} ok") for line in lines), (name, lines)
    assert json.loads(page(worker, "/version").text)["version"]

    rig.client.start(start_again := rig.last_start)
    assert start_again.correlation_id == run_id
    assert wait_until(lambda: worker.metric("custody_events_total", result="duplicate") >= 1)
    assert worker.metric("custody_events_total", type="start", result="applied") >= 1
    assert wait_until(lambda: worker.metric("custody_lanes_owned") == PARTITIONS)
    assert worker.metric("custody_runs_finished_total", outcome="succeeded") >= 1
    assert worker.metric("custody_tool_calls_total", tool="get_alert", result="ok") >= 1
    assert wait_until(lambda: worker.metric("custody_outbox_pending") == 0)
    text = page(worker, "/metrics").text
    for name in (
        "custody_runs{",
        "custody_lanes_orphaned 0.0",
        "custody_outbox_oldest_seconds",
        "custody_build_info",
    ):
        assert name in text
    assert run_id not in text, "no id is ever a label"


def test_route_pins_are_compared_and_counted_and_never_decide(rig: Rig) -> None:
    worker = rig.workers[0]
    prefix = f"route-{rig.folder.name}"
    pin = {"tenant": "bank-a", "route_id": "fraud_investigate", "route_table_version": "2026.08.1"}
    before = {kind: lookups(worker, kind) for kind in ("match", "mismatch", "missing")}
    with Redis.from_url(str(rig.environment["CUSTODY_REDIS__URL"])) as router:
        router.hset(f"custody:route-pin:{{sess-{prefix}-same}}", mapping=pin)
        router.hset(f"custody:route-pin:{{sess-{prefix}-other}}", mapping={**pin, "route_id": "kyc"})
        ids = [rig.start(says("fine"), run_id=f"{prefix}-{name}") for name in ("same", "other", "absent")]
        for run_id in ids:
            record = rig.until(run_id, "succeeded")
            assert record["pin"]["route_id"] == "fraud_investigate"
    for kind, count in before.items():
        assert lookups(worker, kind) == count + 1, kind
    warned = [line for line in log_lines(worker) if line.get("run_id") == f"{prefix}-other"]
    assert any(line.get("fields") == "['route_id']" for line in warned)


def lookups(worker: Worker, result: str) -> float:
    return worker.metric("custody_route_pin_lookups_total", result=result)


def test_sigterm_drains_hands_over_and_leaves_no_secret_in_the_log(own_rig: Rig) -> None:
    rig = own_rig
    first = rig.worker()
    held = [f"run-held-{number}" for number in range(4)]
    with rig.bench.hold("GET /alerts/slow") as slow:
        for run_id in held:
            rig.start(calls(("get_alert", {"alert_id": "slow"})), says("fine"), run_id=run_id)
        assert slow.arrived.wait(60)
        second = rig.worker()
        began = time.monotonic()
        assert end(first) == 0
        assert time.monotonic() - began < DRAIN_S
    for run_id in held:
        rig.until(run_id, "succeeded")
    assert page(second, "/readyz").status == 200
    assert len(set(owners(rig))) == PARTITIONS, "each incarnation has an owner of its own"
    assert wait_until(lambda: second.metric("custody_lanes_owned") == PARTITIONS)

    assert end(second) == 0
    assert owners(rig) == [None] * PARTITIONS
    assert "has no owner" in rig.custody("run", "why", waiting(rig)).out.splitlines()[0]

    lines = log_lines(first) + log_lines(second)
    assert lines
    assert not [line for line in lines if line["level"] == "error"]
    traced = [line for line in lines if line.get("run_id") in held]
    assert traced, "what is said about a run carries its trace"
    for line in traced:
        assert set(TRACE) <= set(line)
    password = str(rig.environment["CUSTODY_POSTGRES__DSN"]).split("@")[0].rsplit(":", 1)[-1]
    logs = first.log_path.read_text(encoding="utf-8") + second.log_path.read_text(encoding="utf-8")
    for secret in (password, MODEL_KEY):
        assert len(secret) >= 8
        assert secret not in logs

    check_audit(rig, held)


def waiting(rig: Rig) -> str:
    """A run that no worker takes up: it is admitted by none, so a finished one's lane would be asked."""
    third = rig.worker()
    with rig.bench.hold("model run-left 1") as first:
        rig.start(says("late"), run_id="run-left")
        assert first.arrived.wait(60)
        assert end(third) == 0
    assert rig.run("run-left")["status"] == "queued"
    return "run-left"


def check_audit(rig: Rig, runs: list[str]) -> None:
    """The record is whole; one forged event and it is not."""
    good = rig.custody("audit", "verify", "--since", "1h", "-o", "json")
    assert (good.code, good.json["ok"]) == (0, True), good.out
    assert good.json["runs"] == len(runs) + 1
    topics = rig.settings.kafka.topics
    found = rig.consume(topics.steps, lambda seen: len(seen) >= 4)
    original = next(message for message in found if message.key() == runs[0].encode())
    value = original.value()
    headers = original.headers()
    assert value is not None
    assert isinstance(headers, list)
    at = value.rindex(b"loop")
    forged = value[:at] + b"pool" + value[at + 4 :]
    assert decode_event(forged)["trace"]["run_id"] == runs[0]
    rig.produce(forged, key=runs[0].encode(), headers=headers, topic=topics.steps)
    bad = rig.custody("audit", "verify", "--since", "1h", "-o", "json")
    assert (bad.code, bad.json["ok"]) == (10, False)
    assert {finding["run_id"] for finding in bad.json["findings"]} == {runs[0]}
    table = rig.custody("audit", "verify", "--since", "1h")
    assert table.code == 10
    assert runs[0] in table.out


def test_a_second_signal_ends_a_worker_at_once_and_safely(own_rig: Rig) -> None:
    worker = own_rig.worker()
    with own_rig.bench.hold("model run-twice 1") as first:
        own_rig.start(says("fine"), run_id="run-twice")
        assert first.arrived.wait(60)
        worker.send(signal.SIGTERM)
        assert wait_until(lambda: "draining" in worker.log_path.read_text(encoding="utf-8"))
        worker.send(signal.SIGTERM)
        assert worker.wait() in {0, 1}
    own_rig.worker()
    own_rig.until("run-twice", "succeeded")


# ---------------------------------------------------------------- starts that cannot be


def started(rig: Rig, name: str, **change: str) -> Worker:
    """A `custody serve` with one thing changed, not waited for."""
    log = rig.folder / f"{name}.log"
    env = {**rig.environment, "PYTHONPATH": str(ROOT), **change}
    worker = Worker(99, env, log, [APP])
    rig.workers.append(worker)
    return worker


def test_a_worker_that_waits_for_postgres_is_alive_not_ready_and_ends_when_told(own_rig: Rig) -> None:
    nobody = f"postgresql://custody:canary-password-71e0@127.0.0.1:{free_port()}/custody"
    worker = started(own_rig, "waits", CUSTODY_POSTGRES__DSN=nobody)
    assert wait_until(lambda: worker.answers("/livez"))
    assert wait_until(lambda: "waiting for postgres" in page(worker, "/readyz?verbose").text)
    assert page(worker, "/livez").status == 200
    ready = page(worker, "/readyz?verbose")
    assert ready.status == 503
    assert "[-]started failed: waiting for postgres" in ready.text
    assert end(worker) == 0
    assert "canary-password" not in worker.log_path.read_text(encoding="utf-8")


def test_a_start_that_would_be_wrong_is_refused_with_the_settings_name(own_rig: Rig) -> None:
    served = own_rig.worker()
    wrong = {
        "CUSTODY_KAFKA__GROUP": ("another-group", "CUSTODY_POSTGRES__DSN"),
        "CUSTODY_AUDIT__SIGNING_KEY_FILE": ("/nowhere/key.pem", "CUSTODY_AUDIT__SIGNING_KEY_FILE"),
        "CUSTODY_MODEL__URL": ("ftp://models", "CUSTODY_MODEL__URL"),
    }
    children = {name: started(own_rig, name, **{name: value}) for name, (value, _) in wrong.items()}
    for name, worker in children.items():
        assert worker.wait(60) == 2
        said = worker.log_path.read_text(encoding="utf-8")
        assert wrong[name][1] in said.splitlines()[-1], said
        assert "Traceback" not in said
    taken = refused(own_rig, APP, CUSTODY_HTTP__PORT=str(served.http_port))
    assert "CUSTODY_HTTP__PORT" in taken
    assert "no_such_app_anywhere" in refused(own_rig, "no_such_app_anywhere")


def refused(rig: Rig, app: str, **change: str) -> str:
    """`custody serve` in a process of its own that ends with exit code 2; what it said last."""
    done = subprocess.run(
        [sys.executable, "-m", "session_custody", "serve", "--app", app],
        capture_output=True, text=True, timeout=60, check=False, cwd=rig.folder,
        env={**os.environ, **rig.environment, "PYTHONPATH": str(ROOT), "CUSTODY_HTTP__PORT": "0", **change},
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr.splitlines()[-1]
