"""Removes secrets and personal data from text that is logged or shown.

Deny by default: anything that resembles a credential is removed, and some innocent text with it. Holdfast's own
identifiers (``acct_…``, ``task_…``) stay, since operators need them. This process's own secrets, registered by
:func:`register_secrets`, are removed everywhere.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from itertools import pairwise
from typing import get_args
from urllib.parse import quote

from holdfast.ledger.values import Prefix

SCRUBBED = "***"
TEXT_LIMIT_CHARS = 2_000

_SECRET_NAMES = (
    r"(?:password|passwd|passphrase|pwd|secret|token|api[_-]?key|authorization|signature|pepper|cookie|otp)"  # noqa: S105 - a pattern
)

_RULES: tuple[tuple[re.Pattern[str], str], ...] = (
    # Values bound to a statement, and the row a constraint refused: customers' data, quoted by the database layer.
    (re.compile(r"\[parameters:.*?(?=\n\(Background|\Z)", re.DOTALL), f"[parameters: {SCRUBBED}]"),
    (re.compile(r"(Failing row contains ).*"), rf"\1{SCRUBBED}"),
    # scheme://user:password@host, also with a password that holds @ or /.
    (re.compile(r"(?<![a-z0-9+.-])([a-z][a-z0-9+.-]*://)[^\s'\"<>]+@", re.IGNORECASE), rf"\1{SCRUBBED}@"),
    # name=value, "name": "value", Name: scheme value.
    (
        re.compile(
            rf"({_SECRET_NAMES}[\"']?\s*[=:]\s*)"
            r"(?:b?\"(?:[^\"\\]|\\.)*\"?|b?'(?:[^'\\]|\\.)*'?|(?:(?:bearer|basic|digest)\s+)?[^\s,;&})\]]+)",
            re.IGNORECASE,
        ),
        rf"\1{SCRUBBED}",
    ),
    (re.compile(r"\b(bearer\s+)[^\s,;'\"]+", re.IGNORECASE), rf"\1{SCRUBBED}"),
    # Signature headers: t=…,v1=…[,v1=…], and v1,base64.
    (re.compile(r"\bt=\d+(?:\s*,\s*(?:v\d+|k)=[\w+/=.-]+)+"), SCRUBBED),
    (re.compile(r"\b(v\d[=,])[\w+/=-]{8,}"), rf"\1{SCRUBBED}"),
    # Keys and tokens known by their prefix, and the secret half of a payment intent.
    (
        re.compile(r"(?<![A-Za-z0-9])(hk_live_|hk_test_|hk_(?!live_|test_)|hst_|whsec_|sk_|rk_|r8_)[\w+/=-]{5,}"),
        rf"\1{SCRUBBED}",
    ),
    (re.compile(r"_secret_\w+"), f"_secret_{SCRUBBED}"),
    (re.compile(r"(?<![\w.+%-])[\w.+%-]+@[\w.+%@-]+"), SCRUBBED),
)

_OWN_ID = rf"(?:(?:{'|'.join(get_args(Prefix))})_[0-9a-f]{{32}}|cat_[0-9a-f]{{16}})(?![\w-])"
# A run ends before an identifier that is the next segment of a path.
_RUN = re.compile(rf"(?<![A-Za-z0-9]){_OWN_ID}|(?:(?!(?<=/){_OWN_ID})[A-Za-z0-9+/_-]){{20,}}={{0,2}}")
_IDENTIFIER = re.compile(r"[a-z]+_[0-9a-f]{32}|cat_[0-9a-f]{16}")
_LONG_HEX = re.compile(r"[0-9a-fA-F]{24,}")

REGISTERED_CHARS_MIN = 4
"""A shorter secret occurs in ordinary words; removing it would reveal more than it hides."""
ALONE_BELOW_CHARS = 16
"""A shorter secret may be part of a common word, so it is matched only where no letter or digit is next to it."""


class _Registered:
    """The registered secrets, in every spelling that a line may contain."""

    def __init__(self) -> None:
        self._spellings: set[str] = set()
        self._pattern: re.Pattern[str] | None = None

    def add(self, values: Iterable[str]) -> None:
        found = {text for value in values for text in _spellings(value) if len(text) >= REGISTERED_CHARS_MIN}
        if found <= self._spellings:
            return
        self._spellings |= found
        # The longest first: one secret may begin with another.
        longest_first = sorted(self._spellings, key=lambda text: (-len(text), text))
        self._pattern = re.compile("|".join(map(_exactly, longest_first)))

    def scrub(self, text: str) -> str:
        return text if self._pattern is None else self._pattern.sub(SCRUBBED, text)

    def is_in(self, text: str) -> bool:
        return self._pattern is not None and self._pattern.search(text) is not None


def _spellings(value: str) -> set[str]:
    """Plain, quoted as in Python and JSON strings, and percent-encoded."""
    return {value, repr(value)[1:-1], json.dumps(value)[1:-1], quote(value, safe="")}


def _exactly(text: str) -> str:
    if len(text) >= ALONE_BELOW_CHARS:
        return re.escape(text)
    return rf"(?<![A-Za-z0-9]){re.escape(text)}(?![A-Za-z0-9])"


_registered = _Registered()


def register_secrets(values: Iterable[str]) -> None:
    """Remove these values from all text from now on, in this whole process. Earlier values stay registered."""
    _registered.add(values)


def has_registered_secret(text: str) -> bool:
    """Whether ``text`` contains a registered value."""
    return _registered.is_in(text)


def spelled(email: str) -> str:
    """Return an e-mail address in a form that :func:`scrub` leaves, ``ada at example.com``: of an operator, who is
    named in the log.
    """
    return " at ".join(email.rsplit("@", 1))


def _class_of(char: str) -> str:
    if char.isdigit():
        return "digit"
    return "lower" if char.islower() else "upper"


def _judge_run(match: re.Match[str]) -> str:
    run = match.group()
    if _IDENTIFIER.fullmatch(run):
        return run
    if _LONG_HEX.search(run):
        return SCRUBBED
    # Random text changes between digits, lower and upper case at every other character; names and paths do not.
    classes = [_class_of(char) for char in run if char.isalnum()]
    changes = sum(1 for one, other in pairwise(classes) if one != other)
    return SCRUBBED if "digit" in classes and changes >= 0.3 * len(classes) else run


def scrub(text: str, *, limit_chars: int = TEXT_LIMIT_CHARS) -> str:
    """Replace what is or resembles a secret in ``text`` by ``***`` and cut the result to ``limit_chars``.

    Idempotent. An overlong text is cut at a blank before it is searched, so that no part of a secret remains that
    is too short to be recognised.
    """
    text = _registered.scrub(text)
    longest = 4 * limit_chars
    if len(text) > longest:
        text = text[:longest].rpartition(" ")[0]
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    text = _RUN.sub(_judge_run, text)
    return text if len(text) <= limit_chars else text[: limit_chars - 1] + "…"
