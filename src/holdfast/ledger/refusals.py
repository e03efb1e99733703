"""Results of commands: refusals, which are values and name the rule, and the verdicts of decisions."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final, Literal, NamedTuple

import msgspec

from holdfast.ledger.public_types import LimitWindow

StepVerdict = Literal["applied", "duplicate", "stale", "late", "ignored"]
"""What a decision did with an event or command.

``duplicate`` was applied before; ``stale`` and ``late`` are overtaken by what is known and are only recorded;
``ignored`` requires nothing.
"""


VIOLATIONS_MAX: Final = 10
"""The most violations that one refusal lists."""
PARAM_CHARS_MAX: Final = 120
MESSAGE_CHARS_MAX: Final = 1000
CLAUSE_CHARS_MAX: Final = 400


class Violation(NamedTuple):
    """A rule that an input breaks: the keys that lead to the value, and the rule in words ("is required")."""

    path: tuple[str, ...]
    rule: str

    @property
    def param(self) -> str | None:
        """The value by its keys; None for the whole."""
        return param_of(self.path) or None

    @property
    def clause(self) -> str:
        """The violation as a sentence without its full stop."""
        return cut_text(f"{self.param or 'The input'} {self.rule}", CLAUSE_CHARS_MAX)


def param_of(path: Sequence[str]) -> str:
    """Format the keys that lead to a value as ``input.size``; unprintable characters of callers are replaced."""
    joined = cut_text(".".join(path), PARAM_CHARS_MAX)
    return "".join(sign if sign.isprintable() else "?" for sign in joined)


def cut_text(text: str, chars_max: int) -> str:
    """Return a text, or as much of it as may be shown."""
    return text if len(text) <= chars_max else text[: chars_max - 1] + "…"


class ExceededLimit(msgspec.Struct, frozen=True, kw_only=True):
    """The limit that a hold would exceed, what is spent of it, and when its window ends; None: it does not.

    ``models`` are those that it is for; empty: all. ``group_id`` is the limited group of keys, if any.
    """

    credits_micro: int
    window: LimitWindow
    spent_micro: int
    resets_at: datetime | None
    models: tuple[str, ...] = ()
    group_id: str | None = None


class Refusal(msgspec.Struct, frozen=True, kw_only=True, tag="refusal"):
    """A command was understood and rejected; nothing changed.

    ``code`` is one of the codes of the error table (``holdfast.http.kit.errors`` gives each its status).
    ``required_micro`` and ``available_micro`` are set for ``insufficient_credit``; ``required_micro`` alone for
    ``max_credits_exceeded``, and with ``limit`` for a limit that is exceeded; ``retry_after_s`` for refusals that
    pass with time; ``param`` names the offending field; ``violations`` are those of an invalid input;
    ``provider_code`` is an external provider's own code if it was the one to refuse.
    """

    code: str
    message: str
    param: str | None = None
    required_micro: int | None = None
    available_micro: int | None = None
    limit: ExceededLimit | None = None
    retry_after_s: int | None = None
    provider_code: str | None = None
    final: bool = False
    """True if repeating the same call can never succeed (``x-should-retry: false``)."""
    violations: tuple[Violation, ...] = ()


def invalid_input(violations: Sequence[Violation]) -> Refusal:
    """Return one refusal for all violations, without repetitions; its ``param`` is that of the first."""
    listed = tuple(dict.fromkeys(violations))
    clauses = [each.clause for each in listed]
    if len(violations) == VIOLATIONS_MAX:
        clauses.append("and there may be more")
    message = f"{cut_text('; '.join(clauses), MESSAGE_CHARS_MAX)}."
    return Refusal(code="invalid_input", message=message, param=listed[0].param, violations=listed)


IDEMPOTENCY_KEY_REUSED: Final = Refusal(
    code="idempotency_key_reused",
    message="This Idempotency-Key was used with another request.",
    param="Idempotency-Key",
    final=True,
)
SUPERSEDED: Final = Refusal(code="superseded", message="A later attempt at this request has begun.")
"""Of an attempt by which no task is created any more; it is handled where the attempts are made."""
ACCOUNT_CLOSING: Final = Refusal(
    code="account_closing", message="The account is being closed. To keep it, its owner signs in before that."
)
ACCOUNT_MOVING: Final = Refusal(
    code="account_moving", message="The account is being moved to another database. Try again in a few seconds."
)
ACCOUNT_DISABLED: Final = Refusal(code="account_disabled", message="The account is disabled; ask the operator.")
