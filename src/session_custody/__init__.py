"""custody: the half of an agentic app that holds the run pin, the token, the loop budget and the checkpoint.

The public names are loaded when they are asked for, so that `custody version` does not pay for Kafka.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from session_custody.core.secret import Secret as Secret
    from session_custody.settings import Settings as Settings

# name -> module that defines it
_PUBLIC: Final = {
    "Secret": "session_custody.core.secret",
    "Settings": "session_custody.settings",
}

__all__ = ["Secret", "Settings"]


def __getattr__(name: str) -> Any:
    module = _PUBLIC.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(module), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
