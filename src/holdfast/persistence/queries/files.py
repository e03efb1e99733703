"""Files: one by its id, and a page of an account's."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from operator import attrgetter
from typing import Unpack

from sqlalchemy import Connection, bindparam

from holdfast.persistence.queries.paging import PageOptions, page
from holdfast.persistence.records.reading import FILE
from holdfast.persistence.records.rows import FileRow
from holdfast.persistence.records.tables import files
from holdfast.persistence.records.unreadable import UnreadableEntry, read_rows

_BY_ID = FILE.where(files.c.file_id == bindparam("file_id"))


def file_by_id(rows: Connection, file_id: str) -> FileRow | None:
    """Return the file with this id, of any account, or None; it may have expired."""
    found = rows.execute(_BY_ID, {"file_id": file_id}).one_or_none()
    return None if found is None else FileRow._make(found)


def files_of_account(
    rows: Connection, account_id: str, *, now: datetime, filters: Mapping[str, str], **options: Unpack[PageOptions]
) -> list[FileRow | UnreadableEntry]:
    """Return a page of the account's files that have not expired, newest first by (created_at, file_id)."""
    assert not filters, "the list has none"
    of_account = FILE.where(files.c.account_id == account_id, files.c.expires_at > now)
    found = page(rows, of_account, (files.c.created_at, files.c.file_id), **options)
    return read_rows(FileRow._make, found, "files", attrgetter("created_at", "file_id"))
