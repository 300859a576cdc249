"""The command line against a real installation: data, exit codes, what is said when something is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from session_custody.demo.processes import free_port
from tests.integration.bench import calls, says
from tests.integration.rig import APP, MANIFEST_ID, ROOT, Rig, start_of

pytestmark = [pytest.mark.kafka, pytest.mark.postgres, pytest.mark.valkey]


def start_file(folder: Path, run_id: str, **fields: Any) -> Path:
    document = start_of(run_id).model_dump(mode="json", exclude_none=True) | fields
    file = folder / f"{run_id}.yaml"
    file.write_text(yaml.safe_dump(document), encoding="utf-8")
    return file


def test_a_run_from_its_file_to_its_outcome(rig: Rig, tmp_path: Path) -> None:
    run_id = f"run-cli-{rig.folder.name}"
    rig.bench.scripts[run_id] = [calls(("get_alert", {"alert_id": "a-1"})), says("fine")]
    started = rig.custody("run", "start", "-f", str(start_file(tmp_path, run_id)))
    assert (started.code, started.out) == (0, run_id + "\n")

    watched = rig.custody("run", "watch", run_id, "--timeout", "60")
    assert watched.code == 0
    kinds = [line.split()[5] for line in watched.out.splitlines()]
    assert kinds == ["pinned", "decided", "tool_result", "decided", "outcome"]
    assert "It ended succeeded" in watched.err

    steps = rig.custody("run", "steps", run_id, "-o", "json").json
    assert [step["event_seq"] for step in steps] == [1, 2, 3, 4, 5]
    mine = ["run", "list", "--session", f"sess-{run_id}", "-o", "id"]
    assert rig.custody(*mine).out.split() == [run_id]
    assert rig.custody(*mine, "--status", "succeeded", "--route", "fraud_investigate").out.split() == [run_id]
    assert rig.custody(*mine, "--status", "failed").out.split() == []
    assert rig.custody(*mine, "--route", "kyc").out.split() == []
    rig.until(rig.start(says("another")), "succeeded")
    newest = rig.custody("run", "list", "--limit", "2", "-o", "json").json
    older = rig.custody("run", "list", "--limit", "1", "--before", newest[0]["run_id"], "-o", "json").json
    assert [row["run_id"] for row in older] == [newest[-1]["run_id"]]
    table = rig.custody("run", "get", run_id).out
    assert "checkpoint.working.account_id" in table


@pytest.mark.parametrize(
    ("turns", "fields", "code"),
    [
        ([calls(("get_alert", {"alert_id": "a"}))], {"max_loop_steps": 1}, 20),
        ([calls(("get_alert", {"alert_id": "a"}))], {"max_loop_steps": 1, "manifest_id": "escalating"}, 21),
        ([{"role": "assistant", "content": None, "tool_calls": [{"id": "c", "function": {"name": "x"}}]}],
         {"pattern_0": True}, 22),
    ],
)  # fmt: skip
def test_watch_says_how_a_run_ended_with_its_exit_code(
    rig: Rig, turns: list[Any], fields: dict[str, Any], code: int
) -> None:
    run_id = rig.start(*turns, **fields)
    watched = rig.custody("run", "watch", run_id, "-o", "jsonl", "--timeout", "60")
    assert watched.code == code
    assert watched.out.splitlines()[-1].startswith('{"event_seq": ')


def test_watch_gives_up_in_time(rig: Rig) -> None:
    run_id = f"run-slow-{rig.folder.name}"
    with rig.bench.hold(f"model {run_id} 1"):
        rig.start(says("late"), run_id=run_id)
        assert rig.custody("run", "watch", run_id, "--timeout", "1").code == 7


def test_an_unknown_run_is_exit_code_3(rig: Rig) -> None:
    for command in (["get"], ["steps"], ["why"], ["resolve", "--done", "--reason", "x"], ["watch"]):
        said = rig.custody("run", command[0], "run-nobody-knows", *command[1:])
        assert (said.code, said.out) == (3, "")
        assert "there is no run run-nobody-knows" in said.err


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"subject": None}, "subject"),
        ({"max_loop_steps": "many"}, "max_loop_steps"),
        ({"max_loop_steps": 5000}, "max_loop_steps"),
        ({"route_id": "has spaces"}, "route_id"),
        ({"subject": {"tenant": "bank-a"}}, "subject.id"),
        ({"manifest": "v2"}, "manifest"),
    ],
)
def test_a_bad_start_file_names_the_field_and_nothing_is_published(
    rig: Rig, tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    file = start_file(tmp_path, "run-bad-file", **change)
    answer = rig.custody("run", "start", "-f", str(file))
    assert (answer.code, answer.out) == (2, "")
    assert said in answer.err
    assert "many" not in answer.err, "a value may be what must not be repeated"
    assert rig.run("run-bad-file") == {}


def test_a_file_that_is_no_start_is_exit_code_2_with_its_line(rig: Rig, tmp_path: Path) -> None:
    broken, empty = tmp_path / "broken.yaml", tmp_path / "empty.yaml"
    broken.write_text("correlation_id: run-1\nsubject: {id: [\n", encoding="utf-8")
    empty.write_text("", encoding="utf-8")
    for file, words in ((broken, "line 3"), (empty, "no fields"), (tmp_path / "absent.yaml", "No such file")):
        answer = rig.custody("run", "start", "-f", str(file))
        assert answer.code == 2
        assert words in answer.err


def test_every_command_with_json_gives_json(rig: Rig) -> None:
    run_id = rig.start(says("fine"), pattern_0=True, input="hi")
    rig.until(run_id, "succeeded")
    commands: list[tuple[list[str], int]] = [
        (["run", "list"], 0), (["run", "get", run_id], 0), (["run", "steps", run_id], 0),
        (["run", "why", run_id], 0), (["lane", "list"], 0), (["dlq", "list"], 0),
        (["db", "status"], 0), (["topics", "check"], 0),
        (["version"], 0), (["config"], 0), (["audit", "verify", "--since", "1h"], 0),
        (["contract", "publish", str(rig.folder / "contracts")], 0),
    ]  # fmt: skip
    for command, code in commands:
        said = rig.custody(*command, "-o", "json")
        assert (said.code, bool(said.json is not None)) == (code, True), (command, said.err)
        table = rig.custody(*command)
        assert table.code == code
        assert table.out or table.err == "none\n", command
        assert "Traceback" not in table.err
    lanes = rig.custody("lane", "list", "-o", "json").json
    assert [lane["partition"] for lane in lanes] == [0, 1]
    assert all(lane["owner"] for lane in lanes)


def test_published_contracts_are_immutable_and_checked_before(rig: Rig, tmp_path: Path) -> None:
    drafted = rig.custody("contract", "build", APP, "--id", MANIFEST_ID, "--version", "2026.08.1")
    assert drafted.code == 0
    file = tmp_path / "manifest.yaml"
    file.write_text(drafted.out, encoding="utf-8")
    assert rig.custody("contract", "check", str(file)).code == 0
    other = rig.custody("contract", "publish", str(file))
    assert other.code == 4, "other content stands under this version"
    assert MANIFEST_ID in other.err
    file.write_text(drafted.out.replace("effect: write", "effect: wrong", 1), encoding="utf-8")
    checked = rig.custody("contract", "check", str(file))
    assert checked.code == 10
    assert f"{file}:" in checked.err
    assert "effect" in checked.err


def test_a_wrong_setting_is_exit_code_2_and_named(rig: Rig) -> None:
    for variable, value in (
        ("CUSTODY_KAFKA__SESSION_TIMEOUT_S", "soon"),
        ("CUSTODY_KAFKA__BOOTSTRAP_SERVER", "localhost:9092"),
        ("CUSTODY_APP__FOREIGN", "keep"),
    ):
        said = rig.custody("run", "list", env={**rig.environment, variable: value})
        assert (said.code, said.out) == (2, "")
        assert variable in said.err
    missing = {name: value for name, value in rig.environment.items() if name != "CUSTODY_POSTGRES__DSN"}
    said = rig.custody("run", "list", env=missing)
    assert said.code == 2
    assert "CUSTODY_POSTGRES__DSN" in said.err


def test_a_dependency_that_is_away_is_exit_code_6(rig: Rig, tmp_path: Path) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    password = "canary-password-71e0"
    dsn = f"postgresql://custody:{password}@{nobody}/custody"
    no_postgres = {**rig.environment, "CUSTODY_POSTGRES__DSN": dsn}
    said = rig.custody("run", "list", env=no_postgres)
    assert (said.code, said.out) == (6, "")
    assert "postgres is not available" in said.err
    assert password not in said.err
    no_kafka = {**rig.environment, "CUSTODY_KAFKA__BOOTSTRAP_SERVERS": nobody}
    checked = rig.custody("topics", "check", env=no_kafka)
    assert checked.code == 6
    assert "kafka is not available" in checked.err


def test_the_installed_command_speaks_on_both_streams_and_ends_with_its_code(rig: Rig) -> None:
    script = Path(sys.executable).with_name("custody")
    command = [str(script)] if script.exists() else [sys.executable, "-m", "session_custody"]
    env = {**os.environ, **rig.environment, "PYTHONPATH": str(ROOT), "NO_COLOR": "1"}

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        asked = [*command, *arguments]
        return subprocess.run(asked, capture_output=True, text=True, env=env, timeout=60, check=False)

    done = call("run", "get", "run-nobody")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == "custody: there is no run run-nobody\n"
    helped = call("run", "why", "--help")
    assert helped.returncode == 0
    assert "custody run why run-9f3c" in helped.stdout


def test_nothing_of_a_command_line_needs_a_server_to_say_what_it_is(tmp_path: Path) -> None:
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "CUSTODY_TYPO": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "session_custody", "version", "-o", "json"],
        capture_output=True, text=True, env=env, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0
    assert '"version"' in done.stdout


def test_opening_a_lane_that_is_not_there_is_exit_code_3(rig: Rig) -> None:
    said = rig.custody("lane", "adopt-floor", "999999", "--reason", "INC-7", "--yes")
    assert said.code == 3
    assert "999999" in said.err
