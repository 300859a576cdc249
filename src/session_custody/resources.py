"""Where the schemas and the examples are: in the wheel inside the package, in a checkout beside `src/`.

In the wheel they are ordinary files (DESIGN 17: schemas, SQL and examples travel in the wheel), so a `Path`
will do and may be handed to another program.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

_PACKAGE: Final = Path(__file__).resolve().parent
_CHECKOUT: Final = _PACKAGE.parent.parent


def schemas_dir() -> Path:
    """The folder with the wire contracts (`*.avsc`)."""
    return _find("schemas")


def examples_dir() -> Path:
    """The folder with the runnable examples."""
    return _find("examples")


def _find(name: str) -> Path:
    in_wheel = _PACKAGE / name
    if in_wheel.is_dir():
        return in_wheel
    # Editable: src/session_custody is two levels below the checkout. Only there does pyproject.toml stand
    # above us; without that proof a stranger's folder of the same name beside site-packages could answer.
    in_checkout = _CHECKOUT / name
    if (_CHECKOUT / "pyproject.toml").is_file() and in_checkout.is_dir():
        return in_checkout
    raise FileNotFoundError(f"session_custody is installed without its {name}")
