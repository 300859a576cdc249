"""Route pins in Redis, as the intent router writes them. Read only; sole importer of redis (DESIGN 14)."""

from session_custody.route.pins import RedisRoutePins

__all__ = ["RedisRoutePins"]
