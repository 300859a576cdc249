"""Health as a list of named findings.

`/livez` fails only where a restart helps: the event loop and the consumer's poll thread. `/readyz` fails
where this worker cannot take work now; what merely makes it worse (Redis, one lane's publication) is
`degraded` and keeps it ready.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum


class Grade(StrEnum):
    OK = "ok"
    DEGRADED = "degraded"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of `?verbose`: what was looked at, how it is, and a few words without any secret."""

    name: str
    grade: Grade
    detail: str = ""

    def line(self) -> str:
        mark = {Grade.OK: "+", Grade.DEGRADED: "~", Grade.FAILED: "-"}[self.grade]
        return f"[{mark}]{self.name} {self.grade.value}{': ' + self.detail if self.detail else ''}"


Probe = Callable[[], Finding]


@dataclass(slots=True)
class Health:
    """The probes of one process. They are quick and never raise on purpose; one that does counts as
    failed.
    """

    live: list[Probe] = field(default_factory=list)
    ready: list[Probe] = field(default_factory=list)
    draining: bool = False

    def livez(self) -> Sequence[Finding]:
        return [_asked(probe) for probe in self.live]

    def readyz(self) -> Sequence[Finding]:
        drain = Finding("draining", Grade.FAILED if self.draining else Grade.OK)
        return [*self.livez(), drain, *(_asked(probe) for probe in self.ready)]


def _asked(probe: Probe) -> Finding:
    try:
        return probe()
    except Exception as error:  # noqa: BLE001 - a broken probe is a finding, not an outage of health
        return Finding(getattr(probe, "__name__", "probe"), Grade.FAILED, type(error).__name__)


def passed(findings: Sequence[Finding]) -> bool:
    return all(finding.grade is not Grade.FAILED for finding in findings)
