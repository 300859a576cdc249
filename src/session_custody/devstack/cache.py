"""Our cache folder: jars and, as root, copies of binaries. Finished folders only, each made once.

A folder is filled under another name and renamed into place, by one process at a time: whoever sees
the final name sees it whole.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from session_custody.devstack.account import make_folder
from session_custody.devstack.errors import DevStackError

CACHE_SETTING: Final = "CUSTODY_DEVSTACK__CACHE"
LOCK_WAIT_S: Final = 600.0
LOCK_LOOK_S: Final = 0.1

Progress = Callable[[str], None]
"""Takes one line for people. It may be called from several threads."""


def to_stderr(line: str) -> None:
    """The default progress: one line on stderr."""
    sys.stderr.write(f"custody dev stack: {line}\n")
    sys.stderr.flush()


def cache_folder(environ: Mapping[str, str]) -> Path:
    """`CUSTODY_DEVSTACK__CACHE`, else `session-custody` in the XDG cache folder. Not made yet."""
    if named := environ.get(CACHE_SETTING):
        return Path(named).absolute()
    base = environ.get("XDG_CACHE_HOME", "")
    if not Path(base).is_absolute():  # the XDG rule: a relative one is ignored
        base = str(Path(environ.get("HOME") or Path.home()) / ".cache")
    return Path(base) / "session-custody"


@contextlib.contextmanager
def only_one(folder: Path, progress: Progress) -> Iterator[None]:
    """Hold the folder's lock against other processes (and other threads of ours).

    The kernel drops it when the holder dies. Raises DevStackError after LOCK_WAIT_S, naming the holder.
    """
    lock = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        deadline = time.monotonic() + LOCK_WAIT_S
        told = False
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                holder = os.pread(lock, 20, 0).decode("ascii", "replace").strip() or "another process"
                if time.monotonic() > deadline:
                    raise DevStackError(
                        f"process {holder} still fills {folder} after {LOCK_WAIT_S:.0f} s"
                    ) from None
                if not told:
                    progress(f"waiting for process {holder}, which fills {folder}")
                    told = True
                time.sleep(LOCK_LOOK_S)
        os.ftruncate(lock, 0)
        os.pwrite(lock, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(lock)


def finished(folder: Path, name: str, fill: Callable[[Path], None], progress: Progress) -> Path:
    """The folder `name` below `folder` (0755); made by `fill`, if it is not there, then renamed."""
    place = folder / name
    if place.is_dir():
        return place
    try:
        make_folder(folder, 0o755)
    except OSError as error:
        raise DevStackError(
            f"the cache folder {folder} cannot be made ({error.strerror}): name another in {CACHE_SETTING}"
        ) from None
    with only_one(folder, progress):
        if place.is_dir():  # the process we waited for has made it
            return place
        partial = folder / f".partial-{name}"
        shutil.rmtree(partial, ignore_errors=True)  # left by a process that died; we hold the lock
        make_folder(partial, 0o755)
        try:
            fill(partial)
            partial.rename(place)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return place
