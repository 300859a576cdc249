"""`custody serve` with hooks that only a test wants: `python -m tests.crash.armed serve …`.

`CRASH_COUNT=FILE`: count every passage of every fault point; the file holds the counts as JSON at the end.
`CRASH_STOP=point@n`: SIGSTOP at the n-th passage.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from session_custody import faults
from session_custody.cli import main


def count(file: Path) -> None:
    passages: Counter[str] = Counter()
    lock = threading.Lock()

    def counter(point: str) -> faults.Hook:
        def one_more(_: Mapping[str, object]) -> None:
            with lock:
                passages[point] += 1

        return one_more

    for point in faults.POINTS:
        faults.arm(point, counter(point))
    atexit.register(lambda: file.write_text(json.dumps(passages), encoding="utf-8"))


def stop(spec: str) -> None:
    point, _, number = spec.partition("@")
    left = int(number or "1")
    lock = threading.Lock()

    def freeze(_: Mapping[str, object]) -> None:
        nonlocal left
        with lock:
            left -= 1
            due = left == 0
        if due:
            os.kill(os.getpid(), signal.SIGSTOP)

    faults.arm(point, freeze)


if __name__ == "__main__":
    if counts := os.environ.pop("CRASH_COUNT", None):
        count(Path(counts))
    if point := os.environ.pop("CRASH_STOP", None):
        stop(point)
    main()
