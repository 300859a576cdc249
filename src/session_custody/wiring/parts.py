"""Single parts, made from settings: what commands need, and what the worker begins with."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final

from session_custody.core.errors import SettingsError
from session_custody.intake.topic import AdminInputTopic
from session_custody.models import HttpModel, ScriptedModel
from session_custody.ports import ModelClient
from session_custody.publish import Topics
from session_custody.publish.topics import TopicAdmin, Wanted
from session_custody.settings import PostgresSettings, Settings, needed
from session_custody.store import Migrator, PostgresStore
from session_custody.wire import Ed25519Signer

PASSWORD_COMMAND_S: Final = 10.0

Password = Callable[[], str]


def password_of(postgres: PostgresSettings) -> Password | None:
    """How the password is found at every connect, when the DSN does not hold it."""
    if (file := postgres.password_file) is not None:
        return lambda: _read(file)
    if (command := postgres.password_command) is not None:
        return lambda: _run(tuple(command))
    return None


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").removesuffix("\n")
    except OSError as error:
        problem = f"the file cannot be read ({type(error).__name__})"
    raise SettingsError("CUSTODY_POSTGRES__PASSWORD_FILE", problem)


def _run(command: tuple[str, ...]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, timeout=PASSWORD_COMMAND_S, check=True, text=True)
    except (OSError, subprocess.SubprocessError) as error:
        problem = f"the command failed ({type(error).__name__})"
    else:
        return done.stdout.removesuffix("\n")
    raise SettingsError("CUSTODY_POSTGRES__PASSWORD_COMMAND", problem)


def _dsn(settings: Settings, *, direct: bool) -> str:
    postgres = settings.postgres
    secret = postgres.direct_dsn if direct and postgres.direct_dsn is not None else postgres.dsn
    return needed(secret, "postgres", "dsn").reveal("postgres connection")


async def open_store(settings: Settings) -> PostgresStore:
    """Connect to Postgres. Raises Unavailable, SettingsError."""
    return await PostgresStore.open(
        _dsn(settings, direct=False),
        direct_dsn=_dsn(settings, direct=True),
        password=password_of(settings.postgres),
    )


def migrator(settings: Settings) -> Migrator:
    """Migrations go to the database itself, never through a transaction pooler."""
    return Migrator(_dsn(settings, direct=True), password=password_of(settings.postgres))


def topics_of(settings: Settings) -> Topics:
    names = settings.kafka.topics
    return Topics(
        steps=names.steps, outcomes=names.outcomes, dead_letters=names.dead_letters, cursors=names.cursors
    )


def topic_admin(settings: Settings) -> TopicAdmin:
    """Creates and checks topics. Blocking calls; for commands, not for the event loop."""
    kafka = settings.kafka
    wanted = Wanted(kafka.topics.runs, topics_of(settings), kafka.partitions, kafka.replication_factor)
    return TopicAdmin(kafka.connection_options(), wanted)


def input_topic(settings: Settings) -> AdminInputTopic:
    return AdminInputTopic(settings.kafka.connection_options, settings.kafka.topics.runs)


def cluster_id(settings: Settings) -> str:
    """The id that the brokers answer with. Blocks; not on the event loop."""
    return asyncio.run(input_topic(settings).cluster_id())


def signer_of(settings: Settings) -> Ed25519Signer:
    """There is no unsigned mode: without a key a worker does not start (DESIGN 7)."""
    return Ed25519Signer.from_pem_file(needed(settings.audit.signing_key_file, "audit", "signing_key_file"))


def model_of(settings: Settings) -> ModelClient:
    model = settings.model
    if model.kind == "scripted":
        return ScriptedModel.from_file(needed(model.scripted_file, "model", "scripted_file"))
    return HttpModel(needed(model.url, "model", "url"), model.api_key, served=model.profiles)
