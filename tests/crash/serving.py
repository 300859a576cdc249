"""`custody serve` in a process of its own, to be killed, frozen and outlived."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from session_custody.demo.processes import free_port
from tests.crash.play import APP

LOOK_S: Final = 0.05
READY_LIMIT_S: Final = 60.0
STOP_LIMIT_S: Final = 30.0
LOG_TAIL_CHARS: Final = 4_000


class Serving:
    """One worker. `module`: the command by default; the rig's own, where points are counted or frozen at."""

    def __init__(
        self, environment: Mapping[str, str], log: Path, *, module: str = "session_custody", **more: str
    ) -> None:
        self.http_port = free_port()
        self.log = log
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("CUSTODY_")}
        env = {**inherited, **environment, **more, "CUSTODY_HTTP__PORT": str(self.http_port)}
        command = [sys.executable, "-m", module, "serve", "--until-stdin-closes", "--app", APP]
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=out, stderr=out, env=env, cwd=log.parent
            )

    @property
    def exit_code(self) -> int | None:
        """Negative: the signal that ended it. None: it runs."""
        return self.process.poll()

    def wait_ready(self) -> None:
        deadline = time.monotonic() + READY_LIMIT_S
        while self.exit_code is None and time.monotonic() < deadline:
            if self.answers("/readyz"):
                return
            time.sleep(LOOK_S)
        raise AssertionError(f"not ready (exit code {self.exit_code}): {self.tail()}")

    def answers(self, path: str) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}{path}", timeout=2):
                return True
        except OSError:
            return False

    @property
    def stopped(self) -> bool:
        """By SIGSTOP."""
        seen = os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT)
        return seen is not None

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def stop(self) -> None:
        """SIGTERM, then SIGKILL; safe on a frozen or dead one."""
        if self.exit_code is None:
            self.send(signal.SIGCONT)
            self.send(signal.SIGTERM)
            try:
                self.process.wait(STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()

    def tail(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")[-LOG_TAIL_CHARS:]
