"""The command `custody`. Sub-commands import what they need when they run: a help page costs no Kafka client.

Standard output is data, standard error is talk and progress. Exit codes are in `output.Exit`.
"""

from __future__ import annotations

import sys
from typing import NoReturn


def main() -> NoReturn:
    """Entry point of the console script. Errors of ours become a line and an exit code, no traceback."""
    from session_custody.cli.output import Exit, complain, exit_code_of
    from session_custody.cli.root import app
    from session_custody.core.errors import CustodyError

    try:
        app()
    except CustodyError as error:
        complain(str(error))
        sys.exit(exit_code_of(error))
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(Exit.OK)
