"""What the three launchers share: one server in one home, started, ended, killed and started again."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from session_custody.devstack.account import Account, Home, server_account
from session_custody.devstack.address import Address
from session_custody.devstack.cache import Progress, cache_folder, to_stderr
from session_custody.devstack.errors import DevStackError, ServerNotReady
from session_custody.devstack.packages import Place
from session_custody.devstack.process import KeptProcess, Launch, Signal

PORT_ATTEMPTS_MAX: Final = 5
READY_LOOK_S: Final = 0.02
PASSWORD_BYTES: Final = 24
PORT_TAKEN: Final = ("Address already in use", "address already in use", "Address in use", "BindException")


class Launcher(ABC):
    """A server of packages. `start()` blocks until it is ready; data live until `close()`.

    `stop()` and `kill()` keep data and port, `restart()` is stop and start. As a context manager it
    starts, and closes at the end. With a folder of one's own the data outlive `close()` as well.
    """

    name: str
    stop_signal: Signal
    stop_wait_s: float
    ready_wait_s: float

    def __init__(
        self,
        *,
        folder: Path | None = None,
        progress: Progress = to_stderr,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.environ = dict(os.environ if environ is None else environ)
        self._folder = folder
        account = server_account()
        self.place = Place(account, cache_folder(self.environ), progress)
        self._home: Home | None = None
        self._process: KeptProcess | None = None
        self._address: Address | None = None

    # --- what a launcher adds ---

    @abstractmethod
    def prepare(self) -> None:
        """Find binaries and make the data, once; a home that has data is left as it is."""

    @abstractmethod
    def launch(self, port: int) -> Launch:
        """What to start on this port."""

    @abstractmethod
    def is_ready(self, address: Address) -> bool:
        """Whether the server does its work for a client that has the password."""

    @abstractmethod
    def address_at(self, port: int) -> Address:
        """The address of a server on this port."""

    @abstractmethod
    def choose_port(self) -> int:
        """A free port."""

    # --- what all have ---

    @property
    def account(self) -> Account | None:
        """The user it runs as; None: ourselves."""
        return self.place.account

    @property
    def home(self) -> Home:
        """Its folders; made at the first look."""
        if self._home is None:
            self._home = Home.open(self.name, self._folder, self.account)
            if self._home.temporary:
                weakref.finalize(self, self._home.remove)  # also at exit, for a launcher nobody closed
        return self._home

    @property
    def address(self) -> Address:
        """Where it listens; raises DevStackError before the first start."""
        if self._address is None:
            raise DevStackError(f"{self.name} was not started")
        return self._address

    @property
    def pid(self) -> int:
        """The server's own process; raises DevStackError while it is down."""
        if self._process is None:
            raise DevStackError(f"{self.name} is down")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether its process runs."""
        return self._process is not None and self._process.running

    def ended(self, timeout_s: float) -> bool:
        """Wait until its process has ended, by whatever hand; False after `timeout_s` seconds."""
        return self._process is None or self._process.wait(timeout_s)

    @property
    def log_path(self) -> Path:
        """Its log file (ours, 0600)."""
        return self.home.own / f"{self.name}.log"

    def start(self) -> Address:
        """Start it and wait until it is ready; a server that runs is left alone.

        The first start takes a free port, later ones the same. Raises ServerNotReady, and what
        `prepare` raises.
        """
        if self.running:
            return self.address
        self.prepare()
        known = self._remembered_port()
        for attempt in range(PORT_ATTEMPTS_MAX):
            # Whoever has our address keeps it; only a port that nobody was told yet is given up.
            told = self._address is not None
            port = known if known and (told or attempt == 0) else self.choose_port()
            address = self.address_at(port)
            self._process = KeptProcess(self.launch(port))
            if self._wait_ready(address, last=attempt + 1 == PORT_ATTEMPTS_MAX):
                self._address = address
                self._remember_port(port)
                return address
        raise ServerNotReady(self.name, "found no free port", self.log_path)

    def stop(self) -> None:
        """End it in order (bounded, then SIGKILL). Data and port stay."""
        process, self._process = self._process, None
        if process is not None:
            process.end(self.stop_signal, self.stop_wait_s)

    def kill(self) -> None:
        """SIGKILL, and wait until nothing of it runs. Data and port stay."""
        process, self._process = self._process, None
        if process is not None:
            process.end("SIGKILL", self.stop_wait_s)

    def signal(self, name: Signal) -> None:
        """Send one signal, such as SIGSTOP and SIGCONT, to its process."""
        if self._process is None:
            raise DevStackError(f"{self.name} is down")
        self._process.send(name)

    def restart(self) -> Address:
        """Stop and start with the same data on the same port."""
        self.stop()
        return self.start()

    def close(self) -> None:
        """Stop it and remove its temporary folder."""
        self.stop()
        if self._home is not None:
            self._home.remove()
            if self._home.temporary:
                self._home, self._address = None, None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def password(self) -> str:
        """This home's generated password, kept in a file of ours (0600)."""
        return once(self.home.own / "password", lambda: secrets.token_hex(PASSWORD_BYTES))

    def _remembered_port(self) -> int | None:
        path = self.home.own / "port"
        return int(path.read_text(encoding="ascii")) if path.exists() else None

    def _remember_port(self, port: int) -> None:
        (self.home.own / "port").write_text(str(port), encoding="ascii")

    def _wait_ready(self, address: Address, *, last: bool) -> bool:
        """True when ready, False when its port was taken; anything else raises, and nothing runs then."""
        assert self._process is not None
        process, deadline = self._process, time.monotonic() + self.ready_wait_s
        try:
            while time.monotonic() < deadline:
                if process.wait(READY_LOOK_S):
                    self._process = None
                    tail = process.log_tail()
                    if not last and any(words in tail for words in PORT_TAKEN):
                        return False
                    raise ServerNotReady(self.name, "ended while it started", self.log_path)
                if self.is_ready(address):
                    return True
            raise ServerNotReady(self.name, f"was not ready after {self.ready_wait_s:.0f} s", self.log_path)
        except BaseException:
            with contextlib.suppress(DevStackError):
                self.kill()
            raise


def once(path: Path, make: Callable[[], str]) -> str:
    """The text of a small file of ours (0600), made at the first call."""
    if not path.exists():
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(make())
    return path.read_text(encoding="ascii")
