"""Values that callers send: amounts, times and the headers of commands, and how error messages show them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime, tzinfo
from typing import Final

from holdfast.actors.runtime.refs import WhileDown
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.values import AMOUNT_MICRO_MAX, format_amount, midnight, parse_amount

SHOWN_CHARS_MAX: Final = 80


def shown(value: str) -> str:
    """Return a value in quotes, cut to 80 characters, unprintable characters escaped. Never for a secret."""
    cut = value if len(value) <= SHOWN_CHARS_MAX else value[: SHOWN_CHARS_MAX - 1] + "…"
    return f"'{cut}'" if cut.isprintable() else ascii(cut)[: SHOWN_CHARS_MAX + 2]


def missing_parameter(name: str) -> Refusal:
    """Return the refusal of a request without a parameter that it needs."""
    return Refusal(code="missing_parameter", message=f"The parameter {name} is required.", param=name)


def invalid_parameter(name: str, rule: str, value: str | None = None) -> Refusal:
    """Return the refusal of a parameter that breaks a rule, such as "must be a date"."""
    given = "" if value is None else f", not {shown(value)}"
    return Refusal(code="invalid_parameter", message=f"The parameter {name} {rule}{given}.", param=name)


def unknown_parameter(name: str, known: Iterable[str]) -> Refusal:
    """Return the refusal of a parameter that does not exist; ``known`` are those that do."""
    names = ", ".join(known)
    rule = f"The known parameters are {names}." if names else "There are none in this address."
    message = f"The parameter {shown(name)} does not exist here. {rule}"
    return Refusal(code="invalid_parameter", message=message, param=name[:SHOWN_CHARS_MAX])


ORDER_DECIMALS_MAX: Final = 2
"""How many decimals the amount of a payment may have."""


def read_amount(
    text: str, *, max_micro: int = AMOUNT_MICRO_MAX, decimals_max: int = 6, param: str = "amount"
) -> int | Refusal:
    """Parse an amount as micro-credits, sent as ``param``. Refuses with ``invalid_amount``."""
    amount_micro = parse_amount(text, decimals_max=decimals_max)
    if amount_micro is None:
        most = format_amount(max_micro)
        rule = f"is not a plain decimal above zero and up to {most}, with at most {decimals_max} decimals"
    elif amount_micro > max_micro:
        rule = f"is above the maximum of {format_amount(max_micro)}"
    else:
        return amount_micro
    return Refusal(code="invalid_amount", message=f"The amount {shown(text)} {rule}.", param=param)


_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", re.ASCII)
_DATE_TIME: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?(?:[Zz]|[+-][0-9]{2}:[0-9]{2})",
    re.ASCII,
)


def read_time(name: str, sent: str, zone: tzinfo = UTC) -> datetime | Refusal:
    """Parse an RFC 3339 time with an offset, or a date as its midnight in ``zone``.

    Refuses with ``invalid_parameter``.
    """
    text = sent.replace(" ", "+")  # an offset's plus sign, sent unencoded in a query string
    try:
        if _DATE.fullmatch(text):
            return midnight(date.fromisoformat(text), zone)
        if _DATE_TIME.fullmatch(text):
            return datetime.fromisoformat(text.upper()).astimezone(UTC)
    except (ValueError, OverflowError):
        pass
    return invalid_parameter(name, "must be an RFC 3339 time with an offset, or a date", sent)


def read_given_time(name: str, sent: str | None, *, after: datetime | None = None) -> datetime | Refusal | None:
    """Parse an optional time, which must be later than ``after``, now. Refuses with ``invalid_parameter``."""
    if sent is None:
        return None
    at = read_time(name, sent)
    if isinstance(at, Refusal) or after is None or at > after:
        return at
    return invalid_parameter(name, "must be later than now", sent)


_WHOLE_SECONDS: Final = re.compile(r"[0-9]{1,6}", re.ASCII)
_KEY_TEXT = re.compile(r"[\x20-\x7e]{1,255}", re.ASCII)

NO_IDEMPOTENCY_KEY: Final = Refusal(
    code="missing_parameter", message="The header Idempotency-Key is required.", param="Idempotency-Key"
)


def read_idempotency_key(sent: Sequence[str]) -> str | Refusal:
    """Return the key that was sent, with or without quotes. Refuses with ``invalid_idempotency_key``."""
    key = sent[0]
    if len(key) >= 2 and key[0] == key[-1] == '"':
        key = key[1:-1]
    if len(sent) > 1 or not _KEY_TEXT.fullmatch(key):
        return Refusal(
            code="invalid_idempotency_key",
            message=f"The Idempotency-Key {shown(key)} must be one of 1 to 255 printable ASCII characters.",
            param="Idempotency-Key",
        )
    return key


def read_restart_wait(sent: Sequence[str], deadline_s: float) -> tuple[float, WhileDown]:
    """Return the deadline of a request's asks, at most ``deadline_s``, and what they do while an actor is down.

    The header ``Restart-Wait`` is 0 to fail at once, 5 to wait up to 5 seconds. Anything else is ignored.
    """
    if len(sent) != 1 or not _WHOLE_SECONDS.fullmatch(sent[0].strip()):
        return deadline_s, "queue"
    wait_s = int(sent[0])
    return (deadline_s, "fail") if wait_s == 0 else (min(wait_s, deadline_s), "wait")
