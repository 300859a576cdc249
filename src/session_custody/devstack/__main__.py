"""`python -m session_custody.devstack [KIND …]`: start servers, print their addresses, stay.

One line of JSON on stdout when all are ready (it holds passwords: give it to a program, not to a log),
progress on stderr. Ends, and ends the servers, when stdin closes or at SIGTERM or SIGINT.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
from collections.abc import Sequence
from typing import Final

from session_custody.devstack.address import KINDS, Kind
from session_custody.devstack.errors import DevStackError
from session_custody.devstack.stack import DevStack

USAGE: Final = 2
FAILED: Final = 1


def chosen(arguments: Sequence[str]) -> list[Kind] | None:
    """The servers named on the command line, all if none is; None for a name that is none."""
    if not set(arguments) <= set(KINDS):
        return None
    return [kind for kind in KINDS if not arguments or kind in arguments]


def until_told(wake: int) -> None:
    """Wait until stdin is at its end or a signal has arrived."""
    while True:
        readable, _, _ = select.select([0, wake], [], [])
        if wake in readable or not os.read(0, 4096):
            return


def main(arguments: Sequence[str]) -> int:
    """Exit code: 0 told to end, 1 a server could not be had, 2 wrong arguments."""
    kinds = chosen(arguments)
    if kinds is None:
        sys.stderr.write(f"usage: python -m session_custody.devstack [{' | '.join(KINDS)}] …\n")
        return USAGE
    told, wake = os.pipe()
    os.set_blocking(wake, False)

    def end(_number: int, _frame: object) -> None:
        os.write(wake, b"x")

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    with DevStack() as stack:
        try:
            addresses = stack.start(kinds)
        except DevStackError as error:
            sys.stderr.write(f"custody dev stack: {error}\n")
            return FAILED
        answer = {
            "kafka": addresses.kafka,
            "postgres_dsn": addresses.postgres_dsn,
            "valkey_url": addresses.valkey_url,
            "origin": dict(addresses.origin),
            "kafka_name": addresses.kafka_name,
            "kafka_version": addresses.kafka_version,
            "phases": stack.phases,
        }
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
        until_told(told)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
