"""Bodies of ``multipart/form-data``: fields and files, read strictly by a push parser."""

from __future__ import annotations

import hashlib
from typing import Any, Final, NamedTuple

from multipart import MultipartError, MultipartSegment, PushMultipartParser, parse_options_header

from holdfast.http.kit.values import shown
from holdfast.ledger.refusals import Refusal

PARTS_MAX: Final = 128
LIST_SUFFIX: Final = "[]"
"""Ends the name of a field that may be sent several times; it is no part of the name."""


class FormFile(NamedTuple):
    """A file of a form, by the name of its field: stored, with an id, or its ``content``."""

    name: str
    sha256: str
    file_id: str | None = None
    content: bytes = b""


class Form(NamedTuple):
    """The fields of a form, texts and lists of texts by their names, and its files."""

    fields: dict[str, Any]
    files: tuple[FormFile, ...]

    @property
    def facts(self) -> dict[str, Any]:
        """What two equal forms have in common, whatever their boundaries and the names of their files are."""
        return {"fields": self.fields, "files": [[each.name, each.sha256] for each in self.files]}


def is_form(content_type: str | None) -> bool:
    """Whether a body of this media type is a form."""
    return (content_type or "").partition(";")[0].strip().lower() == "multipart/form-data"


def parse_form(content_type: str, raw: bytes) -> Form | Refusal:
    """Read a form. Refuses with ``invalid_form``."""
    _, options = parse_options_header(content_type)
    fields: dict[str, Any] = {}
    files: list[FormFile] = []
    try:
        with PushMultipartParser(options.get("boundary", ""), max_segment_count=PARTS_MAX, strict=True) as parser:
            content = bytearray()
            segment: MultipartSegment | None = None
            for event in parser.parse(raw):
                if isinstance(event, MultipartSegment):
                    segment, content = event, bytearray()
                elif event is not None:
                    content += event
                elif segment is not None:
                    refusal = _add(segment, bytes(content), fields, files)
                    if refusal is not None:
                        return refusal
    except MultipartError as error:
        return _invalid(f"The body is not a valid form: {str(error)[:200]}.")
    return Form(fields, tuple(files))


def _add(
    segment: MultipartSegment, content: bytes, fields: dict[str, Any], files: list[FormFile]
) -> Refusal | None:
    sent_name = segment.name or ""
    name = sent_name.removesuffix(LIST_SUFFIX)
    if segment.filename is not None:
        files.append(FormFile(name, hashlib.sha256(content).hexdigest(), content=content))
        return None
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        return _invalid(f"The field {shown(name)} is not UTF-8.")
    if "\0" in text or "\0" in name:
        return _invalid(f"The field {shown(name)} has a NUL character.")
    if sent_name != name:
        listed = fields.setdefault(name, [])
        if isinstance(listed, list):
            listed.append(text)
            return None
    if name in fields:
        return _invalid(f"The form has the field {shown(name)} more than once.")
    fields[name] = text
    return None


def _invalid(message: str) -> Refusal:
    return Refusal(code="invalid_form", message=message)
