"""Under whom the servers run, and what that user can reach.

As root every server runs as `nobody`: Postgres refuses to run as root, and the others have no reason to.
Its data folder is its own with mode 0700; what it executes is root's and not writable for it. Nothing
above the data is ever opened: a folder below a closed one is refused, or its content copied.
"""

from __future__ import annotations

import os
import pwd
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from session_custody.devstack.errors import DevStackError

ACCOUNT_NAME: Final = "nobody"
PROBE_WAIT_S: Final = 10.0
OURS_BY_ALL_READ: Final = Path("/var/cache/session-custody")
TEMPORARY: Final = (Path("/tmp"), Path("/var/tmp"))  # noqa: S108 - only as parents of mkdtemp()


@dataclass(frozen=True, slots=True)
class Account:
    """Another user of this machine, under whom servers run."""

    name: str
    uid: int
    gid: int

    def popen(self) -> dict[str, Any]:
        """Arguments of `subprocess` that make the child this user, without any further group."""
        return {"user": self.uid, "group": self.gid, "extra_groups": []}


def server_account() -> Account | None:
    """The user for the servers when we are root; None: they run as ourselves."""
    if os.geteuid() != 0:
        return None
    try:
        entry = pwd.getpwnam(ACCOUNT_NAME)
    except KeyError:
        raise DevStackError(f"we are root, and there is no user {ACCOUNT_NAME} to run servers as") from None
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid)


def _test(flags: str, paths: Sequence[Path], account: Account) -> bool:
    """Ask the kernel itself, as that user: modes, ACLs and mount options all count."""
    checks = " && ".join(f'test {flag} "$p"' for flag in flags.split(","))
    script = f"for p; do {{ {checks}; }} || exit 1; done"
    try:
        answer = subprocess.run(
            ["/bin/sh", "-c", script, "sh", *map(str, paths)],
            env={},
            cwd="/",
            timeout=PROBE_WAIT_S,
            check=False,
            capture_output=True,
            **account.popen(),
        )
    except OSError as error:
        raise DevStackError(f"no process can be started as {account.name}: {error.strerror}") from None
    return answer.returncode == 0


def usable(paths: Sequence[Path], account: Account | None) -> bool:
    """Whether the servers' user can read every path, and write none."""
    return account is None or _test("-r,! -w", paths, account)


def traversable(folder: Path, account: Account | None) -> bool:
    """Whether the servers' user can reach what lies in `folder`."""
    return account is None or _test("-x", [folder], account)


def _guarded(folder: Path) -> bool:
    """Whether nobody but root can change what `folder` is: it and all above, sticky ones excepted."""
    for place in (folder, *folder.parents):
        found = place.stat()
        writable = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if found.st_uid != 0 or (writable and not found.st_mode & stat.S_ISVTX):
            return False
    mode = folder.stat().st_mode
    return not mode & (stat.S_IWGRP | stat.S_IWOTH)


def shared_folder(cache: Path, account: Account) -> Path:
    """Where root keeps what `account` may read and execute but not write: the cache itself if it can be.

    Raises DevStackError when neither the cache nor /var/cache/session-custody is such a place.
    """
    for folder in (cache, OURS_BY_ALL_READ):
        try:
            make_folder(folder, 0o755)
        except OSError:
            continue
        if _guarded(folder.resolve()) and _test("-r,-x,! -w", [folder], account):
            return folder
    raise DevStackError(
        f"{account.name} can read neither {cache} nor {OURS_BY_ALL_READ}, or others than root can write "
        "there: set CUSTODY_DEVSTACK__CACHE to a folder of root's that everybody can read"
    )


def make_folder(folder: Path, mode: int) -> None:
    """Make it with exactly `mode`, whatever the umask; one that is there keeps what it has."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        folder.mkdir(mode=mode)
    except FileExistsError:
        return
    folder.chmod(mode)


@dataclass(frozen=True, slots=True)
class Home:
    """The folder of one server: `data` is the server's (0700), `own` is ours (0700: log, password)."""

    root: Path
    data: Path
    own: Path
    temporary: bool
    made_by: int = field(default_factory=os.getpid)

    @classmethod
    def open(cls, name: str, folder: Path | None, account: Account | None) -> Home:
        """Make or find it: below `folder` (kept when the server is closed), else a temporary one.

        Raises DevStackError when the servers' user cannot reach `folder`.
        """
        if folder is None:
            root = _temporary_folder(name, account)
        else:
            root = folder.absolute() / name
            make_folder(root, 0o711 if account else 0o700)
            if not traversable(root, account):
                assert account is not None
                raise DevStackError(
                    f"{account.name} cannot reach {root}: name a folder whose parents everybody can pass"
                )
        home = cls(root, root / "data", root / "own", folder is None)
        home.own.mkdir(mode=0o700, exist_ok=True)
        home.data.mkdir(mode=0o700, exist_ok=True)
        if account:
            os.chown(home.data, account.uid, account.gid)
        return home

    def remove(self) -> None:
        """Remove a temporary one; another stays."""
        if self.temporary and self.made_by == os.getpid():  # a forked child of ours also runs exit hooks
            shutil.rmtree(self.root, ignore_errors=True)


def _temporary_folder(name: str, account: Account | None) -> Path:
    for parent in (Path(tempfile.gettempdir()), *TEMPORARY):
        if parent.is_dir() and traversable(parent, account):
            root = Path(tempfile.mkdtemp(prefix=f"custody-{name}-", dir=parent))
            if account:
                root.chmod(0o711)  # root's: the server's user passes through to `data`, and sees no more
            return root
    raise DevStackError("no folder for temporary data that the servers' user can reach: set TMPDIR")


def hand_over(path: Path, account: Account | None) -> None:
    """Give a file or a whole folder that we made to the servers' user."""
    if account:
        for place in (path, *(path.rglob("*") if path.is_dir() else ())):
            os.chown(place, account.uid, account.gid, follow_symlinks=False)
