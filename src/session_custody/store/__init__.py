"""The run store: schema, migrations, the group-commit writer and settling; only importer of psycopg (DESIGN
11).
"""

from session_custody.store.migrator import MigrationRefused, Migrator
from session_custody.store.postgres import PostgresStore

__all__ = ["MigrationRefused", "Migrator", "PostgresStore"]
