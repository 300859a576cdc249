"""custody: the half of an agentic app that holds the run pin, the token, the loop budget and the checkpoint.

The public names are loaded when they are asked for, so that `custody version` does not pay for Kafka.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from session_custody.core.secret import Secret as Secret
    from session_custody.settings import Settings as Settings
    from session_custody.tools.context import Done as Done
    from session_custody.tools.context import NotFound as NotFound
    from session_custody.tools.context import ToolContext as ToolContext
    from session_custody.tools.context import ToolError as ToolError
    from session_custody.tools.declare import tool as tool

# name -> module that has it
PUBLIC: Final = {
    "Custody": "session_custody.wiring",
    "Done": "session_custody.tools.context",
    "NotFound": "session_custody.tools.context",
    "Secret": "session_custody.core.secret",
    "Settings": "session_custody.settings",
    "ToolContext": "session_custody.tools.context",
    "ToolError": "session_custody.tools.context",
    "tool": "session_custody.tools.declare",
}


def __getattr__(name: str) -> Any:
    module = PUBLIC.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(module), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *PUBLIC})
