"""Guards that stand in the database itself; schema.sql is the sum of the migrations (DESIGN 11)."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from importlib.resources import files
from urllib.parse import urlsplit

import psycopg
import pytest

from session_custody.core.errors import RejectReason
from session_custody.core.events import EventKind
from session_custody.core.manifest import ContractKind
from session_custody.core.pin import RunId
from session_custody.core.run import TERMINAL, ParkReason, Status
from session_custody.core.signals import SignalKind
from session_custody.devstack import Databases
from session_custody.ports import LoadedRun
from tests.conformance import values
from tests.integration.store_world import a_store, by_hand

pytestmark = pytest.mark.postgres


def one_run(dsn: str) -> LoadedRun:
    """A run with two steps in a migrated database."""

    async def scenario() -> LoadedRun:
        async with a_store(dsn) as store:
            fence = await values.own_lane(store)
            (run,) = await values.admitted(store, fence, values.new_run())
            return await values.step(
                store, fence, run, EventKind.DECIDED, working={"note": "a\x00b"}, working_changed=True,
                last_tool="get\x01alert",
            )  # fmt: skip

    return asyncio.run(scenario())


@pytest.mark.parametrize(
    "statement",
    [
        "update custody.run set pin = '{}'",
        "update custody.run set expires_at = now()",
        "delete from custody.run",
        "update custody.step set body = 'x'",
        "update custody.step set payload = 'other'",
        "update custody.step set salt = 'other', record = null",
        "update custody.step set recorded_at = now()",
        "delete from custody.step",
        "update custody.contract set body = 'other'",
        "delete from custody.contract",
        "update custody.store_identity set store_id = gen_random_uuid()",
    ],
)
def test_what_is_written_once_never_changes(database: str, statement: str) -> None:
    """I2, I3: pin, steps and contracts, whoever asks."""
    one_run(database)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(
            "insert into custody.contract (kind, name, version, body, digest)"
            " values ('manifest', 'm', '1', 'b', 'd')"
        )
        with pytest.raises(psycopg.Error) as refused:
            connection.execute(statement)
        assert refused.value.sqlstate == "CU001"


def test_a_step_can_be_erased_and_nothing_else(database: str) -> None:
    one_run(database)
    with psycopg.connect(database, autocommit=True) as connection:
        done = connection.execute("update custody.step set payload = null, salt = null, record = null")
        assert done.rowcount == 2
        left = connection.execute("select count(*) from custody.step where salt is null and body is not null")
        assert left.fetchone() == (2,)


def test_an_ended_run_stays_ended_whoever_writes(database: str) -> None:
    """I14 as a trigger: this is no statement of ours."""
    one_run(database)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("update custody.checkpoint set status = 'failed'")
        with pytest.raises(psycopg.Error) as refused:
            connection.execute("update custody.checkpoint set status = 'running'")
        assert refused.value.sqlstate == "CU001"
        connection.execute("update custody.checkpoint set status = 'failed', last_tool = 'x'")


@pytest.mark.parametrize(
    ("column", "constraint", "values_of"),
    [
        ("status", "checkpoint_status", set(Status)),
        ("park_reason", "checkpoint_park_reason", set(ParkReason)),
        ("kind", "step_kind", set(EventKind)),
        ("kind", "signal_kind", set(SignalKind)),
        ("reason", "dead_letter_reason", set(RejectReason)),
        ("kind", "contract_kind", set(ContractKind)),
    ],
)
def test_closed_lists_are_the_same_in_sql_and_in_the_core(
    database: str, column: str, constraint: str, values_of: set[str]
) -> None:
    with psycopg.connect(database) as connection:
        row = connection.execute(
            "select pg_get_constraintdef(oid) from pg_constraint where conname = %s", (constraint,)
        ).fetchone()
        assert row is not None
        assert column in row[0]
        assert set(re.findall(r"'([a-z_]+)'::text", row[0])) == values_of


def test_sql_and_core_agree_on_what_is_terminal(database: str) -> None:
    with psycopg.connect(database) as connection:
        for status in Status:
            row = connection.execute("select custody.is_terminal(%s)", (status.value,)).fetchone()
            assert row == (status in TERMINAL,)


def test_no_index_holds_a_column_that_changes_with_every_step(database: str) -> None:
    """A HOT update costs three quarters of what it costs otherwise (PERFORMANCE)."""
    with psycopg.connect(database) as connection:
        indexes = connection.execute(
            "select pg_get_indexdef(indexrelid) from pg_index where indrelid = 'custody.checkpoint'::regclass"
        ).fetchall()
        columns = connection.execute(
            "select attname from pg_attribute where attrelid = 'custody.checkpoint'::regclass and attnum > 0"
        ).fetchall()
    moving = {name for (name,) in columns} - {"run_id", "lane_id", "status", "wake_at", "expires_at"}
    used = {name for (text,) in indexes for name in moving if re.search(rf"\b{name}\b", text)}
    assert len(moving) > 10
    assert used == set()


def test_most_steps_are_hot_updates(database: str) -> None:
    async def scenario() -> tuple[int, int]:
        async with a_store(database) as store, by_hand(database) as watch:
            fence = await values.own_lane(store)
            runs = await values.admitted(store, fence, *(values.new_run(order=n) for n in range(20)))
            runs = [await values.step(store, fence, run, EventKind.DECIDED) for run in runs]
            for number in range(10):
                working = {"slot": "x" * 700, "number": number}
                runs = [
                    await values.step(
                        store, fence, run, EventKind.TOOL_RESULT, loop_step=number, working=working,
                        working_changed=True,
                    )
                    for run in runs
                ]  # fmt: skip
        async with by_hand(database) as watch:
            await watch.execute("select pg_stat_force_next_flush()")
            cursor = await watch.execute(
                "select n_tup_upd as all, n_tup_hot_upd as hot from pg_stat_user_tables"
                " where relid = 'custody.checkpoint'::regclass"
            )
            row = await cursor.fetchone()
            assert row is not None
            return row["all"], row["hot"]

    updates, hot = asyncio.run(scenario())
    assert updates >= 220
    assert hot > updates / 2


def test_the_view_has_the_nesting_of_the_run_record(database: str) -> None:
    """DESIGN 16; an escaped NUL in a slot breaks nothing."""
    run = one_run(database)
    with psycopg.connect(database) as connection:
        row = connection.execute(
            "select status, pin::text, checkpoint::text from custody.runs where run_id = %s",
            (run.facts.run_id,),
        ).fetchone()
    assert row is not None
    status, pin, checkpoint = row
    assert status == "running"
    assert json.loads(pin) == {
        "route_id": "fraud_investigate",
        "route_table_version": "2026.08.1",
        "manifest_id": "fraud-investigate-v2",
        "manifest_version": "2026.08.1",
        "policy_profile": "fraud_ops",
        "policy_version": "7",
        "model_profile": "reasoning-standard",
        "max_loop_steps": 12,
        "loop_step": 0,
    }
    assert json.loads(checkpoint) == {"last_tool": "get\x01alert", "working": {"note": "a\x00b"}}


def test_an_empty_or_strange_id_is_no_run(database: str) -> None:
    for run_id in ("", "a/b", "x" * 201, "line\nbreak"):
        with psycopg.connect(database) as connection, pytest.raises(psycopg.errors.CheckViolation):
            connection.execute(
                "insert into custody.signal (run_id, kind, body, source, bound)"
                " values (%s, 'cancel', '{}', 'operator', true)",
                (run_id,),
            )
    assert RunId("a") == "a"


def test_tests_own_the_time_of_record(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("insert into custody.clock (shift) values (interval '1 hour')")
        row = connection.execute(
            "select custody.now() - statement_timestamp() = interval '1 hour'"
        ).fetchone()
        assert row == (True,)


def test_the_schema_is_the_sum_of_the_migrations(database: str, postgres_server: Databases) -> None:
    migrated = dumped(postgres_server, database)
    fresh = postgres_server.create(f"fresh_{values.fresh_id()}")
    with psycopg.connect(fresh, autocommit=True) as connection:
        connection.execute(files("session_custody.store").joinpath("schema.sql").read_text())
    assert "CREATE TABLE custody.checkpoint" in migrated
    assert dumped(postgres_server, fresh) == migrated


def dumped(server: Databases, dsn: str) -> str:
    """pg_dump's words for the schema, without what differs from run to run."""
    parts = urlsplit(dsn)
    done = subprocess.run(
        [str(server.binaries / "pg_dump"), "--schema-only", "--no-owner", "--schema=custody"],
        env={
            "PGHOST": parts.hostname or "", "PGPORT": str(parts.port), "PGUSER": parts.username or "",
            "PGPASSWORD": parts.password or "", "PGDATABASE": parts.path[1:],
        },
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    return "\n".join(line for line in done.stdout.splitlines() if not line.startswith(("--", "\\", "SET ")))
