"""The jars of Apache Kafka: a committed list, fetched once, each checked whenever a class path is built.

`kafka-jars.tsv` pins all of them (nothing is resolved: a resolver picked another kafka-clients than the
broker's). Each is fetched as one artefact by `jgo`, into a folder of ours beside the final one, so that
neither a half-written file of somebody else's local repository counts, nor do we leave one there.
"""

from __future__ import annotations

import csv
import hashlib
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from session_custody.devstack.cache import Progress, finished
from session_custody.devstack.errors import ExtraMissing, JarRefused, JarsUnavailable

LIST_PATH: Final = Path(__file__).with_name("kafka-jars.tsv")
FETCH_THREADS: Final = 8
FETCH_ATTEMPTS: Final = 3
FETCH_TIMEOUT_S: Final = 30
PIECE_BYTES: Final = 1 << 20
JAR_BYTES_MAX: Final = 64 << 20
KAFKA_GIVEN_BY: Final = "CUSTODY_KAFKA__BOOTSTRAP_SERVERS"


@dataclass(frozen=True, slots=True)
class Jar:
    """One artefact of the list."""

    group: str
    artifact: str
    version: str
    sha256: str
    size_bytes: int

    @property
    def file_name(self) -> str:
        """Its name in a Maven repository, and in ours."""
        return f"{self.artifact}-{self.version}.jar"


Resolve = Callable[[Jar, Path], Path]
"""Fetches one jar into a repository folder and returns its file."""


def kafka_jars(path: Path = LIST_PATH) -> tuple[Jar, ...]:
    """The committed list, in class path order."""
    with path.open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines, delimiter="\t"))
    assert all(row["packaging"] == "jar" and row["classifier"] == "-" for row in rows)
    return tuple(
        Jar(row["group"], row["artifact"], row["version"], row["sha256"], int(row["bytes"])) for row in rows
    )


def kafka_version(jars: tuple[Jar, ...]) -> str:
    """The broker's version: that of its server jar."""
    return next(jar.version for jar in jars if jar.artifact.startswith("kafka_2"))


def fetch_with_jgo(jar: Jar, repository: Path) -> Path:
    """The default `Resolve`: one pinned artefact, no dependency of it."""
    try:
        from jgo.maven import MavenContext
    except ImportError:
        raise ExtraMissing("kafka", "jgo", KAFKA_GIVEN_BY) from None
    context = MavenContext(repo_cache=repository, timeout=FETCH_TIMEOUT_S)
    return context.project(jar.group, jar.artifact).at_version(jar.version).artifact().resolve()


def _digest(path: Path, copy_to: Path | None = None) -> tuple[str, int]:
    """SHA-256 and size of a file; what was hashed is what is copied."""
    digest, size = hashlib.sha256(), 0
    copy = copy_to.open("xb") if copy_to else None
    try:
        with path.open("rb") as source:
            while (piece := source.read(PIECE_BYTES)) and size <= JAR_BYTES_MAX:
                digest.update(piece)
                size += len(piece)
                if copy:
                    copy.write(piece)
    finally:
        if copy:
            copy.close()
    return digest.hexdigest(), size


def _compare(jar: Jar, found: tuple[str, int], cure: str) -> None:
    if found != (jar.sha256, jar.size_bytes):
        what = f"SHA-256 {found[0]} in {found[1]} bytes, not {jar.sha256} in {jar.size_bytes}"
        raise JarRefused(jar.file_name, what, cure)


def _fetch_one(jar: Jar, repository: Path, target: Path, resolve: Resolve) -> None:
    failure = "no answer"
    for _ in range(FETCH_ATTEMPTS):
        try:
            path = resolve(jar, repository)
        except (ExtraMissing, JarRefused):
            raise
        except Exception as error:  # noqa: BLE001 - the resolver has no list of its errors; only its kind is told
            failure = type(error).__name__
            for half in repository.rglob(jar.file_name):
                half.unlink()  # a broken download would else count as fetched
            continue
        _compare(jar, _digest(path, target), "The registry gave something else than what was pinned")
        target.chmod(0o644)
        return
    raise JarsUnavailable(jar.file_name, failure)


def _fill(jars: tuple[Jar, ...], folder: Path, resolve: Resolve, progress: Progress) -> None:
    repository = folder / ".repository"
    total = sum(jar.size_bytes for jar in jars)
    progress(f"fetching Apache Kafka {kafka_version(jars)}: {len(jars)} jars, {total / 1e6:.0f} MB")
    with ThreadPoolExecutor(FETCH_THREADS, thread_name_prefix="custody-jars") as pool:
        fetched = [pool.submit(_fetch_one, jar, repository, folder / jar.file_name, resolve) for jar in jars]
        try:
            for count, one in enumerate(fetched, start=1):
                one.result()
                if count % 15 == 0 or count == len(jars):
                    progress(f"fetched and checked {count} of {len(jars)} jars")
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    shutil.rmtree(repository, ignore_errors=True)


def class_path(
    cache: Path,
    progress: Progress,
    *,
    jars: tuple[Jar, ...] | None = None,
    resolve: Resolve = fetch_with_jgo,
) -> tuple[Path, ...]:
    """The jars as files below `cache`, fetched if need be, every SHA-256 checked now.

    A finished folder asks no registry. Raises JarRefused (named, never used), JarsUnavailable, ExtraMissing.
    """
    wanted = kafka_jars() if jars is None else jars
    pinned = hashlib.sha256("".join(jar.sha256 for jar in wanted).encode()).hexdigest()[:12]
    name = f"kafka-{kafka_version(wanted)}-{pinned}"
    folder = finished(cache, name, lambda partial: _fill(wanted, partial, resolve, progress), progress)
    paths = tuple(folder / jar.file_name for jar in wanted)
    check(wanted, paths)
    return paths


def check(jars: tuple[Jar, ...], paths: tuple[Path, ...]) -> None:
    """Compare every file with the list; raises JarRefused for the first that differs or is missing."""
    for jar, path in zip(jars, paths, strict=True):
        cure = f"Remove the folder {path.parent}; the next start makes it again"
        if not path.is_file():
            raise JarRefused(jar.file_name, "it is missing", cure)
        _compare(jar, _digest(path), cure)
