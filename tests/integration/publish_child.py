"""A publisher in a process of its own, to be killed or frozen: `python -m … SPEC`.

SPEC is JSON: the world's brokers, name and ledger file, `fault` = `kill|stop:point@n`, further settings. It
acquires the lane and publishes until it is fenced (exit code 0).
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from session_custody import faults
from session_custody.telemetry import configure_logging
from tests.integration.publish_world import Ledger, World, topics_of


def arm(spec: str) -> None:
    """`kill:publication.before@2` or `stop:…`: SIGKILL or SIGSTOP at the second passage."""
    what, _, point = spec.partition(":")
    if what == "kill":
        faults.arm_kill(point)
        return
    name, _, count = point.partition("@")
    left = int(count or "1")

    def freeze(_: Mapping[str, object]) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGSTOP)

    faults.arm(name, freeze)


async def main(spec: Mapping[str, str], settings: Mapping[str, Any]) -> None:
    ledger = Ledger(Path(spec["file"]))
    world = World(spec["brokers"], spec["name"], topics_of(spec["name"]), ledger)
    if spec.get("fault"):
        arm(spec["fault"])
    fence = ledger.acquire()
    await world.publisher(fence, **settings).run(fence)


if __name__ == "__main__":
    configure_logging("json", "WARNING")
    told = json.loads(sys.argv[1])
    asyncio.run(main(told["spec"], told["settings"]))
