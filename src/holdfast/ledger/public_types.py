"""Types of values as customers see them: amounts are decimal strings, times RFC 3339 in UTC with milliseconds."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Any, Literal, TypeAlias, get_args, get_origin

import msgspec

from holdfast.ledger.values import CURRENCY

Amount: TypeAlias = Annotated[
    str,
    msgspec.Meta(
        description="A decimal string of credits, with 2 to 6 decimals.", extra_json_schema={"examples": ["9.76"]}
    ),
]
Time: TypeAlias = Annotated[
    str,
    msgspec.Meta(
        description="RFC 3339 in UTC, with milliseconds.",
        extra_json_schema={"format": "date-time", "examples": ["2026-01-05T12:00:00.000Z"]},
    ),
]
Currency: TypeAlias = Annotated[
    str, msgspec.Meta(description="The currency of credit.", extra_json_schema={"enum": [CURRENCY]})
]
Role: TypeAlias = Literal["User", "Operator"]
AccountId: TypeAlias = Annotated[str, msgspec.Meta(description="The account's id, `acct_…`.")]
OrderId: TypeAlias = Annotated[str, msgspec.Meta(description="The payment order's id, `ord_…`.")]
TaskId: TypeAlias = Annotated[str, msgspec.Meta(description="The task's id, `task_…`.")]
MemberId: TypeAlias = Annotated[str, msgspec.Meta(description="The id of the process, `proc_…`.")]
LimitWindow: TypeAlias = Literal["day", "week", "month", "total"]
FreeForm: TypeAlias = dict[str, Any]


class SpendingLimit(msgspec.Struct, frozen=True):
    """The most credit that may be spent in each window."""

    credits: Amount
    """The credit."""
    window: LimitWindow
    """The window: a day, a week from Monday, or a month, in UTC; or `total`, which has no end."""


def expected_value(kind: object) -> str:
    """Describe the values that a field's type allows."""
    if get_origin(kind) is Annotated:
        kind, meta, *_ = get_args(kind)
        if isinstance(meta, msgspec.Meta):
            return meta.description or f"an integer from {meta.ge} to {meta.le}"
    if get_origin(kind) is Literal:
        return f"one of {', '.join(str(each) for each in get_args(kind))}"
    if get_origin(kind) is tuple:
        item = get_args(kind)[0]
        return "a list of tables" if isinstance(item, type) else f"a list, each item {expected_value(item)}"
    options = [each for each in get_args(kind) if each is not type(None)]
    return _NAMES[kind] if kind in _NAMES else expected_value(options[0])


_NAMES: dict[object, str] = {bool: "true or false", date: "a date YYYY-MM-DD"}


def noun(count: float, one: str, many: str | None = None) -> str:
    """Return the word for so many: ``one``, or else ``many``, which without it has an s."""
    return one if count == 1 else many or f"{one}s"


def counted(count: int, one: str) -> str:
    """Return a count with its word, such as ``1 task`` or ``2,000 tasks``."""
    return f"{count:,} {noun(count, one)}"
