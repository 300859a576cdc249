"""How files look: names, sizes, markers, places, sleeps (DESIGN 17)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.unit.source_tree import (
    ROOT,
    SOURCE,
    called_name,
    lines_that_match,
    parsed,
    python_files,
    relative,
    tracked_files,
)

EMPTY_NAMES = {
    "util",
    "utils",
    "helper",
    "helpers",
    "common",
    "base",
    "manager",
    "service",
    "handler",
    "processor",
}
FILE_LINES_MAX = 450
CROWDED = {"src/session_custody/ports.py": "the page on which all stations meet; it is read as one"}
# Written apart, so that this file does not find itself.
MARKERS = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X|HA" + r"CK)\b")
PLACES = re.compile(
    r"(?<![\w.~])/(wo" + r"rk|fa" + r"rm)/|\.lib" + r"rary/|https?://\S*(py" + r"pi|pythonho" + r"sted|ma"
    r"ven|np" + r"mjs|cra" + r"tes\.io|deb" + r"ian|proxy\.gol" + r"ang)"
)


def test_no_file_and_no_class_has_a_name_that_says_nothing() -> None:
    files = [
        relative(file)
        for file in tracked_files()
        if EMPTY_NAMES & set(re.split(r"[_.\-]", file.stem.lower()))
    ]
    classes = [
        f"{relative(file)}: {node.name}"
        for file in python_files(SOURCE)
        for node in ast.walk(parsed(file))
        if isinstance(node, ast.ClassDef)
        and EMPTY_NAMES & {word.lower() for word in re.findall(r"[A-Z][a-z]+", node.name)}
    ]
    assert files + classes == []


def test_no_source_file_is_crowded() -> None:
    crowded = {
        relative(file): lines
        for file in python_files(SOURCE)
        if (lines := len(file.read_text(encoding="utf-8").splitlines())) > FILE_LINES_MAX
        and relative(file) not in CROWDED
    }
    assert crowded == {}


def test_no_marker_of_unfinished_work_stands_in_a_file() -> None:
    assert lines_that_match(MARKERS, (".py", ".pyi", ".sql", ".md", ".toml", ".yml", ".yaml", ".avsc")) == []


def test_no_file_names_a_registrys_host_or_a_path_of_somebodys_machine() -> None:
    assert lines_that_match(PLACES) == []


def sleeps(file: Path) -> Iterator[str]:
    """Calls of sleep that only pass time: in no loop that asks again, not `sleep(0)`, no reason given."""
    lines = file.read_text(encoding="utf-8").splitlines()
    tree = parsed(file)
    loops = [loop for loop in ast.walk(tree) if isinstance(loop, ast.While | ast.For | ast.AsyncFor)]
    asking_again = {id(node) for loop in loops for node in ast.walk(loop)}
    for node in ast.walk(tree):
        match node:
            case ast.Call(args=[ast.Constant(value=0)]):
                continue
            case ast.Call() if called_name(node) == "sleep" and id(node) not in asking_again:
                if "# sleeps: " not in lines[node.lineno - 1]:
                    yield f"{relative(file)}:{node.lineno}: {lines[node.lineno - 1].strip()}"
            case _:
                pass


def test_no_test_sleeps_to_wait() -> None:
    """A simulated slow tool says so on its line: `# sleeps: the tool is slow`."""
    assert [line for file in python_files(ROOT / "tests") for line in sleeps(file)] == []


def test_a_sleep_that_waits_is_found(tmp_path: Path) -> None:
    file = tmp_path / "sleepy.py"
    file.write_text(
        "time.sleep(1)\n"
        "while not there():\n    time.sleep(0.01)\n"
        "await asyncio.sleep(0)\n"
        "await asyncio.sleep(2)  # sleeps: the tool is slow\n"
    )
    assert list(sleeps(file)) == ["sleepy.py:1: time.sleep(1)"]


def test_every_test_asserts_something() -> None:
    silent = [
        f"{relative(file)}:{node.lineno}: {node.name}"
        for file in python_files(ROOT / "tests")
        for node in ast.walk(parsed(file))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
        and not re.search(r"Assert\(|raises|assert_|check|expect|verify|refused|stays|holds", ast.dump(node))
    ]
    assert silent == []
