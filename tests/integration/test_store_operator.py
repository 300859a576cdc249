"""What people ask of the store, and what they may say (DESIGN 5, 6, 8, 16)."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from session_custody.core.errors import RejectReason, SettingsError
from session_custody.core.events import EventKind
from session_custody.core.pin import RunId
from session_custody.core.run import ParkReason, Status
from session_custody.ports import InSeconds, RunFilter, SignalKind
from tests.conformance import values
from tests.integration.store_world import a_store

pytestmark = pytest.mark.postgres


def test_the_run_record_has_its_keys_and_further_ones_follow(database: str) -> None:
    """DESIGN 16 verbatim; nulls are left out."""

    async def scenario() -> None:
        async with a_store(database) as store:
            fence = await values.own_lane(store)
            start = values.new_run()
            (run,) = await values.admitted(store, fence, start)
            slots = {"alert_id": "alert-88421", "account_id": "acct-4412"}
            run = await values.step(
                store, fence, run, EventKind.DECIDED, EventKind.TOOL_RESULT, loop_step=3,
                last_tool="get_alert", working=slots, working_changed=True,
            )  # fmt: skip
            record = await store.get_run(run.facts.run_id)
            assert record is not None
            keys = [
                "run_id",
                "correlation_id",
                "session_id",
                "status",
                "pinned_at",
                "expires_at",
                "pin",
                "checkpoint",
            ]
            assert list(record)[:8] == keys
            assert record["pin"]["loop_step"] == 3
            assert record["pin"]["manifest_version"] == "2026.08.1"
            assert record["checkpoint"] == {"last_tool": "get_alert", "working": slots}
            assert record["subject"] == {"id": "u-17", "tenant": "bank-a", "actor": ["svc-1"]}
            assert record["expires_at"] == start.expires_at
            assert None not in record.values()
            assert await store.get_run("nobody") is None
            steps = await store.steps(run.facts.run_id)
            assert [(one["event_seq"], one["kind"], one["loop_step"]) for one in steps] == [
                (1, "pinned", 0), (2, "decided", 3), (3, "tool_result", 3),
            ]  # fmt: skip

    asyncio.run(scenario())


def test_why_has_its_evidence(database: str) -> None:
    async def scenario() -> None:
        async with a_store(database) as store:
            fence = await values.own_lane(store)
            (run,) = await values.admitted(store, fence, values.new_run())
            run_id = RunId(run.facts.run_id)
            await values.step(
                store, fence, run, EventKind.PARKED, status=Status.PARKED, wake_at=InSeconds(60),
                park_reason=ParkReason.MODEL_UNAVAILABLE, pending=values.PENDING, not_after=InSeconds(5),
            )  # fmt: skip
            await store.insert_signal(values.signal(run_id, SignalKind.CONTINUE))
            await store.admit(values.batch(fence, dead_letters=[values.dead_letter(0, 1, run_id=run_id)]))
            why = await store.run_evidence(run_id)
            assert why is not None
            assert (why["status"], why["park_reason"]) == ("parked", "model_unavailable")
            assert why["pending"]["key"] == values.PENDING.key
            assert why["now"] < why["not_after"] < why["wake_at"]
            assert (why["lane"]["owner"], why["lane"]["epoch"]) == (fence.owner, 1)
            assert why["lane"]["backlog"] == 3
            assert why["last_step"]["kind"] == "parked"
            assert [one["kind"] for one in why["signals"]] == ["continue"]
            assert [one["reason"] for one in why["dead_letters"]] == ["undecodable"]

    asyncio.run(scenario())


def test_runs_are_listed_newest_first_by_page_and_by_what_was_asked(database: str) -> None:
    async def scenario() -> None:
        async with a_store(database) as store:
            fence = await values.own_lane(store)
            ids = []
            for _ in range(5):
                (run,) = await values.admitted(store, fence, values.new_run())
                ids.append(run.facts.run_id)
            await values.step(store, fence, run, EventKind.OUTCOME, status=Status.FAILED)
            newest = list(reversed(ids))
            assert [row["run_id"] for row in await store.list_runs(RunFilter())] == newest
            page = await store.list_runs(RunFilter(limit=2))
            assert [row["run_id"] for row in page] == newest[:2]
            rest = await store.list_runs(RunFilter(before=page[-1]["run_id"]))
            assert [row["run_id"] for row in rest] == newest[2:]
            failed = await store.list_runs(RunFilter(status=Status.FAILED, route_id="fraud_investigate"))
            assert [row["run_id"] for row in failed] == [ids[-1]]
            assert await store.list_runs(RunFilter(session_id="another")) == []
            assert await store.live_counts() == {Status.QUEUED: 4}

    asyncio.run(scenario())


def test_lanes_and_dead_letters_are_listed_without_content(database: str) -> None:
    async def scenario() -> None:
        async with a_store(database) as store:
            fence = await values.own_lane(store)
            letters = [values.dead_letter(0, 0), values.dead_letter(1, 1, reason=RejectReason.TOO_LARGE)]
            await store.admit(values.batch(fence, [values.new_run(order=2)], dead_letters=letters))
            (lane,) = await store.list_lanes()
            assert (lane["owner"], lane["backlog"], lane["input_offset"]) == (fence.owner, 3, 3)
            (backlog,) = await store.backlog()
            assert (backlog["unpublished"], backlog["owned"], backlog["has_work"]) == (3, True, True)
            listed = await store.list_dead_letters()
            assert {row["offset"] for row in listed} == {0, 1}
            assert not {"key", "value", "headers"} & set(listed[0])
            (large,) = await store.list_dead_letters(reason=RejectReason.TOO_LARGE)
            assert (large["offset"], large["bytes"], large["published"]) == (1, 2, False)

    asyncio.run(scenario())


def test_adopt_floor_fences_the_owner_and_lifts_what_kafka_shows(database: str) -> None:
    """The store went back: Kafka's cursor names row 9 of epoch 5, which Postgres has lost."""

    async def scenario() -> None:
        async with a_store(database) as store:
            fence = await values.own_lane(store)
            (run,) = await values.admitted(store, fence, values.new_run())
            await store.mark_went_back(fence)
            row = await store.adopt_floor(
                fence.lane_id, seq=9, hash_=b"\x09" * 32, epoch=5, reason="restored from the 02:00 backup"
            )
            assert (row.owner, row.epoch, row.next_seq, row.published_seq, row.went_back) == (
                None,
                6,
                10,
                9,
                False,
            )
            check = await store.check_cursor(fence.lane_id, 9)
            assert (check.adopted_seq, check.adopted_hash, check.row_hash) == (9, b"\x09" * 32, None)
            successor = await values.take(store, fence.key)
            assert (successor.epoch, successor.last_seen) == (7, 9)
            run = await values.step(store, successor, run, EventKind.DECIDED)
            assert [one.lane_seq for one in await store.outbox(fence.lane_id, 9, 10)] == [10]
            # From an earlier row on, by the operator's word; and with no cursor at all.
            again = await store.adopt_floor(
                fence.lane_id, seq=9, hash_=b"\x09" * 32, epoch=7, reason="again", floor=1
            )
            assert (again.published_seq, again.next_seq) == (1, 11)
            first = (await store.outbox(fence.lane_id, 0, 1))[0]
            assert (await store.check_cursor(fence.lane_id, 1)).published_hash == first.hash
            none = await store.adopt_floor(fence.lane_id, seq=None, hash_=None, epoch=0, reason="topic lost")
            # without a word where to begin, nothing that the floor names is published again
            assert (none.published_seq, none.next_seq, none.epoch) == (1, 11, 9)
            assert (await store.check_cursor(fence.lane_id, None)).adopted_seq == 0

    asyncio.run(scenario())


def test_a_database_serves_one_cluster_group_and_set_of_topics(database: str) -> None:
    async def scenario() -> None:
        async with a_store(database) as store:
            topics = {"input": "custody.runs", "steps": "custody.steps"}
            await store.check_deployment("cluster-1", "custody", topics)
            await store.check_deployment("cluster-1", "custody", dict(reversed(topics.items())))
            for cluster, group, others in (
                ("cluster-2", "custody", topics),
                ("cluster-1", "other", topics),
                ("cluster-1", "custody", {**topics, "input": "other"}),
            ):
                with pytest.raises(SettingsError) as refused:
                    await store.check_deployment(cluster, group, others)
                assert refused.value.setting == "CUSTODY_POSTGRES__DSN"

    asyncio.run(scenario())


def test_a_signal_rings_whoever_listens(database: str) -> None:
    """None comes first, when LISTEN stands: only then is a scan sure to miss nothing."""

    async def scenario() -> None:
        async with a_store(database) as store:
            fence = await values.own_lane(store)
            (run,) = await values.admitted(store, fence, values.new_run())
            bells = store.notifications()
            assert await anext(bells) is None
            told = values.signal(
                RunId(run.facts.run_id), dedupe_source="cli", dedupe_id="1", dedupe_digest=b"\x01"
            )
            await store.insert_signal(told)
            assert await asyncio.wait_for(anext(bells), 5) == run.facts.run_id
            # A duplicate rings nobody; the next signal does.
            await store.insert_signal(told)
            await store.insert_signal(replace(told, dedupe_id="2"))
            assert await asyncio.wait_for(anext(bells), 5) == run.facts.run_id
            await bells.aclose()

    asyncio.run(scenario())
