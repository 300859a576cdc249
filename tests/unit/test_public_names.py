"""What `from session_custody import …` gives, and what it costs."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import pytest

import session_custody


@pytest.mark.parametrize("name", sorted(session_custody.PUBLIC))
def test_a_public_name_is_what_its_module_has(name: str) -> None:
    module = session_custody.PUBLIC[name]
    if find_spec(module) is None or find_spec(module).origin is None:  # type: ignore[union-attr]
        pytest.skip(f"{module} is not written yet")
    assert getattr(session_custody, name) is getattr(sys.modules[module], name)
    assert name in dir(session_custody)


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Costody'"):
        _ = session_custody.Costody


def test_importing_the_package_loads_no_driver() -> None:
    asked = "import sys, session_custody; print(*(m for m in sys.modules if m.partition('.')[0] in {!r}))"
    heavy = {"confluent_kafka", "psycopg", "redis", "pydantic", "structlog", "fastavro", "httpx"}
    result = subprocess.run(
        [sys.executable, "-c", asked.format(heavy)], capture_output=True, text=True, timeout=60, check=True
    )
    assert result.stdout.strip() == ""
