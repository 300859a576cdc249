"""A real HTTP server for one test, on 127.0.0.1: answers as told, and remembers what it was sent."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Answer:
    """`chunks` are written one by one, so that a test may stop in the middle."""

    status: int = 200
    body: Any = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    chunks: Iterator[bytes] | None = None


@dataclass(frozen=True)
class Asked:
    method: str
    path: str
    headers: dict[str, str]
    body: Any


@dataclass
class Server:
    url: str
    asked: list[Asked]
    answer: Callable[[Asked], Answer]


@contextmanager
def http_server(answer: Callable[[Asked], Answer]) -> Iterator[Server]:
    server = Server("", [], answer)

    class Answering(BaseHTTPRequestHandler):
        def _any(self) -> None:
            length = int(self.headers.get("content-length") or 0)
            raw = self.rfile.read(length)
            headers = {name.lower(): value for name, value in self.headers.items()}
            asked = Asked(self.command, self.path, headers, json.loads(raw) if raw else None)
            server.asked.append(asked)
            with contextlib.suppress(OSError):  # the client may have gone, as it should
                self._write(server.answer(asked))

        do_GET = do_POST = _any  # noqa: N815 - the library's names

        def _write(self, said: Answer) -> None:
            body = said.body if isinstance(said.body, bytes) else json.dumps(said.body).encode()
            self.send_response(said.status)
            for name, value in said.headers.items():
                self.send_header(name, value)
            if said.chunks is None:
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
                return
            self.end_headers()
            self.close_connection = True
            for chunk in said.chunks:
                self.wfile.write(chunk)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
            pass

    listener = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
    listener.daemon_threads = True
    server.url = f"http://127.0.0.1:{listener.server_address[1]}"
    thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        listener.shutdown()
        listener.server_close()
        thread.join(10)
