"""The reference of all settings as a page for people: docs/settings.md is this text, and a test says so."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from session_custody.settings.environment import (
    ALLOW_UNKNOWN,
    CONFIG_FILE,
    NESTING,
    PREFIX,
    SECRETS_DIR,
    SettingRow,
)

_OPENING: Final = f"""\
# Settings

Made by `python -m session_custody.settings`; a test compares it with the code.

A setting has one name everywhere: `{PREFIX}` and its place, `{NESTING}` between levels. The same place in a
TOML file is `[kafka]` and `group = "…"`. What wins, strongest first: an option of the command, the
environment, the secrets folder, the file, the default. An empty variable counts as not set. A wrong value
stops the start: the error names the variable and never its value.

- `{CONFIG_FILE}`: the TOML file.
- `{SECRETS_DIR}`: a folder of mounted files, each named like the variable it stands for, in either case.
- `{ALLOW_UNKNOWN}`: `true` lets a `{PREFIX}…` variable pass that is no setting; otherwise it stops the start.
- `DATABASE_URL`, or `PGHOST` and the other variables of libpq, stand in for `CUSTODY_POSTGRES__DSN`.
"""


def reference_page(rows: Iterable[SettingRow]) -> str:
    """One table per section."""
    parts = [_OPENING]
    section: str | None = None
    for row in rows:
        first, nested, _ = row.variable.removeprefix(PREFIX).partition(NESTING)
        here = first.lower() if nested else "custody"
        if here != section:
            section = here
            parts.append(f"\n## {here}\n\n| variable | what it is | default | |\n|---|---|---|---|\n")
        default = f"`{row.default}`" if row.default and " " not in row.default else row.default
        parts.append(f"| `{row.variable}` | {row.kind} | {default} | {row.text} |\n")
    return "".join(parts)
