"""The shape of the project, held by tests: imports, what the core may touch, how files look (DESIGN 17)."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "session_custody"
CORE = SOURCE / "core"


# --- contracts on imports -----------------------------------------------------------------------------------


LINT_IMPORTS = "from importlinter.cli import lint_imports_command; lint_imports_command()"


def lint_imports(source: Path) -> subprocess.CompletedProcess[str]:
    """Run import-linter with our contracts on the package below `source`."""
    return subprocess.run(
        [sys.executable, "-c", LINT_IMPORTS, "--no-cache", "--config", str(ROOT / "pyproject.toml")],
        cwd=source,
        env={**os.environ, "PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_the_contracts_on_imports_are_kept() -> None:
    result = lint_imports(ROOT / "src")
    assert result.returncode == 0, result.stdout
    assert "0 broken" in result.stdout


@pytest.fixture(scope="module")
def copied_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package in which every forbidden import of `FORBIDDEN` has been written."""
    copy = tmp_path_factory.mktemp("copy")
    shutil.copytree(SOURCE, copy / "session_custody", ignore=shutil.ignore_patterns("__pycache__"))
    for station in ("intake", "lanes", "store", "route", "tools"):
        package = copy / "session_custody" / station
        package.mkdir(exist_ok=True)
        (package / "__init__.py").touch()
    (copy / "session_custody" / "tools" / "invoke.py").touch()
    for module, imported, _ in FORBIDDEN:
        file = copy / "session_custody" / module
        file.write_text((file.read_text() if file.exists() else "") + f"\nimport {imported}\n")
    return copy


FORBIDDEN = [
    (
        "intake/smuggled.py",
        "session_custody.lanes",
        "session_custody.intake.smuggled -> session_custody.lanes",
    ),
    ("lanes/smuggled.py", "psycopg", "session_custody.lanes.smuggled -> psycopg"),
    ("store/smuggled.py", "redis", "session_custody.store.smuggled -> redis"),
    (
        "tools/smuggled.py",
        "session_custody.tools.invoke",
        "session_custody.tools.smuggled -> session_custody.tools.invoke",
    ),
    ("core/smuggled.py", "orjson", "session_custody.core.smuggled -> orjson"),
    ("core/upwards.py", "session_custody.ports", "session_custody.core.upwards -> session_custody.ports"),
    ("ports.py", "session_custody.settings", "session_custody.ports -> session_custody.settings"),
    ("nowhere.py", "json", "session_custody.nowhere"),
]


@pytest.fixture(scope="module")
def findings(copied_source: Path) -> str:
    result = lint_imports(copied_source)
    assert result.returncode == 1, result.stdout
    return " ".join(result.stdout.split())


@pytest.mark.parametrize(("module", "imported", "finding"), FORBIDDEN, ids=[case[0] for case in FORBIDDEN])
def test_a_forbidden_import_in_a_copy_is_caught(
    module: str, imported: str, finding: str, findings: str
) -> None:
    assert finding in findings, f"{module} may import {imported} unseen"


def test_the_judge_of_the_demo_imports_nothing_of_ours() -> None:
    judges = (SOURCE / "demo").glob("checker*.py")
    ours = [
        f"{file.name}: {name}"
        for file in judges
        for name in imports_of(file)
        if name.startswith("session_custody")
    ]
    assert ours == []


def test_only_the_stripper_builds_what_reaches_a_model() -> None:
    builders = {
        relative(file)
        for file in python_files(SOURCE)
        for node in ast.walk(parsed(file))
        if isinstance(node, ast.Call) and called_name(node) == "InferenceRequest"
    }
    assert builders <= {"src/session_custody/core/inference.py"}


# --- the core touches nothing -------------------------------------------------------------------------------

# rfc8785 is a pure function; a second canonical form of our own would be a second truth.
CORE_PACKAGES = {"pydantic", "pydantic_core", "annotated_types", "rfc8785"}
IMPURE_MODULES = {
    *(
        "asyncio",
        "concurrent",
        "ctypes",
        "fileinput",
        "ftplib",
        "getpass",
        "glob",
        "http",
        "io",
        "logging",
        "mmap",
    ),
    *(
        "multiprocessing",
        "os",
        "pathlib",
        "pickle",
        "platform",
        "queue",
        "random",
        "sched",
        "secrets",
        "select",
    ),
    *(
        "selectors",
        "shelve",
        "shutil",
        "signal",
        "smtplib",
        "socket",
        "socketserver",
        "sqlite3",
        "ssl",
        "subprocess",
    ),
    *("sys", "tempfile", "threading", "time", "urllib", "uuid", "warnings", "webbrowser"),
}
PURE_PARTS = {"uuid": {"UUID"}, "urllib": {"urllib.parse"}}
IMPURE_CALLS = {"open", "print", "input", "exec", "eval", "__import__", "breakpoint"}
IMPURE_METHODS = {"getenv", "environ", "uuid1", "uuid4", "urandom", "perf_counter", "monotonic"}


def test_core_imports_only_the_standard_library_and_pydantic() -> None:
    foreign = [
        f"{relative(file)}: {name}"
        for file in python_files(CORE)
        for name in imports_of(file)
        if (top := name.partition(".")[0]) not in sys.stdlib_module_names | CORE_PACKAGES | {"__future__"}
        and not (top == "session_custody" and name.startswith("session_custody.core"))
    ]
    assert foreign == []


def impurities(file: Path) -> Iterator[str]:
    """Places where this file reads a clock, the environment, chance, a file or a log, or could."""
    for node in ast.walk(parsed(file)):
        place = f"{relative(file)}:{getattr(node, 'lineno', 0)}"
        match node:
            case ast.Import(names=names):
                for alias in names:
                    if alias.name not in PURE_PARTS.get(alias.name.partition(".")[0], set()) and impure(
                        alias.name
                    ):
                        yield f"{place} imports {alias.name}"
            case ast.ImportFrom(module=str(module), names=names) if impure(module):
                pure = PURE_PARTS.get(module.partition(".")[0], set())
                if module not in pure and not {alias.name for alias in names} <= pure:
                    yield f"{place} imports from {module}"
            case ast.Call(func=ast.Name(id=name)) if name in IMPURE_CALLS:
                yield f"{place} calls {name}"
            case ast.Attribute(attr="now" | "utcnow" | "today" as name, value=owner) if clock_like(owner):
                yield f"{place} uses .{name}"
            case ast.Attribute(attr=name) if name in IMPURE_METHODS:
                yield f"{place} uses .{name}"
            case _:
                pass


def clock_like(owner: ast.expr) -> bool:
    """`datetime.now` reads the clock; `facts.now` is a value that came in."""
    return isinstance(owner, ast.Name | ast.Attribute) and called_name(owner) in {"datetime", "date"}


def impure(module: str) -> bool:
    return module.partition(".")[0] in IMPURE_MODULES


def test_core_reads_no_clock_no_environment_no_chance_no_file_and_no_log() -> None:
    assert [finding for file in python_files(CORE) for finding in impurities(file)] == []


@pytest.mark.parametrize(
    "line",
    [
        "import time",
        "import os.path",
        "from random import choice",
        "from datetime import datetime\nhere = datetime.now()",
        "from uuid import uuid4",
        "import logging as quiet",
        "text = open('x').read()",
        "from urllib.request import urlopen",
    ],
)
def test_an_impure_line_is_found(tmp_path: Path, line: str) -> None:
    file = tmp_path / "impure.py"
    file.write_text(line)
    assert list(impurities(file)) != []


def test_pure_parts_of_impure_modules_are_allowed(tmp_path: Path) -> None:
    file = tmp_path / "pure.py"
    file.write_text("from uuid import UUID\nimport urllib.parse\nfrom urllib.parse import quote\n")
    assert list(impurities(file)) == []


EXERCISE = """
import importlib, pkgutil, sys
import session_custody.core as core
for module in pkgutil.walk_packages(core.__path__, "session_custody.core."):
    importlib.import_module(module.name)

from datetime import datetime, timezone
from session_custody.core import canonical, errors, events, inference, pin, run, secret, trace

"".encode("utf_16_be")          # the interpreter loads a codec's module at its first use; rfc8785 sorts by it
touched = []
def watch(event, arguments):
    if event.split(".")[0] in {"open", "socket", "subprocess", "os", "shutil", "time", "ctypes", "import"}:
        touched.append((event, arguments[0]))
sys.addaudithook(watch)

document = canonical.accept('{"b": [1, 2.5, "x"], "a": null}')
canonical.digest(canonical.tame({"n": float("nan"), "d": document}))
pinned = pin.SentPin(route_id="r", route_table_version="1", model_profile="m", max_loop_steps=3)
events.RunStart(correlation_id="run-1", subject=pin.Subject(id="u"), pin=pinned, input="{}",
                expires_at=datetime(2026, 8, 15, tzinfo=timezone.utc)).model_dump_json()
try:
    pin.SentPin.model_validate({"route_id": ""})
except ValueError as error:
    str(error)
for before in run.Status:
    for after in run.Status:
        try:
            run.check_transition(before, after)
        except errors.InvariantBroken:
            pass
fields = trace.TraceFields("s", "run-1", "run-1", "r", "1", None, None, "m", "loop", 1, 3)
inference.build_request(instructions="i", messages=(inference.UserText("t"),), tools=None, model_profile="m",
                        model_target=None, timeout_s=1.0, trace=fields, mask=lambda text: text)
repr(secret.Secret("x")), secret.Secret("x") == secret.Secret("y"), secret.Secret("x").reveal("test")
assert touched == [], touched

open("/dev/null").close()       # the watch itself works
assert touched == [("open", "/dev/null")], touched
"""


def test_core_at_work_opens_nothing() -> None:
    result = subprocess.run(
        [sys.executable, "-c", EXERCISE],
        cwd=ROOT / "src",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr


# --- tidy ---------------------------------------------------------------------------------------------------

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
    """Calls of sleep that only pass the time: not in a loop that asks again, not `sleep(0)`, no reason given."""
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


# --- reading ------------------------------------------------------------------------------------------------


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
