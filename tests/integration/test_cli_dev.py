"""`custody dev`: one command, and the example runs without a gateway or a key."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest

from session_custody.devstack import Address
from session_custody.resources import examples_dir
from tests.integration.rig import wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.postgres, pytest.mark.valkey]


@pytest.fixture
def environment(kafka_server: Address, valkey_server: Address, database: str) -> dict[str, str]:
    """The session's servers as given addresses; topics and group of the test's own."""
    name = f"dev_{uuid4().hex[:8]}"
    ours = {
        "CUSTODY_KAFKA__BOOTSTRAP_SERVERS": kafka_server.url,
        "CUSTODY_POSTGRES__DSN": database,
        "CUSTODY_REDIS__URL": valkey_server.url,
        "CUSTODY_KAFKA__GROUP": name,
        "CUSTODY_KAFKA__PARTITIONS": "2",
        **{
            f"CUSTODY_KAFKA__TOPICS__{topic}": f"{name}.{topic.lower()}"
            for topic in ("RUNS", "STEPS", "OUTCOMES", "DEAD_LETTERS", "CURSORS")
        },
    }
    clean = {key: value for key, value in os.environ.items() if not key.startswith("CUSTODY_")}
    return clean | ours


def test_dev_serves_the_example_and_leaves_nothing_behind(
    environment: dict[str, str], tmp_path: Path
) -> None:
    place = tmp_path / "place"
    log = tmp_path / "dev.log"
    with log.open("wb") as err:
        dev = subprocess.Popen(
            [sys.executable, "-m", "session_custody", "dev", "--folder", str(place)],
            stderr=err, env=environment, cwd=tmp_path, start_new_session=True,
        )  # fmt: skip
    try:
        assert wait_until(lambda: "worker ready" in log.read_text(encoding="utf-8") or dev.poll() is not None)
        assert dev.poll() is None, log.read_text(encoding="utf-8")
        settings = place / "custody.env"
        assert settings.stat().st_mode & 0o077 == 0, "it holds passwords"
        start = examples_dir() / "fraud" / "start.yaml"
        script = (
            f". {settings} && run=$({sys.executable} -m session_custody run start -f {start}) && "
            f"{sys.executable} -m session_custody run watch $run --timeout 60"
        )
        shell = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
        done = subprocess.run(
            ["/bin/sh", "-c", script], capture_output=True, text=True, env=shell, timeout=100, check=False
        )
        assert done.returncode == 0, done.stderr
        assert "add_note ok" in done.stdout
        effects = (place / "ledger" / "effects.jsonl").read_text(encoding="utf-8").splitlines()
        assert len(effects) == 1
    finally:
        dev.send_signal(signal.SIGINT)
        code = dev.wait(40)
    assert code == 0, log.read_text(encoding="utf-8")
    assert "draining" in log.read_text(encoding="utf-8")
    with pytest.raises(ProcessLookupError):
        os.killpg(dev.pid, 0)
