"""One server's process, held through its keeper (see `keeper.py`)."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from session_custody.devstack.account import Account
from session_custody.devstack.errors import DevStackError

START_WAIT_S: Final = 30.0
KEEPER_WAIT_S: Final = 10.0
LOG_TAIL_BYTES: Final = 16_384

Signal = Literal["SIGINT", "SIGTERM", "SIGQUIT", "SIGKILL", "SIGSTOP", "SIGCONT"]


@dataclass(frozen=True, slots=True)
class Launch:
    """What to start. `argv[0]` is an absolute path; `env` is the whole environment; no secret in either."""

    argv: Sequence[str]
    env: Mapping[str, str]
    log_path: Path
    account: Account | None
    remove: Path | None
    """A folder that goes when we are killed (a temporary one); None keeps it."""


class KeptProcess:
    """A started server. `pid` is the server's own; it ends with us, however we end."""

    def __init__(self, launch: Launch) -> None:
        self.log_path = launch.log_path
        self._lock = threading.Lock()
        self._unread = b""
        self._ended = False
        keeper = [sys.executable, "-I", "-S", str(Path(__file__).with_name("keeper.py"))]
        log = os.open(launch.log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        try:
            self._keeper = subprocess.Popen(
                keeper,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={},
                cwd="/",
                start_new_session=True,
            )
        finally:
            os.close(log)
        self._tell(
            json.dumps(
                {
                    "argv": list(launch.argv),
                    "env": dict(launch.env),
                    "uid": launch.account.uid if launch.account else None,
                    "gid": launch.account.gid if launch.account else None,
                    "parent": os.getpid(),
                    "remove": str(launch.remove) if launch.remove else None,
                }
            )
        )
        word, _, rest = (self._line(START_WAIT_S) or "error it said nothing").partition(" ")
        if word != "pid":
            self._end()
            raise DevStackError(f"{launch.argv[0]} could not be started: {rest}")
        self.pid = int(rest)

    @property
    def running(self) -> bool:
        """Whether the server has not ended yet."""
        return not self.wait(0)

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end of the server; False when it still runs after `timeout_s` seconds."""
        with self._lock:
            if not self._ended and self._line(timeout_s) is not None:
                self._end()
            return self._ended

    def send(self, name: Signal) -> None:
        """Have the keeper send one signal; SIGKILL also goes to everything the server started."""
        if not self.wait(0):
            self._tell(name)

    def end(self, name: Signal, timeout_s: float) -> None:
        """Send `name`, and SIGKILL when the server has not ended after `timeout_s` seconds."""
        self.send(name)
        if not self.wait(timeout_s):
            self.send("SIGKILL")
            if not self.wait(KEEPER_WAIT_S):
                raise DevStackError(f"process {self.pid} did not end after SIGKILL")

    def log_tail(self) -> str:
        """The last part of the log, for a look at why a server ended."""
        with contextlib.suppress(OSError), self.log_path.open("rb") as log:
            log.seek(0, os.SEEK_END)
            log.seek(max(0, log.tell() - LOG_TAIL_BYTES))
            return log.read().decode("utf-8", "replace")
        return ""

    def _tell(self, line: str) -> None:
        assert self._keeper.stdin is not None
        with contextlib.suppress(OSError):  # the keeper is gone: the next wait() sees it
            self._keeper.stdin.write(f"{line}\n".encode())
            self._keeper.stdin.flush()

    def _line(self, timeout_s: float) -> str | None:
        """The keeper's next line; '' when it ended without a word; None after `timeout_s` seconds."""
        assert self._keeper.stdout is not None
        descriptor = self._keeper.stdout.fileno()
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._unread:
            left_s = max(0.0, deadline - time.monotonic())
            if not select.select([descriptor], [], [], left_s)[0]:
                return None
            piece = os.read(descriptor, 512)
            if not piece:
                return ""
            self._unread += piece
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode("utf-8", "replace")

    def _end(self) -> None:
        self._ended = True
        for pipe in (self._keeper.stdin, self._keeper.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self._keeper.wait(KEEPER_WAIT_S)
