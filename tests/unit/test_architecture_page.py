"""ARCHITECTURE.md is true: the tests and files that it names are there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")


def test_every_invariant_has_tests_and_they_exist() -> None:
    section = PAGE.split("<!-- invariants -->")[1].split("<!-- end -->")[0]
    rows = re.findall(r"^\| (I\d+) .*?\| (.*) \|$", section, re.MULTILINE)
    assert [name for name, _ in rows] == [f"I{number}" for number in range(1, 17)]
    sources = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py"))
    named = [test for _, tests in rows for test in re.findall(r"`(\w+)`", tests)]
    assert [
        test
        for test in named
        if not re.search(rf"^\s*(?:async )?(?:def |class |){test}\b", sources, re.MULTILINE)
    ] == []
    assert all("`" in tests for _, tests in rows)


def test_every_module_that_the_page_names_exists() -> None:
    package = ROOT / "src/session_custody"
    named = set(re.findall(r"`((?:\w+/)*\w+\.py|\w+/)`", PAGE.split("## 5.")[0]))
    named -= {"tests/", "examples/", "docs/", "deploy/", "benchmarks/", "schemas/", "src/"}
    missing = [name for name in named if not (package / name).exists() and not list(package.rglob(name))]
    assert missing == []
