"""The small HTTP side of a worker: /livez, /readyz, /metrics, /version. No authentication, hence 127.0.0.1 by
default.

uvicorn runs inside the worker's own event loop, so a stalled loop does not answer /livez: that is the point.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Sequence
from typing import Final

import uvicorn
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from session_custody.core.errors import SettingsError
from session_custody.operate.health import Finding, Health, passed
from session_custody.telemetry import REGISTRY

SHUTDOWN_S: Final = 2


class OperateServer:
    """Serve until `close`. `port` is the real one, also when 0 was asked for."""

    def __init__(self, health: Health, host: str, port: int, version: dict[str, str]) -> None:
        self._health = health
        self._version = version
        self._socket = _listen(host, port)
        self.port: int = self._socket.getsockname()[1]
        config = uvicorn.Config(
            self._application(),
            log_config=None,
            access_log=False,  # probes come every second: a silent health check is what operators ask for
            lifespan="off",
            timeout_graceful_shutdown=SHUTDOWN_S,
        )
        self._server = _Embedded(config)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._server.serve(sockets=[self._socket]), name="http")

    async def close(self) -> None:
        self._server.should_exit = True
        if self._task is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._task, SHUTDOWN_S * 2)
        self._socket.close()

    def _application(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/livez", self._livez),
                Route("/readyz", self._readyz),
                Route("/metrics", self._metrics),
                Route("/version", self._version_page),
            ]
        )

    async def _livez(self, request: Request) -> Response:
        return _page(request, self._health.livez())

    async def _readyz(self, request: Request) -> Response:
        return _page(request, self._health.readyz())

    async def _metrics(self, _: Request) -> Response:
        return Response(generate_latest(REGISTRY), media_type=CONTENT_TYPE_LATEST)

    async def _version_page(self, _: Request) -> Response:
        return Response(json.dumps(self._version), media_type="application/json")


class _Embedded(uvicorn.Server):
    """uvicorn without its signal handling: SIGTERM is the worker's, and it drains first."""

    @contextlib.contextmanager
    def capture_signals(self):  # type: ignore[no-untyped-def]
        yield


def _page(request: Request, findings: Sequence[Finding]) -> Response:
    good = passed(findings)
    if "verbose" in request.query_params:
        text = "\n".join([*(finding.line() for finding in findings), "passed" if good else "failed"])
    else:
        text = "ok" if good else "failed"
    return PlainTextResponse(text + "\n", status_code=200 if good else 503)


def _listen(host: str, port: int) -> socket.socket:
    """Raises SettingsError: a second worker on one machine is the usual cause."""
    try:
        return socket.create_server((host, port), family=_family(host))
    except OSError as error:
        problem = f"{host}:{port} cannot be listened on ({error.strerror}); 0 takes a free port"
    raise SettingsError("CUSTODY_HTTP__PORT", problem)


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
