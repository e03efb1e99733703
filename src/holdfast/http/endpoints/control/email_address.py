"""Validation of e-mail addresses: one spelling each, and no character that could end a mail header."""

from __future__ import annotations

import re
from typing import Final

EMAIL_MAX_CHARS: Final = 254
LOCAL_PART_MAX_CHARS: Final = 64

_LOCAL_PART = re.compile(r"[^\s@\x00-\x1f\x7f-\x9f\"(),:;<>\[\\\]]+")
_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_DOMAIN = re.compile(rf"{_LABEL}(?:\.{_LABEL})+", re.ASCII)


def normalise_email(text: str) -> str | None:
    """Return the address trimmed, its domain in lower case and its local part casefolded; None if it is invalid.

    Stricter than the mail standards: quoted local parts, comments, bare host names and address literals are
    refused. A domain outside ASCII must be written in its xn-- form.
    """
    local, at, domain = text.strip().rpartition("@")
    local, domain = local.casefold(), domain.lower()
    if not at or len(local) > LOCAL_PART_MAX_CHARS or len(local) + len(domain) + 1 > EMAIL_MAX_CHARS:
        return None
    if not local.isprintable() or not _LOCAL_PART.fullmatch(local) or not _DOMAIN.fullmatch(domain):
        return None
    if local.startswith(".") or local.endswith(".") or ".." in local:
        return None
    return f"{local}@{domain}"
