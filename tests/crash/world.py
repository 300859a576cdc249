"""One scenario's world: topics, group and database of its own on shared servers, and everyone who acts in it.

The producer publishes the play (some starts twice, one under another pin, one record that is none) before the
first worker begins. The operator publishes the contract that a parked run waits for, and resolves what is in
doubt by looking into the ledger. The judge is the demo's checker, run by path: it believes nothing of ours.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Protocol

import psycopg
from confluent_kafka import Producer
from psycopg.rows import DictRow, dict_row
from typer.testing import CliRunner

from session_custody.cli.root import app as command_line
from session_custody.client import CustodyClient, RunStart
from session_custody.contracts import publish
from session_custody.demo.director import CHECKER, whole_lines
from session_custody.demo.show import MUST_BE_ZERO
from session_custody.resources import schemas_dir
from session_custody.settings import Settings
from session_custody.wiring import open_store, topic_admin
from tests.crash.history import History, read_history, write_of
from tests.crash.play import APP_FOLDER, PLAY, READS, Part, write_later, write_script
from tests.crash.serving import Serving

LOOK_S: Final = 0.1
FINISH_LIMIT_S: Final = 90.0
JUDGE_LIMIT_S: Final = 120.0
ROOT: Final = Path(__file__).resolve().parents[2]
TERMINAL: Final = frozenset({"succeeded", "partial", "escalated", "failed", "cancelled", "expired"})

SETTINGS: Final[Mapping[str, str]] = {
    "CUSTODY_KAFKA__PARTITIONS": "2",
    "CUSTODY_KAFKA__SESSION_TIMEOUT_S": "2",
    # without these a crash would be measured in the minutes that production gives its tools
    "CUSTODY_LIMITS__START_ALLOWANCE_S": "1",
    "CUSTODY_LIMITS__NOT_AFTER_MARGIN_S": "0.2",
    "CUSTODY_LANES__SUSPECT_MINUTE_S": "1",
    "CUSTODY_MODEL__KIND": "scripted",
    "CUSTODY_LOG__FORMAT": "json",
    "PYTHONPATH": f"{APP_FOLDER}:{ROOT}",
}


class MakeWorld(Protocol):
    """A world with these runs; further settings by their variable."""

    def __call__(self, parts: Sequence[Part] = PLAY, **more: str) -> World: ...


@dataclass(frozen=True, slots=True)
class Ground:
    """What all worlds of a session stand on."""

    environment: Mapping[str, str]
    bank: str
    ledgers: Path
    public_keys: Path


class World:
    """Made with `Ground`; workers are started and ended by the test."""

    def __init__(
        self,
        ground: Ground,
        name: str,
        dsn: str,
        folder: Path,
        more: Mapping[str, str],
        parts: Sequence[Part] = PLAY,
    ) -> None:
        topics = ("runs", "steps", "outcomes", "dead_letters", "cursors")
        self.name = name
        self.dsn = dsn
        self.folder = folder
        self.ledger = ground.ledgers / name
        self.parts = {part.run_id: part for part in parts}
        write_script(folder / "model.yaml", parts)
        self.public_keys = ground.public_keys
        self.environment = {
            **SETTINGS,
            **ground.environment,
            "CUSTODY_POSTGRES__DSN": dsn,
            "CUSTODY_KAFKA__GROUP": name,
            **{f"CUSTODY_KAFKA__TOPICS__{topic.upper()}": f"{name}.{topic}" for topic in topics},
            "CUSTODY_TOOLS__BASE_URL": f"{ground.bank}/w/{name}/",
            "CUSTODY_MODEL__SCRIPTED_FILE": str(folder / "model.yaml"),
            **more,
        }
        own = {name: value for name, value in self.environment.items() if name.startswith("CUSTODY_")}
        self.settings = Settings.load(own)
        self.own = own
        self.workers: list[Serving] = []
        self.started: set[str] = set()
        self.dead_letters = 0
        self._starts = folder / "starts.jsonl"
        self._spoken: set[tuple[str, int]] = set()
        self._published_later = False
        topic_admin(self.settings).create()

    # ---------------------------------------------------------------- workers

    def worker(self, *, module: str = "session_custody", **more: str) -> Serving:
        serving = Serving(
            self.environment, self.folder / f"worker-{len(self.workers) + 1}.log", module=module, **more
        )
        self.workers.append(serving)
        return serving

    def close(self) -> None:
        for serving in self.workers:
            serving.stop()
        self.connection.close()

    # ---------------------------------------------------------------- the producer

    def publish(self, parts: Sequence[Part] = ()) -> None:
        """Every start; some twice; one whose id is taken by another pin; one record that nobody can read."""
        self.dead_letters += 2
        brokers = {"bootstrap.servers": self.settings.kafka.bootstrap_servers or ""}
        raw = Producer(brokers)
        raw.produce(self.settings.kafka.topics.runs, b"no record", b"poison", 0)
        assert raw.flush(20) == 0
        starts = [part.start() for part in parts or self.parts.values()]
        taken = starts[0].model_copy(update={"input": "another"})
        self.start([*starts, *starts[1:4], taken])

    def start(self, starts: Sequence[RunStart]) -> None:
        """Publish these, and log what was acknowledged."""
        with CustodyClient.from_settings(self.settings) as client:
            acknowledged = client.start_many(starts)
        self.started.update(acknowledged)
        for part in (self.parts[run_id] for run_id in dict.fromkeys(acknowledged)):
            abouts = [about for turn in part.turns for tool, about in turn if tool not in READS]
            for about in abouts or [part.run_id]:
                self._log(part.run_id, about, len(abouts) and 1)

    def _log(self, run_id: str, about: str, effects: int) -> None:
        line = {"run_id": run_id, "alert_id": about, "at": time.time(), "effects": effects}
        with self._starts.open("a", encoding="utf-8") as log:
            log.write(json.dumps(line) + "\n")

    # ---------------------------------------------------------------- what stands

    @cached_property
    def connection(self) -> psycopg.Connection[DictRow]:
        return psycopg.connect(self.dsn, autocommit=True, row_factory=dict_row)

    def reconnect(self) -> None:
        """After the server was gone."""
        self.connection.close()
        del self.connection

    def rows(self, sql: str, *values: object) -> list[DictRow]:
        return self.connection.execute(sql, values).fetchall()

    def statuses(self) -> dict[str, str]:
        return {
            row["run_id"]: row["status"] for row in self.rows("select run_id, status from custody.checkpoint")
        }

    def unpublished(self) -> int:
        sql = "select coalesce(sum(next_seq - 1 - published_seq), 0)::int8 as n from custody.lane"
        return int(self.rows(sql)[0]["n"])

    def finished(self) -> bool:
        statuses = self.statuses()
        ended = all(statuses.get(run_id) in TERMINAL for run_id in self.started)
        return (
            ended
            and self.rows("select count(*) as n from custody.dead_letter")[0]["n"] == self.dead_letters
            and (self.unpublished() == 0)
        )

    def attempts(self) -> list[dict[str, Any]]:
        return whole_lines(self.ledger / "attempts.jsonl")

    def effects(self) -> Counter[str]:
        """Effects by intended write."""
        return Counter(write_of(line["key"]) for line in whole_lines(self.ledger / "effects.jsonl"))

    # ---------------------------------------------------------------- the operator

    def act(self) -> None:
        """Whatever a person has to do now, if anything."""
        for row in self.rows(
            "select run_id, status, doubt_seq, pending, coalesce(not_after < custody.now(), true) as past"
            "  from custody.checkpoint where status in ('parked', 'in_doubt')"
        ):
            if row["status"] == "parked" and row["run_id"] == "parked" and not self._published_later:
                self._publish_later()
            elif row["status"] == "in_doubt" and row["past"]:
                self._resolve(row)

    def _publish_later(self) -> None:
        self._published_later = True
        folder = self.folder / "later"
        write_later(folder)

        async def work() -> None:
            store = await open_store(self.settings)
            try:
                await publish(store, folder)
            finally:
                await store.close()

        asyncio.run(work())
        with CustodyClient.from_settings(self.settings) as client:
            client.resume("parked")

    def _resolve(self, row: DictRow) -> None:
        run_id, seen = row["run_id"], row["doubt_seq"]
        if (run_id, seen) in self._spoken:
            return
        done = bool(self.effects()[write_of(json.loads(row["pending"])["key"])])
        word = ["--done" if done else "--not-done", "--reason", "seen in the ledger"]
        command = ["run", "resolve", run_id, *word, "--event-seq", str(seen)]
        said = CliRunner().invoke(command_line, command, env=self.own)
        if said.exit_code == 0:
            self._spoken.add((run_id, seen))

    # ---------------------------------------------------------------- time

    def what_is_left(self) -> str:
        left = self.rows(
            "select run_id, status, park_reason, pending, not_after - custody.now() as in_s, attempts"
            "  from custody.checkpoint where not custody.is_terminal(status)"
        )
        return f"not done: {left}, unpublished: {self.unpublished()}"

    def until_dead(self, serving: Serving) -> int | None:
        """Act until this worker is dead: its exit code. None: the runs ended and it lives."""
        deadline = time.monotonic() + FINISH_LIMIT_S
        while time.monotonic() < deadline:
            if (code := serving.exit_code) is not None:
                return code
            self.act()
            if self.finished():
                return None
            time.sleep(LOOK_S)
        raise AssertionError(f"neither dead nor done: {self.statuses()} {serving.tail()}")

    def until(self, condition: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + FINISH_LIMIT_S
        while not condition():
            assert time.monotonic() < deadline, f"not in time: {what} {self.statuses()}"
            time.sleep(LOOK_S)

    def until_finished(self, serving: Serving) -> None:
        """Act until every run has ended and everything is published."""
        deadline = time.monotonic() + FINISH_LIMIT_S
        while not self.finished():
            assert serving.exit_code is None, f"it ended: {serving.tail()}"
            assert time.monotonic() < deadline, self.what_is_left()
            self.act()
            time.sleep(LOOK_S)

    # ---------------------------------------------------------------- the end

    def history(self) -> History:
        single_shot = {run_id: part.tools & {"letter"} for run_id, part in self.parts.items()}
        return read_history(self.dsn, single_shot)

    def judge(self, history: History) -> dict[str, Any]:
        """The checker's word, from the topics and the ledger. It fails for every figure that has to be 0."""
        for write in sorted(history.not_done):
            run_id, loop_step, ordinal = write.split("/")
            _, about = self.parts[run_id].turns[int(loop_step) - 1][int(ordinal)]
            self._log(run_id, about, 0)  # a person said so
        topics = self.settings.kafka.topics
        done = subprocess.run(
            [
                *(sys.executable, "-I", str(CHECKER)),
                *("--bootstrap", self.settings.kafka.bootstrap_servers or ""),
                *("--schemas", str(schemas_dir())),
                *("--starts", str(self._starts)),
                *("--ledger", str(self.ledger)),
                *("--public-keys", str(self.public_keys)),
                *("--steps-topic", topics.steps),
                *("--outcomes-topic", topics.outcomes),
            ],
            capture_output=True,
            text=True,
            timeout=JUDGE_LIMIT_S,
            check=False,
        )
        assert done.stdout, done.stderr
        verdict: dict[str, Any] = json.loads(done.stdout)
        wrong = {name: verdict[name] for name in MUST_BE_ZERO if verdict[name]}
        assert not wrong, (wrong, verdict["findings"])
        assert done.returncode == 0
        return verdict
