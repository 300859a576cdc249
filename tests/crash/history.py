"""A world's history as Postgres holds it, made comparable with another one's.

Left out: times, hashes, epochs, salts, signatures, causes' random ids, the build. A crash may add to it
only what DESIGN 8 says it may, and every such addition is taken out by name and counted:

* `attempt`: how many sends a write took;
* `resent`: intents of a `reconcile` write under a further key, after its NotFound barred the one before;
* `doubt`: `in_doubt` to `resumed` of a write that can neither be sent again nor asked for, and the operator's
  word in place of its result;
* `late`: the answer of a call whose driver was outlived, refused with an event, also after the outcome;
* `parked again`: a run that woke by itself and found its contract still missing.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import psycopg
from psycopg.rows import dict_row

from session_custody.wire import decode_body

Event = dict[str, Any]

DROPPED: Final = frozenset(
    {
        "occurred_at",
        "prev_hash",
        "causation_id",
        "attempt",
        "build_id",
        "expires_at",
        "payload_digest",
        "key_id",
        "salt",
        "signature",
        "payload",
        "event_seq",
    }
)
LATE: Final = frozenset({"late_result", "late_tool_error"})
ENDED: Final = frozenset({"ok", "done", "not_done"})


@dataclass(slots=True)
class History:
    """Events of every run, ready to be compared, and what a crash added to them."""

    runs: dict[str, list[Event]]
    statuses: dict[str, str]
    dead_letters: list[str]
    added: Counter[str] = field(default_factory=Counter)
    not_done: set[str] = field(default_factory=set)
    """Intended writes (`run_id/loop_step/ordinal`) that the operator resolved as not done."""


def read_history(dsn: str, single_shot: Mapping[str, frozenset[str]]) -> History:
    """`single_shot`: run_id -> its tools of kind `none`."""
    with psycopg.connect(dsn, autocommit=True, row_factory=dict_row) as connection:
        rows = connection.execute("select * from custody.step order by run_id, event_seq").fetchall()
        heads = connection.execute("select run_id, status from custody.checkpoint").fetchall()
        letters = connection.execute("select reason from custody.dead_letter order by reason").fetchall()
    history = History({}, {}, [row["reason"] for row in letters])
    for row in rows:
        history.runs.setdefault(row["run_id"], []).append(_event(row))
    for row in heads:
        history.statuses[row["run_id"]] = row["status"]
    for run_id, events in history.runs.items():
        assert [event.pop("seq") for event in events] == list(range(1, len(events) + 1)), run_id
        history.runs[run_id] = _folded(events, single_shot.get(run_id, frozenset()), history)
    return history


def _event(row: Mapping[str, Any]) -> Event:
    said = decode_body(row["schema_fingerprint"], row["body"])
    policy = said.get("policy")
    event = {name: value for name, value in said.items() if name not in DROPPED and value is not None}
    event["kind"] = row["kind"]
    event["seq"] = row["event_seq"]
    event["policy"] = None if policy is None else (policy["decision"], policy["policy_version"])
    event["payload"] = row["payload"]
    event["record"] = None if row["record"] is None else json.loads(row["record"])
    return event


def write_of(key: str) -> str:
    """`run_id/loop_step/ordinal`: the intended write, whatever its key is by now."""
    return "/".join(key.split("/")[:3])


def _folded(events: Sequence[Event], single_shot: frozenset[str], history: History) -> list[Event]:
    folded: list[Event] = []
    doubted = False
    for event in events:
        key = event.get("idempotency_key")
        if event["kind"] == "intent" and key is not None and key != write_of(key):
            history.added["resent"] += 1
            continue
        if key is not None and event.get("effect") == "write":
            event["idempotency_key"] = write_of(key)
        if event["kind"] == "signal_refused" and event["code"] in LATE:
            history.added["late"] += 1
            continue
        if event["kind"] == "in_doubt" and event.get("tool") in single_shot:
            history.added["doubt"] += 1
            doubted = True
            continue
        if doubted and event["kind"] == "resumed":
            doubted = False
            continue
        if event["kind"] in {"tool_result", "resolved"} and event.get("tool") in single_shot:
            folded.append(_ended(event, history))
            continue
        if event["kind"] == "parked" and [one["kind"] for one in folded[-2:]] == ["parked", "resumed"]:
            folded.pop()  # the first parked and the last resumed of such a row stay
            history.added["parked again"] += 1
            continue
        folded.append(event)
    return folded


def _ended(event: Event, history: History) -> Event:
    """A result, or an operator's word in its place: that the write ended is what has to be equal."""
    assert event["result"] in ENDED, event
    if event["result"] == "not_done":
        history.not_done.add(f"{event['trace']['run_id']}/{event['trace']['loop_step']}/{event['ordinal']}")
    kept = {name: event[name] for name in ("tool", "ordinal", "trace", "effect")}
    return kept | {"kind": "tool_result", "result": "ended"}
