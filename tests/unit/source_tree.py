"""The project's files as tests read them."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "session_custody"
CORE = SOURCE / "core"


def tracked_files() -> list[Path]:
    """What git knows and what still stands; in an unpacked source archive everything."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode == 0 and listed.stdout:
        return [file for name in listed.stdout.split("\0") if name and (file := ROOT / name).is_file()]
    return [
        file
        for file in ROOT.rglob("*")
        if file.is_file() and not any(part.startswith(".") for part in file.relative_to(ROOT).parts)
    ]


def python_files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*.py") if "__pycache__" not in file.parts)


def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"), filename=str(file))


def relative(file: Path) -> str:
    return file.relative_to(ROOT).as_posix() if file.is_relative_to(ROOT) else file.name


def imports_of(file: Path) -> Iterator[str]:
    for node in ast.walk(parsed(file)):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=module, level=level):
                yield "session_custody." if level else str(module)
            case _:
                pass


def called_name(node: ast.expr) -> str:
    """The last word of `a.b.c` or of `a.b.c(…)`."""
    match node.func if isinstance(node, ast.Call) else node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""


def lines_that_match(pattern: re.Pattern[str], suffixes: tuple[str, ...] = ()) -> list[str]:
    found = []
    for file in tracked_files():
        if suffixes and file.suffix not in suffixes:
            continue
        try:
            text = file.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # a picture or a recorded record
        found += [
            f"{relative(file)}:{number}: {line.strip()[:100]}"
            for number, line in enumerate(text.splitlines(), start=1)
            if pattern.search(line)
        ]
    return found
