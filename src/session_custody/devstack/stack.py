"""The servers a run of ours needs, each from the first place that has it (DESIGN 19).

Order of preference, per server: an address in the environment; a container, where a Docker engine
answers; a real server from packages. What was taken is printed before anything starts.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from types import TracebackType
from typing import Final, Self, TypeVar, assert_never

from session_custody.devstack.address import KINDS, Kind, Origin, without_password
from session_custody.devstack.cache import Progress, to_stderr
from session_custody.devstack.containers import KAFKA_NAME as CONTAINER_NAME
from session_custody.devstack.containers import KAFKA_VERSION as CONTAINER_VERSION
from session_custody.devstack.containers import Started, engine_answers, start_container
from session_custody.devstack.kafka import NAME, KafkaConfig, KafkaServer
from session_custody.devstack.launcher import PASSWORD_BYTES, Launcher
from session_custody.devstack.postgres import PostgresConfig, PostgresServer
from session_custody.devstack.valkey import ValkeyConfig, ValkeyServer

T = TypeVar("T")

GIVEN_BY: Final[Mapping[Kind, tuple[str, ...]]] = {
    "kafka": ("CUSTODY_KAFKA__BOOTSTRAP_SERVERS",),
    "postgres": ("CUSTODY_POSTGRES__DSN", "DATABASE_URL"),
    "valkey": ("CUSTODY_REDIS__URL",),
}
"""The settings that give an address, the first that is set counts."""


@dataclass(frozen=True, slots=True, repr=False)
class Addresses:
    """Where the servers are. Text is empty for a server that was not asked for.

    `kafka`: bootstrap servers. `kafka_version`, `kafka_name`: empty when the address was given (a client
    cannot ask a broker for them). `postgres_dsn` and `valkey_url` hold passwords; repr() hides them.
    """

    kafka: str = ""
    postgres_dsn: str = ""
    valkey_url: str = ""
    origin: Mapping[Kind, Origin] = field(default_factory=dict)
    kafka_version: str = ""
    kafka_name: str = ""

    def __repr__(self) -> str:
        shown = {name: without_password(value) if isinstance(value, str) else value
                 for name, value in asdict(self).items()}  # fmt: skip
        return f"Addresses({', '.join(f'{name}={value!r}' for name, value in shown.items())})"


def given_address(kind: Kind, environ: Mapping[str, str]) -> tuple[str, str] | None:
    """Setting and address, if the environment gives one."""
    return next(((name, environ[name]) for name in GIVEN_BY[kind] if environ.get(name)), None)


class DevStack:
    """Kafka, PostgreSQL and Valkey, started in parallel. As a context manager it stops at the end.

    `phases` holds the seconds of `fetch`, `postgres`, `valkey`, `kafka`, as far as they happened.
    """

    def __init__(
        self,
        *,
        kafka: KafkaConfig | None = None,
        postgres: PostgresConfig | None = None,
        valkey: ValkeyConfig | None = None,
        progress: Progress = to_stderr,
        environ: Mapping[str, str] | None = None,
        engine: Callable[[Mapping[str, str]], bool] = engine_answers,
    ) -> None:
        self._kafka, self._postgres, self._valkey = kafka, postgres, valkey
        self._progress = progress
        self._environ = dict(os.environ if environ is None else environ)
        self._engine = engine
        self._stops: list[Callable[[], object]] = []
        self.phases: dict[str, float] = {}
        self.addresses = Addresses()
        self.kafka_server: KafkaServer | None = None
        self.postgres_server: PostgresServer | None = None
        self.valkey_server: ValkeyServer | None = None

    def start(self, kinds: Collection[Kind] = KINDS) -> Addresses:
        """Start what is asked for and not given; blocks until all are ready.

        Raises a DevStackError; what had started by then is stopped again.
        """
        wanted = [kind for kind in KINDS if kind in kinds]
        origin = self._choose(wanted)
        urls: dict[Kind, str] = {}
        try:
            with ThreadPoolExecutor(len(KINDS), thread_name_prefix="custody-devstack") as pool:
                starting = {kind: pool.submit(self._start_one, kind, origin[kind]) for kind in wanted}
                failures = [error for one in starting.values() if (error := one.exception())]
                if failures:
                    raise failures[0]
                urls = {kind: one.result() for kind, one in starting.items()}
        except BaseException:
            self.stop()
            raise
        name, version = self._kafka_is(origin.get("kafka"))
        self.addresses = Addresses(
            kafka=urls.get("kafka", ""),
            postgres_dsn=urls.get("postgres", ""),
            valkey_url=urls.get("valkey", ""),
            origin=origin,
            kafka_name=name,
            kafka_version=version,
        )
        return self.addresses

    def stop(self) -> None:
        """Stop everything that was started here, and remove temporary data; given servers are left alone."""
        stops, self._stops = self._stops, []
        if not stops:
            return
        with ThreadPoolExecutor(len(stops), thread_name_prefix="custody-devstack-stop") as pool:
            stopping = [pool.submit(stop) for stop in stops]
        for one in stopping:
            one.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _choose(self, kinds: Collection[Kind]) -> dict[Kind, Origin]:
        origin: dict[Kind, Origin] = {}
        given = {kind: found[0] for kind in kinds if (found := given_address(kind, self._environ))}
        engine = len(given) < len(kinds) and self._engine(self._environ)
        for kind in kinds:
            origin[kind] = "given" if kind in given else "container" if engine else "packages"
            where = {
                "given": f"given by {given.get(kind)}",
                "container": "a container",
                "packages": "from packages",
            }
            self._progress(f"{kind}: {where[origin[kind]]}")
        return origin

    def _start_one(self, kind: Kind, origin: Origin) -> str:
        match origin:
            case "given":
                found = given_address(kind, self._environ)
                assert found is not None
                return found[1]
            case "container":
                return self._timed(kind, lambda: self._start_container(kind))
            case "packages":
                return self._start_packages(kind)
            case _:
                assert_never(origin)

    def _start_container(self, kind: Kind) -> str:
        started: Started = start_container(kind, secrets.token_hex(PASSWORD_BYTES))
        self._stops.append(started.stop)
        return started.address.url

    def _start_packages(self, kind: Kind) -> str:
        server: KafkaServer | Launcher
        match kind:
            case "kafka":
                server = self.kafka_server = KafkaServer(
                    self._kafka, progress=self._progress, environ=self._environ
                )
                self._timed("fetch", server.fetch)
            case "postgres":
                server = self.postgres_server = PostgresServer(
                    self._postgres, progress=self._progress, environ=self._environ
                )
            case "valkey":
                server = self.valkey_server = ValkeyServer(
                    self._valkey, progress=self._progress, environ=self._environ
                )
            case _:
                assert_never(kind)
        self._stops.append(server.close)
        address = self._timed(kind, server.start)
        self._progress(f"{kind}: {address.host}:{address.port} after {self.phases[kind]:.1f} s")
        return address.url

    def _timed(self, phase: str, do: Callable[[], T]) -> T:
        started = time.monotonic()
        try:
            return do()
        finally:
            self.phases[phase] = round(time.monotonic() - started, 3)

    def _kafka_is(self, origin: Origin | None) -> tuple[str, str]:
        match origin:
            case "packages":
                assert self.kafka_server is not None
                return NAME, self.kafka_server.version
            case "container":
                return CONTAINER_NAME, CONTAINER_VERSION
            case "given" | None:
                return "", ""
            case _:
                assert_never(origin)
