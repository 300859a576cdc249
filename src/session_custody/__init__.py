"""custody: the half of an agentic app that holds the run pin, the token, the loop budget and the checkpoint.

The public names are loaded when they are asked for, so that `custody version` does not pay for Kafka.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from session_custody.core.secret import Secret as Secret
    from session_custody.settings import Settings as Settings

# name -> module that has it
PUBLIC: Final = {
    "Custody": "session_custody.wiring",
    "Done": "session_custody.tools",
    "NotFound": "session_custody.tools",
    "Secret": "session_custody.core.secret",
    "Settings": "session_custody.settings",
    "ToolContext": "session_custody.tools",
    "ToolError": "session_custody.tools",
    "tool": "session_custody.tools",
}


def __getattr__(name: str) -> Any:
    module = PUBLIC.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(module), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *PUBLIC})
