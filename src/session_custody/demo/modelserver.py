"""A model gateway of the demo's own: OpenAI-compatible, deterministic in what it wants, not in how it says
it.

Run it with `python -m session_custody.demo.modelserver --port 0`. It prints `{"port": …}` and serves until
standard input closes. Asked twice for the same turn it varies text and call ids, never which tools it calls:
what a real model may do after a crash must not matter.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from session_custody.demo.sideserver import serve

WORDS = ("Let me look.", "Checking.", "One moment.", "I will look into it.", "Next.")


class Model:
    def __init__(self, think_s: float, log: Path | None) -> None:
        self.think_s = think_s
        self.asked = itertools.count(1)
        self.log = log.open("a", encoding="utf-8", buffering=1) if log else None

    async def complete(self, request: Request) -> JSONResponse:
        body = await request.json()
        number = next(self.asked)
        if self.log is not None:
            self.log.write(
                json.dumps({"run_id": request.headers.get("x-custody-run-id"), "body": body}) + "\n"
            )
        await asyncio.sleep(self.think_s * random.uniform(0.5, 1.5))  # noqa: S311 - a delay
        tools = {tool["function"]["name"] for tool in body.get("tools", ())}
        turn = sum(1 for part in body["messages"] if part["role"] == "assistant") + 1
        text, calls = self._turn(turn, tools, body["messages"], number)
        reply: dict[str, Any] = {"role": "assistant", "content": text}
        if calls:
            reply["tool_calls"] = [
                {
                    "id": f"call_{number}_{place}",
                    "type": "function",
                    "function": {"name": name, "arguments": json.dumps(arguments)},
                }
                for place, (name, arguments) in enumerate(calls)
            ]
        choice = {"index": 0, "message": reply, "finish_reason": "tool_calls" if calls else "stop"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        return JSONResponse(
            {"id": f"c-{number}", "object": "chat.completion", "choices": [choice], "usage": usage}
        )

    def _turn(
        self, turn: int, tools: set[str], messages: list[dict[str, Any]], number: int
    ) -> tuple[str, list[tuple[str, dict[str, Any]]]]:
        words = WORDS[number % len(WORDS)]
        alert = _alert(messages)
        account = "acct-" + alert.removeprefix("alert-")
        if not tools:
            return f"Nothing to call. ({number})", []
        if turn == 1:
            return words, [("get_alert", {"alert_id": alert})]
        if turn == 2:  # two reads in one proposal
            reads = [("get_account", {"account_id": account}), ("list_transactions", {"account_id": account})]
            return words, reads
        if turn == 3:
            write = next(name for name in ("add_note", "file_note") if name in tools)
            return words, [
                (write, {"alert_id": alert, "text": "Velocity rule, medium risk: watch the account."})
            ]
        return f"The alert {alert} is noted. (said the {number}th time)", []


def _alert(messages: list[dict[str, Any]]) -> str:
    first = next(part["content"] for part in messages if part["role"] == "user")
    try:
        return str(json.loads(first)["alert_id"])
    except (ValueError, KeyError, TypeError):
        return "alert-0"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--port", type=int, default=0)
    arguments.add_argument("--think-s", type=float, default=0.1)
    arguments.add_argument("--log", type=Path)
    given = arguments.parse_args()
    model = Model(given.think_s, given.log)
    serve(Starlette(routes=[Route("/v1/chat/completions", model.complete, methods=["POST"])]), given.port)


if __name__ == "__main__":
    main()
