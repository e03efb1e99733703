"""Bodies of ``multipart/form-data``, once they have been read."""

from __future__ import annotations

from typing import Final, NamedTuple

from holdfast.persistence.records.rows import FileRow

LIST_SUFFIX: Final = "[]"
"""Ends the name of a part that may be sent several times; it is no part of the name."""


class FormFile(NamedTuple):
    """A file of a form, by the name of its part: stored as a ``row``, or with its ``content`` in memory."""

    name: str
    sha256: str
    row: FileRow | None = None
    content: bytes = b""


class Form(NamedTuple):
    """The fields of a form, texts and lists of texts by their names, and its files in the order of the body.

    ``memory_bytes`` is how much of it is in memory.
    """

    fields: dict[str, object]
    files: tuple[FormFile, ...]
    memory_bytes: int

    @property
    def facts(self) -> dict[str, object]:
        """What two equal forms have in common, whatever their boundaries and the names of their files are."""
        return {"fields": self.fields, "files": [[each.name, each.sha256] for each in self.files]}


def is_form(content_type: str | None) -> bool:
    """Whether a body of this media type is a form."""
    return (content_type or "").partition(";")[0].strip().lower() == "multipart/form-data"
