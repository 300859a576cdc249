"""The demo's play: servers, contracts, runs; a SIGKILL in the middle; recovery; the judge's word.

Everything that decides is measured, not assumed: the kill comes when Postgres and the tool server's ledger
say that enough runs are in mid-loop, enough intents are pending and an effect has landed whose result is not
committed. What those figures were at the kill is read again once the process is dead.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Protocol

from session_custody.client import CustodyClient, RunStart, Subject
from session_custody.core.errors import InvariantBroken, Unavailable
from session_custody.demo.options import (
    DUPLICATE_SHARE,
    FINISH_WAIT_S,
    KILL_WAIT_S,
    LANDED_AT_KILL_MIN,
    DemoOptions,
)
from session_custody.demo.processes import Child, Worker, side_server
from session_custody.ports import Progress
from session_custody.settings import TopicNames

LOOK_S: Final = 0.1
CHECK_LIMIT_S: Final = 300.0
CHECKER: Final = Path(__file__).resolve().parent / "checker.py"


class DemoStore(Protocol):
    """What the director asks of Postgres (figures for people; the judge asks nothing here)."""

    async def progress(self) -> Progress: ...
    async def first_steps_after(self, run_ids: Sequence[str], moment: datetime) -> Mapping[str, datetime]: ...
    async def now(self) -> datetime: ...


@dataclass(slots=True)
class AtKill:
    """What stood at a kill, read after the process was dead."""

    moment: datetime
    mid_loop: frozenset[str]
    pending: frozenset[str]
    landed: frozenset[str]
    exit_signal: int


@dataclass(slots=True)
class Stage:
    """Where the play takes place: addresses, folders and settings of the workers."""

    bootstrap: str
    settings: Mapping[str, str]
    folder: Path
    public_keys: Path
    schemas: Path
    app: str
    topics: TopicNames = field(default_factory=TopicNames)
    phases: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        say(f"{name} …")
        began = time.monotonic()
        yield
        self.phases[name] = round(time.monotonic() - began, 2)


def say(text: str) -> None:
    sys.stderr.write(f"  {text}\n")
    sys.stderr.flush()


def whole_lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1] if line]


class Director:
    """Runs the play on a prepared stage and gives the figures back."""

    def __init__(self, options: DemoOptions, stage: Stage, store: DemoStore, children: ExitStack) -> None:
        self.options = options
        self.stage = stage
        self.store = store
        self.children = children
        self.random = random.Random(options.seed)  # noqa: S311 - a play to be repeated, not a secret
        self.ledger = stage.folder / "ledger"
        self.starts = stage.folder / "starts.jsonl"
        self.workers: list[Worker] = []
        self.redelivered = 0.0
        self.kills: list[AtKill] = []

    # ---------------------------------------------------------------- processes

    def start_side_servers(self) -> Mapping[str, str]:
        """The bank and the model. Both outlive every worker."""
        options, folder = self.options, self.stage.folder
        ledger = ["--ledger", str(self.ledger), "--seed", str(options.seed)]
        slow = ["--read-s", str(options.read_s), "--write-s", str(options.write_s)]
        bank, bank_port = side_server("toolserver", folder / "toolserver.log", *ledger, *slow)
        self._keep(bank)
        model, model_port = side_server(
            "modelserver", folder / "modelserver.log", "--think-s", str(options.think_s)
        )
        self._keep(model)
        return {
            "CUSTODY_TOOLS__BASE_URL": f"http://127.0.0.1:{bank_port}",
            "CUSTODY_MODEL__URL": f"http://127.0.0.1:{model_port}/v1",
        }

    def start_worker(self) -> Worker:
        number = len(self.workers) + 1
        log = self.stage.folder / f"worker-{number}.log"
        worker = Worker(number, self.stage.settings, log, (self.stage.app,))
        self._keep(worker)
        self.workers.append(worker)
        return worker

    def _keep(self, child: Child) -> None:
        self.children.callback(child.stop)

    # ---------------------------------------------------------------- the play

    async def play(self, client: CustodyClient, publish_newer: Callable[[], Awaitable[None]]) -> None:
        with self.stage.phase("workers ready"):
            for worker in [self.start_worker() for _ in range(self.options.workers)]:
                await asyncio.to_thread(worker.wait_ready)
        with self.stage.phase("starts published"):
            await asyncio.to_thread(self.publish_starts, client)
            await publish_newer()
        for number in range(self.options.kills):
            with self.stage.phase(f"kill {number + 1}"):
                await self.kill_one(self.workers[number])
            if len(self.workers) - len(self.kills) == 0:
                with self.stage.phase("next worker ready"):
                    await asyncio.to_thread(self.start_worker().wait_ready)
        with self.stage.phase("all runs finished"):
            await self.finish()
        with self.stage.phase("outcomes published"):
            await self.published()
        self.count_redelivered()

    def publish_starts(self, client: CustodyClient) -> None:
        """Publish every start, some of them twice, and log what the broker acknowledged."""
        runs = [self._start(number) for number in range(self.options.runs)]
        twice = self.random.sample(runs, int(len(runs) * DUPLICATE_SHARE))
        order = [*runs, *twice]
        self.random.shuffle(order)
        acknowledged = client.start_many(order)
        with self.starts.open("a", encoding="utf-8") as log:
            for run_id in acknowledged:
                alert = run_id.replace("run-", "alert-", 1)
                log.write(json.dumps({"run_id": run_id, "alert_id": alert, "at": time.time()}) + "\n")
        say(f"{len(acknowledged)} starts acknowledged, {len(twice)} of them for the second time")

    def _start(self, number: int) -> RunStart:
        kind = "notes" if number % 2 == 0 else "filings"
        name = f"{self.options.seed:03d}-{number:05d}"
        return RunStart(
            correlation_id=f"run-{name}",
            session_id=f"sess-{number % 97}",
            subject=Subject(id=f"u-{number % 13}", tenant="bank-a"),
            route_id="fraud_investigate",
            route_table_version="2026.08.1",
            manifest_id=f"fraud-investigate-{kind}",
            manifest_version="2026.08.1",
            policy_profile="fraud_ops_read_plus_notes",
            policy_version="1",
            model_profile="reasoning-standard",
            max_loop_steps=12,
            input={"alert_id": f"alert-{name}"},
        )

    # ---------------------------------------------------------------- the kill

    async def kill_one(self, victim: Worker) -> None:
        """Wait until the conditions hold, SIGKILL, and read what stood."""
        options = self.options
        deadline = time.monotonic() + KILL_WAIT_S
        while True:
            now = await self.store.progress()
            landed = self._landed(now.pending_keys)
            ready = (
                len(now.mid_loop) >= options.mid_loop_min * 1.1
                and len(now.pending_keys) >= options.pending_min * 2
                and len(landed) >= LANDED_AT_KILL_MIN * 2
            )
            if ready:
                break
            if time.monotonic() > deadline or not victim.running:
                raise Unavailable(
                    "the moment of the kill",
                    f"{len(now.mid_loop)} in mid-loop, {len(now.pending_keys)} intents pending, "
                    f"{len(landed)} landed; see {victim.log_path}",
                )
            await asyncio.sleep(LOOK_S / 4)
        self.redelivered += victim.metric("custody_events_total", result="duplicate")
        exit_signal = await asyncio.to_thread(victim.kill)
        moment = await self.store.now()
        stood = await self.store.progress()
        at_kill = AtKill(
            moment, stood.mid_loop, stood.pending_keys, self._landed(stood.pending_keys), exit_signal
        )
        self.kills.append(at_kill)
        say(
            f"SIGKILL to {victim.name} (pid {victim.pid}): {len(at_kill.mid_loop)} runs in mid-loop, "
            f"{len(at_kill.pending)} intents pending, {len(at_kill.landed)} effects landed and not committed"
        )

    def _landed(self, pending: frozenset[str]) -> frozenset[str]:
        return pending & {effect["key"] for effect in whole_lines(self.ledger / "effects.jsonl")}

    # ---------------------------------------------------------------- the end

    async def finish(self) -> None:
        deadline = time.monotonic() + FINISH_WAIT_S
        told, told_at = "", 0.0
        while True:
            now = await self.store.progress()
            ended = sum(count for status, count in now.by_status.items() if status.terminal)
            if ended >= self.options.runs:
                return
            line = ", ".join(f"{count} {status.value}" for status, count in sorted(now.by_status.items()))
            if line != told and time.monotonic() - told_at > 1:
                told, told_at = line, time.monotonic()
                say(line)
            if time.monotonic() > deadline:
                raise Unavailable(
                    "the end of all runs", f"{ended} of {self.options.runs} in {FINISH_WAIT_S:.0f} s"
                )
            await asyncio.sleep(LOOK_S)

    async def published(self) -> None:
        deadline = time.monotonic() + FINISH_WAIT_S
        while (await self.store.progress()).unpublished:
            if time.monotonic() > deadline:
                raise Unavailable("publication", f"rows are unpublished after {FINISH_WAIT_S:.0f} s")
            await asyncio.sleep(LOOK_S)

    def count_redelivered(self) -> None:
        for worker in self.workers:
            if worker.running:
                self.redelivered += worker.metric("custody_events_total", result="duplicate")

    async def recovery(self) -> list[float]:
        """Of each run that was in mid-loop at the first kill and went on: seconds until its next step."""
        first = self.kills[0]
        steps = await self.store.first_steps_after(sorted(first.mid_loop), first.moment)
        if not steps:
            raise InvariantBroken("no run went on after the kill")
        return [(at - first.moment).total_seconds() for at in steps.values()]

    async def judge(self) -> dict[str, Any]:
        """Run the checker as its own program, by path, and read its word."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-I",  # isolated: neither the working folder nor PYTHON* variables bring our package in
            str(CHECKER),
            *("--bootstrap", self.stage.bootstrap),
            *("--schemas", str(self.stage.schemas)),
            *("--starts", str(self.starts)),
            *("--ledger", str(self.ledger)),
            *("--public-keys", str(self.stage.public_keys)),
            *("--steps-topic", self.stage.topics.steps),
            *("--outcomes-topic", self.stage.topics.outcomes),
            stdout=asyncio.subprocess.PIPE,
        )
        out, _ = await asyncio.wait_for(process.communicate(), CHECK_LIMIT_S)
        if not out:
            raise Unavailable("the checker", f"it ended with {process.returncode} and no word")
        verdict: dict[str, Any] = json.loads(out)
        return verdict
