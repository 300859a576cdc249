"""What people and metrics ask of the store (DESIGN 16): plain rows and records, never a payload, never a
secret.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from session_custody.core.errors import RecordRejected, RejectReason, SettingsError
from session_custody.core.pin import LaneId
from session_custody.core.run import Status
from session_custody.ports import LaneRow, Progress, RunFilter
from session_custody.store import rows
from session_custody.wire.decoding import decode_body

Record = dict[str, Any]

STEP_FIELDS = (
    "status", "tool", "effect", "ordinal", "call_id", "idempotency_key", "args_digest", "result_digest",
    "result", "attempt", "code", "reason", "question_id", "answered_by", "build_id", "occurred_at",
)  # fmt: skip
"""Of an event's body, what a list of steps shows; never its payload."""


class OperatorViews(ABC):
    """The reads of `custody run|lane|dlq` and of metrics. Raises Unavailable."""

    @abstractmethod
    async def _rows(
        self, link: str, name: str, values: Mapping[str, object] | None = None
    ) -> list[Record]: ...

    async def list_runs(self, chosen: RunFilter) -> list[Record]:
        """Newest first."""
        return await self._rows(
            "reads",
            "list_runs",
            {
                "status": None if chosen.status is None else chosen.status.value,
                "route_id": chosen.route_id,
                "session_id": chosen.session_id,
                "before": chosen.before,
                "limit": chosen.limit,
            },
        )

    async def get_run(self, run_id: str) -> Record | None:
        """The record of DESIGN 16, its keys first; further keys where they say something."""
        found = await self._rows("reads", "get_run", {"run_id": run_id})
        return run_record(found[0]) if found else None

    async def steps(self, run_id: str) -> list[Record]:
        """A run's steps in order, with what their events say beside the columns."""
        return [step_view(row) for row in await self._rows("reads", "steps", {"run_id": run_id})]

    async def run_evidence(self, run_id: str) -> Record | None:
        """What `run why` reasons from: the record and its lane, last step, open signals, dead letters."""
        record = await self.get_run(run_id)
        if record is None:
            return None
        (lane,) = await self._rows("reads", "run_lane", {"lane_id": record["lane_id"]})
        steps = await self.steps(run_id)
        return {
            **record,
            "now": lane.pop("now"),
            "lane": lane,
            "last_step": steps[-1] if steps else None,
            "signals": await self._rows("reads", "run_signals", {"run_id": run_id}),
            "dead_letters": await self.list_dead_letters(run_id=run_id),
        }

    async def list_lanes(self) -> list[Record]:
        return await self._rows("reads", "list_lanes")

    async def list_dead_letters(
        self,
        *,
        reason: RejectReason | None = None,
        run_id: str | None = None,
        lane_id: LaneId | None = None,
        limit: int = 50,
    ) -> list[Record]:
        """Newest first; never their content."""
        values = {
            "reason": None if reason is None else reason.value,
            "run_id": run_id,
            "lane_id": lane_id,
            "limit": limit,
        }
        return await self._rows("reads", "list_dead_letters", values)

    async def live_counts(self) -> dict[Status, int]:
        """How many runs have not ended, by status; statuses without runs are left out."""
        return {Status(row["status"]): row["runs"] for row in await self._rows("reads", "live_counts")}

    async def backlog(self) -> list[Record]:
        """Per lane: lane_id, topic, partition, owned, unpublished (rows), oldest_s (None: nothing),
        has_work.
        """
        return await self._rows("reads", "backlog")

    async def progress(self) -> Progress:
        (row,) = await self._rows("reads", "progress")
        return Progress(
            by_status={Status(name): count for name, count in row["by_status"].items()},
            mid_loop=frozenset(row["mid_loop"]),
            pending_keys=frozenset(json.loads(pending)["key"] for pending in row["pending"]),
            unpublished=row["unpublished"],
        )

    async def first_steps_after(self, run_ids: Sequence[str], moment: datetime) -> Mapping[str, datetime]:
        values = {"run_ids": list(run_ids), "moment": moment}
        found = await self._rows("reads", "first_steps_after", values)
        return {row["run_id"]: row["recorded_at"] for row in found}

    async def check_deployment(self, cluster_id: str, group: str, topics: Mapping[str, str]) -> None:
        """This database belongs to one cluster, group and set of topics; the first to ask decides.

        Raises SettingsError for another: two groups on one database would each admit everything (DESIGN 6).
        """
        asked = {
            "cluster_id": cluster_id,
            "group_id": group,
            "topics": json.dumps(dict(topics), sort_keys=True, separators=(",", ":")),
        }
        await self._rows("lanes", "record_deployment", asked)
        (stands,) = await self._rows("lanes", "deployment")
        for column, what in (("cluster_id", "cluster"), ("group_id", "group"), ("topics", "topics")):
            if stands[column] != asked[column]:
                raise SettingsError(
                    "CUSTODY_POSTGRES__DSN",
                    f"this database serves {what} {stands[column]}, not {asked[column]}: "
                    "another database, or the settings it was begun with",
                )

    async def adopt_floor(
        self,
        lane_id: LaneId,
        *,
        seq: int | None,
        hash_: bytes | None,
        epoch: int,
        reason: str,
        floor: int | None = None,
    ) -> LaneRow:
        """An operator's word after the store went back (DESIGN 6): what Kafka's cursor shows is accepted.

        `seq`, `hash_`: Kafka's cursor (None: it shows none; accepted as 0 until the next cursor is written).
        `epoch`: the highest that Kafka shows. `floor`: go on publishing after it, instead of after the
        cursor; without either, where the floor stands. Fences the owner. Raises KeyError.
        """
        values = {
            "lane_id": lane_id,
            "seq": seq,
            "hash": hash_,
            "epoch": epoch,
            "reason": reason,
            "floor": floor,
        }
        found = await self._rows("lanes", "adopt_floor", values)
        if not found:
            raise KeyError(lane_id)
        return rows.lane_row(found[0])


def run_record(row: Mapping[str, Any]) -> Record:
    """Nulls are left out, as are flags that do not hold."""
    subject = {
        "id": row["subject_id"],
        "tenant": row["subject_tenant"],
        "actor": json.loads(row["subject_actor"]),
    }
    record: Record = {
        "run_id": row["run_id"],
        "correlation_id": row["correlation_id"],
        "session_id": row["session_id"],
        "status": row["status"],
        "pinned_at": row["pinned_at"],
        "expires_at": row["expires_at"],
        "pin": json.loads(row["pin"]),
        "checkpoint": json.loads(row["checkpoint"]),
        "tenant": row["tenant"],
        "subject": {name: value for name, value in subject.items() if value},
        "pending": None if row["pending"] is None else json.loads(row["pending"]),
        "call_running": row["call_running"] or None,
    }
    for name in (
        "park_reason", "stop_requested", "wake_at", "not_after", "doubt_seq", "stage", "decision_id",
        "parent", "forked_from", "lane_id", "head_seq", "updated_at",
    ):  # fmt: skip
        record[name] = row[name]
    for name in ("attempts", "suspect_count"):
        record[name] = row[name] or None
    return {name: value for name, value in record.items() if value is not None}


def step_view(row: Mapping[str, Any]) -> Record:
    """A step's columns and, where this version can read it, its event's fields. Nulls are left out."""
    view: Record = {
        "event_seq": row["event_seq"],
        "kind": row["kind"],
        "loop_step": row["loop_step"],
        "recorded_at": row["recorded_at"],
    }
    try:
        said = decode_body(row["schema_fingerprint"], row["body"])
    except RecordRejected:
        said = {}  # written by a newer version: its columns are what can be shown
    view.update((name, said.get(name)) for name in STEP_FIELDS)
    policy = said.get("policy")
    if policy is not None:
        view["policy"] = policy
    view.update(
        causation_id=row["causation_id"],
        lane_seq=row["lane_seq"],
        hash=row["hash"].hex(),
        signed=row["signed"] or None,
        erased=row["erased"] or None,
    )
    return {name: value for name, value in view.items() if value is not None}
