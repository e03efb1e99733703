"""The requests of clients and their responses, from which the harness derives what must be true.

It is plain Python and shares no code with the service's ledger. Amounts are micro-credits. A request whose answer
never came has the outcome ``unknown``: it may have had its effect once, or not at all.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Literal

Outcome = Literal["unknown", "done", "refused"]
"""``refused`` is used only for responses that promise that nothing was done."""

MICRO = 1_000_000
TOP_UPS_PER_DAY = 20
"""How many automatic top-ups customers allow in a UTC day."""
ENDED = frozenset({"succeeded", "failed", "canceled"})


def micro(amount: str) -> int:
    """Convert a decimal amount of credits to micro-credits. Raises ``ValueError`` if it has finer parts."""
    scaled = Decimal(amount) * MICRO
    if scaled != scaled.to_integral_value():
        raise ValueError(f"{amount} is finer than a micro-credit")
    return int(scaled)


@dataclass(slots=True)
class Create:
    """A request for a task, or (with ``retry_of``) for a retry.

    ``number`` travels in the task's metadata, so a task can be traced to its request even when no answer came.
    ``will_fail`` is the outcome scripted at the media provider, ``pictures`` the number of results charged.
    """

    number: int
    price_micro: int
    key: str | None
    will_fail: bool = False
    pictures: int = 1
    retry_of: str | None = None
    outcome: Outcome = "unknown"
    request_id: str | None = None


@dataclass(slots=True)
class Recharge:
    """A request for sandbox credit, or for a grant; its amount is unique, so it identifies its operation."""

    number: int
    amount_micro: int
    key: str | None
    outcome: Outcome = "unknown"
    operation_id: str | None = None
    kind: Literal["credit", "grant"] = "credit"


@dataclass(slots=True)
class Order:
    """A payment order. ``paid`` is the known state of the payment: ``unknown`` may have been credited once.

    ``credited`` is set once an answer has said so.
    """

    number: int
    provider: Literal["sandbox", "cardprovider"]
    amount_micro: int
    key: str | None
    outcome: Outcome = "unknown"
    order_id: str | None = None
    operation_id: str | None = None
    payment_id: str | None = None
    paid: Literal["no", "unknown", "yes"] = "no"
    credited: bool = False


@dataclass(slots=True)
class AccountRecord:
    """All requests of one customer.

    ``ends`` are final states that were answered, by task, ``versions`` the newest versions that were.
    ``wrong_answers`` are answers that no fault excuses. ``may_fail`` is set where the fault at hand lets tasks
    fail, or succeed in part. ``limits`` are the amounts of keys' limits for all time, in micro-credits, by the
    key's id. ``charges`` are the paid charges at the card provider by order, as of the last look.
    """

    email: str
    account_id: str = ""
    creates: dict[int, Create] = field(default_factory=dict)
    recharges: dict[int, Recharge] = field(default_factory=dict)
    orders: dict[int, Order] = field(default_factory=dict)
    ends: dict[str, str] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)
    wrong_answers: list[str] = field(default_factory=list)
    limits: dict[str, int] = field(default_factory=dict)
    charges: dict[str, int] = field(default_factory=dict)
    may_fail: bool = False

    def task_ids(self) -> list[str]:
        """Return the tasks that were returned, oldest request first."""
        return [create.request_id for create in self.creates.values() if create.request_id is not None]

    def note_end(self, request_id: str, status: str, *, ended: Collection[str]) -> None:
        """Record the state of a returned task; after a final one no other may follow.

        ``ended`` are the tasks whose end had been answered when the request was sent. An answer that was on its way
        while another client received the final state may still show the earlier one.
        """
        if status in ENDED:
            before = self.ends.setdefault(request_id, status)
            if before != status:
                self.wrong_answers.append(f"{request_id} was answered {before} and then {status}")
        elif request_id in ended:
            self.wrong_answers.append(f"{request_id} was answered {self.ends[request_id]} and then {status}")

    def note_version(self, request_id: str, version: int, *, at_least: int) -> None:
        """Record the version of a task in an answer; ``at_least`` is what was known when the request was sent."""
        if version < at_least:
            self.wrong_answers.append(f"{request_id} was answered in version {at_least} and then in {version}")
        self.versions[request_id] = max(version, self.versions.get(request_id, 0))


@dataclass(slots=True)
class Witness:
    """The records of all accounts, and counts of responses; ``unavailable`` are those with 503."""

    accounts: list[AccountRecord] = field(default_factory=list)
    creates: int = 0
    answers: int = 0
    unknown: int = 0
    unavailable: int = 0
    slowest_answer_s: float = 0.0
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def counts(self) -> tuple[int, int, int, int]:
        """Return the numbers of creates, responses, responses with 503, and requests without a response."""
        return self.creates, self.answers, self.unavailable, self.unknown

    def next_number(self) -> int:
        """Return an unused number for a new request."""
        return next(self._numbers)
