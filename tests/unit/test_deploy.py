"""docker-compose.yml and the Dockerfile agree with the project. They are read, not run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from session_custody.settings import Settings

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
    return document


def test_the_servers_come_up_alone_and_the_worker_only_with_the_demo(compose: dict[str, Any]) -> None:
    services = compose["services"]
    assert {name for name, service in services.items() if not service.get("profiles")} == {
        "kafka",
        "postgres",
        "valkey",
    }
    assert services["worker"]["profiles"] == services["prepare"]["profiles"] == ["demo"]


def test_nothing_listens_beyond_this_machine(compose: dict[str, Any]) -> None:
    ports = [port for service in compose["services"].values() for port in service.get("ports", [])]
    assert ports != []
    assert all(str(port).startswith("127.0.0.1:") for port in ports)


def test_every_variable_of_the_worker_is_a_setting(compose: dict[str, Any]) -> None:
    environ = compose["services"]["worker"]["environment"]
    plain = {name: re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", value) for name, value in environ.items()}
    settings = Settings.load(plain)
    assert settings.kafka.bootstrap_servers == "kafka:29092"
    assert settings.http.host == "0.0.0.0"


def test_the_worker_has_longer_to_stop_than_it_needs_to_drain(compose: dict[str, Any]) -> None:
    grace = compose["services"]["worker"]["stop_grace_period"]
    assert float(grace.removesuffix("s")) > Settings().drain_budget_s


def test_no_password_stands_in_the_file(compose: dict[str, Any]) -> None:
    said = [
        value
        for service in compose["services"].values()
        for name, value in service.get("environment", {}).items()
        if "PASSWORD" in name
    ]
    assert said != []
    assert all(value.startswith("${") for value in said)


def test_what_the_image_copies_is_there_and_is_not_hidden_from_the_build() -> None:
    lines = (ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8").splitlines()
    copied = [part for line in lines if re.match(r"COPY (?!--from)", line) for part in line.split()[1:-1]]
    let_in = {
        line[1:] for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").split() if line[0] == "!"
    }
    assert set(copied) == let_in
    assert [name for name in copied if not (ROOT / name).exists()] == []


def test_the_image_runs_as_nobody_special_and_without_a_shell() -> None:
    text = (ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8")
    last_stage = text.rsplit("\nFROM ", 1)[1]
    assert "USER 10001" in last_stage
    assert 'ENTRYPOINT ["custody"]' in last_stage
