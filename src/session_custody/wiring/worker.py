"""One worker: `custody serve`. Start order, health, and the drain at SIGTERM.

    start   HTTP (alive, not ready) -> store -> clock -> contracts, gate, model -> deployment check -> lanes
            -> intake joins the group
    drain   readyz says no -> lanes drain (steps under way commit, publication flushes, owners are emptied)
            -> the consumer leaves the group -> store close, HTTP

A second SIGTERM, or SIGKILL at any instant, is safe: that is what the rest of this project is about.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Sequence
from importlib.metadata import version
from types import ModuleType
from typing import Final, Literal, TypeVar

from session_custody import faults
from session_custody.clock import DatabaseClock
from session_custody.contracts import StoreContracts
from session_custody.core.admission import AdmissionRules, Foreign
from session_custody.core.errors import Unavailable
from session_custody.core.pin import Limits
from session_custody.core.run import Status
from session_custody.intake.admit import Admission
from session_custody.intake.intake import Intake
from session_custody.intake.options import ConsumerSetup
from session_custody.lanes.keeper import LaneKeeper
from session_custody.lanes.timings import LaneTimings
from session_custody.lanes.watchdog import Watchdog
from session_custody.loop.driver import Driver
from session_custody.loop.late import LateResults
from session_custody.models import HttpModel
from session_custody.operate.health import Finding, Grade, Health
from session_custody.operate.http import OperateServer
from session_custody.policy import PolicyRouter
from session_custody.ports import ModelClient, PolicyDecisionPoint
from session_custody.publish import Publications, PublishSettings
from session_custody.redaction import KnownValues, environment_secrets, secrets_in
from session_custody.route import RedisRoutePins
from session_custody.settings import Settings
from session_custody.store import PostgresStore
from session_custody.telemetry import BUILD, LANES_ORPHANED, RUNS, add_redaction, configure_logging, log
from session_custody.tools.gate import Gate
from session_custody.tools.registry import Registry
from session_custody.wire import Ed25519Signer
from session_custody.wiring.parts import input_topic, model_of, open_store, signer_of, topics_of

SAMPLE_EVERY_S: Final = 5.0
POLL_STALL_S: Final = 30.0
STDIN: Final = 0
START_RETRY_S: Final = 2.0

App = str | ModuleType
T = TypeVar("T")


class Custody:
    """A worker as a program builds it, for what settings cannot say (API 1).

    `tools`: modules or packages with @tool functions. `model`, `pdp`: your own, behind their ports.
    """

    def __init__(
        self,
        tools: Sequence[App] = (),
        *,
        model: ModelClient | None = None,
        pdp: PolicyDecisionPoint | None = None,
        settings: Settings | None = None,
    ) -> None:
        self._tools = tools
        self._model = model
        self._pdp = pdp
        self._settings = settings

    def run(self) -> None:
        """Serve until SIGTERM or SIGINT; then drain and return."""
        settings = self._settings or Settings.load()
        worker = Worker(settings, Registry.discover(self._tools), self._model, self._pdp)
        asyncio.run(worker.serve())


def serve(apps: Sequence[str], *, until_stdin_closes: bool = False) -> None:
    """`custody serve`."""
    settings = Settings.load()
    sys.path.insert(0, os.getcwd())  # noqa: PTH109 - as python -m does: --app names a package of this folder
    if until_stdin_closes:
        threading.Thread(target=_end_with_stdin, name="stdin", daemon=True).start()
    Custody(apps, settings=settings).run()


def _end_with_stdin() -> None:
    # not sys.stdin: a thread inside its buffer at interpreter shutdown aborts the process
    while os.read(STDIN, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


class _ToldToStop(Exception):
    """SIGTERM came before there was anything to drain."""


class Worker:
    """Everything of one process, made in `serve`."""

    def __init__(
        self,
        settings: Settings,
        registry: Registry,
        model: ModelClient | None,
        pdp: PolicyDecisionPoint | None,
    ) -> None:
        self.settings = settings
        self.registry = registry
        self.model = model
        self.pdp = pdp
        self.health = Health(ready=[self._starting])
        self._stop = asyncio.Event()
        self._fatal: Exception | None = None
        self._postgres_up = False
        self._awaited: str | None = None

    # ---------------------------------------------------------------- life

    async def serve(self) -> None:
        settings = self.settings
        known = KnownValues([*secrets_in(settings), *environment_secrets(os.environ)])
        add_redaction(known.at("log"))
        configure_logging(settings.log.format or _log_form(), settings.log.level)
        BUILD.info({"version": version("session-custody")})
        if settings.fault is not None:
            faults.arm_kill(settings.fault)
        self._catch_signals()
        signer = signer_of(settings)
        with contextlib.suppress(_ToldToStop):
            await self._serve(known, signer)
        log.info("ended")
        if self._fatal is not None:
            raise self._fatal

    async def _serve(self, known: KnownValues, signer: Ed25519Signer) -> None:
        settings = self.settings
        async with contextlib.AsyncExitStack() as closing:
            http = OperateServer(
                self.health, settings.http.host, settings.http.port, {"version": version("session-custody")}
            )
            http.start()
            closing.push_async_callback(http.close)
            store = await self._until_there("postgres", lambda: open_store(settings))
            closing.push_async_callback(store.close)
            clock = DatabaseClock(store.now, settings.lanes.clock_hold_s)
            await clock.measure()
            contracts = StoreContracts(store)
            model = self.model or model_of(settings)
            if isinstance(model, HttpModel):
                closing.push_async_callback(model.close)
            gate = Gate(
                self.registry,
                self.pdp or PolicyRouter(contracts),
                late_result=LateResults(store),
                base_url=settings.tools.base_url,
                sync_threads=settings.tools.sync_threads,
            )
            closing.push_async_callback(gate.close)
            driver = Driver(
                store=store,
                contracts=contracts,
                model=model,
                gate=gate,
                clock=clock,
                signer=signer,
                mask=known.at("inference"),
            )
            publications = Publications(
                store,
                settings.kafka.connection_options,
                topics_of(settings),
                settings.deployment,
                PublishSettings(
                    group=settings.kafka.group,
                    mode=settings.publication.mode,
                    type_prefix=settings.ce_type_prefix,
                ),
            )
            route_pins = self._route_pins()
            if route_pins is not None:
                closing.push_async_callback(route_pins.close)
            admission = Admission(
                contracts=contracts, signer=signer, clock=clock, rules=_rules(settings), route_pins=route_pins
            )
            intake = Intake(
                setup=_consumer(settings), store=store, admission=admission, on_fatal=self._on_fatal
            )
            topic = input_topic(settings)
            await self._check_deployment(store, await self._until_there("kafka", topic.cluster_id))
            keeper = LaneKeeper(
                store=store,
                driver=driver,
                publication=publications,
                intake=intake,
                topic=topic,
                topic_name=settings.kafka.topics.runs,
                clock=clock,
                timings=_timings(settings),
                on_fatal=self._on_fatal,
                bells=store.notifications,
            )
            watchdog = Watchdog(intake, _timings(settings).stall_after_s, settings.kafka.session_timeout_s)
            self._probes(intake, keeper, publications, clock)
            standing = [
                asyncio.create_task(clock.follow(), name="clock"),
                asyncio.create_task(self._sample(store), name="sample"),
            ]
            keeper.start()
            intake.start(keeper)
            watchdog.start()
            log.info("serving", http_port=http.port, tools=len(self.registry), group=settings.kafka.group)
            await self._stop.wait()
            self.health.draining = True
            log.info("draining", budget_s=settings.drain_budget_s)
            await keeper.stop()
            await intake.stop()
            watchdog.stop()
            for task in standing:
                task.cancel()
            await asyncio.gather(*standing, return_exceptions=True)

    def _catch_signals(self) -> None:
        loop = asyncio.get_running_loop()

        def told() -> None:
            if self._stop.is_set():  # the second one: at once, and still safe
                os._exit(1)
            self._stop.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, told)

    def _on_fatal(self, error: Exception) -> None:
        """Our own bug: end this process, a restart recovers from Postgres."""
        log.error("this worker ends for a bug of its own", error=type(error).__name__, exc_info=error)
        self._fatal = error
        asyncio.get_running_loop().call_soon_threadsafe(self._stop.set)

    async def _until_there(self, what: str, ask: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                return await ask()
            except Unavailable as error:
                await self._wait_for(what, error)

    async def _wait_for(self, what: str, error: Unavailable) -> None:
        """A dependency is away at start: alive, not ready, and it is asked again soon."""
        self._awaited = what
        log.warning(f"waiting for {what}", reason=error.detail)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stop.wait(), START_RETRY_S)
        if self._stop.is_set():
            raise _ToldToStop

    def _starting(self) -> Finding:
        return Finding("started", Grade.FAILED, f"waiting for {self._awaited}" if self._awaited else "")

    async def _check_deployment(self, store: PostgresStore, cluster: str) -> None:
        """Refuse the wrong database or group (DESIGN 6)."""
        kafka = self.settings.kafka
        await store.check_deployment(cluster, kafka.group, kafka.topics.model_dump())

    def _route_pins(self) -> RedisRoutePins | None:
        redis = self.settings.redis
        if redis.url is None:
            return None
        return RedisRoutePins(redis.url.reveal("redis connection"), redis.route_pin_key)

    # ---------------------------------------------------------------- health

    def _probes(
        self, intake: Intake, keeper: LaneKeeper, publications: Publications, clock: DatabaseClock
    ) -> None:
        def poll_thread() -> Finding:
            state = intake.health()
            if state is None:
                return Finding("kafka-consumer", Grade.OK, "not started")
            stalled = state.beat_age_s > POLL_STALL_S
            grade = Grade.FAILED if stalled else Grade.OK
            return Finding("poll-thread", grade, f"{state.beat_age_s:.1f} s ago")

        def consumer() -> Finding:
            state = intake.health()
            if state is None or state.red is not None:
                return Finding("kafka-consumer", Grade.FAILED, state.red or "" if state else "not started")
            return Finding("kafka-consumer", Grade.OK, f"{len(state.assigned)} partitions")

        def lanes() -> Finding:
            state = keeper.health()
            if state.red is not None:
                return Finding("lanes", Grade.FAILED, state.red)
            missing = set(state.assigned) - set(state.owned)
            if missing:
                return Finding("lanes", Grade.FAILED, f"not yet owned: {sorted(missing)}")
            return Finding("lanes", Grade.OK, f"{len(state.owned)} owned, {state.live_runs} runs live")

        def publication() -> Finding:
            found = publications.findings()
            text = "; ".join(f"{lane}: {why}" for lane, why in sorted(found.items()))
            return Finding("publication", Grade.DEGRADED if found else Grade.OK, text or publications.mode)

        def postgres() -> Finding:
            return Finding("postgres", Grade.OK if self._postgres_up else Grade.FAILED)

        def clocks() -> Finding:
            return Finding("clock", Grade.DEGRADED if clock.held else Grade.OK)

        self.health.live.append(poll_thread)
        self.health.ready[:] = [postgres, consumer, lanes, publication, clocks]

    async def _sample(self, store: PostgresStore) -> None:
        """Look at Postgres now and then: is it there, how many runs stand where, which lanes nobody owns.

        Only what partial indexes answer: runs that have ended are counted by custody_runs_finished_total.
        """
        while True:
            try:
                standing = await store.live_counts()
                lanes = await store.backlog()
            except Unavailable:
                self._postgres_up = False
                await asyncio.sleep(START_RETRY_S)
                continue
            self._postgres_up = True
            for status in Status:
                if not status.terminal:
                    RUNS.labels(status.value).set(standing.get(status, 0))
            LANES_ORPHANED.set(sum(lane["has_work"] and not lane["owned"] for lane in lanes))
            await asyncio.sleep(SAMPLE_EVERY_S)


def _log_form() -> Literal["json", "console"]:
    return "console" if sys.stderr.isatty() else "json"


def _rules(settings: Settings) -> AdmissionRules:
    limits, app = settings.limits, settings.app
    return AdmissionRules(
        targets=frozenset(app.targets),
        shared_runtime=app.shared_runtime,
        foreign=Foreign(app.foreign),
        default_expiry_s=limits.default_expiry_s,
        dedupe_horizon_s=limits.dedupe_horizon_s,
        limits=Limits(
            start_allowance_s=limits.start_allowance_s,
            not_after_margin_s=limits.not_after_margin_s,
            suspect_at=settings.lanes.suspect_at,
        ),
        model_targets=settings.model.profiles,
    )


def _consumer(settings: Settings) -> ConsumerSetup:
    kafka = settings.kafka
    return ConsumerSetup(
        connect=kafka.connection_options,
        topic=kafka.topics.runs,
        group=kafka.group,
        session_timeout_s=kafka.session_timeout_s,
        group_protocol=kafka.group_protocol,
        drain_budget_s=settings.drain_budget_s,
    )


def _timings(settings: Settings) -> LaneTimings:
    lanes, publication = settings.lanes, settings.publication
    return LaneTimings(
        session_timeout_s=settings.kafka.session_timeout_s,
        unclean_after=lanes.unclean_after,
        suspects_at_once=lanes.suspects_at_once,
        suspect_minute_s=lanes.suspect_minute_s,
        run_slots=settings.limits.run_slots,
        backlog_soft=publication.backlog_soft,
        backlog_hard=publication.backlog_hard,
        orphan_hold_s=settings.limits.orphan_hold_s,
        drain_budget_s=settings.drain_budget_s,
    )
