"""The demo, smaller: a SIGKILL in mid-loop, and the judge that imports nothing of ours (I4, I6, I9)."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from session_custody.demo.show import MUST_BE_ZERO
from session_custody.devstack import Address

LIMIT_S = 110

pytestmark = [pytest.mark.kafka, pytest.mark.postgres]


def test_a_killed_worker_loses_no_run_and_repeats_no_write(
    kafka_server: Address, database: str, valkey_server: Address, tmp_path: Path
) -> None:
    given = {
        "CUSTODY_KAFKA__BOOTSTRAP_SERVERS": kafka_server.url,
        "CUSTODY_POSTGRES__DSN": database,
        "CUSTODY_REDIS__URL": valkey_server.url,
    }
    command = [sys.executable, "-m", "session_custody", "demo", "--runs", "24", "--keep", str(tmp_path)]
    done = subprocess.run(
        [*command, "-o", "json"],
        env={**os.environ, **given},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-4_000:]
    result = json.loads(done.stdout)
    assert {name: result[name] for name in MUST_BE_ZERO} == dict.fromkeys(MUST_BE_ZERO, 0)
    assert result["outcomes_by_status"] == {"succeeded": 24}
    assert result["exit_signal"] == 9
    assert result["in_flight_at_kill"] >= 6
    assert result["landed_uncommitted_at_kill"] >= 1
    assert result["duplicate_starts_sent"] == 4
    assert result["aborted_on_disk"] == 5


def test_the_judge_imports_nothing_of_ours() -> None:
    found = find_spec("session_custody.demo.checker")  # not imported: its Kafka client warns at import
    assert found is not None
    assert found.origin is not None
    tree = ast.parse(Path(found.origin).read_text(encoding="utf-8"))
    names = {
        alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names
    } | {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not [name for name in names if name.startswith("session_custody")]
    assert "kafka" in names
