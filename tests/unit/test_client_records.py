"""API 2: what a producer writes is what the wire carries."""

from __future__ import annotations

import json

import pytest

from session_custody.client import InvalidRecord, RunStart, Subject
from session_custody.core import events
from session_custody.core.pin import SentPin


def start_of(**more: object) -> RunStart:
    fields = {
        "correlation_id": "run-9f3c",
        "subject": {"id": "u-17", "tenant": "bank-a"},
        "route_id": "fraud_investigate",
        "route_table_version": "2026.08.1",
        "model_profile": "reasoning-standard",
        "input": {"alert_id": "alert-88421"},
    }
    return RunStart.model_validate(fields | more)


def test_the_fields_are_those_of_the_wire() -> None:
    assert set(RunStart.model_fields) == set(events.RunStart.model_fields) - {"pin"} | set(
        SentPin.model_fields
    )


def test_input_is_any_json_value_and_travels_as_its_text() -> None:
    values: list[object] = ["hi", {"a": [1, None]}, 3.5, None, True, []]
    for value in values:
        assert json.loads(start_of(input=value).event().input) == value


def test_pin_fields_reach_the_pin() -> None:
    event = start_of(manifest_id="m", max_loop_steps=12, memory_profile={"name": "short"}).event()
    assert (event.pin.manifest_id, event.pin.max_loop_steps) == ("m", 12)
    assert event.pin.memory_profile is not None
    assert event.subject == Subject(id="u-17", tenant="bank-a")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"input": float("nan")}, "input: "),
        ({"input": 2**53}, "input: an integer"),
        ({"input": "x" * (512 * 1024)}, "input: 524290 bytes"),
        ({"max_loop_steps": 0}, "max_loop_steps: greater_than_equal"),
        ({"tenant": "bank-b"}, "tenant: "),
        ({"activation_target": "a\x00"}, "activation_target: holds a NUL"),
    ],
)
def test_what_the_app_would_refuse_is_refused_here(more: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidRecord) as caught:
        start_of(**more).event()
    assert str(caught.value).startswith(said)
