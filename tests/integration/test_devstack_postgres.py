"""PostgreSQL from the wheel: started, killed, restarted; who may do what."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from session_custody.devstack import DevStackError, PostgresConfig, PostgresServer
from session_custody.devstack.account import server_account
from tests.integration.devstack_proc import is_dead, listening, wait_until

pytestmark = pytest.mark.postgres


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer(PostgresConfig(settings={"fsync": "off"})) as started:
        yield started


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_data_outlive_a_restart_and_a_sigkill_on_the_same_port(server: PostgresServer) -> None:
    before = server.address
    with psycopg.connect(server.address.url) as connection:
        connection.execute("create table kept (n int)")
        connection.execute("insert into kept values (1)")
    server.restart()
    with psycopg.connect(server.address.url) as connection:
        connection.execute("insert into kept values (2)")
    killed = server.pid
    server.kill()
    assert is_dead(killed)
    assert server.start() == before
    with psycopg.connect(server.address.url) as connection:
        assert connection.execute("select n from kept order by n").fetchall() == [(1,), (2,)]


BUSY = """
do $$ declare n bigint := 0; begin while n < 400000000 loop n := n + 1; end loop; end $$
"""


def test_a_backend_that_never_looks_up_dies_with_a_killed_server(server: PostgresServer) -> None:
    busy = psycopg.connect(server.address.url, autocommit=True)
    pid = busy.info.backend_pid
    with ThreadPoolExecutor(1) as pool, psycopg.connect(server.address.url, autocommit=True) as other:
        running = pool.submit(busy.execute, BUSY)
        seen = "select state from pg_stat_activity where pid = %s"
        assert wait_until(lambda: other.execute(seen, (pid,)).fetchone() == ("active",))
        server.kill()
        assert is_dead(pid)
        assert isinstance(running.exception(10), psycopg.OperationalError)
    busy.close()
    server.start()


def test_a_wrong_password_and_an_empty_one_are_refused(server: PostgresServer) -> None:
    port = server.address.port
    for password in ("wrong", ""):
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(host="127.0.0.1", port=port, user="custody", password=password, dbname="custody")


def test_passwords_are_kept_as_scram(server: PostgresServer) -> None:
    with psycopg.connect(server.address.url) as connection:
        row = connection.execute("select rolpassword from pg_authid where rolname = 'custody'").fetchone()
        method = connection.execute("select distinct auth_method from pg_hba_file_rules").fetchall()
    assert row is not None
    assert row[0].startswith("SCRAM-SHA-256$")
    assert method == [("scram-sha-256",)]


def test_it_listens_on_the_loopback_address_only(server: PostgresServer) -> None:
    addresses = listening(server.pid)
    assert addresses == {f"127.0.0.1:{server.address.port}"}


def test_folders_are_closed_and_nothing_above_was_opened(server: PostgresServer) -> None:
    account = server_account()
    owner = account.uid if account else os.getuid()
    assert (mode(server.home.data), server.home.data.stat().st_uid) == (0o700, owner)
    assert (mode(server.cluster), server.cluster.stat().st_uid) == (0o700, owner)
    assert (mode(server.home.own), server.home.own.stat().st_uid) == (0o700, os.getuid())
    assert mode(server.home.root) == (0o711 if account else 0o700)
    assert server.home.root.stat().st_uid == os.getuid()
    assert mode(server.log_path) == 0o600
    assert Path(f"/proc/{server.pid}").stat().st_uid == owner


def test_no_password_stands_on_a_command_line_or_in_an_environment(server: PostgresServer) -> None:
    password = server.password()
    assert len(password) >= 32
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            for part in ("cmdline", "environ"):
                try:
                    text = (entry / part).read_bytes()
                except OSError:
                    continue
                assert password.encode() not in text
    assert password not in server.log_path.read_text()
    assert password not in repr(server.address)


def test_databases_are_copied_from_a_template(server: PostgresServer) -> None:
    template = server.create_database('a "quoted" template')
    with psycopg.connect(template) as connection:
        connection.execute("create table made_once (n int)")
    copy = server.create_database("copy", 'a "quoted" template')
    with psycopg.connect(copy) as connection:
        assert connection.execute("select count(*) from made_once").fetchone() == (0,)
    server.databases.drop("copy")
    assert not server.databases.exists("copy")
    with pytest.raises(DevStackError, match="does not exist"):
        server.create_database("other", "no such template")


@pytest.fixture
def own_folder() -> Iterator[Path]:
    """A folder that the servers' user can reach (pytest's own are closed, and stay so)."""
    folder = Path(tempfile.mkdtemp(prefix="custody-test-", dir="/tmp"))
    if server_account():
        folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder)


def test_a_folder_of_ones_own_keeps_data_and_password(own_folder: Path) -> None:
    with PostgresServer(PostgresConfig(folder=own_folder)) as first:
        url = first.create_database("mine")
        assert first.home.root == own_folder / "postgres"
    with PostgresServer(PostgresConfig(folder=own_folder)) as second:
        assert second.databases.dsn("mine") == url
        with psycopg.connect(url) as connection:
            assert connection.execute("select current_database()").fetchone() == ("mine",)


def test_the_fixture_gives_a_fresh_copy_of_the_template(database: str, database_template: str) -> None:
    with psycopg.connect(database) as connection:
        row = connection.execute("select current_database()").fetchone()
    assert row is not None
    assert row[0].startswith("test_")
    assert row[0] != database_template
