"""Apache Kafka in KRaft mode from the JRE wheel and pinned jars: one node, or three.

Ready means a committed transaction: an open port says nothing about coordinators, and the first
transaction follows the port by more than a second.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
import weakref
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from session_custody.devstack.account import Account, Home, server_account
from session_custody.devstack.address import LOOPBACK, Address, free_ports
from session_custody.devstack.cache import Progress, cache_folder, to_stderr
from session_custody.devstack.errors import DevStackError, ServerNotReady
from session_custody.devstack.jars import (
    Resolve,
    check,
    class_path,
    fetch_with_jgo,
    kafka_jars,
    kafka_version,
)
from session_custody.devstack.kafka_node import Node, Ports, Runtime, environment, kafka_uuid
from session_custody.devstack.kafka_ready import transaction_commits
from session_custody.devstack.launcher import PORT_ATTEMPTS_MAX, PORT_TAKEN, once
from session_custody.devstack.packages import Place, java, readable_jars
from session_custody.devstack.process import KeptProcess, Launch, Signal

NAME: Final = "Apache Kafka"
READY_WAIT_S: Final = 90.0
READY_LOOK_S: Final = 0.05
STOP_WAIT_S: Final = 15.0
NODES_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class KafkaConfig:
    """`extra_properties` go last into every node's server.properties. `folder`: keep the data there."""

    nodes: int = 1
    extra_properties: Mapping[str, str] = field(default_factory=dict)
    heap_mb: int = 384
    folder: Path | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.nodes <= NODES_MAX:
            raise DevStackError(f"kafka: {self.nodes} nodes; between 1 and {NODES_MAX} can be had")


class KafkaServer:
    """A cluster on 127.0.0.1. Nodes are numbered from 1, as their `node.id`.

    `stop()` and `kill()` keep data and ports, `restart()` is stop and start; `close()` removes
    temporary data.
    """

    name = "kafka"

    def __init__(
        self,
        config: KafkaConfig | None = None,
        *,
        progress: Progress = to_stderr,
        environ: Mapping[str, str] | None = None,
        resolve: Resolve = fetch_with_jgo,
    ) -> None:
        self.config = config or KafkaConfig()
        self.environ = dict(os.environ if environ is None else environ)
        self.place = Place(server_account(), cache_folder(self.environ), progress)
        self.version = kafka_version(kafka_jars())
        self._resolve = resolve
        self._home: Home | None = None
        self._runtime: Runtime | None = None
        self._processes: dict[int, KeptProcess] = {}
        self._address: Address | None = None
        self._told = False

    # --- what it is ---

    @property
    def account(self) -> Account | None:
        """The user it runs as; None: ourselves."""
        return self.place.account

    @property
    def home(self) -> Home:
        """Its folders; made at the first look."""
        if self._home is None:
            self._home = Home.open(self.name, self.config.folder, self.account)
            if self._home.temporary:
                weakref.finalize(self, self._home.remove)
        return self._home

    @property
    def address(self) -> Address:
        """Host and port of the first node; `url` is the bootstrap servers of all."""
        if self._address is None:
            raise DevStackError("kafka was not started")
        return self._address

    @property
    def cluster_id(self) -> str:
        """Generated once for this home."""
        return once(self.home.own / "cluster-id", kafka_uuid)

    @property
    def pid(self) -> int:
        """The first node's process that runs."""
        if not self._processes:
            raise DevStackError("kafka is down")
        return next(iter(self.pids.values()))

    @property
    def pids(self) -> dict[int, int]:
        """Processes by node number."""
        return {number: process.pid for number, process in sorted(self._processes.items())}

    @property
    def log_path(self) -> Path:
        """The first node's log file (ours, 0600)."""
        return self.node_log_path(1)

    def node_log_path(self, number: int) -> Path:
        """A node's log file."""
        return self.home.own / f"kafka-{number}.log"

    @property
    def running(self) -> bool:
        """Whether every node runs."""
        return len(self._processes) == self.config.nodes and all(
            one.running for one in self._processes.values()
        )

    def ended(self, timeout_s: float, number: int = 1) -> bool:
        """Wait until a node's process has ended, by whatever hand; False after `timeout_s` seconds."""
        return number not in self._processes or self._processes[number].wait(timeout_s)

    # --- what it does ---

    def fetch(self) -> None:
        """Find the JRE, fetch and check the jars. `start()` does it too; apart it can be timed."""
        if self._runtime is None:
            jars = class_path(self.place.cache, self.place.progress, resolve=self._resolve)
            readable = readable_jars(self.place, jars)
            if readable != jars:
                check(kafka_jars(), readable)
            self._runtime = Runtime(java(self.place, self.environ), readable, self.config.heap_mb)

    def start(self) -> Address:
        """Start the nodes that are down and wait for a committed transaction.

        Raises JarRefused, JarsUnavailable, ExtraMissing, ServerNotReady.
        """
        if self.running:
            return self.address
        self.fetch()
        for attempt in range(1, PORT_ATTEMPTS_MAX + 1):
            ports = self._ports()
            self._prepare(ports)
            self._launch(range(1, self.config.nodes + 1))
            if self._wait_ready(ports, last=attempt == PORT_ATTEMPTS_MAX):
                self._told = True
                return self.address
            if not self._told:  # whoever has our address keeps it
                self._ports_path.unlink()
        raise ServerNotReady(self.name, "found no free ports", self.log_path)

    def stop(self) -> None:
        """SIGTERM, SIGKILL for what still runs after a while. Data and ports stay."""
        self._end("SIGTERM", tuple(self._processes))

    def kill(self) -> None:
        """SIGKILL all nodes, and wait until they are gone."""
        self._end("SIGKILL", tuple(self._processes))

    def restart(self) -> Address:
        """Stop and start with the same data on the same ports."""
        self.stop()
        return self.start()

    def kill_node(self, number: int) -> None:
        """SIGKILL one node."""
        self._end("SIGKILL", (number,))

    def stop_node(self, number: int) -> None:
        """End one node in order."""
        self._end("SIGTERM", (number,))

    def start_node(self, number: int) -> None:
        """Start one node again and wait until the cluster counts it and commits transactions."""
        if number not in self._processes or not self._processes[number].running:
            self._launch((number,))
            self._wait_ready(self._ports(), last=True)

    def signal(self, name: Signal, number: int = 1) -> None:
        """Send one signal, such as SIGSTOP and SIGCONT, to a node."""
        if number not in self._processes:
            raise DevStackError(f"kafka node {number} is down")
        self._processes[number].send(name)

    def close(self) -> None:
        """Stop it and remove its temporary folder."""
        self.stop()
        if self._home is not None and self._home.temporary:
            self._home.remove()
            self._home, self._address, self._told = None, None, False

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- how ---

    @property
    def _ports_path(self) -> Path:
        return self.home.own / "ports.json"

    def _ports(self) -> list[Ports]:
        """The ports of all nodes: those of the last start, else free ones."""
        if not self._ports_path.exists():
            free = free_ports(2 * self.config.nodes)
            self._ports_path.write_text(json.dumps(free), encoding="ascii")
        numbers = json.loads(self._ports_path.read_text(encoding="ascii"))
        return [
            Ports(broker, controller) for broker, controller in zip(numbers[::2], numbers[1::2], strict=True)
        ]

    def _node(self, number: int) -> Node:
        return Node(number, self.home.data / f"node-{number}")

    def _prepare(self, ports: list[Ports]) -> None:
        assert self._runtime is not None
        for number in range(1, self.config.nodes + 1):
            if number not in self._processes:
                node = self._node(number)
                node.write_properties(ports, self.config.extra_properties, self.place)
                node.format(self.cluster_id, self._runtime, self.place, self.version)
        url = ",".join(f"{LOOPBACK}:{one.broker}" for one in ports)
        self._address = Address(LOOPBACK, ports[0].broker, url)

    def _launch(self, numbers: Iterable[int]) -> None:
        assert self._runtime is not None
        for number in numbers:
            if number in self._processes and self._processes[number].running:
                continue
            node = self._node(number)
            argv = self._runtime.command(node.folder, "kafka.Kafka", str(node.properties_path))
            remove = self.home.root if self.home.temporary else None
            launch = Launch(argv, environment(node.folder), self.node_log_path(number), self.account, remove)
            self._processes[number] = KeptProcess(launch)

    def _end(self, name: Signal, numbers: tuple[int, ...]) -> None:
        ending = [process for number in numbers if (process := self._processes.pop(number, None))]
        if ending:
            with ThreadPoolExecutor(len(ending), thread_name_prefix="custody-kafka-stop") as pool:
                for one in [pool.submit(process.end, name, STOP_WAIT_S) for process in ending]:
                    one.result()

    def _wait_ready(self, ports: list[Ports], *, last: bool) -> bool:
        """True when ready, False when a port was taken; anything else raises, and nothing runs then."""
        deadline = time.monotonic() + READY_WAIT_S
        try:
            while time.monotonic() < deadline:
                for number, process in self._processes.items():
                    if process.wait(0):
                        if not last and any(words in process.log_tail() for words in PORT_TAKEN):
                            self.kill()
                            return False
                        raise ServerNotReady(f"kafka node {number}", "ended", process.log_path)
                open_ports = all(_is_open(ports[number - 1].broker) for number in self._processes)
                if open_ports and transaction_commits(self.address.url, len(self._processes)):
                    return True
                next(iter(self._processes.values())).wait(READY_LOOK_S)
            raise ServerNotReady(self.name, f"was not ready after {READY_WAIT_S:.0f} s", self.log_path)
        except BaseException:
            with contextlib.suppress(DevStackError):
                self.kill()
            raise


def _is_open(port: int) -> bool:
    try:
        socket.create_connection((LOOPBACK, port), 1.0).close()
    except OSError:
        return False
    return True
