"""E-mail addresses as the service knows people by them: one spelling, and nothing that could end a mail header."""

from __future__ import annotations

import re
from typing import Final

EMAIL_MAX_CHARS: Final = 254
LOCAL_PART_MAX_CHARS: Final = 64

_LOCAL_PART = re.compile(r"[^\s@\x00-\x1f\x7f-\x9f\"(),:;<>\[\\\]]+")
_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_DOMAIN = re.compile(rf"{_LABEL}(?:\.{_LABEL})+", re.ASCII)


def normalise_email(text: str) -> str | None:
    """The address in its one spelling (trimmed, domain lower case, local part casefolded), or None.

    Stricter than the mail standards on purpose: quoted local parts, comments, bare host names and address
    literals are refused. A domain outside ASCII must be written in its xn-- form.
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
