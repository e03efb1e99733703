"""The progress list of a task: a provider's texts, made safe to show and limited in length.

The customer sees these texts, so URLs and text that resembles a key are removed. So are control
characters, since PostgreSQL cannot store NUL in JSON.
"""

from __future__ import annotations

import hashlib
import re
from datetime import datetime, timedelta
from typing import get_args

import msgspec

from holdfast.ledger.tasks.provider_update import ProviderUpdate
from holdfast.ledger.tasks.task import ErrorCode, Progress, ProgressStatus, Stage

PROGRESS_MAX_ENTRIES = 100
PROGRESS_FIRST_ENTRIES = 5
"""How many of the oldest entries stay when the list is full: they show how the task began."""

COALESCE_S = 1
MESSAGE_MAX_CHARS = 500
WORD_MAX_CHARS = 100
EVENT_ID_SHOWN_CHARS = 200
"""A longer event id is shortened to its beginning and a digest."""

_READ_MAX_CHARS = 4000
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]+")
_URL = re.compile(r"(?:\b[a-z][a-z0-9+.-]{0,20})?://\S*|\bwww\.\S+", re.IGNORECASE)
_SECRET = re.compile(
    r"""(?:\b(?:bearer|basic)\s+\S{6,}
    |\b(?:api[_-]?key|access[_-]?key|secret|token|password|signature|sig)["']?\s*[=:]\s*\S+
    |\b(?:sk|pk|rk|hk|hst|whsec|r8|key|ghp)[_-][A-Za-z0-9_-]{8,}
    |\beyJ[A-Za-z0-9_.-]{10,}
    |[A-Za-z0-9_+/=-]{32,})""",
    re.IGNORECASE | re.VERBOSE,
)
_STAGES: dict[str, Stage] = {stage: stage for stage in get_args(Stage)}


def clean_message(text: str | None) -> str | None:
    """Return ``text`` without URLs, keys and control characters, cut to its limit; None if nothing is left."""
    if text is None:
        return None
    if len(text) > _READ_MAX_CHARS:
        # Cut between words: half a key would not be recognised as one.
        text = text[:_READ_MAX_CHARS].rpartition(" ")[0]
    text = _CONTROL.sub(" ", text)
    text = _SECRET.sub("[removed]", _URL.sub("[url]", text)).strip()
    if len(text) > MESSAGE_MAX_CHARS:
        text = text[: MESSAGE_MAX_CHARS - 1] + "…"
    return text or None


def clean_word(text: str | None, *, chars_max: int = WORD_MAX_CHARS) -> str | None:
    """Return a provider's identifier without control characters, cut at ``chars_max``."""
    if text is None:
        return None
    return _CONTROL.sub(" ", text[:chars_max]).strip() or None


def error_text(code: ErrorCode, text: str | None) -> str:
    """Format an error as customers see it: ``code: text``."""
    return f"{code}: {clean_message(text) or 'no further detail'}"


def callback_ref(event_id: str) -> str:
    """Return the ``source_ref`` of a callback: always the same for the same event."""
    if len(event_id) > EVENT_ID_SHOWN_CHARS:
        digest = hashlib.sha256(event_id.encode("utf-8", "replace")).hexdigest()
        event_id = f"{event_id[: EVENT_ID_SHOWN_CHARS - len(digest)]}{digest}"
    return f"callback:{_CONTROL.sub(' ', event_id)}"


def note_of(
    update: ProviderUpdate, *, status: ProgressStatus, source_ref: str, percent: int | None, at: datetime
) -> Progress:
    """Return the progress entry of an update; ``percent`` is the highest so far."""
    return Progress(
        ts=at,
        status=status,
        source_ref=source_ref,
        percent=percent,
        stage=_STAGES.get(update.stage or ""),
        message=clean_message(update.message or (update.error.message if update.error else None)),
        raw_status=clean_word(update.raw_status),
    )


def system_note(
    status: ProgressStatus, what: str, at: datetime, *, stage: Stage | None = None, message: str | None = None
) -> Progress:
    """Return a progress entry about something that this service did."""
    return Progress(ts=at, status=status, source_ref=f"system:{what}", stage=stage, message=clean_message(message))


def highest_percent(known: int | None, reported: int | None) -> int | None:
    """Return the higher of two percentages, within 0 to 100."""
    if reported is None:
        return known
    return max(known or 0, min(100, max(0, reported)))


def with_note(progress: tuple[Progress, ...], note: Progress) -> tuple[Progress, ...]:
    """Return ``progress`` with ``note`` appended, at most ``PROGRESS_MAX_ENTRIES`` long.

    Entries with the same status and stage within a second are merged. A full list drops the oldest entry after the
    first few.
    """
    if progress:
        last = progress[-1]
        near = abs(note.ts - last.ts) < timedelta(seconds=COALESCE_S)
        if near and (note.status, note.stage) == (last.status, last.stage):
            if note.percent is None:
                note = msgspec.structs.replace(note, percent=last.percent)
            return (*progress[:-1], note)
    if len(progress) >= PROGRESS_MAX_ENTRIES:
        cut = len(progress) - PROGRESS_MAX_ENTRIES + 1
        progress = progress[:PROGRESS_FIRST_ENTRIES] + progress[PROGRESS_FIRST_ENTRIES + cut :]
    return (*progress, note)
