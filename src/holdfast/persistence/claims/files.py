"""The files of accounts: stored up to limits, deleted once no task needs them.

The row of a file is **added** before its content is in the store, and **kept** after that: so all that the store
has of an account counts, also what a process left that was killed in between. A row stays for :data:`UPLOAD_S`, the
time of the claim of its content, whatever becomes of its file: what was uploaded and deleted counts until its
content can be removed. Such rows, which are no one's, expire when they were created.

A file may be named by tasks, and their provider fetches it. Before a task is created the file is **claimed** for
its hold. So rows show which tasks need it: the file is needed while that hold is open, and for :data:`CLAIM_S`
while there is no such hold yet. A file that has expired, or that its owner has deleted, which is the same, cannot
be claimed any more and is deleted when it is not needed. A claim and a deletion of one file wait for each other.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from sqlalchemy import Connection, text

from holdfast.persistence.records.rows import FileRow
from holdfast.persistence.records.tables import files

UPLOAD_S: Final = 600
"""How long the content of an upload is claimed, and its row at least stays."""
CLAIM_S: Final = 3600
"""How long a claimed file is not deleted although its task does not exist; far longer than creating one takes."""

_LOCK_ACCOUNT = text("select pg_advisory_xact_lock(hashtextextended('files ' || :account_id, 0))")
_ALL_TOTAL = "select count(*), coalesce(sum(bytes), 0)::bigint from files"
_TOTAL = text(f"{_ALL_TOTAL} where account_id = :account_id")
_LOCK_CLAIMED = text(
    "select file_id from files where account_id = :account_id and file_id = any(:file_ids) and expires_at > :at "
    "order by file_id for share"
)
_CLAIM = text(
    "insert into file_uses (account_id, file_id, hold_id, claimed_at) "
    "select :account_id, file_id, :hold_id, :at from unnest(cast(:file_ids as text[])) file_id"
)
_UNCLAIM = text(
    "delete from file_uses where account_id = :account_id and file_id = any(:file_ids) and hold_id = :hold_id"
)
_KEEP = text("update files set expires_at = :expires_at where account_id = :account_id and file_id = :file_id")
_DROP = text("delete from files where account_id = :account_id and file_id = :file_id")
_END = text(
    "update files set expires_at = :at where account_id = :account_id and file_id = :file_id and expires_at > :at"
)
_LOCK_EXPIRED = text(
    "select expires_at, file_id from files where (expires_at, file_id) > (:after_at, :after_id) "
    "and expires_at <= :at order by expires_at, file_id limit :most for update skip locked"
)
_IS_OVER = "case when h.hold_id is null then u.claimed_at <= :claimed_before else h.settled_number is not null end"
"""SQL: whether the use ``u``, whose hold is ``h`` if that exists, has ended."""
_DELETE = text(
    # A statement of its own, which sees every claim that was made before the files were locked.
    "with unneeded as (select account_id, file_id, created_at > :added_after as counts from files f "
    "where file_id = any(:file_ids) and not exists (select from file_uses u "
    "left join holds h on (h.account_id, h.hold_id) = (u.account_id, u.hold_id) "
    f"where (u.account_id, u.file_id) = (f.account_id, f.file_id) and not ({_IS_OVER}))), "
    "gone as (delete from files f using unneeded n where f.file_id = n.file_id and not counts "
    "returning f.account_id, f.file_id), "
    "kept as (update files f set expires_at = created_at from unneeded n "
    "where f.file_id = n.file_id and counts and f.expires_at > f.created_at), "
    "uses as (delete from file_uses u using gone "
    "where (u.account_id, u.file_id) = (gone.account_id, gone.file_id)) "
    "select count(*) from gone"
)
_DELETE_USES = text(
    "with page as materialized (select account_id, file_id, hold_id, claimed_at from file_uses "
    "where (account_id, file_id, hold_id) > (:account_id, :file_id, :hold_id) "
    "order by account_id, file_id, hold_id limit :most), "
    "ended as (delete from file_uses d using page u "
    "left join holds h on (h.account_id, h.hold_id) = (u.account_id, u.hold_id) "
    "where (d.account_id, d.file_id, d.hold_id) = (u.account_id, u.file_id, u.hold_id) "
    f"and {_IS_OVER}) "
    "select account_id, file_id, hold_id from page order by account_id, file_id, hold_id offset :most - 1"
)


class FilesTotal(NamedTuple):
    """How many files there are, and their bytes: those that are yet to be deleted, too."""

    files: int
    bytes: int


class FileUse(NamedTuple):
    """The key of a use of a file."""

    account_id: str
    file_id: str
    hold_id: str


FIRST_USE: Final = FileUse("", "", "")
"""Comes before all uses."""


class ExpiredFile(NamedTuple):
    """A file that expired at this time."""

    at: datetime
    file_id: str


class SweptFiles(NamedTuple):
    """How many files a sweep deleted, and the last file that it looked at, if there may be others after it."""

    deleted: int
    next_after: ExpiredFile | None


def files_total(rows: Connection, account_id: str) -> FilesTotal:
    """Return what an account's files take."""
    return FilesTotal._make(rows.execute(_TOTAL, {"account_id": account_id}).one())


def all_files_total(rows: Connection) -> FilesTotal:
    """Return what the files of all accounts take."""
    return FilesTotal._make(rows.execute(text(_ALL_TOTAL)).one())


def add_file(rows: Connection, file: FileRow, *, count_max: int, bytes_max: int) -> FilesTotal | None:
    """Write the row of a file whose content is claimed, unless the account would have too many or too large ones.

    Returns what its files take if it has not written the row. One account's files are added one after the other.
    """
    assert file.expires_at <= file.created_at, "no one can have it before its content is stored"
    rows.execute(_LOCK_ACCOUNT, {"account_id": file.account_id})
    total = files_total(rows, file.account_id)
    if total.files >= count_max or total.bytes + file.bytes > bytes_max:
        return total
    rows.execute(files.insert().values(file._asdict()))
    return None


def keep_file(rows: Connection, file: FileRow) -> bool:
    """Let a file be used whose content is stored now, until it expires; False if its row has been deleted."""
    return rows.execute(_KEEP, file._asdict()).rowcount == 1


def drop_file(rows: Connection, file: FileRow) -> None:
    """Delete the row of a file whose content could not be stored."""
    rows.execute(_DROP, file._asdict())


def claim_files(
    rows: Connection, account_id: str, file_ids: Collection[str], *, hold_id: str, at: datetime
) -> frozenset[str]:
    """Claim an account's files for the task with this hold; return those that it does not have.

    If it lacks one, none is claimed.
    """
    wanted = {"account_id": account_id, "file_ids": list(file_ids)}
    missing = frozenset(file_ids) - {*rows.execute(_LOCK_CLAIMED, {**wanted, "at": at}).scalars()}
    if not missing:
        rows.execute(_CLAIM, {**wanted, "hold_id": hold_id, "at": at})
    return missing


def release_claims(rows: Connection, account_id: str, file_ids: Collection[str], *, hold_id: str) -> None:
    """Take back the claims for a task that was not created."""
    rows.execute(_UNCLAIM, {"account_id": account_id, "file_ids": list(file_ids), "hold_id": hold_id})


def delete_file(rows: Connection, account_id: str, file_id: str, at: datetime) -> bool:
    """Let an account's file expire now, and delete it if nothing needs it; False if it does not exist."""
    ended = rows.execute(_END, {"account_id": account_id, "file_id": file_id, "at": at}).rowcount == 1
    if ended:
        _delete_unneeded(rows, [file_id], at)
    return ended


def sweep_files(rows: Connection, at: datetime, *, after: ExpiredFile, most: int) -> SweptFiles:
    """Delete those of the next ``most`` expired files that no unfinished task needs."""
    page = {"after_at": after.at, "after_id": after.file_id, "at": at, "most": most}
    due = [ExpiredFile._make(row) for row in rows.execute(_LOCK_EXPIRED, page)]
    deleted = _delete_unneeded(rows, [each.file_id for each in due], at) if due else 0
    return SweptFiles(deleted, due[-1] if len(due) == most else None)


def sweep_uses(rows: Connection, at: datetime, *, after: FileUse, most: int) -> FileUse:
    """Delete those of the next ``most`` uses that have ended; return the use after which the next page begins."""
    found = rows.execute(_DELETE_USES, {**after._asdict(), **_claimed_before(at), "most": most}).first()
    return FIRST_USE if found is None else FileUse._make(found)


def _delete_unneeded(rows: Connection, file_ids: list[str], at: datetime) -> int:
    """Delete those of some files, locked or changed in this transaction, that nothing needs.

    Returns how many; those that still count are no one's from now on.
    """
    wanted = {"file_ids": file_ids, "added_after": at - timedelta(seconds=UPLOAD_S), **_claimed_before(at)}
    return int(rows.execute(_DELETE, wanted).scalar_one())


def _claimed_before(at: datetime) -> dict[str, datetime]:
    return {"claimed_before": at - timedelta(seconds=CLAIM_S)}
