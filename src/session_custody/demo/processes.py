"""The demo's child processes: workers and side servers. Each ends when we end, even when we are killed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from session_custody.core.errors import Unavailable

START_LIMIT_S: Final = 60.0
STOP_LIMIT_S: Final = 20.0
POLL_S: Final = 0.05


class Child:
    """A process whose standard input is a pipe of ours: it ends itself when that closes."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        env: Mapping[str, str] | None = None,
        folder: Path | None = None,
    ) -> None:
        self.name = name
        self.log_path = log
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=env,
                cwd=folder or log.parent,
            )  # fmt: skip

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def first_line(self) -> str:
        """What it prints once it serves."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline().decode()
        if not line:
            raise Unavailable(self.name, f"it ended at start; see {self.log_path}")
        return line

    def send(self, number: signal.Signals) -> None:
        """One signal, and go on."""
        self._process.send_signal(number)

    def wait(self, limit_s: float = STOP_LIMIT_S) -> int:
        """Wait for its end; the exit code. Raises subprocess.TimeoutExpired."""
        return self._process.wait(limit_s)

    def kill(self) -> int:
        """SIGKILL, now. Gives the exit signal back, positive."""
        self._process.send_signal(signal.SIGKILL)
        return -self._process.wait(STOP_LIMIT_S)

    def stop(self) -> None:
        """SIGTERM and wait; SIGKILL when it does not end in time."""
        if self.running:
            self._process.terminate()
            try:
                self._process.wait(STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


def side_server(module: str, log: Path, *arguments: str) -> tuple[Child, int]:
    """Start one of this package's servers and learn its port."""
    command = [sys.executable, "-m", f"session_custody.demo.{module}", *arguments]
    child = Child(module, command, log)
    return child, int(json.loads(child.first_line())["port"])


class Worker(Child):
    """One `custody serve`, in `folder`: what its settings' relative paths are relative to."""

    def __init__(
        self,
        number: int,
        settings: Mapping[str, str],
        log: Path,
        apps: Sequence[str],
        folder: Path | None = None,
    ) -> None:
        self.number = number
        self.http_port = free_port()
        env = {
            **{key: value for key, value in os.environ.items() if not key.startswith("CUSTODY_")},
            **settings,
            "CUSTODY_HTTP__PORT": str(self.http_port),
        }
        command = [sys.executable, "-m", "session_custody", "serve", "--until-stdin-closes"]
        for app in apps:
            command += ["--app", app]
        super().__init__(f"worker {number}", command, log, env, folder)

    def wait_ready(self, limit_s: float = START_LIMIT_S) -> float:
        """Return the seconds it took until /readyz said yes."""
        began = time.monotonic()
        while time.monotonic() - began < limit_s:
            if not self.running:
                raise Unavailable(self.name, f"it ended at start: {self._last_words()}; log {self.log_path}")
            if self._get("/readyz") is not None:
                return time.monotonic() - began
            time.sleep(POLL_S)
        raise Unavailable(self.name, f"not ready within {limit_s:.0f} s; see {self.log_path}")

    def answers(self, path: str) -> bool:
        """Whether it answers this path with success."""
        return self._get(path) is not None

    def _last_words(self) -> str:
        """The log's last line: the log itself may go with a temporary folder."""
        lines = self.log_path.read_text(encoding="utf-8", errors="replace").split("\n")
        return next((line for line in reversed(lines) if line.strip()), "it said nothing")

    def metric(self, name: str, **labels: str) -> float:
        """Sum of a metric's samples that carry these labels; 0 when it cannot be asked."""
        page = self._get("/metrics") or ""
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        lines = (
            line for line in page.splitlines() if line.startswith(name) and all(w in line for w in wanted)
        )
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)

    def _get(self, path: str) -> str | None:
        try:
            url = f"http://127.0.0.1:{self.http_port}{path}"
            with urllib.request.urlopen(url, timeout=2) as answer:
                return str(answer.read().decode())
        except OSError:
            return None


def free_port() -> int:
    """A port that the kernel chose; a later bind can lose a race, then the worker says so and ends."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
