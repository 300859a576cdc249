"""Records that cannot be decoded or admitted: dead letters with their reason; neighbours go on (I13, I16)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from confluent_kafka import Message

from session_custody.wire import decode_event, encode_start
from tests.integration.bench import calls, says
from tests.integration.rig import Rig, start_of

pytestmark = [pytest.mark.kafka, pytest.mark.postgres, pytest.mark.valkey]

TOKEN = "Bearer canary-token-of-a-user-93ab"


def test_bad_records_are_dead_letters_and_their_neighbour_on_the_partition_succeeds(rig: Rig) -> None:
    prefix = f"bad-{rig.folder.name}"
    neighbour, taken = f"{prefix}-good", f"{prefix}-taken"
    rig.bench.scripts[neighbour] = [calls(("get_alert", {"alert_id": "a-1"})), says("fine")]

    def start(run_id: str, **fields: Any) -> bytes:
        return encode_start(start_of(run_id, **fields).event())

    def put(value: bytes, key: str, *headers: tuple[str, str]) -> int:
        return rig.produce(value, key=key.encode(), headers=list(headers))

    garbage = b"\xff\x00no avro \x01" + prefix.encode()
    framed = b"\x00\x00\x00\x00\x07" + prefix.encode()
    other_pin = start(taken, manifest_version="2026.11.0")
    offsets = {
        "undecodable": put(garbage, f"{prefix}-garbage"),
        "schema_unknown": put(framed, f"{prefix}-framed"),
        "key_mismatch": put(start(f"{prefix}-mine"), f"{prefix}-not-mine"),
        "first": put(start(taken), taken),
        "pin_conflict": put(other_pin, taken),
        "token_refused": put(start(f"{prefix}-token"), f"{prefix}-token", ("authorization", TOKEN)),
        "good": put(start(neighbour), neighbour),
    }
    rig.until(neighbour, "succeeded")
    rig.until(taken, "succeeded")
    assert rig.run(taken)["pin"]["manifest_version"] == "2026.08.1", "the first accepted start wins"

    listed = rig.custody("dlq", "list", "-o", "json", "--limit", "1000").json
    mine = {
        row["reason"]: row for row in listed if row["offset"] in offsets.values() and row["partition"] == 0
    }
    refused = {reason: at for reason, at in offsets.items() if reason not in {"first", "good"}}
    assert {reason: row["offset"] for reason, row in mine.items()} == refused
    assert mine["pin_conflict"]["run_id"] == taken
    only = rig.custody("dlq", "list", "-o", "json", "--reason", "pin_conflict", "--run", taken).json
    assert [row["offset"] for row in only] == [offsets["pin_conflict"]]

    published = {message_place(m): m for m in dead_letters(rig, {row["offset"] for row in mine.values()})}
    letter = published[offsets["undecodable"]]
    assert (letter.value(), letter.key()) == (garbage, f"{prefix}-garbage".encode())
    conflict = published[offsets["pin_conflict"]]
    assert conflict.value() == other_pin
    assert headers(conflict)["custody_dlq_reason"] == b"pin_conflict"
    assert headers(conflict)["custody_dlq_run_id"] == taken.encode()
    token = published[offsets["token_refused"]]
    assert token.value() == start(f"{prefix}-token")
    assert not any(b"canary-token" in (value or b"") for value in headers(token).values())
    assert b"canary-token" not in rig.workers[0].log_path.read_bytes()
    why = rig.custody("run", "why", taken)
    assert "dead letter" in why.out
    assert "pin_conflict" in why.out


def message_place(message: Message) -> int:
    """Offset that the refused record had on the input topic's partition 0."""
    return int.from_bytes(headers(message)["kafka_dlt-original-offset"], "big")


def headers(message: Message) -> dict[str, bytes]:
    return dict(message.headers() or [])  # type: ignore[arg-type]


def dead_letters(rig: Rig, offsets: set[int]) -> list[Message]:
    topic = rig.settings.kafka.topics.dead_letters
    return rig.consume(topic, lambda found: offsets <= {message_place(message) for message in found})


def test_every_event_of_a_run_is_on_its_topic_in_order_with_the_trace_fields(rig: Rig) -> None:
    run_id = rig.start(calls(("get_alert", {"alert_id": "a-1"})), says("fine"))
    record = rig.until(run_id, "succeeded")
    topics = rig.settings.kafka.topics
    rig.client.wait(run_id, timeout=30)
    found = rig.consume(topics.steps, lambda seen: len(events_of(seen, run_id)) >= record["head_seq"] - 1)
    events = events_of(found, run_id)
    assert [event["event_seq"] for event in events] == list(range(1, record["head_seq"]))
    trace = events[-1]["trace"]
    assert trace == {
        "session_id": f"sess-{run_id}", "run_id": run_id, "correlation_id": run_id,
        "route_id": "fraud_investigate", "route_table_version": "2026.08.1", "manifest_version": "2026.08.1",
        "policy_profile": "fraud_ops_read_plus_notes", "model_profile": "reasoning-standard",
        "orchestration_step": "loop", "loop_step": 2, "max_loop_steps": 12,
    }  # fmt: skip
    assert datetime.now(UTC) > events[-1]["occurred_at"]


def events_of(messages: list[Message], run_id: str) -> list[dict[str, Any]]:
    values = (message.value() for message in messages if message.key() == run_id.encode())
    return [decode_event(value) for value in values if value is not None]
