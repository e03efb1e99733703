"""How pages show values: ages, numbers, words of states and their colours, and text of any length.

Whatever a customer or provider may have chosen is shown by :func:`outside_text`, which isolates its direction and
cuts its length.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final, Literal

import msgspec
from markupsafe import Markup

Tone = Literal["ok", "live", "idle", "warn", "bad"]

TEXT_CHARS_MAX: Final = 280
"""How much of a text is shown at first."""
TEXT_CHARS_LONGEST: Final = 20_000
ID_HEAD_CHARS: Final = 11
ID_TAIL_CHARS: Final = 7

_WORDS: Final[dict[Tone, str]] = {
    "ok": """
        succeeded up running ready yes paid credited reconciled delivered done verified active released recovered
        balanced enabled approved capture_approved start recovery release resume finished
    """,
    "live": "processing submitted starting trial joining hosting act backing_off",
    "idle": "",
    "warn": """
        review held restarting silent paused stopping retrying dead_letter refusal lockout pause restart slow
        waiting kept replaying capture_blocked disabled stuck refused unknown loss draining stopped cancelled
        unsubscribed
    """,
    "bad": """
        failed down crashed quarantined crash crash_loop quarantine escalation mismatch poison difference outage
        given_up failing reversed disputed error critical bounced
    """,
}
_TONE_OF: Final[dict[str, Tone]] = {word: tone for tone, words in _WORDS.items() for word in words.split()}


def tone_of(word: object) -> Tone:
    """Return the colour of a state: what is unknown is neutral."""
    return _TONE_OF.get(str(word), "idle")


def words_of(name: object) -> str:
    """Return an identifier as words: ``dead_letter`` is ``dead letter``. The type of an event, with dots, stays."""
    return str(name) if "." in str(name) else str(name).replace("_", " ").strip()


def read_moment(at: datetime | str) -> datetime:
    """Return a time, parsed if it is text in RFC 3339."""
    return datetime.fromisoformat(at) if isinstance(at, str) else at


def duration_text(seconds: float) -> str:
    """Return a duration in at most two units: ``400 ms``, ``12 s``, ``3 min``, ``2 h 5 min``, ``4 d``."""
    seconds = max(0.0, seconds)
    if seconds < 0.9995:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = int(seconds // 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h" if hours and days < 7 else f"{days} d"


def moment(at: datetime | str | None, now: datetime) -> Markup:
    """Return a time as its distance from ``now``, with the exact time as its title; the script keeps it current."""
    if at is None:
        return Markup("<span class='muted'>never</span>")
    instant = read_moment(at).astimezone(UTC)
    distance_s = (now - instant).total_seconds()
    if abs(distance_s) < 1:
        text = "now"
    elif distance_s >= 0:
        text = f"{_rough(distance_s)} ago"
    else:
        text = f"in {_rough(-distance_s)}"
    iso = instant.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return Markup('<time datetime="{}" title="{}" data-ago>{}</time>').format(iso, exact_text(instant), text)


def stamp(at: datetime | str, now: datetime) -> Markup:
    """Return a time as :func:`moment` does, and below it in UTC, without the date if it is today."""
    instant = read_moment(at).astimezone(UTC)
    clock = f"{instant:%H:%M:%S} UTC" if instant.date() == now.date() else f"{instant:%Y-%m-%d %H:%M:%S} UTC"
    return moment(at, now) + Markup('<span class="clock">{}</span>').format(clock)


def exact_text(at: datetime | str) -> str:
    """Return a time in full: ``2026-11-20 18:40:00.123 UTC``."""
    instant = read_moment(at).astimezone(UTC)
    return f"{instant:%Y-%m-%d %H:%M:%S}.{instant.microsecond // 1000:03d} UTC"


def minute_text(at: datetime | str) -> str:
    """Return a time to the minute: ``2026-11-20 18:40 UTC``."""
    return f"{read_moment(at).astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def code_digits(typed: str) -> str:
    """Return a code without the spaces and hyphens that were typed in it."""
    return re.sub(r"[\s-]", "", typed)


def number_text(value: float | None) -> str:
    """Return a number with three significant digits and thousands separated; an integer exactly."""
    if value is None:
        return "–"
    if isinstance(value, int) or value == int(value):
        return f"{int(value):,}"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def outside_text(text: object) -> Markup:
    """Return text from outside, its direction isolated; what is long is cut, and the rest folded."""
    full = printable(str(text))
    if len(full) <= TEXT_CHARS_MAX:
        return Markup("<bdi>{}</bdi>").format(full)
    shown = Markup("<bdi>{}…</bdi>").format(full[:TEXT_CHARS_MAX])
    rest = full[:TEXT_CHARS_LONGEST]
    note = "" if len(full) <= TEXT_CHARS_LONGEST else f" (the first {TEXT_CHARS_LONGEST:,} are shown)"
    more = Markup(
        '<details class="more"><summary>All {} characters{}</summary>'
        '<div class="inner break"><bdi>{}</bdi></div></details>'
    ).format(f"{len(full):,}", note, rest)
    return shown + more


def short_text(text: str, chars_max: int = TEXT_CHARS_MAX) -> str:
    """Return text from outside on one line, cut, for a label or an option, which has only text in it."""
    line = printable(" ".join(text.split()))
    return line if len(line) <= chars_max else f"{line[: chars_max - 1]}…"


def json_text(value: object) -> str:
    """Return a value as JSON in lines, which shows what is not printable as its escapes."""
    return printable(msgspec.json.format(msgspec.json.encode(value)).decode())


def short_id(identifier: str) -> str:
    """Return the ends of a long id: ids made at one time begin alike. Its title and its link have it all."""
    if len(identifier) <= ID_HEAD_CHARS + ID_TAIL_CHARS + 1:
        return identifier
    return f"{identifier[:ID_HEAD_CHARS]}…{identifier[-ID_TAIL_CHARS:]}"


def identifier(value: str | None, path: str | None = None) -> Markup:
    """Return an id, shortened, as a link to ``path`` if that is given."""
    if value is None:
        return Markup('<span class="muted">–</span>')
    shown = Markup('<code title="{}"><bdi>{}</bdi></code>').format(printable(value), printable(short_id(value)))
    return shown if path is None else Markup('<a href="{}">{}</a>').format(path, shown)


_UNPRINTABLE: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """Show characters that HTML forbids, and those that reorder the text around them, by their numbers.

    JSON means the same by it.
    """
    return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found.group()):04x}", text.encode(errors="replace").decode())


def _rough(seconds: float) -> str:
    """A distance in one unit, as the script writes it."""
    if seconds < 60:
        return f"{int(seconds)} s"
    if seconds < 3600:
        return f"{int(seconds // 60)} min"
    if seconds < 172_800:
        return f"{int(seconds // 3600)} h"
    return f"{int(seconds // 86_400)} d"
