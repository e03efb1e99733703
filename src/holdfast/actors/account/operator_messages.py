"""The messages by which operators change an account: its credit, and whether it may be used."""

from __future__ import annotations

from typing import ClassVar, TypeAlias

from holdfast.actors.account.messages import CreditChanged
from holdfast.actors.runtime.messages import Command, IdempotencyKey, Replayed
from holdfast.persistence.records.accounts import AccountAccessRow


class AdjustCredit(Command[CreditChanged | Replayed[CreditChanged]], frozen=True):
    """Give credit, or take it if ``amount_micro`` is below zero. Reply: :class:`CreditChanged`.

    ``action_id`` is the operator's recorded action; the account's owner reads ``note`` in the statement. Refused
    like :func:`holdfast.ledger.credit.account.decide_adjustment`.
    """

    amount_micro: int
    action_id: str
    note: str
    idempotency: IdempotencyKey


class SetAccess(Command[AccountAccessRow], frozen=True):
    """Disable the account, or enable it again; repeating it changes nothing. Reply: the state afterwards.

    A disabled account gets no sessions, keys, credit by its owner, orders or tasks. What has begun continues: tasks
    settle, and payments are credited.
    """

    is_idempotent: ClassVar[bool] = True

    is_disabled: bool


OperatorCommand: TypeAlias = AdjustCredit | SetAccess
