"""The files of one Kafka node: properties, log settings, a formatted data folder."""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from session_custody.devstack.account import hand_over, make_folder
from session_custody.devstack.address import LOOPBACK
from session_custody.devstack.cache import finished
from session_custody.devstack.errors import DevStackError
from session_custody.devstack.packages import Place

FORMAT_WAIT_S: Final = 60.0
REPLICAS_MAX: Final = 3

PROPERTIES: Final[Mapping[str, str]] = {
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "auto.create.topics.enable": "false",
    # Four partitions each instead of 50: a start opens every one of them.
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.num.partitions": "4",
    # Tests want rebalances and expired sessions within a second.
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "500",
    "group.consumer.min.session.timeout.ms": "500",
    "group.consumer.min.heartbeat.interval.ms": "100",
    # A broker that was killed comes back when its old registration has run out: 12 s with the defaults.
    "broker.session.timeout.ms": "1000",
    "broker.heartbeat.interval.ms": "200",
    "log.cleaner.dedupe.buffer.size": "4194304",
    "num.network.threads": "2",
    "num.io.threads": "4",
}
"""What every node of ours has; `KafkaConfig.extra_properties` may add and override."""

LOG_SETTINGS: Final = """\
status = error
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{ISO8601} %p %c: %m%n
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
"""

JVM_FLAGS: Final = (
    "-Xms128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-XX:-UsePerfData",
    "-XX:+ExitOnOutOfMemoryError",
)  # fmt: skip


def kafka_uuid() -> str:
    """22 characters of url-safe base64, as Kafka's tools make them (never with a leading hyphen)."""
    while (text := base64.urlsafe_b64encode(os.urandom(16)).decode("ascii").rstrip("=")).startswith("-"):
        pass
    return text


@dataclass(frozen=True, slots=True)
class Ports:
    """The two listeners of one node."""

    broker: int
    controller: int


@dataclass(frozen=True, slots=True)
class Runtime:
    """The JVM and what it runs."""

    java: Path
    jars: tuple[Path, ...]
    heap_mb: int

    def command(self, folder: Path, main: str, *arguments: str) -> list[str]:
        """A command line; everything the JVM writes by itself goes below `folder`."""
        scratch = folder / "tmp"
        return [
            str(self.java), *JVM_FLAGS, f"-Xmx{self.heap_mb}m",
            f"-Djava.io.tmpdir={scratch}", f"-XX:ErrorFile={scratch}/crash-%p.log", f"-Duser.home={scratch}",
            f"-Dlog4j2.configurationFile={folder / 'log4j2.properties'}",
            "-cp", ":".join(map(str, self.jars)), main, *arguments,
        ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Node:
    """One broker and controller. `folder` belongs to the servers' user."""

    number: int
    folder: Path

    @property
    def properties_path(self) -> Path:
        """Its server.properties."""
        return self.folder / "server.properties"

    def write_properties(self, ports: Sequence[Ports], extra: Mapping[str, str], place: Place) -> None:
        """Write server.properties and the log settings; `ports` are those of all nodes, in order."""
        count = len(ports)
        replicas = str(min(count, REPLICAS_MAX))
        in_sync = "2" if count >= REPLICAS_MAX else "1"
        mine = ports[self.number - 1]
        listeners = f"PLAINTEXT://{LOOPBACK}:{mine.broker}"
        voters = (f"{number}@{LOOPBACK}:{one.controller}" for number, one in enumerate(ports, start=1))
        properties = {
            **PROPERTIES,
            "node.id": str(self.number),
            "controller.quorum.voters": ",".join(voters),
            "listeners": f"{listeners},CONTROLLER://{LOOPBACK}:{mine.controller}",
            "advertised.listeners": listeners,
            "log.dirs": str(self.folder / "log"),
            "default.replication.factor": replicas,
            "min.insync.replicas": in_sync,
            "offsets.topic.replication.factor": replicas,
            "transaction.state.log.replication.factor": replicas,
            "transaction.state.log.min.isr": in_sync,
            "share.coordinator.state.topic.replication.factor": replicas,
            "share.coordinator.state.topic.min.isr": in_sync,
            **extra,
        }
        for folder in (self.folder, self.folder / "tmp"):
            make_folder(folder, 0o700)
        lines = "".join(f"{name}={value}\n" for name, value in properties.items())
        for path, text in ((self.properties_path, lines), (self.folder / "log4j2.properties", LOG_SETTINGS)):
            path.unlink(missing_ok=True)
            path.touch(mode=0o600)
            path.write_text(text, encoding="utf-8")
        hand_over(self.folder, place.account)

    def format(self, cluster_id: str, runtime: Runtime, place: Place, version: str) -> None:
        """Format its data folder, once: from the template in the cache, which the first start makes."""
        log = self.folder / "log"
        if (log / "meta.properties").exists():
            return

        def fill(partial: Path) -> None:
            self._run_format(cluster_id, runtime, place)
            shutil.copytree(log / METADATA, partial / METADATA)
            for copy in (partial / METADATA).iterdir():
                copy.chmod(0o600)

        template = finished(place.cache, f"kafka-{version}-formatted", fill, place.progress)
        shutil.rmtree(log, ignore_errors=True)
        make_folder(log, 0o700)
        shutil.copytree(template / METADATA, log / METADATA)
        lines = {
            "version": "1",
            "cluster.id": cluster_id,
            "node.id": str(self.number),
            "directory.id": kafka_uuid(),
        }
        text = "".join(f"{name}={value}\n" for name, value in lines.items())
        (log / "meta.properties").write_text(text, encoding="ascii")
        hand_over(log, place.account)

    def _run_format(self, cluster_id: str, runtime: Runtime, place: Place) -> None:
        arguments = ("format", "-t", cluster_id, "-c", str(self.properties_path))
        done = subprocess.run(
            runtime.command(self.folder, "kafka.tools.StorageTool", *arguments),
            env=environment(self.folder), cwd="/", umask=0o077, capture_output=True, text=True, check=False,
            timeout=FORMAT_WAIT_S, **(place.account.popen() if place.account else {}),
        )  # fmt: skip
        if done.returncode:
            raise DevStackError(
                f"kafka: formatting the data folder failed: {(done.stderr or done.stdout).strip()}"
            )


METADATA: Final = "__cluster_metadata-0"
"""The metadata partition: after formatting it holds the feature levels only, the same for every cluster."""


def environment(folder: Path) -> dict[str, str]:
    """The whole environment of a JVM of ours."""
    return {"LC_ALL": "C", "TZ": "UTC", "HOME": str(folder)}
