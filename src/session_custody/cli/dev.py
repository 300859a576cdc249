"""`custody dev`: the servers and one worker, until Ctrl-C."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from session_custody.cli.output import Exit, fail, say
from session_custody.demo.prepare import install, publish_examples
from session_custody.demo.processes import Worker, side_server
from session_custody.devstack import DevStack
from session_custody.resources import examples_dir
from session_custody.settings import Settings

FRAUD = "fraud"


def stay(apps: Sequence[str], folder: Path | None) -> None:
    """Start everything, print a file to source, wait.

    Without `--app` the fraud example is served, with a scripted model and a played bank: a first run
    needs nothing.
    """
    extra = {key: value for key, value in os.environ.items() if key.startswith("CUSTODY_")}
    if apps:
        _need_model(Settings.load(extra))
    with ExitStack() as cleanup:
        place = folder or Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="custody-dev-")))
        place = place.resolve()  # the children run elsewhere
        place.mkdir(parents=True, exist_ok=True)
        addresses = cleanup.enter_context(DevStack()).start()
        if not apps:
            bank, port = side_server("toolserver", place / "bank.log", "--ledger", str(place / "ledger"))
            cleanup.callback(bank.stop)
            extra = {
                "CUSTODY_TOOLS__BASE_URL": f"http://127.0.0.1:{port}",
                "CUSTODY_MODEL__KIND": "scripted",
                "CUSTODY_MODEL__SCRIPTED_FILE": str(examples_dir() / FRAUD / "model.yaml"),
                **extra,
            }
        installation = install(addresses, place, extra)
        if not apps:
            publish_examples(installation.settings)
        path = os.pathsep.join(
            filter(None, [str(Path.cwd()), str(examples_dir()), os.environ.get("PYTHONPATH")])
        )
        environment = {**installation.environment, "PYTHONPATH": path}
        worker = Worker(1, environment, place / "worker.log", apps or (FRAUD,), Path.cwd())
        cleanup.callback(worker.stop)
        worker.wait_ready()
        example = None if apps else examples_dir() / FRAUD / "start.yaml"
        _tell(installation.environment, place, worker, example)
        _wait(worker)


def _need_model(settings: Settings) -> None:
    """Say what is missing before any server starts, and the way that needs no gateway."""
    if settings.model.kind == "http" and settings.model.url is None:
        raise fail(
            "no model is set: CUSTODY_MODEL__URL names a gateway; or let a file answer, with "
            "CUSTODY_MODEL__KIND=scripted and CUSTODY_MODEL__SCRIPTED_FILE=model.yaml",
            Exit.USAGE,
        )


def _tell(environment: Mapping[str, str], place: Path, worker: Worker, example: Path | None) -> None:
    settings = place / "custody.env"
    settings.touch(mode=0o600)
    settings.write_text(
        "".join(f"export {key}='{value}'\n" for key, value in environment.items()), encoding="utf-8"
    )
    say(f"worker ready: http://127.0.0.1:{worker.http_port}/readyz?verbose, log {worker.log_path}")
    say(f"in another shell:  . {settings}  and then, for example,")
    if example is not None:
        say(f"    custody run start -f {example}")
    say("    custody run list")


def _wait(worker: Worker) -> None:
    told = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: told.set())
    while not told.wait(0.5):
        if not worker.running:
            raise fail(f"the worker ended; see {worker.log_path}", Exit.ERROR)
    sys.stderr.write("draining …\n")
