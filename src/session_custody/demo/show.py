"""`custody demo` from servers to verdict: set the stage, let the director play, print what came of it."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from session_custody.client import CustodyClient
from session_custody.demo.canary import abort_some
from session_custody.demo.director import Director, Stage, say
from session_custody.demo.options import (
    LANDED_AT_KILL_MIN,
    SESSION_TIMEOUT_S,
    DemoOptions,
)
from session_custody.demo.prepare import Installation, install, publish_examples, publish_newer
from session_custody.demo.story import tell
from session_custody.devstack import Addresses, DevStack
from session_custody.resources import examples_dir, schemas_dir
from session_custody.settings import TopicNames
from session_custody.wiring import cluster_id, open_store

APP: Final = "fraud"
MUST_BE_ZERO: Final = (
    "runs_lost",
    "duplicate_events",
    "sequence_gaps",
    "chain_breaks",
    "effects_repeated",
    "effects_missing",
    "in_doubt",
    "calls_repeated_after_commit",
    "aborted_visible",
)


def run_demo(options: DemoOptions, *, as_json: bool) -> bool:
    """Run the demo; True when the kill met its conditions and every figure that has to be zero is."""
    with ExitStack() as cleanup:
        if options.keep is not None:
            options.keep.mkdir(parents=True, exist_ok=True)
            folder = options.keep.resolve()
        else:
            folder = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="custody-demo-")))
        began = time.monotonic()
        say("servers …")
        stack = cleanup.enter_context(DevStack())
        addresses = stack.start()
        figures, story = _play(options, addresses, folder)
    phases = {**stack.phases, **figures.pop("phases"), "total": round(time.monotonic() - began, 2)}
    result = {**figures, "phases": phases}
    good = _met(options, result)
    if as_json:
        sys.stdout.write(json.dumps({**result, "ok": good}, indent=2) + "\n")
    else:
        _show(result, story, good)
    return good


def _play(options: DemoOptions, addresses: Addresses, folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    public_keys = folder / "public-keys"
    stage = Stage(addresses.kafka, {}, folder, public_keys, schemas_dir(), APP)
    with ExitStack() as children:
        with stage.phase("schema, topics, contracts"):
            extra = {
                "CUSTODY_KAFKA__SESSION_TIMEOUT_S": str(SESSION_TIMEOUT_S),
                "CUSTODY_LOG__FORMAT": "json",
                **_names(addresses),
            }
            installation = install(addresses, folder, extra)
            publish_examples(installation.settings)
        return asyncio.run(_direct(options, stage, installation, children, addresses))


async def _direct(
    options: DemoOptions, stage: Stage, installation: Installation, children: ExitStack, addresses: Addresses
) -> tuple[dict[str, Any], dict[str, Any]]:
    store = await open_store(installation.settings)
    try:
        director = Director(options, stage, store, children)
        side = await asyncio.to_thread(director.start_side_servers)
        stage.topics = installation.settings.kafka.topics
        stage.settings = {**installation.environment, **side, "PYTHONPATH": _python_path()}
        began = time.monotonic()
        with CustodyClient.from_settings(installation.settings) as client:
            await director.play(client, lambda: publish_newer(store))
        took = time.monotonic() - began
        await asyncio.to_thread(abort_some, installation.settings)
        with stage.phase("check"):
            verdict = await director.judge()
        recovery = await director.recovery()
        story = await _story(director, store)
        broker = {
            "name": addresses.kafka_name or "given",
            "version": addresses.kafka_version or None,
            "cluster_id": await asyncio.to_thread(cluster_id, installation.settings),
        }
        return _figures(director, verdict, recovery, took, broker), story
    finally:
        await store.close()


def _names(addresses: Addresses) -> dict[str, str]:
    """On a broker that was given, names that nobody else uses."""
    if addresses.origin.get("kafka") != "given":
        return {}
    prefix = f"custody-demo-{secrets.token_hex(4)}"
    topics = {field: f"{prefix}.{field}" for field in TopicNames.model_fields}
    named = {f"CUSTODY_KAFKA__TOPICS__{field.upper()}": name for field, name in topics.items()}
    return {"CUSTODY_KAFKA__GROUP": prefix, **named}


def _python_path() -> str:
    """The workers find the examples' package, and whatever this process found."""
    return os.pathsep.join(filter(None, [str(examples_dir()), os.environ.get("PYTHONPATH")]))


def _figures(
    director: Director,
    verdict: Mapping[str, Any],
    recovery: Sequence[float],
    took: float,
    broker: Mapping[str, Any],
) -> dict[str, Any]:
    first = director.kills[0]
    return {
        "broker": dict(broker),
        "in_flight_at_kill": len(first.mid_loop),
        "pending_intents_at_kill": len(first.pending),
        "landed_uncommitted_at_kill": len(first.landed),
        "exit_signal": first.exit_signal,
        "kills": len(director.kills),
        **verdict,
        "redelivered_seen": int(director.redelivered),
        "resumed_runs": len(recovery),
        "recovery_seconds": {"median": round(median(recovery), 2), "max": round(max(recovery), 2)},
        "session_timeout_s": SESSION_TIMEOUT_S,
        "steps_per_second": round(verdict["events"] / took, 1),
        "phases": dict(director.stage.phases),
    }


async def _story(director: Director, store: Any) -> dict[str, Any]:
    """One run whose effect had landed when its worker died."""
    first = director.kills[0]
    key = min(first.landed or first.pending)
    run_id = key.split("/")[0]
    return {
        "record": await store.get_run(run_id),
        "steps": await store.steps(run_id),
        "killed_at": first.moment,
    }


def _met(options: DemoOptions, result: Mapping[str, Any]) -> bool:
    killed_well = (
        result["in_flight_at_kill"] >= options.mid_loop_min
        and result["pending_intents_at_kill"] >= options.pending_min
        and result["landed_uncommitted_at_kill"] >= LANDED_AT_KILL_MIN
        and result["aborted_on_disk"] > 0
    )
    return killed_well and not any(result[name] for name in MUST_BE_ZERO)


def _show(result: Mapping[str, Any], story: Mapping[str, Any], good: bool) -> None:
    out = Console(highlight=False)
    out.rule("one run that was in the middle of a write")
    tell(out, story["record"], story["steps"], story["killed_at"])
    out.rule("the checker's word")
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, value in result.items():
        if name in ("phases", "findings", "broker"):
            continue
        mark = "[red]" if name in MUST_BE_ZERO and value else ""
        table.add_row(name, f"{mark}{json.dumps(value) if isinstance(value, dict) else value}")
    out.print(table)
    for name, examples in result["findings"].items():
        out.print(f"[red]{name}: {examples}")
    broker = result["broker"]
    out.print(
        f"[dim]{broker['name']} {broker['version'] or ''} {broker['cluster_id']}; phases {result['phases']}"
    )
    out.print("[green]every figure that has to be zero is zero" if good else "[red]NOT good: see above")
