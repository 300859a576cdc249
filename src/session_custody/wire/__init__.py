"""Avro, framing, digests, the sealed event, headers, cursor records, signatures (DESIGN 7, 15).

Bytes in, values out, and back. Nothing here knows Kafka or Postgres; schemas/README.md tells strangers the
same.
"""

from __future__ import annotations

from session_custody.wire.cursors import (
    Claim,
    Cursor,
    CursorUnreadable,
    claim_key,
    cursor_key,
    decode_claim,
    decode_cursor,
    decode_record,
    encode_claim,
    encode_cursor,
    lane_text,
)
from session_custody.wire.decoding import decode_body, decode_trace
from session_custody.wire.digests import resume_digest, sent_digest
from session_custody.wire.framing import SINGLE_OBJECT, Framed, Framing
from session_custody.wire.headers import (
    InputHeaders,
    dead_letter_headers,
    event_headers,
    event_id,
    event_type,
    input_headers,
    kept_headers,
    rfc3339,
    without_forbidden,
)
from session_custody.wire.inputs import decode_input, encode_resume, encode_start, parse_input
from session_custody.wire.sealing import (
    SALT_BYTES,
    PinnedParts,
    decode_event,
    hashed_body,
    payload_digest,
    published_value,
    seal,
    verify_hash,
)
from session_custody.wire.signing import Ed25519Signer, generate_signing_key, key_id_of, read_public_keys

__all__ = [
    "SALT_BYTES",
    "SINGLE_OBJECT",
    "Claim",
    "Cursor",
    "CursorUnreadable",
    "Ed25519Signer",
    "Framed",
    "Framing",
    "InputHeaders",
    "PinnedParts",
    "claim_key",
    "cursor_key",
    "dead_letter_headers",
    "decode_body",
    "decode_claim",
    "decode_cursor",
    "decode_event",
    "decode_input",
    "decode_record",
    "decode_trace",
    "encode_claim",
    "encode_cursor",
    "encode_resume",
    "encode_start",
    "event_headers",
    "event_id",
    "event_type",
    "generate_signing_key",
    "hashed_body",
    "input_headers",
    "kept_headers",
    "key_id_of",
    "lane_text",
    "parse_input",
    "payload_digest",
    "published_value",
    "read_public_keys",
    "resume_digest",
    "rfc3339",
    "seal",
    "sent_digest",
    "verify_hash",
    "without_forbidden",
]
