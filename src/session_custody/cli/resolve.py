"""`run resolve`: an operator's word about a write in doubt, as a signal (I8, DESIGN 8)."""

from __future__ import annotations

import getpass
from uuid import uuid4

from session_custody.core.pin import RunId
from session_custody.core.signals import Resolve, SignalKind
from session_custody.ports import NewSignal
from session_custody.store import PostgresStore


async def resolve_run(
    store: PostgresStore, run: str, *, done: bool, reason: str, event_seq: int | None
) -> int | None:
    """Insert the signal; gives the event_seq of the in_doubt it is about, None for an unknown run.

    Raises SignalRefused when another in_doubt stands, or `not done` is said while the call may still run.
    """
    record = await store.get_run(run)
    if record is None:
        return None
    seen = event_seq if event_seq is not None else int(record.get("doubt_seq") or 0)
    body = Resolve(done, seen, reason, by=getpass.getuser()).as_body()
    await store.insert_signal(
        NewSignal(
            run_id=RunId(run),
            kind=SignalKind.RESOLVE,
            body=body,
            source="operator",
            dedupe_source="operator",
            dedupe_id=str(uuid4()),
            dedupe_digest=b"",
        )
    )
    return seen
