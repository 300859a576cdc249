"""A small process between us and one server, so that the server never outlives us.

Run as a file (`python -I -S keeper.py`), standard library only. It starts the server itself, so there
is no instant at which the server exists and nobody watches it:

1. it reads one line of JSON (what to start) from the pipe that is its stdin;
2. it starts the server in a session of its own and says `pid N` on its stdout;
3. it takes the names of signals from the pipe, one a line, and passes them on (only this process
   signals the server, and it knows whether the pid was reaped, so it never hits another one);
4. when the server ends it says `exit CODE` and ends as well;
5. when the pipe closes, or our parent is another one (a forked child of ours may hold the pipe open
   after we were SIGKILLed), it kills the server with all it started and removes the folder.

If this process itself is SIGKILLed, the kernel kills the server (Linux: PR_SET_PDEATHSIG. The signal
fires when the *thread* that forked ends, and this process has one thread only).
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

PARENT_LOOK_S: Final = 1.0
KILL_WAIT_S: Final = 10.0
KILL_LOOK_S: Final = 0.005
LINE_BYTES_MAX: Final = 65_536
PR_SET_PDEATHSIG: Final = 1


def process_stat(pid: int) -> tuple[str, int] | None:
    """State letter and parent of a process as Linux tells them; None when it is gone or there is no /proc."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    state, parent = text.rpartition(")")[2].split()[:2]  # the name before may hold anything
    return state, int(parent)


def descendants(pid: int) -> list[int]:
    """Every process below `pid`: Postgres puts each backend into a session (and group) of its own."""
    children: dict[int, list[int]] = {}
    proc = Path("/proc")
    for entry in proc.iterdir() if proc.is_dir() else ():
        if entry.name.isdigit() and (stat := process_stat(int(entry.name))):
            children.setdefault(stat[1], []).append(int(entry.name))
    found: list[int] = []
    below = [pid]
    while below:
        for child in children.get(below.pop(), []):
            found.append(child)
            below.append(child)
    return found


def is_running(pid: int) -> bool:
    """Whether a process still does anything; a zombie does not, and process 1 may never reap it."""
    stat = process_stat(pid)
    return stat is not None and stat[0] not in {"Z", "X"}


def kill_all(server: subprocess.Popen[bytes]) -> None:
    """SIGKILL the server and all it started, and wait until they are gone.

    It is stopped first: else it could start one more between our look at its children and its death.
    """
    if server.poll() is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        server.send_signal(signal.SIGSTOP)
    below = descendants(server.pid)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(server.pid, signal.SIGKILL)
    for pid in below:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    server.wait(KILL_WAIT_S)
    deadline = time.monotonic() + KILL_WAIT_S
    while any(is_running(pid) for pid in below) and time.monotonic() < deadline:
        time.sleep(KILL_LOOK_S)


def death_wish() -> Callable[[], None] | None:
    """What the child does after its user was changed: ask Linux for SIGKILL when the keeper ends.

    Everything is loaded here, before the fork: the other user may not be able to read Python's library.
    """
    if sys.platform != "linux":
        return None
    import ctypes

    prctl = ctypes.CDLL(None).prctl
    return lambda: prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))


def start(spec: dict[str, Any]) -> subprocess.Popen[bytes]:
    """Start the server; its output goes to our stderr, which is its log file."""
    account = (
        {"user": spec["uid"], "group": spec["gid"], "extra_groups": []} if spec["uid"] is not None else {}
    )
    return subprocess.Popen(
        spec["argv"],
        env=spec["env"],
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=2,
        stderr=2,
        start_new_session=True,
        umask=0o077,
        preexec_fn=death_wish(),  # noqa: PLW1509 - one thread here, so it is safe
        **account,
    )


def read_line(descriptor: int) -> bytes:
    """One line from the pipe without reading ahead, so that select() sees whatever follows."""
    line = bytearray()
    while len(line) < LINE_BYTES_MAX:
        byte = os.read(descriptor, 1)
        if byte in {b"", b"\n"}:
            break
        line += byte
    return bytes(line)


def tell(word: str) -> None:
    """One line to the parent, which may be gone."""
    with contextlib.suppress(OSError):
        os.write(1, f"{word}\n".encode())


def watch(server: subprocess.Popen[bytes], parent: int, ended: int) -> bool:
    """Pass signals on until the server ends (True) or our parent does (False)."""
    while server.poll() is None:
        readable, _, _ = select.select([0, ended], [], [], PARENT_LOOK_S)
        if ended in readable:
            os.read(ended, 512)
        if os.getppid() != parent:
            return False
        if 0 in readable:
            name = read_line(0).decode("ascii")
            if not name:
                return False
            if name == "SIGKILL":
                kill_all(server)
            elif server.poll() is None:
                server.send_signal(signal.Signals[name])
    return True


def main() -> int:
    """Keep one server until it or our parent ends."""
    line = read_line(0)
    if not line:
        return 0
    spec = json.loads(line)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ended, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    try:
        server = start(spec)
    except (OSError, subprocess.SubprocessError) as error:
        tell(f"error {type(error).__name__} {getattr(error, 'strerror', '') or ''}")
        return 1
    tell(f"pid {server.pid}")
    if watch(server, spec["parent"], ended):
        tell(f"exit {server.returncode}")
        return 0
    kill_all(server)
    if spec["remove"]:
        shutil.rmtree(spec["remove"], ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
