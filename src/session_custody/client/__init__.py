"""The producer's side: publish starts and resumes, wait for outcomes (API 2). Publishes, and nothing else.

    from session_custody.client import CustodyClient, RunStart, Subject

    with CustodyClient.from_env() as custody:
        run_id = custody.start(RunStart(correlation_id="run-9f3c", subject=Subject(id="u-17"), …, input={}))
        outcome = custody.wait(run_id, timeout=60)

Everything returns when the broker has acknowledged. Sending the same start again is safe, so an error whose
outcome is unknown (`DeliveryFailed`) is answered by calling again. Blocking; threads may share a client.
"""

from __future__ import annotations

from session_custody.client.failures import (
    ClientError,
    DeliveryFailed,
    InvalidRecord,
    NotAllDelivered,
    OutcomesUnreadable,
    OutcomeTimeout,
)
from session_custody.client.publishing import CustodyClient
from session_custody.client.records import Outcome, RunStart
from session_custody.core.events import Answerer
from session_custody.core.pin import MemoryProfile, Subject

__all__ = [
    "Answerer",
    "ClientError",
    "CustodyClient",
    "DeliveryFailed",
    "InvalidRecord",
    "MemoryProfile",
    "NotAllDelivered",
    "Outcome",
    "OutcomeTimeout",
    "OutcomesUnreadable",
    "RunStart",
    "Subject",
]
