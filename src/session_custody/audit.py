"""`verify`: check the trail of events from files or topics alone, without service or database (API 6).

What is checked, event by event: the value decodes with every byte used; its hash is that of its bytes, and
the one in its header; the payload is the one that its digest names, or was erased; the outcome's signature is
one of the given public keys'. Run by run: `core.chain`. schemas/README.md tells a stranger how to do all this
without us.

A run without an outcome may still be under way: it is counted, and a fault only where outcomes are expected.
What was cut off at the end of a run's trail shows only by its missing outcome.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import time
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from session_custody.core.chain import Fault, Finding, Link, check_run
from session_custody.core.errors import RecordRejected, SettingsError, Unavailable
from session_custody.core.events import EventKind
from session_custody.settings import KafkaSettings, Settings
from session_custody.wire import decode_event, event_id, hashed_body, payload_digest, read_public_keys
from session_custody.wire.headers import HASH_HEADER

FINDINGS_SHOWN_MAX: Final = 1_000
TOPIC_SILENT_S: Final = 30.0
METADATA_S: Final = 30.0
CONSUME_RECORDS_MAX: Final = 1_000

STUB_HEADER: Final = "custody_stub"
_SEQ: Final = re.compile(r"[0-9]{1,18}")
_HASH: Final = re.compile(r"[0-9a-f]{64}")

PublicKeys = Mapping[str, Ed25519PublicKey] | Path | str


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """One record as a consumer got it. Without key and headers, what they say is not compared."""

    value: bytes
    key: bytes | None = None
    headers: Mapping[str, bytes] = field(default_factory=dict)


Records = Iterable[AuditRecord | bytes] | Path


@dataclass(frozen=True, slots=True)
class Report:
    """What was read and what is wrong with it. Counts are whole, `findings` the first FINDINGS_SHOWN_MAX."""

    runs: int
    events: int
    gaps: int
    breaks: int
    duplicates: int
    bad_signatures: int
    unreadable: int
    missing_outcomes: int
    """Runs without an outcome; a fault only where outcomes are expected."""
    cut_off: int
    """Runs whose beginning was not read, where that was allowed."""
    erased: int
    """Events whose payload and salt are gone: their hash holds, their payload cannot be checked any more."""
    stubs: int
    """Events of which the broker refused the payload, or all but the headers."""
    ok: bool
    findings: tuple[Finding, ...]


def verify(
    *,
    steps: Records,
    outcomes: Records,
    public_keys: PublicKeys,
    from_start: bool = True,
    expect_outcomes: bool = False,
) -> Report:
    """Check step and outcome events: records or values in any order, or a file that `write_records` wrote.

    `public_keys`: key_id -> key, or a folder of PEM files. `from_start` False: runs may begin before the
    first record (retention, a time bound). `expect_outcomes`: every run should have ended.
    """
    keys = read_public_keys(public_keys) if isinstance(public_keys, Path | str) else public_keys
    trail = _Trail(keys)
    for record in _records(outcomes):
        trail.add(record, is_outcome=True)
    for record in _records(steps):
        trail.add(record, is_outcome=False)
    return trail.report(from_start=from_start, expect_outcomes=expect_outcomes)


def verify_topics(
    settings: Settings, since: timedelta | None = None, *, expect_outcomes: bool = False
) -> Report:
    """`verify` over both topics as they stand, from `since` ago or from their beginning.

    Public keys from CUSTODY_AUDIT__PUBLIC_KEYS_DIR. Raises SettingsError, Unavailable.
    """
    folder = settings.audit.public_keys_dir
    if folder is None:
        raise SettingsError("CUSTODY_AUDIT__PUBLIC_KEYS_DIR", "is needed to check signatures and is not set")
    moment = None if since is None else datetime.now(UTC) - since
    topics = settings.kafka.topics
    # Outcomes first: an outcome is published with or after its steps, so those are there when it was read.
    # (A step after an outcome that came in between shows as a gap. It is rare, and gone when verified again.)
    return verify(
        outcomes=list(read_topic(settings.kafka, topics.outcomes, moment)),
        steps=read_topic(settings.kafka, topics.steps, moment),
        public_keys=folder,
        from_start=since is None,
        expect_outcomes=expect_outcomes,
    )


class _Trail:
    """Events as they come in: links by run, faults of single events."""

    def __init__(self, keys: Mapping[str, Ed25519PublicKey]) -> None:
        self._keys = keys
        self._links: dict[str, list[Link]] = defaultdict(list)
        self._findings: list[Finding] = []
        self._events = 0
        self._erased = 0
        self._stubs = 0

    def add(self, record: AuditRecord, *, is_outcome: bool) -> None:
        self._events += 1
        is_stub = STUB_HEADER in record.headers
        self._stubs += is_stub
        if is_stub and not record.value:
            self._add_bare(record, is_outcome=is_outcome)
            return
        try:
            event = decode_event(record.value)
            body = hashed_body(record.value)
        except RecordRejected as error:
            self._found(Fault.UNREADABLE, "", 0, str(error))
            return
        run_id, seq = str(event.get("trace", {}).get("run_id", "")), event.get("event_seq", 0)
        if not run_id or ("kind" in event) == is_outcome:
            self._found(Fault.UNREADABLE, run_id, seq, "another kind of record than its topic has")
            return
        event_hash = hashlib.sha256(body).digest()
        self._check_envelope(record, event, event_hash)
        if not is_stub:
            self._check_payload(event, run_id, seq)
        if is_outcome:
            self._check_signature(event, run_id, seq, event_hash)
        kind = EventKind.OUTCOME if is_outcome else _kind(event["kind"])
        self._links[run_id].append(Link(seq, kind, event_hash, event["prev_hash"]))

    def _add_bare(self, record: AuditRecord, *, is_outcome: bool) -> None:
        # The headers keep the chain whole: the next event names the hash that they tell.
        run_id, _, seq = record.headers.get("ce_id", b"").decode("utf-8", "replace").rpartition("/")
        event_hash = record.headers.get(HASH_HEADER, b"").decode("ascii", "replace")
        if not run_id or not _SEQ.fullmatch(seq) or not _HASH.fullmatch(event_hash):
            self._found(Fault.UNREADABLE, run_id, 0, "a stub without the event's ce_id and hash")
            return
        if is_outcome:
            detail = "only a stub of the outcome is there; its signature cannot be checked"
            self._found(Fault.BAD_SIGNATURE, run_id, int(seq), detail)
        kind = EventKind.OUTCOME if is_outcome else None
        self._links[run_id].append(Link(int(seq), kind, bytes.fromhex(event_hash), None, stub=True))

    def report(self, *, from_start: bool, expect_outcomes: bool) -> Report:
        findings = list(self._findings)
        cut_off = missing = 0
        for run_id, links in self._links.items():
            chain = check_run(run_id, links, from_start=from_start)
            findings.extend(chain.findings)
            cut_off += chain.cut_off
            if not chain.ended:
                missing += 1
                if expect_outcomes:
                    seq = chain.links[-1].event_seq + 1
                    findings.append(Finding(Fault.MISSING_OUTCOME, run_id, seq, "the run has no outcome"))
        count = {fault: sum(finding.fault is fault for finding in findings) for fault in Fault}
        return Report(
            runs=len(self._links),
            events=self._events,
            gaps=count[Fault.GAP],
            breaks=count[Fault.BREAK] + count[Fault.AFTER_OUTCOME],
            duplicates=count[Fault.DUPLICATE],
            bad_signatures=count[Fault.BAD_SIGNATURE],
            unreadable=count[Fault.UNREADABLE],
            missing_outcomes=missing,
            cut_off=cut_off,
            erased=self._erased,
            stubs=self._stubs,
            ok=not findings,
            findings=tuple(findings[:FINDINGS_SHOWN_MAX]),
        )

    def _found(self, fault: Fault, run_id: str, event_seq: int, detail: str) -> None:
        self._findings.append(Finding(fault, run_id, event_seq, detail))

    def _check_envelope(self, record: AuditRecord, event: Mapping[str, Any], event_hash: bytes) -> None:
        run_id, seq = event["trace"]["run_id"], event["event_seq"]
        said = {
            HASH_HEADER: event_hash.hex(),
            "ce_id": event_id(run_id, seq),
        }
        for name, expected in said.items():
            if record.headers and record.headers.get(name) != expected.encode():
                self._found(Fault.BREAK, run_id, seq, f"the header {name} is not the event's")
        if record.key is not None and record.key != event["trace"]["correlation_id"].encode():
            self._found(Fault.BREAK, run_id, seq, "the record's key is not the correlation_id")

    def _check_payload(self, event: Mapping[str, Any], run_id: str, seq: int) -> None:
        salt, payload = event["salt"], event["payload"]
        if salt is None and payload is None:
            self._erased += 1
        elif salt is None or payload_digest(salt, payload) != event["payload_digest"]:
            self._found(Fault.BREAK, run_id, seq, "the payload is not the one that payload_digest names")

    def _check_signature(self, event: Mapping[str, Any], run_id: str, seq: int, event_hash: bytes) -> None:
        key_id, signature = event["key_id"], event["signature"]
        key = self._keys.get(key_id or "")
        if signature is None:
            self._found(Fault.BAD_SIGNATURE, run_id, seq, "the outcome is not signed")
        elif key is None:
            self._found(Fault.BAD_SIGNATURE, run_id, seq, "no public key with its key_id was given")
        else:
            try:
                key.verify(signature, event_hash)
            except InvalidSignature:
                self._found(Fault.BAD_SIGNATURE, run_id, seq, "the signature is not this key's over the hash")


def _kind(text: str) -> EventKind | None:
    try:
        return EventKind(text)
    except ValueError:
        return None


# ---------------------------------------------------------------- files


def write_records(path: Path, records: Iterable[AuditRecord]) -> int:
    """Write JSON lines `{"key":base64|null,"value":base64,"headers":{name:base64}}`; returns how many."""
    count = 0
    with path.open("w", encoding="ascii") as stream:
        for record in records:
            line = {
                "key": None if record.key is None else _text(record.key),
                "value": _text(record.value),
                "headers": {name: _text(value) for name, value in record.headers.items()},
            }
            stream.write(json.dumps(line) + "\n")
            count += 1
    return count


def read_records(path: Path) -> Iterator[AuditRecord]:
    """What `write_records` wrote. Raises ValueError that names file and line."""
    with path.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            try:
                fields = json.loads(line)
                key = fields["key"]
                headers = {name: _bytes(value) for name, value in fields["headers"].items()}
                record = AuditRecord(_bytes(fields["value"]), None if key is None else _bytes(key), headers)
            except (ValueError, KeyError, TypeError, AttributeError):
                raise ValueError(f"{path}, line {number}: no record") from None
            yield record


def _records(records: Records) -> Iterator[AuditRecord]:
    if isinstance(records, Path):
        yield from read_records(records)
    else:
        for record in records:
            yield AuditRecord(record) if isinstance(record, bytes) else record


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


# ---------------------------------------------------------------- topics


def read_topic(kafka: KafkaSettings, topic: str, since: datetime | None = None) -> Iterator[AuditRecord]:
    """Every committed record of a topic, from `since` or its beginning to its end as it then stands.

    Joins no group and commits nothing. Raises Unavailable.
    """
    consumer = Consumer(
        {
            **kafka.connection_options(),
            "group.id": f"custody-audit-{uuid.uuid4()}",  # librdkafka wants one; it is never joined
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "allow.auto.create.topics": False,
        }
    )
    try:
        places = _places(consumer, topic, since)
        consumer.assign(places)
        yield from _until_ends(consumer, topic, {place.partition for place in places})
    except KafkaException as error:
        raise Unavailable("kafka", f"{topic}: {error.args[0].name()}") from None
    finally:
        consumer.close()


def _places(consumer: Consumer, topic: str, since: datetime | None) -> list[TopicPartition]:
    found = consumer.list_topics(topic, METADATA_S).topics[topic]
    if found.error is not None:
        raise KafkaException(found.error)
    if since is None:
        return [TopicPartition(topic, number, OFFSET_BEGINNING) for number in found.partitions]
    moment = int(since.timestamp() * 1000)
    asked = [TopicPartition(topic, number, moment) for number in found.partitions]
    return consumer.offsets_for_times(asked, METADATA_S)


def _until_ends(consumer: Consumer, topic: str, open_partitions: set[int]) -> Iterator[AuditRecord]:
    heard = time.monotonic()
    while open_partitions:
        for message in consumer.consume(CONSUME_RECORDS_MAX, 0.2):
            heard = time.monotonic()
            error = message.error()
            if error is None:
                yield _record(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                open_partitions.discard(message.partition() or 0)
            elif not error.retriable():
                raise KafkaException(error)
        if time.monotonic() - heard > TOPIC_SILENT_S:
            raise Unavailable("kafka", f"{topic}: nothing for {TOPIC_SILENT_S:g} s, and not at its end")


def _record(message: Message) -> AuditRecord:
    headers = message.headers() or []
    pairs = headers.items() if isinstance(headers, dict) else headers
    said = {name: value for name, value in pairs if isinstance(value, bytes)}
    return AuditRecord(message.value() or b"", message.key(), said)
