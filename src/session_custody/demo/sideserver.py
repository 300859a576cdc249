"""How the demo's own servers serve: on 127.0.0.1, the port on standard output, until standard input
closes.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading

import uvicorn
from starlette.applications import Starlette


def serve(app: Starlette, port: int) -> None:
    """Serve on 127.0.0.1, print the port, end when standard input closes (our parent is gone)."""
    listener = socket.create_server(("127.0.0.1", port), backlog=1024)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))

    def watch() -> None:
        # not sys.stdin: a thread inside its buffer at interpreter shutdown aborts the process
        while os.read(0, 4096):
            pass
        server.should_exit = True

    threading.Thread(target=watch, daemon=True).start()
    sys.stdout.write(json.dumps({"port": listener.getsockname()[1]}) + "\n")
    sys.stdout.flush()
    server.run(sockets=[listener])
