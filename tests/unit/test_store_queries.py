"""SQL stands in queries.sql, named, and every name is used (DESIGN 17)."""

from __future__ import annotations

import re
from pathlib import Path

import session_custody.store
from session_custody.store.migrator import migrations
from session_custody.store.queries import names, query

STORE = Path(session_custody.store.__file__).parent


def test_every_statement_is_used_and_every_used_one_is_there() -> None:
    source = "\n".join(path.read_text(encoding="utf-8") for path in STORE.glob("*.py"))
    used = {name for name in re.findall(r'"(\w+)"', source) if name in names()}
    assert names() - used == set()
    assert set(re.findall(r'query\("(\w+)"\)', source)) <= names()


def test_no_sql_stands_in_python() -> None:
    verbs = re.compile(r'"\s*(select |insert into|update |delete from|with \w+ as)', re.IGNORECASE)
    found = [
        f"{path.name}: {line.strip()}"
        for path in STORE.glob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if verbs.search(line) and "custody.migration" not in line
    ]
    assert found == []


def test_the_group_commit_can_skip_locked_lanes() -> None:
    """The writer makes the second form by this mark."""
    assert query("commit_group").count("/* skip locked */") == 1


def test_migrations_are_numbered_without_gaps() -> None:
    assert [migration.number for migration in migrations()] == list(range(1, len(migrations()) + 1))
