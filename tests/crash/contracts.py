"""A database with the schema and the rig's contracts in it."""

from __future__ import annotations

import sys
from pathlib import Path

from session_custody.contracts import publish
from session_custody.store import Migrator, PostgresStore
from tests.crash.play import APP_FOLDER, write_contracts


async def fill(dsn: str, folder: Path) -> None:
    """Migrate and publish; every connection is closed again."""
    if str(APP_FOLDER) not in sys.path:
        sys.path.insert(0, str(APP_FOLDER))  # the manifest is drafted from the tools
    write_contracts(folder)
    await Migrator(dsn).migrate()
    store = await PostgresStore.open(dsn)
    try:
        await publish(store, folder)
    finally:
        await store.close()
