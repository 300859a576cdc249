"""Station 7, an OpenAI-compatible gateway over HTTP.

What another try may mend (no connection, timeout, 429, 5xx, an answer that is none) is `ModelUnavailable`; a
model that the gateway does not know is `ModelProfileUnknown`. No error carries a body or an address: both may
hold what must not be logged. Trace fields go as headers, never into the prompt.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

import httpx
import structlog

from session_custody.connections import SpreadTransport
from session_custody.core.errors import ModelProfileUnknown, Unavailable
from session_custody.core.inference import InferenceRequest, Proposal
from session_custody.core.secret import Secret
from session_custody.models.chat import NoProposal, body_of, read_proposal, usage_of, was_cut
from session_custody.telemetry import LLM_TOKENS, log

ANSWER_BYTES_MAX: Final = 4 * 1024 * 1024
CONNECTIONS_MAX: Final = 512
RETRY_AFTER_MAX_S: Final = 3_600.0
RUN_ID_HEADER: Final = "x-custody-run-id"
LOOP_STEP_HEADER: Final = "x-custody-loop-step"


class ModelUnavailable(Unavailable):
    """The model could not be asked, or gave nothing usable. `retry_after_s`: what the gateway asked for."""

    def __init__(self, detail: str, retry_after_s: float | None = None) -> None:
        super().__init__("model", detail)
        self.retry_after_s = retry_after_s


def bound_traceparent() -> str | None:
    """The `traceparent` bound to this run's log lines, if the driver bound one."""
    value = structlog.contextvars.get_contextvars().get("traceparent")
    return value if isinstance(value, str) else None


class HttpModel:
    """Implements `ports.ModelClient`. One per process: it keeps the connections.

    `served`: the profiles of `CUSTODY_MODEL__PROFILES`; where there are any, a run whose profile is not among
    them and has no target from its admission asks for what nobody serves.
    """

    def __init__(
        self,
        url: str,
        api_key: Secret | None = None,
        *,
        served: Collection[str] = (),
        traceparent: Callable[[], str | None] = bound_traceparent,
    ) -> None:
        self._url = url.rstrip("/") + "/chat/completions"
        self._api_key = api_key
        self._served = frozenset(served)
        self._traceparent = traceparent
        self._client: httpx.AsyncClient | None = None

    async def propose(self, request: InferenceRequest) -> Proposal:
        if self._served and request.model_target is None and request.model_profile not in self._served:
            raise ModelProfileUnknown(request.model_profile)
        try:
            async with asyncio.timeout(request.timeout_s):
                status, headers, body = await self._post(request)
        except TimeoutError:
            raise ModelUnavailable("no answer in time") from None
        except httpx.HTTPError as error:
            raise ModelUnavailable(type(error).__name__) from None
        if status != httpx.codes.OK:
            raise _refusal(request, status, headers, body)
        try:
            proposal = read_proposal(body)
        except NoProposal as error:
            raise ModelUnavailable(str(error)) from None
        for direction, tokens in usage_of(body).items():
            LLM_TOKENS.labels(request.model_profile, direction).inc(tokens)
        if was_cut(body):
            log.warning("model answer was cut at the gateway's length limit", run_id=request.trace.run_id)
        return proposal

    async def _post(self, request: InferenceRequest) -> tuple[int, httpx.Headers, bytes]:
        if self._client is None:
            self._client = httpx.AsyncClient(
                follow_redirects=False,
                trust_env=False,
                transport=SpreadTransport(CONNECTIONS_MAX, httpx.create_ssl_context()),
            )
        sent = self._client.stream(
            "POST",
            self._url,
            content=json.dumps(body_of(request), ensure_ascii=False).encode("utf-8", "replace"),
            headers=self._headers(request),
            timeout=request.timeout_s,
        )
        async with sent as response:
            body = bytearray()
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) > ANSWER_BYTES_MAX:
                    raise ModelUnavailable(f"answered with more than {ANSWER_BYTES_MAX} bytes")
            return response.status_code, response.headers, bytes(body)

    def _headers(self, request: InferenceRequest) -> dict[str, str]:
        headers = {
            "content-type": "application/json",
            "accept": "application/json",
            RUN_ID_HEADER: request.trace.run_id,
            LOOP_STEP_HEADER: str(request.trace.loop_step),
        }
        traceparent = self._traceparent()
        if traceparent is not None:
            headers["traceparent"] = traceparent
        if self._api_key is not None:
            headers["authorization"] = f"Bearer {self._api_key.reveal('model gateway')}"
        return headers

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()
            self._client = None


def _refusal(
    request: InferenceRequest, status: int, headers: httpx.Headers, body: bytes
) -> ModelUnavailable | ModelProfileUnknown:
    if status == httpx.codes.NOT_FOUND or (status == httpx.codes.BAD_REQUEST and _names_the_model(body)):
        return ModelProfileUnknown(request.model_profile)
    return ModelUnavailable(f"status {status}", _retry_after_s(headers.get("retry-after")))


def _names_the_model(body: bytes) -> bool:
    """A 400 that is about the model's name, by its code or by the sentence gateways write."""
    try:
        error = json.loads(body)["error"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return False
    if not isinstance(error, dict):
        return False
    if error.get("code") == "model_not_found":
        return True
    sentence = str(error.get("message") or "").lower()
    return "model" in sentence and any(
        word in sentence for word in ("not found", "does not exist", "unknown")
    )


def _retry_after_s(value: str | None) -> float | None:
    """Seconds or an HTTP date (RFC 9110, 10.2.3), bounded; None for anything else."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            at = parsedate_to_datetime(value)
        except ValueError:
            return None
        seconds = (at.replace(tzinfo=at.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
    return min(max(seconds, 0.0), RETRY_AFTER_MAX_S) if seconds == seconds else None  # noqa: PLR0124 - NaN
