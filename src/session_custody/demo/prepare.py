"""Bring a fresh installation up: keys, schema, topics, contracts, and the settings that a worker needs.

`custody demo` and `custody dev` both begin so; in production the same are `custody db migrate`, `topics
create`, `contract publish` and a mounted key.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from session_custody.contracts import publish
from session_custody.devstack import Addresses
from session_custody.resources import examples_dir
from session_custody.settings import Settings
from session_custody.store import PostgresStore
from session_custody.wire import generate_signing_key
from session_custody.wiring import migrator, open_store, topic_admin

NEWER_VERSION = "2026.11.0"
"""Published by the demo while runs are under way: what is newest must not matter to them."""


@dataclass(frozen=True, slots=True)
class Installation:
    """Where it is, and the environment that a worker of it gets (it holds passwords)."""

    environment: Mapping[str, str]
    settings: Settings
    public_keys: Path


def install(addresses: Addresses, folder: Path, extra: Mapping[str, str]) -> Installation:
    """Make keys, migrate, create topics; give back the workers' environment."""
    public_keys = folder / "public-keys"
    key = folder / "signing-key.pem"
    if not key.exists():
        generate_signing_key(key).export_public_key(public_keys)
    environment = {
        "CUSTODY_KAFKA__BOOTSTRAP_SERVERS": addresses.kafka,
        "CUSTODY_POSTGRES__DSN": addresses.postgres_dsn,
        "CUSTODY_REDIS__URL": addresses.valkey_url,
        "CUSTODY_AUDIT__SIGNING_KEY_FILE": str(key),
        "CUSTODY_AUDIT__PUBLIC_KEYS_DIR": str(public_keys),
        **extra,
    }
    settings = Settings.load(environment)
    asyncio.run(migrator(settings).migrate())
    topic_admin(settings).create()
    return Installation(environment, settings, public_keys)


def publish_examples(settings: Settings) -> None:
    """Publish the fraud investigation's contracts."""

    async def work() -> None:
        store = await open_store(settings)
        try:
            await publish(store, examples_dir() / "fraud")
        finally:
            await store.close()

    asyncio.run(work())


async def publish_newer(store: PostgresStore) -> None:
    """Publish every manifest again under a newer version."""
    with tempfile.TemporaryDirectory() as folder:
        for file in sorted((examples_dir() / "fraud").glob("*.yaml")):
            manifest = yaml.safe_load(file.read_text(encoding="utf-8"))
            if "manifest_id" in manifest:
                newer = {**manifest, "manifest_version": NEWER_VERSION}
                (Path(folder) / file.name).write_text(yaml.safe_dump(newer), encoding="utf-8")
        await publish(store, Path(folder))
