"""The outside world of a rig, in the test's own process: a model gateway by script, and the bank.

A test can hold any answer (`hold`), make the model fail for one run (`down`), and see every write (`writes`).
Keys of holds: `model RUN LOOP_STEP` and `METHOD PATH`.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from tests.unit.http_server import Answer, Asked, http_server

HELD_S: Final = 60.0
DESIGN_ACCOUNTS: Final = {"alert-88421": "acct-4412"}

Turn = Mapping[str, Any]
"""A chat message of the assistant."""


def calls(*wanted: tuple[str, Mapping[str, Any] | str], say: str | None = None) -> Turn:
    """A proposal of tool calls; arguments as text are sent as they are."""
    return {
        "role": "assistant",
        "content": say,
        "tool_calls": [
            {
                "id": f"c{place}",
                "type": "function",
                "function": {
                    "name": name,
                    "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments),
                },
            }
            for place, (name, arguments) in enumerate(wanted)
        ],
    }


def says(text: str) -> Turn:
    """A final answer."""
    return {"role": "assistant", "content": text}


@dataclass
class Hold:
    """One answer that waits for the test."""

    arrived: threading.Event = field(default_factory=threading.Event)
    go: threading.Event = field(default_factory=threading.Event)


class Bench:
    """Answers of the model and of the bank. Thread-safe enough: values are set before a run is started."""

    def __init__(self) -> None:
        self.url = ""
        self.scripts: dict[str, Sequence[Turn]] = {}
        self.down: set[str] = set()
        self.writes: list[tuple[str, str]] = []
        """(path, idempotency key) of every write as it landed."""
        self.told: dict[str, list[list[dict[str, Any]]]] = {}
        """Per run, the messages of each asking of the model."""
        self._holds: dict[str, Hold] = {}

    @contextmanager
    def serving(self) -> Iterator[Bench]:
        with http_server(self._answer) as server:
            self.url = server.url
            try:
                yield self
            finally:
                for hold in self._holds.values():
                    hold.go.set()

    @contextmanager
    def hold(self, key: str) -> Iterator[Hold]:
        """Hold every answer of this key until `go` is set or the block ends."""
        self._holds[key] = hold = Hold()
        try:
            yield hold
        finally:
            self._holds.pop(key, None)
            hold.go.set()

    def _wait(self, key: str) -> None:
        hold = self._holds.get(key)
        if hold is not None:
            hold.arrived.set()
            hold.go.wait(HELD_S)

    def _answer(self, asked: Asked) -> Answer:
        if asked.path == "/v1/chat/completions":
            return self._model(asked)
        if asked.method == "POST":
            key = asked.headers.get("idempotency-key") or str(asked.body.get("key"))
            self.writes.append((asked.path, key))  # it lands before anybody holds its answer
            self._wait(f"POST {asked.path}")
            return Answer(body={"id": f"w-{len(self.writes)}"})
        self._wait(f"GET {asked.path}")
        alert_id = asked.path.rsplit("/", 1)[-1]
        if alert_id.startswith("missing"):
            return Answer(404)
        account = DESIGN_ACCOUNTS.get(alert_id, f"acct-of-{alert_id}")
        return Answer(body={"id": alert_id, "account": {"id": account}})

    def _model(self, asked: Asked) -> Answer:
        run_id, step = asked.headers["x-custody-run-id"], int(asked.headers["x-custody-loop-step"])
        self.told.setdefault(run_id, []).append(asked.body["messages"])
        self._wait(f"model {run_id} {step}")
        if run_id in self.down:
            return Answer(503)
        turns = self.scripts.get(run_id, [says("nothing to do")])
        message = turns[min(step, len(turns)) - 1]
        return Answer(body={"choices": [{"index": 0, "message": dict(message), "finish_reason": "stop"}]})
