"""The chain of a run's events, checked (DESIGN 7, I9). Pure: hashes come computed, nothing is decoded here.

Rules of this file: numbers are 1, 2, 3 … over both topics; each event names the hash of the one before, the
first names none; the same number twice is a duplicate when the hash is the same and a break when it is not;
after the outcome only `erased` and `signal_refused` may follow.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from session_custody.core.events import EventKind

AFTER_OUTCOME: Final = frozenset({EventKind.ERASED, EventKind.SIGNAL_REFUSED})


class Fault(StrEnum):
    """What can be wrong with a trail of events."""

    GAP = "gap"
    BREAK = "break"
    DUPLICATE = "duplicate"
    AFTER_OUTCOME = "after_outcome"
    BAD_SIGNATURE = "bad_signature"
    UNREADABLE = "unreadable"
    MISSING_OUTCOME = "missing_outcome"


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault and where it is. `event_seq`: the event at fault, or the first one that is missing."""

    fault: Fault
    run_id: str
    event_seq: int
    detail: str


@dataclass(frozen=True, slots=True)
class Link:
    """What the chain needs to know of an event. `kind` is None for one that is newer than this reader.

    `stub`: the event itself was refused by the broker; only its hash is known, not what it names before it.
    """

    event_seq: int
    kind: EventKind | None
    hash: bytes
    prev_hash: bytes | None
    stub: bool = False


@dataclass(frozen=True, slots=True)
class RunChain:
    """A run's events in order, each number once, and what is wrong with them.

    `cut_off`: the events before the first one are not there, and were not asked for.
    """

    links: tuple[Link, ...]
    findings: tuple[Finding, ...]
    cut_off: bool
    ended: bool


def check_run(run_id: str, links: Iterable[Link], *, from_start: bool = True) -> RunChain:
    """Check the events of one run, in whatever order they come.

    `from_start` False: older events may be missing (retention, a time bound), so the first number may be any.
    """
    findings: list[Finding] = []
    kept: list[Link] = []
    for link in sorted(links, key=lambda link: link.event_seq):
        if kept and kept[-1].event_seq == link.event_seq:
            findings.append(_twice(run_id, kept[-1], link))
        else:
            kept.append(link)
    before: Link | None = None
    ended = False
    for link in kept:
        findings.extend(_joint(run_id, before, link, from_start=from_start))
        if ended and link.kind not in AFTER_OUTCOME:
            name = "an unknown kind" if link.kind is None else link.kind.value
            findings.append(
                Finding(Fault.AFTER_OUTCOME, run_id, link.event_seq, f"{name} follows the outcome")
            )
        ended = ended or link.kind is EventKind.OUTCOME
        before = link
    cut_off = bool(kept) and kept[0].event_seq > 1 and not from_start
    return RunChain(tuple(kept), tuple(findings), cut_off, ended)


def _twice(run_id: str, first: Link, second: Link) -> Finding:
    if first.hash == second.hash:
        return Finding(Fault.DUPLICATE, run_id, second.event_seq, "the same event is there twice")
    return Finding(Fault.BREAK, run_id, second.event_seq, "two different events have this number")


def _joint(run_id: str, before: Link | None, link: Link, *, from_start: bool) -> Iterable[Finding]:
    seq = link.event_seq
    if seq < 1:
        yield Finding(Fault.BREAK, run_id, seq, "events are numbered from 1")
    elif seq == 1:
        if link.prev_hash is not None:
            yield Finding(Fault.BREAK, run_id, seq, "the first event names one before it")
    elif link.prev_hash is None and not link.stub:
        yield Finding(Fault.BREAK, run_id, seq, "the event names none before it")
    expected = 1 if before is None else before.event_seq + 1
    if seq > expected and (before is not None or from_start):
        some = f"{expected}" if seq == expected + 1 else f"{expected} to {seq - 1}"
        yield Finding(Fault.GAP, run_id, expected, f"missing: {some}")
    if (
        before is not None
        and seq == expected
        and link.prev_hash is not None
        and link.prev_hash != before.hash
    ):
        yield Finding(Fault.BREAK, run_id, seq, "its prev_hash is not the hash of the event before")
