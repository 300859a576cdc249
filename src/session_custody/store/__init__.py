"""The run store: schema, migrations, group commit, settling; the only importer of psycopg (DESIGN 11)."""

from session_custody.store.memory import MemoryStore
from session_custody.store.migrator import MigrationRefused, Migrator
from session_custody.store.postgres import PostgresStore

__all__ = ["MemoryStore", "MigrationRefused", "Migrator", "PostgresStore"]
