"""Alerts: what is announced to an owner, and what was announced already.

A crossing is announced once, and again only after it has been crossed back. What was announced is part of the
account's state, so that it is decided in the same unit of work as the operation that crosses. So is what was mailed
lately: however often something is crossed, its owner gets few mails of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final, Literal

import msgspec

from holdfast.ledger.alerts.account_events import (
    AccountClosing,
    AccountEmailChanged,
    AccountEventData,
    AccountEventKind,
    BalanceBelow,
    CreditExpiring,
    LimitReached,
    TopUpFailed,
    kind_of,
)
from holdfast.ledger.credit.account import AccountState
from holdfast.ledger.public_types import LimitWindow
from holdfast.ledger.values import format_amount

MAILED: Final[frozenset[AccountEventKind]] = frozenset(
    {"balance.below", "key.limit_reached", "credit.expiring", "top_up.failed"}
)
"""The kinds that are sent by mail too, as what needs the owner."""

MAIL_PAUSE: Final = timedelta(hours=1)
"""How long no second mail of one subject is sent."""
MAILS_IN_PAUSE_MAX: Final = 10
"""How many mails an account gets within a pause, of all subjects."""

BALANCE: Final = "balance"
"""The subject of the alert about the available credit."""
BELOW: Final = "below"
"""Its marker. It is the same for every threshold: who sets another one knows of the balance."""

MailStop = Literal["unsubscribed", "bounced"]


class Alerts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An account's alerts; these are the defaults of an account that has set none.

    ``limit_share`` is the share of a limit at which it counts as reached. ``announced`` has a marker for each
    subject that is beyond its threshold, such as the window of a limit; with another marker it is announced again.
    ``mailed`` says when each subject was mailed, as far as that prevents another mail. ``mail_stopped``: why no
    mail is sent although ``email`` wants it.
    """

    balance_below_micro: int | None = None
    limit_share: float = 1.0
    email: bool = True
    announced: dict[str, str] = {}
    mailed: dict[str, datetime] = {}
    mail_stopped: MailStop | None = None
    mail_stopped_at: datetime | None = None

    @property
    def sends_mail(self) -> bool:
        """Whether alerts are sent by mail."""
        return self.email and self.mail_stopped is None

    def noted(self, subject: str, marker: str | None) -> tuple[Alerts, bool]:
        """Note whether a subject is beyond its threshold now, by its marker; None: it is not, or does not exist.

        Returns the alerts afterwards, the same if nothing has changed, and whether the crossing is to be announced.
        """
        if self.announced.get(subject) == marker:
            return self, False
        announced = {name: each for name, each in self.announced.items() if name != subject}
        if marker is not None:
            announced[subject] = marker
        return msgspec.structs.replace(self, announced=announced), marker is not None

    def mailed_about(self, data: AccountEventData, at: datetime) -> tuple[Alerts, bool]:
        """Return the alerts after an event, and whether it is sent by mail."""
        if kind_of(data) not in MAILED or not self.sends_mail:
            return self, False
        mailed = {subject: sent_at for subject, sent_at in self.mailed.items() if at < sent_at + MAIL_PAUSE}
        subject = (
            limit_subject(data.api_key_id or data.group_id, data.window, data.models)
            if isinstance(data, LimitReached)
            else kind_of(data)
        )
        if subject in mailed or len(mailed) >= MAILS_IN_PAUSE_MAX:
            return self, False
        return msgspec.structs.replace(self, mailed={**mailed, subject: at}), True


DEFAULT_ALERTS: Final = Alerts()


def limit_subject(limited_id: str | None, window: LimitWindow, models: Iterable[str] | None = None) -> str:
    """Return the subject of an alert about the limit of a key or group; without one, of the whole account."""
    return ":".join(["limit", limited_id or "", window, *(models or ())])


def balance_alert(alerts: Alerts, state: AccountState) -> tuple[Alerts, BalanceBelow | None]:
    """Compare the available credit with the alert's threshold; return the alerts afterwards, and what to announce.

    What is available counts, and not the balance: a hold that crosses the threshold is announced, and crosses back
    when it is released.
    """
    below_micro = alerts.balance_below_micro
    if below_micro is None or state.available_micro >= below_micro:
        return alerts.noted(BALANCE, None)[0], None
    after, is_new = alerts.noted(BALANCE, BELOW)
    if not is_new:
        return after, None
    return after, BalanceBelow(state.account_id, format_amount(state.available_micro), format_amount(below_micro))


def mail_text(data: AccountEventData) -> tuple[str, str]:
    """Return the subject and the text of the mail about an event: of a kind in :data:`MAILED`, or a notice."""
    match data:
        case BalanceBelow():
            return (
                f"Your credit is below {data.balance_below}",
                f"The available credit of your account is {data.available_balance}, which is below the "
                f"{data.balance_below} that you set for an alert.",
            )
        case LimitReached():
            whose = "Your account" if data.api_key_id is None else f"The API key {data.api_key_id}"
            if data.group_id is not None:
                whose = f"The key group {data.group_id}"
            per = data.window if data.models is None else f"{data.window}, {', '.join(data.models)}"
            until = "" if data.resets_at is None else f" The limit resets at {data.resets_at}."
            return (
                f"{whose} has spent {data.spent} of its limit of {data.limit}",
                f"{whose} has spent {data.spent} credits of its limit of {data.limit} ({per}).{until}",
            )
        case CreditExpiring():
            return (
                f"Credit of {data.remaining} expires on {data.expires_at[:10]}",
                f"{data.remaining} credits that you paid for expire at {data.expires_at}. Your account lists all "
                "that expires.",
            )
        case TopUpFailed():
            return (
                f"Your automatic top-up of {data.amount} failed",
                f"The automatic top-up of {data.amount} credits failed: {data.reason}. No further one is tried "
                "until you turn automatic top-ups on again.",
            )
        case AccountEmailChanged():
            return (
                "The e-mail address of your account was changed",
                f"The e-mail address that signs in to your account was changed at {data.changed_at}, confirmed by "
                "codes sent to both addresses. This is the last mail to this one. If it was not you, write to the "
                "operator of the service at once.",
            )
        case AccountClosing():
            return (
                f"Your account will be deleted on {data.closes_at[:10]}",
                f"Your account and its data will be deleted at {data.closes_at}, as was asked for. Until then its "
                "API keys are refused. To keep the account, sign in before.",
            )
        case _:
            raise AssertionError(f"no mail is sent about {type(data).__name__}")
