"""The response bodies of uploaded files. Every field is present."""

from __future__ import annotations

import msgspec

from holdfast.http.kit.dependencies import Dependencies
from holdfast.http.kit.listing import ListBody
from holdfast.http.schemas.common import render
from holdfast.ledger.public_types import Time
from holdfast.persistence.records.rows import FileRow


class FileBody(msgspec.Struct, frozen=True):
    """An uploaded file. Its id may be sent in a model's input, where the model takes a link."""

    file_id: str
    """The file's id, `file_` and 32 characters."""
    filename: str
    """The name that was sent, without folders; `file` with an extension if none was."""
    content_type: str
    """The type that the first bytes show, whatever was sent; `application/octet-stream` if they show none."""
    bytes: int
    """The file's length in bytes."""
    sha256: str
    """The hash of the file's bytes, in hexadecimal digits."""
    url: str
    """A signed link to the file, valid for an hour from this response, at most until `expires_at`."""
    created_at: Time
    """When the file was stored."""
    expires_at: Time
    """When the file is deleted; providers of unfinished tasks that name it can fetch it until these have ended."""


class FileList(ListBody[FileBody], frozen=True):
    """A page of files, newest first."""


class FileDeleted(msgspec.Struct, frozen=True):
    """The file is deleted."""

    file_id: str
    """The file's id."""
    deleted: bool
    """Always true."""


def file_body(deps: Dependencies, file: FileRow) -> FileBody:
    """Render a file, with a link that is signed as of now."""
    url = deps.urls.file_url(file.file_id, deps.urls.link_expiry(deps.now(), file.expires_at))
    return render(FileBody, file, url=url)
