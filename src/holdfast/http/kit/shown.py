"""How error messages name a parameter, and show a value that the caller sent."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from holdfast.ledger.refusals import Refusal

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
    message = f"The parameter {shown(name)} does not exist here. The known parameters are {', '.join(known)}."
    return Refusal(code="invalid_parameter", message=message, param=name[:SHOWN_CHARS_MAX])
