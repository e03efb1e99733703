"""The interface of what sends mail: sign-in codes, and alerts about an account."""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol

CodeUse = Literal["sign_in", "email_change"]


class MailFault(Exception):
    """The message was not sent. The reason contains no address and no code.

    ``is_refused``: the mail server refuses the address for good.
    """

    def __init__(self, reason: str, *, is_refused: bool = False) -> None:
        super().__init__(reason)
        self.is_refused = is_refused


class Alert(NamedTuple):
    """A mail about an account. ``message_id`` is the same each time it is sent; the link ends such mail.

    What an owner must know has no such link.
    """

    message_id: str
    subject: str
    text: str
    unsubscribe_url: str | None


class Mailer(Protocol):
    """Sends codes and alerts."""

    async def send_code(self, email: str, code: str, expires_in_s: int, use: CodeUse = "sign_in") -> None:
        """Send a code. Raises :class:`MailFault`."""

    async def send_alert(self, email: str, alert: Alert) -> None:
        """Send an alert. Raises :class:`MailFault`."""


class NoMailer:
    """Sends nothing: production without a mail server must not show codes anywhere, least of all in the log."""

    async def send_code(self, email: str, code: str, expires_in_s: int, use: CodeUse = "sign_in") -> None:
        """Always raises :class:`MailFault`."""
        del email, code, expires_in_s, use
        raise MailFault("no mail server is configured")

    async def send_alert(self, email: str, alert: Alert) -> None:
        """Always raises :class:`MailFault`."""
        del email, alert
        raise MailFault("no mail server is configured")
