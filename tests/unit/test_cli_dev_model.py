"""`custody dev --app` without a model says so at once, and names the way without a gateway."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from session_custody.core.errors import Unavailable
from session_custody.demo.processes import Worker


def clean_environment() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if not key.startswith("CUSTODY_")}


def test_an_app_without_a_model_is_told_both_ways_and_nothing_is_started(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "session_custody", "dev", "--app", "my_app", "--folder", "place"],
        capture_output=True, text=True, env=clean_environment(), cwd=tmp_path, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "CUSTODY_MODEL__URL" in done.stderr
    assert "CUSTODY_MODEL__SCRIPTED_FILE" in done.stderr
    assert not (tmp_path / "place").exists()


def test_a_worker_that_ends_at_start_is_quoted_because_its_log_may_go(tmp_path: Path) -> None:
    worker = Worker(1, {"CUSTODY_KAFKA__BOOTSTRAP": "x"}, tmp_path / "worker.log", ())
    try:
        with pytest.raises(Unavailable, match="CUSTODY_KAFKA__BOOTSTRAP: there is no such setting"):
            worker.wait_ready()
    finally:
        worker.stop()
