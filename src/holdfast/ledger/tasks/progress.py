"""The progress list of a task: what a provider says, made safe to show and kept within bounds.

A provider's words reach the customer, so they lose URLs (they may open something), anything that looks like a
key, and control characters (the database takes no NUL in JSON).
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
PROGRESS_KEPT_FIRST_ENTRIES = 5
"""How many of the oldest entries stay when the list is full: they tell how the task began."""

COALESCE_S = 1
MESSAGE_MAX_CHARS = 500
WORD_MAX_CHARS = 100
EVENT_ID_SHOWN_CHARS = 200
"""A longer event id is shown by its beginning and a digest."""

_READ_MAX_CHARS = 4000
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]+")
_URL = re.compile(r"(?:\b[a-z][a-z0-9+.-]{0,20}://|\bwww\.)\S+", re.IGNORECASE)
_SECRET = re.compile(
    r"""(?:\b(?:bearer|basic)\s+\S{6,}
    |\b(?:api[_-]?key|access[_-]?key|secret|token|password|signature|sig)["']?\s*[=:]\s*\S+
    |\b(?:sk|pk|rk|hk|hst|whsec|r8|key|ghp)[_-][A-Za-z0-9_-]{8,}
    |\beyJ[A-Za-z0-9_.-]{10,}
    |[A-Za-z0-9_+/=-]{32,})""",
    re.IGNORECASE | re.VERBOSE,
)
_STAGES: dict[str, Stage] = {stage: stage for stage in get_args(Stage)}


def clean_message(text: str | None, *, chars_max: int = MESSAGE_MAX_CHARS) -> str | None:
    """``text`` without URLs, keys and control characters, cut at ``chars_max``; None where nothing is left."""
    if text is None:
        return None
    if len(text) > _READ_MAX_CHARS:
        # Cut between words: half a key would no longer look like one.
        text = text[:_READ_MAX_CHARS].rpartition(" ")[0]
    text = _CONTROL.sub(" ", text)
    text = _SECRET.sub("[removed]", _URL.sub("[url]", text)).strip()
    if len(text) > chars_max:
        text = text[: chars_max - 1] + "…"
    return text or None


def clean_word(text: str | None, *, chars_max: int = WORD_MAX_CHARS) -> str | None:
    """A short identifier of the provider's, without control characters, cut at ``chars_max``."""
    if text is None:
        return None
    return _CONTROL.sub(" ", text[:chars_max]).strip() or None


def error_text(code: ErrorCode, text: str | None) -> str:
    """An error as customers see it: ``code: text``, so that a plain string can be read by a program too."""
    return f"{code}: {clean_message(text) or 'no further detail'}"


def callback_ref(event_id: str) -> str:
    """The ``source_ref`` of a callback; the same event always gives the same."""
    if len(event_id) > EVENT_ID_SHOWN_CHARS:
        digest = hashlib.sha256(event_id.encode("utf-8", "replace")).hexdigest()
        event_id = f"{event_id[: EVENT_ID_SHOWN_CHARS - len(digest)]}{digest}"
    return f"callback:{_CONTROL.sub(' ', event_id)}"


def note_of(
    news: ProviderUpdate, *, status: ProgressStatus, source_ref: str, percent: int | None, at: datetime
) -> Progress:
    """The progress entry for ``news`` under the given ``status``; ``percent`` is the running maximum."""
    return Progress(
        ts=at,
        status=status,
        source_ref=source_ref,
        percent=percent,
        stage=_STAGES.get(news.stage or ""),
        message=clean_message(news.message or (news.error.message if news.error else None)),
        raw_status=clean_word(news.raw_status),
    )


def system_note(
    status: ProgressStatus, what: str, at: datetime, *, stage: Stage | None = None, message: str | None = None
) -> Progress:
    """A progress entry about something this house did itself."""
    return Progress(ts=at, status=status, source_ref=f"system:{what}", stage=stage, message=clean_message(message))


def raised_percent(shown: int | None, told: int | None) -> int | None:
    """The running maximum of percentages, within 0 to 100."""
    if told is None:
        return shown
    told = min(100, max(0, told))
    return told if shown is None else max(shown, told)


def with_note(progress: tuple[Progress, ...], note: Progress) -> tuple[Progress, ...]:
    """``progress`` with ``note`` behind it, the list kept within its bounds.

    Entries of the same status and stage within a second become one. A full list loses its oldest entry after
    the first few.
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
        progress = progress[:PROGRESS_KEPT_FIRST_ENTRIES] + progress[PROGRESS_KEPT_FIRST_ENTRIES + cut :]
    return (*progress, note)
