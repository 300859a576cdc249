"""Puts the real parts together (DESIGN 17). Settings are read here once; everybody else is handed a section.

`parts` opens single things for commands; `worker` is one `custody serve`; `Custody` is the same for programs.
"""

from __future__ import annotations

from session_custody.wiring.parts import cluster_id, migrator, open_store, topic_admin
from session_custody.wiring.worker import Custody, serve

__all__ = ["Custody", "cluster_id", "migrator", "open_store", "serve", "topic_admin"]
