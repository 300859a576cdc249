"""The jars: a committed list, each file checked, one fetch for many processes, none at the second start."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from session_custody.devstack.cache import cache_folder, finished, only_one
from session_custody.devstack.errors import DevStackError, JarRefused, JarsUnavailable
from session_custody.devstack.jars import Jar, check, class_path, kafka_jars, kafka_version

CONTENT = {"kafka_2.13": b"broker", "kafka-clients": b"clients", "log4j-core": b"log"}


def listed() -> tuple[Jar, ...]:
    return tuple(
        Jar("org.example", name, "1.0", hashlib.sha256(content).hexdigest(), len(content))
        for name, content in CONTENT.items()
    )


class Registry:
    """Gives the content of each jar; counts what it was asked for."""

    def __init__(self, wrong: str = "", failures: int = 0) -> None:
        self.asked: list[str] = []
        self.wrong = wrong
        self.failures = failures
        self.lock = threading.Lock()

    def __call__(self, jar: Jar, repository: Path) -> Path:
        with self.lock:
            self.asked.append(jar.artifact)
            if self.failures:
                self.failures -= 1
                raise ConnectionError("down")
        path = repository / jar.artifact / jar.file_name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"something else" if jar.artifact == self.wrong else CONTENT[jar.artifact])
        return path


def offline(jar: Jar, _repository: Path) -> Path:
    raise AssertionError(f"a registry was asked for {jar.artifact}")


def silent(_line: str) -> None:
    """Progress of no interest."""


def test_the_committed_list_is_whole() -> None:
    jars = kafka_jars()
    assert len(jars) == 45
    assert kafka_version(jars) == "4.4.0"
    assert len({jar.file_name for jar in jars}) == 45
    assert all(len(jar.sha256) == 64 and jar.size_bytes > 0 for jar in jars)
    assert {jar.version for jar in jars if jar.group == "org.apache.kafka"} == {"4.4.0"}
    assert "log4j-slf4j2-impl" not in {jar.artifact for jar in jars}  # the wrong binding: it stays silent


def test_jars_are_fetched_once_and_a_second_start_asks_no_registry(tmp_path: Path) -> None:
    registry, lines = Registry(), list[str]()
    paths = class_path(tmp_path, lines.append, jars=listed(), resolve=registry)
    assert [path.read_bytes() for path in paths] == list(CONTENT.values())
    assert sorted(registry.asked) == sorted(CONTENT)
    assert lines[-1] == "fetched and checked 3 of 3 jars"
    assert class_path(tmp_path, silent, jars=listed(), resolve=offline) == paths
    assert {path.name for path in paths[0].parent.iterdir()} == {jar.file_name for jar in listed()}


def test_another_jar_than_the_pinned_one_is_refused_and_named(tmp_path: Path) -> None:
    with pytest.raises(JarRefused, match=r"kafka-clients-1\.0\.jar is refused") as refused:
        class_path(tmp_path, silent, jars=listed(), resolve=Registry(wrong="kafka-clients"))
    assert refused.value.jar == "kafka-clients-1.0.jar"
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


@pytest.mark.parametrize("damage", ["changed", "cut", "grown", "removed"])
def test_a_jar_corrupted_after_the_fetch_is_refused_and_named(tmp_path: Path, damage: str) -> None:
    paths = class_path(tmp_path, silent, jars=listed(), resolve=Registry())
    content = paths[2].read_bytes()
    if damage == "removed":
        paths[2].unlink()
    else:
        paths[2].write_bytes({"changed": b"LOG", "cut": content[:-1], "grown": content + b"x"}[damage])
    with pytest.raises(JarRefused, match=r"log4j-core-1\.0\.jar is refused.*Remove the folder"):
        class_path(tmp_path, silent, jars=listed(), resolve=offline)


def test_a_registry_that_fails_twice_is_asked_again(tmp_path: Path) -> None:
    paths = class_path(tmp_path, silent, jars=listed()[:1], resolve=Registry(failures=2))
    assert paths[0].read_bytes() == b"broker"


def test_a_registry_that_stays_away_is_an_error_that_names_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(JarsUnavailable, match="CUSTODY_KAFKA__BOOTSTRAP_SERVERS"):
        class_path(tmp_path, silent, jars=listed(), resolve=Registry(failures=1000))
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_check_names_the_first_that_differs(tmp_path: Path) -> None:
    wanted = listed()
    for jar in wanted:
        (tmp_path / jar.file_name).write_bytes(b"wrong")
    with pytest.raises(JarRefused, match="kafka_2"):
        check(wanted, tuple(tmp_path / jar.file_name for jar in wanted))


def test_what_a_dead_process_left_half_made_is_made_anew(tmp_path: Path) -> None:
    (tmp_path / ".partial-thing").mkdir()
    (tmp_path / ".partial-thing/half").write_text("half")
    place = finished(tmp_path, "thing", lambda partial: (partial / "whole").touch(), silent)
    assert [path.name for path in place.iterdir()] == ["whole"]


def test_a_second_process_waits_for_the_first_and_is_told_so(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from session_custody.devstack.cache import only_one\n"
        "with only_one(Path(sys.argv[1]), print):\n"
        "    print('held', flush=True); sys.stdin.read()\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    waits = threading.Event()
    lines: list[str] = []

    def told(line: str) -> None:
        lines.append(line)
        waits.set()

    def second() -> None:
        with only_one(tmp_path, told):
            lines.append("entered")

    thread = threading.Thread(target=second)
    thread.start()
    assert waits.wait(10)
    assert lines == [f"waiting for process {holder.pid}, which fills {tmp_path}"]
    holder.communicate(input="")
    thread.join(10)
    assert lines[-1] == "entered"


def test_many_at_once_fetch_each_jar_once(tmp_path: Path) -> None:
    registry = Registry()
    threads = [
        threading.Thread(
            target=class_path, args=(tmp_path, silent), kwargs={"jars": listed(), "resolve": registry}
        )
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(registry.asked) == sorted(CONTENT)


def test_a_cache_that_cannot_be_made_names_its_setting(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DevStackError, match="CUSTODY_DEVSTACK__CACHE"):
        class_path(tmp_path / "file/cache", silent, jars=listed(), resolve=offline)


def test_the_cache_folder_is_the_setting_then_xdg_then_home() -> None:
    assert cache_folder({"CUSTODY_DEVSTACK__CACHE": "/c", "XDG_CACHE_HOME": "/x"}) == Path("/c")
    assert cache_folder({"XDG_CACHE_HOME": "/x", "HOME": "/h"}) == Path("/x/session-custody")
    assert cache_folder({"XDG_CACHE_HOME": "relative", "HOME": "/h"}) == Path("/h/.cache/session-custody")
    assert cache_folder({}).name == "session-custody"
    assert os.path.isabs(cache_folder({}))  # noqa: PTH117 - a string of the platform
