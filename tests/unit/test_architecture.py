"""The shape of the project, held by tests: imports, what the core may touch, who builds what (DESIGN 17)."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.source_tree import CORE, ROOT, SOURCE, called_name, imports_of, parsed, python_files, relative

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


def test_the_contract_on_the_gate_names_a_module_that_exists() -> None:
    """A renamed module would make the contract true for ever (I12)."""
    tools = SOURCE / "tools"
    assert (tools / "invoke.py").exists() == (tools / "gate.py").exists()


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
