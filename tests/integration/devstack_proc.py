"""What /proc says of a process: for the tests of the dev stack."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from pathlib import Path


def is_dead(pid: int) -> bool:
    """Gone, or a zombie: a process 1 that does not reap leaves those."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return text.rpartition(")")[2].split()[0] in {"Z", "X"}


def wait_until(true: Callable[[], bool], deadline_s: float = 20.0) -> bool:
    """Whether it came true before the deadline."""
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        if true():
            return True
        time.sleep(0.02)
    return true()


def running_with(text: str) -> list[int]:
    """Processes (no zombies) whose command line holds `text`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and not is_dead(int(entry.name)):
            try:
                if text.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def listening(pid: int) -> set[str]:
    """Addresses of all TCP sockets in state LISTEN of one process."""
    inodes = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        target = str(entry.readlink()) if entry.is_symlink() else ""
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    found = set()
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                host, port = fields[1].split(":")
                found.add(f"{address(family, bytes.fromhex(host))}:{int(port, 16)}")
    return found


def address(family: int, raw: bytes) -> str:
    """An address as the kernel prints it (words in the machine's order); a mapped one as IPv4."""
    words = b"".join(raw[at : at + 4][::-1] for at in range(0, len(raw), 4))
    text = socket.inet_ntop(family, words)
    return text.removeprefix("::ffff:")
