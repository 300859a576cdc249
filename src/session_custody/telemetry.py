"""Logs and metrics: names and labels of the conventions, one registry per process.

Log lines are JSON unless standard error is a terminal; the trace fields are bound with `bound_trace`. No id
is ever a label. Redaction is the last processor (`add_redaction`); it sees the rendered fields.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Final, Literal

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info

from session_custody.core.trace import TraceFields

REGISTRY: Final = CollectorRegistry()
_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


def _counter(name: str, text: str, *labels: str) -> Counter:
    return Counter(name, text, labels, registry=REGISTRY)


def _gauge(name: str, text: str, *labels: str) -> Gauge:
    return Gauge(name, text, labels, registry=REGISTRY)


def _histogram(name: str, text: str, *labels: str) -> Histogram:
    return Histogram(name, text, labels, registry=REGISTRY, buckets=_SECONDS)


BUILD: Final = Info("custody_build", "Version and build of this process.", registry=REGISTRY)
EVENTS: Final = _counter(
    "custody_events_total", "Input records by what became of them.", "topic", "type", "result"
)
EVENT_AGE: Final = _histogram("custody_event_age_seconds", "Age of a record when it was admitted.", "type")
RUNS: Final = _gauge("custody_runs", "Runs by status, sampled from Postgres.", "status")
RUNS_LIVE: Final = _gauge("custody_runs_live", "Runs that this process drives now.")
RUNS_STARTED: Final = _counter("custody_runs_started_total", "Runs created.", "route_id")
RUNS_FINISHED: Final = _counter("custody_runs_finished_total", "Runs ended.", "route_id", "outcome")
RUN_DURATION: Final = _histogram("custody_run_duration_seconds", "Pin to outcome.", "route_id")
STEPS: Final = _counter("custody_steps_total", "Committed steps.", "kind", "result")
STEP_DURATION: Final = _histogram("custody_step_duration_seconds", "Time of one part of a step.", "kind")
BUDGET_EXHAUSTED: Final = _counter("custody_budget_exhausted_total", "Bounds hit.", "bound")
TOOL_CALLS: Final = _counter("custody_tool_calls_total", "Tool calls.", "tool", "effect", "result")
PDP_DECISIONS: Final = _counter("custody_pdp_decisions_total", "PEP decisions.", "policy_profile", "decision")
PDP_DURATION: Final = _histogram("custody_pdp_duration_seconds", "Time of one decision.")
PDP_UNAVAILABLE: Final = _counter("custody_pdp_unavailable_total", "Times the PDP could not be asked.")
PIN_CONFLICTS: Final = _counter(
    "custody_pin_conflicts_total", "Starts of a known id with another pin.", "field"
)
ROUTE_PIN_LOOKUPS: Final = _counter("custody_route_pin_lookups_total", "Route pins read.", "result")
CONTRACT_LOADS: Final = _counter("custody_contract_load_total", "Contracts loaded.", "result")
REDACTIONS: Final = _counter("custody_redactions_total", "Values masked.", "location")
CHECKPOINT_WRITE: Final = _histogram("custody_checkpoint_write_seconds", "Offer to answer of one commit.")
COMMIT_GROUP: Final = Histogram(
    "custody_commit_group_runs",
    "Runs in one group commit.",
    registry=REGISTRY,
    buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256, 512),
)
SETTLEMENTS: Final = _counter("custody_settlements_total", "Lost COMMITs settled.", "result")
LANES_OWNED: Final = _gauge("custody_lanes_owned", "Lanes this process owns.")
LANE_LOST: Final = _counter("custody_lane_lost_total", "Lanes fenced away from this process.")
LANES_ORPHANED: Final = _gauge("custody_lanes_orphaned", "Lanes with work and without an owner.")
OUTBOX_PENDING: Final = _gauge("custody_outbox_pending", "Committed rows not yet published.", "lane")
OUTBOX_OLDEST: Final = _gauge("custody_outbox_oldest_seconds", "Age of the oldest unpublished row.", "lane")
OUTBOX_PUBLISHED: Final = _counter("custody_outbox_published_total", "Rows published.", "topic")
PUBLICATION_REBUILDS: Final = _counter(
    "custody_publication_rebuilds_total", "Producers thrown away and made anew.", "cause"
)
PUBLICATION_CLOSED: Final = _gauge(
    "custody_publication_closed", "1: publication of the lane is stopped.", "lane"
)
DLQ: Final = _counter("custody_dlq_messages_total", "Dead letters.", "reason")
CONSUMER_LAG: Final = _gauge("custody_consumer_lag", "Records behind the end.", "topic", "partition")
REBALANCES: Final = _counter("custody_rebalances_total", "Assignment changes.", "event")
ASSIGNED: Final = _gauge("custody_assigned_partitions", "Partitions assigned to this process.")
STATION_ERRORS: Final = _counter(
    "custody_station_errors_total", "Errors by station of DESIGN 3.", "station", "error"
)
LLM_TOKENS: Final = _counter(
    "custody_llm_tokens_total", "Tokens as the gateway counts them.", "model_profile", "direction"
)

log: Final[structlog.stdlib.BoundLogger] = structlog.get_logger("custody")

Redact = Callable[[str], str]
_redact: Redact = lambda text: text  # noqa: E731 - replaced once by add_redaction


def add_redaction(redact: Redact) -> None:
    """Every text of every log line passes `redact` last."""
    global _redact  # noqa: PLW0603 - one registry per process
    _redact = redact


def configure_logging(form: Literal["json", "console"], level: str) -> None:
    """Set up structlog and route the standard library's loggers through the same processors."""
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        _redacted,
    ]
    render: Any = (
        structlog.processors.JSONRenderer() if form == "json" else structlog.dev.ConsoleRenderer(colors=False)
    )
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, render],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.getLogger("httpx").setLevel(logging.WARNING)  # its request lines hold whole URLs


def _redacted(_: Any, __: str, fields: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    for key, value in fields.items():
        if isinstance(value, str):
            fields[key] = _redact(value)
        elif not isinstance(value, int | float | bool | None):
            fields[key] = _redact(str(value))
    return fields


@contextmanager
def bound_trace(trace: TraceFields, traceparent: str | None = None) -> Iterator[None]:
    """Bind the 11 trace fields to every log line of this task, and the trace that began the run."""
    fields = asdict(trace)
    if traceparent is not None:
        fields["traceparent"] = traceparent
    with structlog.contextvars.bound_contextvars(**fields):
        yield
