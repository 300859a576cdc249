"""What the loop's machine asks for and what it is told (DESIGN 9): commands out, facts in, one at a time.

The machine yields one `Command` and is sent the `Fact` that answers it; nothing else crosses. The driver in
`loop/` executes commands on real stations, the tests on a model of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from session_custody.core.calls import Authorization, Permit, Reconciled, ToolAnswer
from session_custody.core.errors import InvariantBroken
from session_custody.core.events import EventDraft
from session_custody.core.inference import Part, Proposal, ToolCall, ToolSchema
from session_custody.core.manifest import Manifest
from session_custody.core.pin import Resolved
from session_custody.core.run import Checkpoint
from session_custody.core.signals import Signal

# ------------------------------------------------------------------ deadlines that the database counts


@dataclass(frozen=True, slots=True)
class Keep:
    """not_after or wake_at stays as it is."""


@dataclass(frozen=True, slots=True)
class Clear:
    """not_after or wake_at becomes null."""


@dataclass(frozen=True, slots=True)
class InSeconds:
    """not_after or wake_at = custody.now() + seconds, taken when the statement executes (the database owns
    time).
    """

    seconds: float


Deadline = Keep | Clear | InSeconds
KEEP: Final = Keep()
CLEAR: Final = Clear()

# ------------------------------------------------------------------ commands


@dataclass(frozen=True, slots=True)
class Boundary:
    """Look around: take the signals that wait. Answered by `Observed`. `key`: of the pending intent."""

    key: str | None


@dataclass(frozen=True, slots=True)
class LoadContracts:
    """Bring the contracts that the pin names. Answered by `ContractsLoaded` or `ContractAbsent`."""

    resolved: Resolved


@dataclass(frozen=True, slots=True)
class AskModel:
    """Ask the model once. Answered by `Proposed` or `ModelFailed`. `tools` None: the request has none."""

    instructions: str | None
    messages: tuple[Part, ...]
    tools: tuple[ToolSchema, ...] | None
    timeout_s: float
    orchestration_step: str
    loop_step: int


@dataclass(frozen=True, slots=True)
class Authorize:
    """Pass the PEP, each call for itself (I12). Answered by `Authorized` with as many answers."""

    manifest: Manifest
    calls: tuple[ToolCall, ...]
    orchestration_step: str
    loop_step: int


@dataclass(frozen=True, slots=True)
class Sending:
    """One permitted call on its way."""

    permit: Permit
    key: str
    attempt: int
    timeout_s: float


@dataclass(frozen=True, slots=True)
class CallReads:
    """Call these reads concurrently. Answered by `ReadsEnded` with as many answers."""

    reads: tuple[Sending, ...]


@dataclass(frozen=True, slots=True)
class CallWrite:
    """Send the pending write; its intent is committed (I5). Answered by `WriteEnded`.

    It starts within the start allowance, counted from before the commit that set not_after was first offered.
    """

    write: Sending
    allowance_s: float


@dataclass(frozen=True, slots=True)
class Reconcile:
    """Ask the tool about the pending write. Answered by `Asked`."""

    write: Sending


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait until this database time, a signal, or (`gate`) the open write gate. Answered by `Woken`."""

    until: datetime
    gate: bool = False


@dataclass(frozen=True, slots=True)
class Commit:
    """One fenced transaction (I7). Answered by `Committed` or `Refused`; where the row or the lane is lost,
    the machine is closed and never resumed.

    `checkpoint` has the new values; the driver adds version, head_seq + len(drafts) and head_hash.
    """

    checkpoint: Checkpoint
    drafts: tuple[EventDraft, ...]
    consumes: tuple[int, ...]
    not_after: Deadline
    wake_at: Deadline
    working_changed: bool
    after_end: bool = False


Command = Boundary | LoadContracts | AskModel | Authorize | CallReads | CallWrite | Reconcile | Pause | Commit

# ------------------------------------------------------------------ facts


@dataclass(frozen=True, slots=True)
class Observed:
    """What stands at a boundary. `now` is the worker's estimate of database time.

    `call_running`: a thread of this process is still inside a call with the pending key.
    """

    now: datetime
    signals: tuple[Signal, ...]
    gate_open: bool
    call_running: bool = False


@dataclass(frozen=True, slots=True)
class ContractsLoaded:
    """`manifest` None: the pin names none. `resolved` has every digest recorded."""

    manifest: Manifest | None
    resolved: Resolved


@dataclass(frozen=True, slots=True)
class ContractAbsent:
    """A pinned contract, or a tool that it names, is missing or different here (I3)."""

    detail: str


@dataclass(frozen=True, slots=True)
class Proposed:
    proposal: Proposal


@dataclass(frozen=True, slots=True)
class ModelFailed:
    """The model could not be asked. `final`: another try in this process will not mend it."""

    code: str
    now: datetime
    retry_after_s: float | None = None
    final: bool = False


@dataclass(frozen=True, slots=True)
class Authorized:
    answers: tuple[Authorization | ContractAbsent, ...]


@dataclass(frozen=True, slots=True)
class ReadsEnded:
    answers: tuple[ToolAnswer, ...]


@dataclass(frozen=True, slots=True)
class WriteEnded:
    answer: ToolAnswer


@dataclass(frozen=True, slots=True)
class Asked:
    answer: Reconciled


@dataclass(frozen=True, slots=True)
class Woken:
    pass


@dataclass(frozen=True, slots=True)
class Committed:
    """`now`: the worker's estimate of database time after the answer came; deadlines count from it, at the
    latest."""

    now: datetime


@dataclass(frozen=True, slots=True)
class Refused:
    """Postgres refused this row's own content (SQLSTATE classes 22, 23, 54); nothing of it is written."""


Fact = (
    Observed
    | ContractsLoaded
    | ContractAbsent
    | Proposed
    | ModelFailed
    | Authorized
    | ReadsEnded
    | WriteEnded
    | Asked
    | Woken
    | Committed
    | Refused
)


def unexpected(fact: Fact, command: str) -> InvariantBroken:
    """The driver answered a command with a fact that does not belong to it: our own bug."""
    return InvariantBroken(f"{type(fact).__name__} does not answer {command}")
