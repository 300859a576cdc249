"""`run why`: one sentence that says status, cause and next step, then short evidence.

Pure: everything comes from the store's `run_evidence`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final

from session_custody.core.events import EventKind
from session_custody.core.run import ParkReason, Status
from session_custody.core.signals import SignalKind

OWNER_SILENT_S: Final = 15.0
DEAD_LETTERS_SHOWN_MAX: Final = 3

_PARKED: Final = {
    ParkReason.POLICY_UNAVAILABLE: "its policy decision point could not be asked",
    ParkReason.CONTRACT_MISSING: "a contract or tool that it is pinned to is not here",
    ParkReason.MODEL_UNAVAILABLE: "the model could not be asked within its retry budget",
    ParkReason.AWAITING_AUTH: "it needs a token that only its subject can give again",
    ParkReason.SUSPECT: "its worker died several times while it was in hand",
    ParkReason.NOT_STARTED: "its write could not be started within the allowance",
    ParkReason.OPERATOR: "an operator parked it",
}

_DOUBT: Final = {
    "outcome_unknown": "its call ended without an answer, and its system knows no keys and cannot be asked",
    "attempts_spent": "it was sent again as often as its manifest allows, without an answer",
    "call_running": "its thread still hangs in the call",
    "policy_denied": "the policy does not allow to send it again",
    "not_started": "it could not be sent again in time",
    "not_found": "its tool did not find it, and its manifest does not let it be sent again",
    "stop_requested": "the run was to stop while it was under way",
}

Evidence = Mapping[str, Any]


def explain(evidence: Evidence) -> str:
    """Why the run stands where it stands, and what happens next."""
    status = Status(evidence["status"])
    match status:
        case Status.QUEUED | Status.RUNNING:
            return _under_way(evidence, status)
        case Status.WAITING:
            return f"It is waiting for an answer{_at(evidence, 'wake_at', 'until')}; then it goes on."
        case Status.PARKED:
            return _parked(evidence)
        case Status.IN_DOUBT:
            return _in_doubt(evidence)
        case _:
            return _ended(evidence, status)


def _under_way(evidence: Evidence, status: Status) -> str:
    lane = evidence["lane"]
    where = _lane(lane)
    if lane["owner"] is None:
        return (
            f"It is {status.value}, and {where} has no owner: no worker is assigned to its partition; "
            f"it goes on as soon as one is (custody serve, custody lane list).{_ending(evidence)}"
        )
    silent = _seconds(lane["last_alive"], evidence["now"])
    if silent is not None and silent > OWNER_SILENT_S:
        return (
            f"It is {status.value}, and the owner of {where} has been silent for {silent:.0f} s: "
            f"another worker takes over once Kafka has given up on it.{_ending(evidence)}"
        )
    pending = evidence.get("pending")
    if pending:
        return (
            f"It is {status.value} in the middle of a write: {pending['tool']} with key {pending['key']}, "
            f"attempt {evidence.get('attempts', 1)}; should its worker die, nobody sends it again before "
            f"{clock_text(evidence.get('not_after'))}.{_ending(evidence)}"
        )
    if status is Status.QUEUED:
        return (
            f"It is queued on {where}, whose owner takes it up when one of its run slots is free."
            f"{_ending(evidence)}"
        )
    return f"It is running {_where_in_loop(evidence, where)}.{_ending(evidence)}"


def _where_in_loop(evidence: Evidence, where: str) -> str:
    step = _loop_step(evidence)
    bound = evidence["pin"].get("max_loop_steps")
    if bound is None:
        return f"on {where}; next is the model's answer"
    if step >= bound:
        return f"at loop step {step} of {bound} on {where}; its loop steps are used up, and it ends"
    done = f"at loop step {step} of {bound}" if step else "before its first loop step"
    return f"{done} on {where}; next is the model's answer for step {step + 1}, and the reads it asks for"


def _ending(evidence: Evidence) -> str:
    """What is asked of it and not yet done: a stop in the row, or a signal that nobody has read yet."""
    stop = evidence.get("stop_requested")
    if stop:
        return f" It ends as soon as it can: {stop} was requested."
    kinds = {signal["kind"] for signal in evidence.get("signals") or ()}
    if SignalKind.CANCEL in kinds:
        return " A cancel has arrived; it ends at its next boundary."
    return ""


def _parked(evidence: Evidence) -> str:
    reason = ParkReason(evidence["park_reason"])
    last = evidence.get("last_step") or {}
    detail = last.get("reason") if last.get("kind") == EventKind.PARKED else None
    said = f"It is parked because {_PARKED[reason]}{f' ({detail})' if detail else ''}"
    run_id = evidence["run_id"]
    if reason.wakes_by_itself:
        return (
            f"{said}; it tries again by itself{_at(evidence, 'wake_at', 'at')}, or at once after "
            f"custody run resume {run_id}.{_ending(evidence)}"
        )
    return f"{said}; it goes on when somebody says so: custody run resume {run_id}.{_ending(evidence)}"


def _in_doubt(evidence: Evidence) -> str:
    pending = evidence.get("pending") or {}
    last = evidence.get("last_step") or {}
    code = last.get("code") if last.get("kind") == EventKind.IN_DOUBT else None
    cause = _DOUBT.get(str(code), str(code)) if code else ""
    return (
        f"It is in doubt: nobody knows whether {pending.get('tool', 'its write')} with key "
        f"{pending.get('key', '-')} took effect{f', because {cause}' if cause else ''}; look there, then "
        f"custody run resolve {evidence['run_id']} --done or --not-done, with --reason "
        f"(event {evidence.get('doubt_seq')}{_not_yet(evidence)}).{_ending(evidence)}"
    )


def _not_yet(evidence: Evidence) -> str:
    """A call may have been started until not_after: before that nobody can say that it has no effect."""
    not_after, now = evidence.get("not_after"), evidence["now"]
    if evidence.get("call_running"):
        return "; --not-done once its call has ended"
    return (
        f"; --not-done from {clock_text(not_after)} on" if not_after is not None and not_after > now else ""
    )


def _ended(evidence: Evidence, status: Status) -> str:
    last = evidence.get("last_step") or {}
    cause = last.get("code") or last.get("reason")
    bound = evidence["pin"].get("max_loop_steps")
    steps = f"{_loop_step(evidence)}{f' of {bound}' if bound is not None else ''}"
    return (
        f"It ended {status.value} at loop step {steps}{f', because of {cause}' if cause else ''}; "
        f"nothing more happens in it."
    )


# ---------------------------------------------------------------- evidence, short


def facts(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """What the sentence rests on, as short lines: name and text. `-o json` has everything."""
    now: datetime = evidence["now"]
    lane = evidence["lane"]
    yield "status", f"{evidence['status']}, last written {_ago(evidence.get('updated_at'), now)}"
    if not Status(evidence["status"]).terminal:
        alive = f"owner {lane['owner']} alive {_ago(lane['last_alive'], now)}"
        yield "lane", f"{_lane(lane)}, {'no owner' if lane['owner'] is None else alive}"
    pin = evidence["pin"]
    yield (
        "pin",
        " ".join(
            f"{pin[name]}@{pin.get(version, '?')}" if version else str(pin[name])
            for name, version in (
                ("route_id", "route_table_version"),
                ("manifest_id", "manifest_version"),
                ("policy_profile", "policy_version"),
                ("model_profile", None),
            )
            if pin.get(name)
        ),
    )
    yield "loop steps", f"{_loop_step(evidence)} of {pin.get('max_loop_steps', 'one')}"
    if (last := evidence.get("last_step")) is not None:
        yield "last step", _step(last, now)
    if (pending := evidence.get("pending")) is not None:
        not_after = clock_text(evidence.get("not_after"))
        until = evidence.get("not_after")
        over = isinstance(until, datetime) and until <= now
        rule = "its call cannot start any more, since" if over else "not sent again before"
        yield "open write", f"{pending['tool']} {pending['key']}, {rule} {not_after}"
    for signal in evidence.get("signals") or ():
        yield "unread signal", f"{signal['kind']} by {signal['source']}, {_ago(signal['created_at'], now)}"
    dead = evidence.get("dead_letters") or ()
    for letter in dead[:DEAD_LETTERS_SHOWN_MAX]:
        place = f"{letter['topic']}/{letter['partition']}@{letter['offset']}"
        yield "dead letter", f"{letter['reason']}, {place}, {_ago(letter['recorded_at'], now)}"
    if len(dead) > DEAD_LETTERS_SHOWN_MAX:
        yield "dead letters", f"{len(dead)}: custody dlq list --run {evidence['run_id']}"
    if lane["backlog"]:
        yield "unpublished", f"{lane['backlog']} rows of its lane"
    if lane["went_back"]:
        yield "publication", "stopped: Postgres went back in time (custody lane adopt-floor)"
    if not Status(evidence["status"]).terminal:
        yield "expires", clock_text(evidence.get("expires_at"))


def _step(last: Mapping[str, Any], now: datetime) -> str:
    words = [f"#{last['event_seq']} {last['kind']}"]
    words += [str(last[name]) for name in ("tool", "result", "code") if last.get(name)]
    if (policy := last.get("policy")) is not None:
        words.append(f"({policy.get('decision')} by policy)")
    return f"{' '.join(words)}, {_ago(last.get('recorded_at'), now)}"


def _lane(lane: Mapping[str, Any]) -> str:
    return f"lane {lane['lane_id']} ({lane['topic']}/{lane['partition']}, epoch {lane['epoch']})"


def _loop_step(evidence: Evidence) -> int:
    return int(evidence["pin"].get("loop_step") or 0)


def _at(evidence: Evidence, key: str, word: str) -> str:
    return f" {word} {clock_text(evidence[key])}" if evidence.get(key) else ""


def clock_text(value: object) -> str:
    """A moment as people read it: UTC, whole seconds."""
    return value.strftime("%Y-%m-%d %H:%M:%SZ") if isinstance(value, datetime) else str(value or "-")


def _ago(then: datetime | None, now: datetime) -> str:
    seconds = _seconds(then, now)
    if seconds is None:
        return "never"
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{max(seconds, 0.0):.1f} s ago"


def _seconds(then: datetime | None, now: datetime) -> float | None:
    return None if then is None else (now - then).total_seconds()
