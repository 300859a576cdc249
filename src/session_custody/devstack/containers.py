"""Servers as containers, where a Docker engine answers. Nothing of Testcontainers is imported before that."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from session_custody.devstack.address import Address, Kind
from session_custody.devstack.errors import ExtraMissing

PROBE_WAIT_S: Final = 0.5
KAFKA_START_WAIT_S: Final = 120
ROLE: Final = "custody"

KAFKA_VERSION: Final = "7.9.0"  # the line that the module's start script is written for
KAFKA_NAME: Final = "Confluent Platform Kafka"
KAFKA_IMAGE: Final = f"confluentinc/cp-kafka:{KAFKA_VERSION}"
POSTGRES_IMAGE: Final = "postgres:18"
VALKEY_IMAGE: Final = "valkey/valkey:9.1"

KAFKA_SETTINGS: Final[Mapping[str, str]] = {
    "KAFKA_AUTO_CREATE_TOPICS_ENABLE": "false",
    "KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR": "1",
    "KAFKA_TRANSACTION_STATE_LOG_MIN_ISR": "1",
    "KAFKA_TRANSACTION_STATE_LOG_NUM_PARTITIONS": "4",
    "KAFKA_GROUP_MIN_SESSION_TIMEOUT_MS": "500",
}


def engine_answers(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether a Docker engine answers a ping within half a second (its socket, or DOCKER_HOST)."""
    host = environ.get("DOCKER_HOST", "")
    if host.startswith("tcp://"):
        parts = urlsplit(host)
        return _pings(
            lambda: socket.create_connection((parts.hostname or "", parts.port or 2375), PROBE_WAIT_S)
        )
    if host:
        return _pings(lambda: _unix(Path(host.removeprefix("unix://"))))
    places = [Path("/var/run/docker.sock")]
    if environ.get("XDG_RUNTIME_DIR"):
        places.append(Path(environ["XDG_RUNTIME_DIR"]) / "docker.sock")
    if environ.get("HOME"):
        places.append(Path(environ["HOME"]) / ".docker/run/docker.sock")
    return any(_pings(partial(_unix, place)) for place in places if place.exists())


def _unix(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(PROBE_WAIT_S)
        connection.connect(str(path))
    except OSError:
        connection.close()
        raise
    return connection


def _pings(connect: Callable[[], socket.socket]) -> bool:
    try:
        with connect() as connection:
            connection.settimeout(PROBE_WAIT_S)
            connection.sendall(b"GET /_ping HTTP/1.0\r\nHost: docker\r\n\r\n")
            return b" 200 " in connection.recv(64)
    except OSError:
        return False


@dataclass(frozen=True, slots=True)
class Started:
    """A container that runs, and how to end it."""

    address: Address
    stop: Callable[[], object]


def start_container(kind: Kind, password: str) -> Started:
    """Start one server; `password` is a generated one. Raises ExtraMissing, and what the engine says."""
    try:
        import testcontainers.core  # noqa: F401
    except ImportError:
        raise ExtraMissing(kind, "testcontainers", "the environment") from None
    match kind:
        case "kafka":
            return _kafka()
        case "postgres":
            return _postgres(password)
        case "valkey":
            return _valkey(password)


def _kafka() -> Started:
    from testcontainers.community.kafka import KafkaContainer

    container = KafkaContainer(KAFKA_IMAGE).with_kraft()
    for name, value in KAFKA_SETTINGS.items():
        container.with_env(name, value)
    container.start(timeout=KAFKA_START_WAIT_S)
    bootstrap = container.get_bootstrap_server()
    host, _, port = bootstrap.rpartition(":")
    return Started(Address(host, int(port), bootstrap), container.stop)


def _postgres(password: str) -> Started:
    from testcontainers.community.postgres import PostgresContainer

    container = PostgresContainer(POSTGRES_IMAGE, username=ROLE, password=password, dbname=ROLE, driver=None)
    container.start()
    url = container.get_connection_url()
    parts = urlsplit(url)
    return Started(Address(parts.hostname or "", parts.port or 0, url), container.stop)


def _valkey(password: str) -> Started:
    from testcontainers.core.container import DockerContainer

    container = DockerContainer(VALKEY_IMAGE).with_exposed_ports(6379)
    container.with_command(f"valkey-server --requirepass {password}").start()
    host, port = container.get_container_host_ip(), int(container.get_exposed_port(6379))
    return Started(Address(host, port, f"redis://:{password}@{host}:{port}/0"), container.stop)
