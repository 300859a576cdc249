"""What makes two starts the same start, and two resumes the same resume (DESIGN 5).

Both digests are SHA-256 over the RFC 8785 form of a JSON object that holds the fields below, without those
that are null or empty (absent == null == default), before any default of ours. `input` and `answer` go in as
the documents that they are, so other spacing or other order of keys is the same start. schemas/README.md says
this for strangers.
"""

from __future__ import annotations

from typing import Any

from session_custody.core.canonical import digest
from session_custody.core.events import RunResume, RunStart
from session_custody.wire.inputs import parse_input


def sent_digest(start: RunStart) -> bytes:
    """Covers correlation_id, session_id, tenant, subject, decision_id, every pin field, input; nothing else.

    Not expires_at, not parent or forked_from, no header. The run row keeps it; another one is `pin_conflict`.
    """
    return digest(
        _without_defaults(
            {
                "correlation_id": start.correlation_id,
                "session_id": start.session_id,
                "tenant": start.tenant,
                "subject": start.subject.model_dump(mode="json"),
                "decision_id": start.decision_id,
                **start.pin.model_dump(mode="json"),
            }
        )
        | {"input": parse_input(start.input)}
    )


def resume_digest(resume: RunResume) -> bytes:
    """Covers every field of a resume: third part of what a duplicate resume is known by."""
    fields = _without_defaults(resume.model_dump(mode="json", exclude={"answer"}))
    return digest(fields if resume.answer is None else fields | {"answer": parse_input(resume.answer)})


def _without_defaults(fields: dict[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for name, value in fields.items():
        inner = _without_defaults(value) if isinstance(value, dict) else value
        if inner is not None and inner != []:
            kept[name] = inner
    return kept
