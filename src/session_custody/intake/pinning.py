"""Station 3: from a start to the run that would be created: contracts looked up once, pin frozen, first
events sealed (I2, I3, DESIGN 5, 10).
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from datetime import datetime, timedelta

from pydantic import JsonValue

from session_custody.core import admission
from session_custody.core.admission import AdmissionRules, Resolution
from session_custody.core.errors import ContractMissing, RecordRejected, RejectReason
from session_custody.core.events import EventDraft, EventKind, RunFacts, RunStart, SealedEvent
from session_custody.core.manifest import ContractKind, Manifest
from session_custody.core.pin import RunId, RunPin, SentPin
from session_custody.core.run import Checkpoint, ParkReason, Status
from session_custody.intake.decode import Decoded
from session_custody.ports import Contracts, NewRun, Signer
from session_custody.wire import SALT_BYTES, PinnedParts, seal


class Pinning:
    """Builds `NewRun`s. One per process; holds nothing of a batch."""

    def __init__(self, contracts: Contracts, signer: Signer, rules: AdmissionRules) -> None:
        self._contracts = contracts
        self._signer = signer
        self._rules = rules

    async def build(
        self, decoded: Decoded, start: RunStart, sent_digest: bytes, expires_at: datetime, now: datetime
    ) -> NewRun:
        """Raises RecordRejected (`contract_unknown`, `invalid_event`) and Unavailable."""
        found = await self._look_up(start.pin)
        resolution = admission.resolve(start.pin, found, self._rules)
        pin = RunPin(sent=start.pin, resolved=resolution.resolved)
        facts = _facts(start, pin)
        begun = _Begun(start, facts, pin, sent_digest, expires_at, found.manifest, decoded.headers.ce_id)
        events = self._events(begun, resolution, now)
        return NewRun(
            facts=facts,
            pin=pin,
            input=start.input,
            sent_digest=sent_digest,
            expires_at=expires_at,
            checkpoint=_checkpoint(resolution, events, now),
            events=events,
            start_ce_id=decoded.headers.ce_id,
            start_ce_source=decoded.headers.ce_source,
            traceparent=decoded.headers.traceparent,
            order=decoded.order,
        )

    async def _look_up(self, sent: SentPin) -> admission.LookedUp:
        manifest, manifest_version, manifest_digest = None, None, None
        if sent.manifest_id is not None:
            manifest_version = sent.manifest_version or await self._latest(
                ContractKind.MANIFEST, sent.manifest_id
            )
            try:
                manifest, manifest_digest = await self._contracts.manifest(
                    sent.manifest_id, manifest_version, None
                )
            except ContractMissing:
                manifest, manifest_digest = None, None
        policy_version, policy_digest = None, None
        if sent.policy_profile is not None:
            policy_version = sent.policy_version or await self._latest(
                ContractKind.POLICY, sent.policy_profile
            )
            try:
                _, policy_digest = await self._contracts.policy(sent.policy_profile, policy_version, None)
            except ContractMissing:
                policy_digest = None
        return admission.LookedUp(
            manifest=manifest,
            manifest_version=manifest_version,
            manifest_digest=manifest_digest,
            policy_version=policy_version,
            policy_digest=policy_digest,
        )

    async def _latest(self, kind: ContractKind, name: str) -> str:
        """A name that the route froze without a version: the last published one, this once (I3)."""
        version = await self._contracts.latest_version(kind, name)
        if version is None:
            raise RecordRejected(
                RejectReason.CONTRACT_UNKNOWN, f"no version of this {kind.value} is published"
            )
        return version

    def _events(self, begun: _Begun, resolution: Resolution, now: datetime) -> tuple[SealedEvent, ...]:
        status = Status.PARKED if resolution.missing else Status.QUEUED
        pinned = EventDraft(
            kind=EventKind.PINNED,
            status=status,
            orchestration_step=resolution.stage,
            loop_step=0,
            visible=_visible_input(begun.start, begun.manifest),
            causation_id=begun.causation_id,
        )
        parts = PinnedParts.of(begun.pin, begun.sent_digest, begun.expires_at)
        first = seal(pinned, begun.facts, 1, None, now, self._signer, os.urandom(SALT_BYTES), parts)
        if not resolution.missing:
            return (first,)
        parked = EventDraft(
            kind=EventKind.PARKED,
            status=status,
            orchestration_step=resolution.stage,
            loop_step=0,
            code=ParkReason.CONTRACT_MISSING.value,
            causation_id=begun.causation_id,
        )
        salt = os.urandom(SALT_BYTES)
        return (first, seal(parked, begun.facts, 2, first.hash, now, self._signer, salt))


@dataclass(frozen=True, slots=True)
class _Begun:
    start: RunStart
    facts: RunFacts
    pin: RunPin
    sent_digest: bytes
    expires_at: datetime
    manifest: Manifest | None
    causation_id: str | None


def _facts(start: RunStart, pin: RunPin) -> RunFacts:
    return RunFacts(
        run_id=RunId(start.correlation_id),
        correlation_id=start.correlation_id,
        session_id=start.session_id,
        tenant=start.subject.tenant,
        subject=start.subject,
        decision_id=start.decision_id,
        pin=start.pin,
        manifest_version=pin.manifest_version,
        workflow_version=pin.workflow_version,
        policy_version=pin.policy_version,
        parent=start.parent,
        forked_from=start.forked_from,
    )


def _visible_input(start: RunStart, manifest: Manifest | None) -> JsonValue:
    if manifest is None or "input" not in manifest.visible:
        return None
    document: JsonValue = json.loads(start.input)
    return document


def _checkpoint(resolution: Resolution, events: tuple[SealedEvent, ...], now: datetime) -> Checkpoint:
    head = events[-1]
    if not resolution.missing:
        return Checkpoint(
            status=Status.QUEUED,
            loop_step=0,
            stage=resolution.stage,
            version=1,
            head_seq=head.event_seq,
            head_hash=head.hash,
        )
    return Checkpoint(
        status=Status.PARKED,
        loop_step=0,
        stage=resolution.stage,
        version=1,
        head_seq=head.event_seq,
        head_hash=head.hash,
        parks=1,
        park_reason=ParkReason.CONTRACT_MISSING,
        wake_at=now + timedelta(seconds=admission.CONTRACT_PARK_FIRST_S),
    )
