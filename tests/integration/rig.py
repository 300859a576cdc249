"""A rig: an installation of its own on the session's servers, real `custody serve` children, and the bench.

`rig` is one for the whole session with a worker that always runs; `own_rig` is fresh, without a worker, for
tests that kill, stop or misuse it.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar
from unittest import mock
from uuid import uuid4

import pytest
import yaml
from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, Producer, TopicPartition

from session_custody.cli import main
from session_custody.client import CustodyClient, RunStart, Subject
from session_custody.contracts import publish
from session_custody.demo.processes import Worker
from session_custody.devstack import Address, Databases
from session_custody.settings import Settings
from session_custody.store import PostgresStore
from session_custody.tools.draft import build
from session_custody.wire import generate_signing_key
from session_custody.wiring import open_store, topic_admin
from tests.integration.bench import Bench, Turn

T = TypeVar("T")

ROOT: Final = Path(__file__).resolve().parents[2]
APP: Final = "tests.integration.rig_tools"
PARTITIONS: Final = 2
SESSION_TIMEOUT_S: Final = 3
PATIENCE_S: Final = 60.0
LOOK_S: Final = 0.1

MANIFEST_ID: Final = "fraud-investigate-v2"
MANIFEST_VERSION: Final = "2026.08.1"
TARGET: Final = "https://assistant-app.internal/v1/runs"
POLICY: Final = {
    "policy_profile": "fraud_ops_read_plus_notes",
    "policy_version": "1",
    "engine": "allow-list",
    "allow": ["get_alert", "explode", "add_note", "open_case"],
}
MODEL_KEY: Final = "canary-gateway-key-5d1f7c"


@dataclass(frozen=True)
class Said:
    """What a command said, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Rig:
    """One installation. Event loop of its own for the store; everything else is synchronous."""

    def __init__(self, environment: Mapping[str, str], bench: Bench, folder: Path) -> None:
        self.environment = dict(environment)
        self.settings = Settings.load(self.environment)
        self.bench = bench
        self.folder = folder
        self.workers: list[Worker] = []
        self.last_start: RunStart
        self._runner = asyncio.Runner()
        self._store: PostgresStore = self._runner.run(open_store(self.settings))
        self._client = CustodyClient.from_settings(self.settings)
        topic_admin(self.settings).create()
        self.ask(lambda store: publish(store, write_contracts(folder / "contracts")))

    def close(self) -> None:
        for worker in self.workers:
            worker.stop()
        self._client.close()
        self._runner.run(self._store.close())
        self._runner.close()

    # ---------------------------------------------------------------- the installation

    def worker(self, extra: Mapping[str, str] | None = None) -> Worker:
        """Start one `custody serve` and wait until it is ready."""
        number = len(self.workers) + 1
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        environment = {**self.environment, "PYTHONPATH": path, **(extra or {})}
        worker = Worker(number, environment, self.folder / f"worker-{number}.log", [APP])
        self.workers.append(worker)
        worker.wait_ready()
        return worker

    def ask(self, work: Callable[[PostgresStore], Awaitable[T]]) -> T:
        async def run() -> T:
            return await work(self._store)

        return self._runner.run(run())

    def custody(self, *arguments: str, env: Mapping[str, str] | None = None) -> Said:
        """The command itself, in this process: what it prints and its exit code."""
        out, err = io.StringIO(), io.StringIO()
        clean = {name: value for name, value in os.environ.items() if not name.startswith("CUSTODY_")}
        everything = {**clean, **(self.environment if env is None else env)}
        with (
            mock.patch.dict(os.environ, everything, clear=True),
            mock.patch.object(sys, "argv", ["custody", *arguments]),
            redirect_stdout(out),
            redirect_stderr(err),
            pytest.raises(SystemExit) as ended,
        ):
            main()
        return Said(int(ended.value.code or 0), out.getvalue(), err.getvalue())

    # ---------------------------------------------------------------- runs

    def start(self, *turns: Turn, run_id: str | None = None, **fields: Any) -> str:
        """Publish a start whose model answers with `turns`; gives the run_id back."""
        run_id = run_id or f"run-{uuid4().hex[:8]}"
        self.bench.scripts[run_id] = turns
        self.last_start = start_of(run_id, **fields)
        return self._client.start(self.last_start)

    @property
    def client(self) -> CustodyClient:
        return self._client

    def run(self, run_id: str) -> dict[str, Any]:
        """The record as the store gives it; {} while there is none."""
        return self.ask(lambda store: store.get_run(run_id)) or {}

    def steps(self, run_id: str) -> list[dict[str, Any]]:
        return self.ask(lambda store: store.steps(run_id))

    def until(self, run_id: str, *statuses: str) -> dict[str, Any]:
        """Wait for the run to stand in one of these statuses; gives its record."""
        return self.until_run(run_id, lambda record: record.get("status") in statuses)

    def until_run(self, run_id: str, fits: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        record: dict[str, Any] = {}

        def found() -> bool:
            nonlocal record
            record = self.run(run_id)
            return bool(fits(record))

        if not wait_until(found):
            raise AssertionError(f"{run_id} stands at {record}; steps {self.steps(run_id)}")
        return record

    # ---------------------------------------------------------------- Kafka, raw

    def produce(
        self,
        value: bytes,
        *,
        key: bytes | None,
        headers: list[tuple[str, str | bytes | None]] | None = None,
        partition: int = 0,
        topic: str | None = None,
    ) -> int:
        """One record exactly so; its offset."""
        landed: list[Message] = []
        producer = Producer({"bootstrap.servers": str(self.settings.kafka.bootstrap_servers)})
        producer.produce(
            topic or self.settings.kafka.topics.runs,
            value,
            key,
            partition=partition,
            headers=headers or [],
            on_delivery=lambda error, message: landed.append(message) if error is None else None,
        )
        assert producer.flush(30) == 0
        offset = landed[0].offset()
        assert offset is not None
        return offset

    def consume(self, topic: str, enough: Callable[[list[Message]], object]) -> list[Message]:
        """Committed records of a topic from its beginning, until there are enough."""
        consumer = Consumer(
            {
                "bootstrap.servers": str(self.settings.kafka.bootstrap_servers),
                "group.id": f"rig-{uuid4()}",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
            }
        )
        try:
            numbers = consumer.list_topics(topic, 30).topics[topic].partitions
            consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in numbers])
            found: list[Message] = []
            limit = time.monotonic() + PATIENCE_S
            while time.monotonic() < limit and not enough(found):
                found.extend(message for message in consumer.consume(500, 0.2) if message.error() is None)
            assert enough(found)
            return found
        finally:
            consumer.close()


def start_of(run_id: str, **fields: Any) -> RunStart:
    """A start of the rig's contract. `pattern_0=True`: a run without tools."""
    values: dict[str, Any] = {
        "correlation_id": run_id,
        "session_id": f"sess-{run_id}",
        "subject": Subject(id="u-17", tenant="bank-a"),
        "route_id": "fraud_investigate",
        "route_table_version": "2026.08.1",
        "activation_target": TARGET,
        "manifest_id": MANIFEST_ID,
        "manifest_version": MANIFEST_VERSION,
        "policy_profile": POLICY["policy_profile"],
        "policy_version": POLICY["policy_version"],
        "model_profile": "reasoning-standard",
        "max_loop_steps": 12,
        "input": {"alert_id": "alert-88421"},
    }
    if fields.pop("pattern_0", False):
        for name in ("manifest_id", "manifest_version", "policy_profile", "policy_version", "max_loop_steps"):
            del values[name]
    return RunStart(**{**values, **fields})


def write_contracts(folder: Path) -> Path:
    """The rig's manifests (as `custody contract build` drafts them, completed) and its policy."""
    folder.mkdir()
    manifest = yaml.safe_load(build(APP, MANIFEST_ID, MANIFEST_VERSION))
    manifest["visible"] = ["input", "text"]
    manifest["limits"] = {"model_attempts": 1, "model_timeout": "60s"}
    escalating = {**manifest, "manifest_id": "escalating", "on_max_loop_steps": "escalate"}
    for name, document in {"v2": manifest, "escalating": escalating, "policy": POLICY}.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    return folder


def wait_until(found: Callable[[], bool], limit_s: float = PATIENCE_S) -> bool:
    """Look again until it is so; False when the time is up."""
    limit = time.monotonic() + limit_s
    while not found():
        if time.monotonic() > limit:
            return False
        time.sleep(LOOK_S)
    return True


@contextmanager
def _rig(kafka: Address, valkey: Address, databases: Databases, template: str, folder: Path) -> Iterator[Rig]:
    name = f"rig_{uuid4().hex[:8]}"
    keys = folder / "public-keys"
    generate_signing_key(folder / "signing-key.pem").export_public_key(keys)
    with Bench().serving() as bench:
        environment = {
            "CUSTODY_KAFKA__BOOTSTRAP_SERVERS": kafka.url,
            "CUSTODY_KAFKA__GROUP": name,
            "CUSTODY_KAFKA__PARTITIONS": str(PARTITIONS),
            "CUSTODY_KAFKA__SESSION_TIMEOUT_S": str(SESSION_TIMEOUT_S),
            **{
                f"CUSTODY_KAFKA__TOPICS__{topic}": f"{name}.{topic.lower()}"
                for topic in ("RUNS", "STEPS", "OUTCOMES", "DEAD_LETTERS", "CURSORS")
            },
            "CUSTODY_POSTGRES__DSN": databases.create(name, template),
            "CUSTODY_REDIS__URL": valkey.url,
            "CUSTODY_AUDIT__SIGNING_KEY_FILE": str(folder / "signing-key.pem"),
            "CUSTODY_AUDIT__PUBLIC_KEYS_DIR": str(keys),
            "CUSTODY_MODEL__KIND": "http",
            "CUSTODY_MODEL__URL": f"{bench.url}/v1",
            "CUSTODY_MODEL__API_KEY": MODEL_KEY,
            "CUSTODY_TOOLS__BASE_URL": bench.url,
            "CUSTODY_APP__TARGETS": TARGET,
            "CUSTODY_LIMITS__START_ALLOWANCE_S": "2",
            "CUSTODY_LIMITS__NOT_AFTER_MARGIN_S": "0.5",
            "CUSTODY_LOG__FORMAT": "json",
        }
        rig = Rig(environment, bench, folder)
        try:
            yield rig
        finally:
            rig.close()
            databases.drop(name)


@pytest.fixture(scope="session")
def rig(
    kafka_server: Address,
    valkey_server: Address,
    postgres_server: Databases,
    database_template: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Rig]:
    """The session's installation, with one worker that runs. Tests leave it as they found it."""
    folder = tmp_path_factory.mktemp("rig")
    with _rig(kafka_server, valkey_server, postgres_server, database_template, folder) as rig:
        rig.worker()
        yield rig


@pytest.fixture
def own_rig(
    kafka_server: Address,
    valkey_server: Address,
    postgres_server: Databases,
    database_template: str,
    tmp_path: Path,
) -> Iterator[Rig]:
    """An installation of the test's own, without a worker."""
    with _rig(kafka_server, valkey_server, postgres_server, database_template, tmp_path) as rig:
        yield rig
