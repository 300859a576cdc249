"""The demo's judge: believes nothing that custody says of itself, and imports nothing of it.

Run by path. It reads the output topics with another client library (kafka-python) as read_committed, decodes
them with the .avsc files alone, takes the expected runs from the producer's own log of acknowledged starts,
and the effects from the ledger that the tool server wrote. It prints one JSON object; `findings` names the
first few of each kind. Exit code 1 when a figure that has to be zero is not.

| figure | how it is found |
|---|---|
| runs_lost | acknowledged starts without an outcome |
| duplicate_events | events of one run and event_seq seen more than once |
| sequence_gaps | a run's event_seqs are not 1, 2, 3, … over both topics |
| chain_breaks | own hash, previous hash, payload digest or signature wrong |
| effects_repeated | a second effect of one intended write (over all its keys), or for one alert |
| effects_missing | a run that succeeded, or a write recorded as done, without an effect in the ledger |
| calls_repeated_after_commit | a request that arrived after that call's result was committed |
| aborted_visible | aborted records that read_committed shows (the demo aborts some on purpose) |
| in_doubt | runs that stand in doubt at the end |
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import sys
import time
from collections import Counter, defaultdict
from datetime import datetime
from pathlib import Path
from typing import Any

import fastavro
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from fastavro.schema import fingerprint, to_parsing_canonical_form
from kafka import KafkaConsumer, TopicPartition

MARKER = b"\xc3\x01"
READ_LIMIT_S = 120.0
EXAMPLES_MAX = 5
MUST_BE_ZERO = (
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


class Schema:
    """One .avsc file, and the fingerprint that stands before its records."""

    def __init__(self, path: Path) -> None:
        raw = json.loads(path.read_text(encoding="utf-8"))
        self.parsed = fastavro.parse_schema(raw)
        self.fingerprint = bytes.fromhex(fingerprint(to_parsing_canonical_form(raw), "CRC-64-AVRO"))

    def decode(self, value: bytes) -> dict[str, Any]:
        if value[:2] != MARKER or value[2:10] != self.fingerprint:
            raise ValueError("not this schema's single-object encoding")
        body = io.BytesIO(value[10:])
        record = fastavro.schemaless_reader(body, self.parsed, None)
        if body.read(1):
            raise ValueError("bytes are left over")
        return record  # type: ignore[return-value]

    def bare_hash(self, record: dict[str, Any]) -> bytes:
        """SHA-256 of the body with the three fields that do not count set to null."""
        out = io.BytesIO()
        fastavro.schemaless_writer(
            out, self.parsed, {**record, "payload": None, "salt": None, "signature": None}
        )
        return hashlib.sha256(out.getvalue()).digest()


class Findings:
    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.examples: dict[str, list[str]] = defaultdict(list)

    def add(self, figure: str, what: str) -> None:
        self.counts[figure] += 1
        if len(self.examples[figure]) < EXAMPLES_MAX:
            self.examples[figure].append(what)


def read_topic(bootstrap: str, topic: str, isolation: str) -> list[Any]:
    """Every record of a topic up to its end as it is now, in partition order."""
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap,
        isolation_level=isolation,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        group_id=None,
    )
    try:
        parts = [
            TopicPartition(topic, number) for number in sorted(consumer.partitions_for_topic(topic) or ())
        ]
        consumer.assign(parts)
        consumer.seek_to_beginning(*parts)
        ends = consumer.end_offsets(parts)
        records: list[Any] = []
        deadline = time.monotonic() + READ_LIMIT_S
        while any(consumer.position(part) < ends[part] for part in parts):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{topic}: not read to its end in {READ_LIMIT_S} s")
            for batch in consumer.poll(timeout_ms=500).values():
                records.extend(batch)
        return records
    finally:
        consumer.close()


def header(record: Any, name: str) -> str | None:
    found = next((value for key, value in record.headers if key == name), None)
    return None if found is None else found.decode()


def jsonl(path: Path) -> list[dict[str, Any]]:
    """Whole lines only: the last one may be cut where a process was killed."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    return [json.loads(line) for line in lines if line]


class Checker:
    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        self.findings = Findings()
        self.step_schema = Schema(given.schemas / "StepEvent.avsc")
        self.outcome_schema = Schema(given.schemas / "OutcomeEvent.avsc")
        self.keys = {
            path.stem: load_pem_public_key(path.read_bytes())
            for path in sorted(given.public_keys.glob("*.pem"))
        }
        self.runs: dict[str, dict[int, tuple[dict[str, Any], bytes]]] = defaultdict(dict)
        self.outcomes: dict[str, str] = {}
        self.results: dict[tuple[str, int, int], float] = {}
        self.done_writes: set[tuple[str, int, int]] = set()
        self.resumed: set[str] = set()
        self.events = 0

    def read(self) -> None:
        for topic, schema in (
            (self.given.steps_topic, self.step_schema),
            (self.given.outcomes_topic, self.outcome_schema),
        ):
            for record in read_topic(self.given.bootstrap, topic, "read_committed"):
                if header(record, "custody_demo_aborted") is not None:
                    self.findings.add("aborted_visible", f"{topic}/{record.partition}/{record.offset}")
                    continue
                self.take(record, schema)

    def take(self, record: Any, schema: Schema) -> None:
        event = schema.decode(record.value)
        run_id, seq = event["trace"]["run_id"], event["event_seq"]
        where = f"{run_id}/{seq}"
        self.events += 1
        if header(record, "ce_id") != where or record.key != run_id.encode():
            self.findings.add("chain_breaks", f"{where}: ce_id or key is another")
        if seq in self.runs[run_id]:
            self.findings.add("duplicate_events", where)
            return
        own = schema.bare_hash(event)
        if header(record, "custody_event_hash") != own.hex():
            self.findings.add("chain_breaks", f"{where}: own hash")
        self.check_payload(event, where)
        self.runs[run_id][seq] = (event, own)
        if schema is self.outcome_schema:
            self.outcomes[run_id] = event["status"]
            self.check_signature(event, own, where)
        self.note(event, record, run_id)

    def check_payload(self, event: dict[str, Any], where: str) -> None:
        salt, payload = event["salt"], event["payload"]
        if salt is None:
            return  # erased: the digest is all that is left
        if hashlib.sha256(salt + (payload or "").encode()).digest() != event["payload_digest"]:
            self.findings.add("chain_breaks", f"{where}: payload digest")

    def check_signature(self, event: dict[str, Any], own: bytes, where: str) -> None:
        try:
            self.keys[event["key_id"]].verify(event["signature"], own)  # type: ignore[union-attr,call-arg]
        except (KeyError, TypeError, InvalidSignature):
            self.findings.add("chain_breaks", f"{where}: signature")

    def note(self, event: dict[str, Any], record: Any, run_id: str) -> None:
        kind = event.get("kind")
        if kind == "tool_result":
            call = (run_id, event["trace"]["loop_step"], event["ordinal"])
            self.results[call] = datetime.fromisoformat(header(record, "ce_time") or "").timestamp()
            if event["effect"] == "write" and event["result"] in ("ok", "done"):
                self.done_writes.add(call)
        elif kind == "resumed":
            self.resumed.add(run_id)

    def check_chains(self) -> None:
        for run_id, events in self.runs.items():
            if sorted(events) != list(range(1, len(events) + 1)):
                self.findings.add("sequence_gaps", f"{run_id}: {sorted(events)}")
            for seq, (event, _) in events.items():
                before = events.get(seq - 1)
                if event["prev_hash"] != (before[1] if before else None) and (seq == 1 or before):
                    self.findings.add("chain_breaks", f"{run_id}/{seq}: previous hash")

    def check_runs(self) -> dict[str, Any]:
        starts = jsonl(self.given.starts)
        expected = {start["run_id"] for start in starts}
        for run_id in sorted(expected - set(self.outcomes)):
            self.findings.add("runs_lost", run_id)
        self.check_effects(starts)
        return {
            "runs": len(expected),
            "duplicate_starts_sent": len(starts) - len(expected),
            "outcomes_by_status": dict(
                Counter(self.outcomes[run] for run in expected if run in self.outcomes)
            ),
            "unexpected_runs": len(set(self.runs) - expected),
        }

    def check_effects(self, starts: list[dict[str, Any]]) -> None:
        effects = jsonl(self.given.ledger / "effects.jsonl")
        by_write = Counter(write_of(effect["key"]) for effect in effects)
        for write, count in by_write.items():
            for _ in range(count - 1):
                self.findings.add("effects_repeated", "/".join(map(str, write)))
        for write in sorted(self.done_writes - set(by_write)):
            self.findings.add("effects_missing", "/".join(map(str, write)))
        by_alert = Counter(effect["about"] for effect in effects)
        for alert_id, start in {start["alert_id"]: start for start in starts}.items():
            run_id, wanted = start["run_id"], start.get("effects", 1)
            if by_alert[alert_id] > wanted:
                self.findings.add("effects_repeated", f"{run_id}: {by_alert[alert_id]} for {alert_id}")
            if self.outcomes.get(run_id) == "succeeded" and by_alert[alert_id] < wanted:
                self.findings.add("effects_missing", f"{run_id}: {by_alert[alert_id]} for {alert_id}")
        for attempt in jsonl(self.given.ledger / "attempts.jsonl"):
            committed = self.results.get(write_of(attempt["key"])) if attempt["key"] else None
            if committed is not None and attempt["at"] > committed:
                self.findings.add("calls_repeated_after_commit", f"{attempt['tool']} {attempt['key']}")

    def check_doubt(self) -> None:
        for run_id, events in self.runs.items():
            last = events[max(events)][0]
            if last.get("kind") == "in_doubt":
                self.findings.add("in_doubt", run_id)

    def report(self) -> dict[str, Any]:
        self.read()
        self.check_chains()
        figures = self.check_runs()
        self.check_doubt()
        aborted = len(read_aborted(self.given.bootstrap, self.given.steps_topic))
        return {
            **figures,
            **{name: self.findings.counts[name] for name in MUST_BE_ZERO},
            "events": self.events,
            "resumed_runs": len(self.resumed),
            "aborted_on_disk": aborted,
            "findings": dict(self.findings.examples),
        }


def read_aborted(bootstrap: str, topic: str) -> list[Any]:
    """The demo's own aborted records as read_uncommitted sees them: shows that the check above can fail."""
    records = read_topic(bootstrap, topic, "read_uncommitted")
    return [record for record in records if header(record, "custody_demo_aborted") is not None]


def write_of(key: str) -> tuple[str, int, int]:
    """run_id/loop_step/ordinal[/n]: the intended call, whatever its key is by now."""
    run_id, loop_step, ordinal, *_ = key.split("/")
    return run_id, int(loop_step), int(ordinal)


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    arguments.add_argument("--bootstrap", required=True)
    arguments.add_argument("--schemas", type=Path, required=True, help="folder with the .avsc files")
    arguments.add_argument(
        "--starts", type=Path, required=True, help="the producer's log of acknowledged starts"
    )
    arguments.add_argument("--ledger", type=Path, required=True, help="the tool server's folder")
    arguments.add_argument("--public-keys", type=Path, required=True, help="folder of <key id>.pem")
    arguments.add_argument("--steps-topic", default="custody.steps")
    arguments.add_argument("--outcomes-topic", default="custody.outcomes")
    report = Checker(arguments.parse_args()).report()
    sys.stdout.write(json.dumps(report) + "\n")
    return 1 if any(report[name] for name in MUST_BE_ZERO) else 0


if __name__ == "__main__":
    sys.exit(main())
