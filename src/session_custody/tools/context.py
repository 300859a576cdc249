"""Station 10, what a tool is given and what it may answer (API 1). Nothing else of the run reaches a tool."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic

import httpx

from session_custody.core.errors import CustodyError, ToolFailed
from session_custody.core.pin import Subject
from session_custody.core.secret import Secret
from session_custody.core.trace import TraceFields

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # known to every type checker; nothing of it runs

    ClientT = TypeVar("ClientT", bound=httpx.AsyncClient | httpx.Client, default=httpx.AsyncClient)
else:
    from typing import TypeVar

    ClientT = TypeVar("ClientT")


class ToolError(ToolFailed):
    """The tool's word that *nothing took effect*. `code` (snake_case) and `text` may be read by the model.

    Raise it only when that is certain. A write that does not know lets any other exception through: its
    intent stays pending and is ended by its idempotency (DESIGN 8).
    """


@dataclass(frozen=True, slots=True)
class Done:
    """A reconciler's word: the write with this key took effect; `result` is what it would have returned."""

    result: Any = None


@dataclass(frozen=True, slots=True)
class NotFound:
    """A reconciler's promise: this key has not taken effect and never can any more (it is refused)."""


class TokenUnavailable(CustodyError):
    """No token can be had for this audience."""

    def __init__(self, audience: str) -> None:
        super().__init__(f"there is no token for {audience}")
        self.audience = audience


class ToolContext(Generic[ClientT]):
    """One call as its tool sees it.

    `ToolContext` is what an `async def` tool takes: `http` is an `httpx.AsyncClient`. A plain function takes
    `ToolContext[httpx.Client]`. Both clients follow no redirect, bound each response's size, end at
    `deadline` and send `traceparent`; relative addresses are relative to `CUSTODY_TOOLS__BASE_URL`.
    """

    __slots__ = (
        "_http",
        "_open_http",
        "_open_log",
        "attempt",
        "deadline",
        "idempotency_key",
        "run_id",
        "subject",
        "trace",
    )

    def __init__(
        self,
        *,
        run_id: str,
        trace: TraceFields,
        subject: Subject,
        idempotency_key: str,
        deadline: datetime,
        attempt: int,
        open_log: Callable[[], Any],
        open_http: Callable[[], ClientT],
    ) -> None:
        self.run_id = run_id
        self.trace = trace
        self.subject = subject
        self.idempotency_key = idempotency_key
        """The same for every send of one write; send it along so that the other side can dedupe."""
        self.deadline = deadline
        """Aware UTC. Past it nobody waits for this call any more."""
        self.attempt = attempt
        """1 = the first send of this key."""
        self._open_log = open_log
        self._open_http = open_http
        self._http: ClientT | None = None

    @property
    def http(self) -> ClientT:
        """A client for this call alone; it keeps no cookies from another one."""
        if self._http is None:
            self._http = self._open_http()
        return self._http

    @property
    def log(self) -> Any:
        """A structlog logger that carries the trace fields; every text of it passes redaction."""
        return self._open_log()

    def token(self, audience: str) -> Secret:
        """The lease for this audience, made ready before the call began. Raises TokenUnavailable."""
        raise TokenUnavailable(audience)
