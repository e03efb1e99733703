"""Send sign-in codes and alerts by mail: through an SMTP server, or in development into files."""

from __future__ import annotations

import contextlib
import re
import smtplib
import ssl
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from email.headerregistry import BaseHeader, HeaderRegistry, UnstructuredHeader
from email.message import EmailMessage
from email.policy import SMTP, Policy
from email.utils import format_datetime, make_msgid, parseaddr
from pathlib import Path
from typing import Final, Literal
from urllib.parse import parse_qs, unquote, urlsplit

import structlog
import trio

from holdfast.ledger.public_types import counted
from holdfast.providers.mail.base import Alert, CodeUse, MailFault

TIMEOUT_S = 15.0
TOTAL_TIMEOUT_S = 30.0
"""For a whole message, including the wait for a thread and the look-up of the server's name."""
THREADS_MAX_COUNT = 4
ALERT_THREADS_MAX_COUNT = 2
"""For alerts, apart from those for codes: a user waits for a code to sign in."""
DEVELOPMENT_SENDER = "holdfast@localhost"

_CODES: Final[dict[CodeUse, str]] = {
    "sign_in": "sign-in code",
    "email_change": "code for changing the e-mail address of your account",
}

_ADDRESS = re.compile(r"[^\s@,;:<>()\[\]\\\"\x00-\x1f\x7f]{1,64}@[^\s@,;:<>()\[\]\\\"\x00-\x1f\x7f]{1,253}\Z")
_log = structlog.get_logger(__name__)


class _UnfoldedHeader(UnstructuredHeader, BaseHeader):
    """A header that is sent on one line, as it is: folding writes what is long as encoded words (RFC 2047)."""

    def fold(self, *, policy: Policy) -> str:
        """Return the whole line."""
        return f"{self.name}: {self}{policy.linesep}"


class _HeaderClasses(HeaderRegistry):
    """Makes the class of each kind of header once.

    The standard one makes a class for each header, and only a full collection of garbage frees classes. These are
    rare: until then each message would cost 40 KB.
    """

    def __init__(self) -> None:
        super().__init__()
        self._made: dict[str, type] = {}
        self.map_to_type("list-unsubscribe", _UnfoldedHeader)

    def __getitem__(self, name: str) -> type:
        made = self._made.get(name.lower())
        if made is None:
            made = self._made[name.lower()] = super().__getitem__(name)
        return made


_POLICY = SMTP.clone(header_factory=_HeaderClasses())


@dataclass(frozen=True, slots=True, repr=False)
class _Server:
    host: str
    port: int
    user: str | None
    password: str | None
    security: Literal["tls", "starttls", "opportunistic", "none"]


class SmtpMailer:
    """Sends through the server at ``smtp_url``.

    ``smtps://[user:password@]host[:465]`` uses TLS from the start; ``smtp://[user:password@]host[:587]`` upgrades
    with STARTTLS: always if there are credentials, else if the server offers it. ``?starttls=required`` and
    ``?starttls=off`` override this; with ``off`` credentials are sent in the clear, for a server on this machine.
    Raises ``ValueError`` for an invalid URL or sender.
    """

    def __init__(
        self,
        smtp_url: str,
        mail_from: str,
        *,
        timeout_s: float = TIMEOUT_S,
        total_timeout_s: float = TOTAL_TIMEOUT_S,
    ) -> None:
        self._server = _read_url(smtp_url)
        if not _ADDRESS.match(parseaddr(mail_from)[1]) or not mail_from.isprintable():
            raise ValueError("the sender of mail is not an address")
        self._mail_from = mail_from
        self._timeout_s = timeout_s
        self._total_timeout_s = total_timeout_s
        self._ssl_context = ssl.create_default_context()
        self._code_threads = trio.CapacityLimiter(THREADS_MAX_COUNT)
        self._alert_threads = trio.CapacityLimiter(ALERT_THREADS_MAX_COUNT)

    async def send_code(self, email: str, code: str, expires_in_s: int, use: CodeUse = "sign_in") -> None:
        """Send a code. Raises :class:`MailFault`."""
        message = write_code(self._mail_from, email, code, expires_in_s, use)
        await self._send_in_time(message, email, self._code_threads)

    async def send_alert(self, email: str, alert: Alert) -> None:
        """Send an alert. Raises :class:`MailFault`."""
        await self._send_in_time(write_alert(self._mail_from, email, alert), email, self._alert_threads)

    async def _send_in_time(self, message: EmailMessage, email: str, threads: trio.CapacityLimiter) -> None:
        try:
            with trio.fail_after(self._total_timeout_s):
                # An abandoned thread keeps its token of the limiter until it ends.
                await trio.to_thread.run_sync(self._send, message, email, limiter=threads, abandon_on_cancel=True)
        except trio.TooSlowError as fault:
            _log.warning("mail not sent", fault="timeout")
            raise MailFault("the mail server did not accept the message in time") from fault
        except smtplib.SMTPRecipientsRefused as fault:
            [(code, answer)] = fault.recipients.values()
            _log.warning("mail not sent", fault=type(fault).__name__, status=code)
            raise MailFault(
                f"the mail server refused the address: {code}", is_refused=_is_unknown_address(code, answer)
            ) from fault
        except (smtplib.SMTPException, OSError, UnicodeError) as fault:
            _log.warning("mail not sent", fault=type(fault).__name__)
            raise MailFault(f"the mail server did not accept the message: {type(fault).__name__}") from fault

    def _send(self, message: EmailMessage, email: str) -> None:
        server = self._server
        if server.security == "tls":
            link: smtplib.SMTP = smtplib.SMTP_SSL(
                server.host, server.port, timeout=self._timeout_s, context=self._ssl_context
            )
        else:
            link = smtplib.SMTP(server.host, server.port, timeout=self._timeout_s)
        try:
            link.ehlo()
            wanted = server.security == "starttls"
            if wanted or (server.security == "opportunistic" and link.has_extn("starttls")):
                link.starttls(context=self._ssl_context)
                link.ehlo()
            if server.user is not None:
                link.login(server.user, server.password or "")
            # What was reported as not sent is not sent afterwards.
            trio.from_thread.check_cancelled()
            link.send_message(message, parseaddr(self._mail_from)[1], [email])
            # The message has been accepted: an error while quitting must not look like a failure.
            with contextlib.suppress(smtplib.SMTPException, OSError):
                link.quit()
        finally:
            link.close()


class DevelopmentMailer:
    """Writes each message into a file of its own in ``directory``, and the code into the log."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._threads = trio.CapacityLimiter(1)

    async def send_code(self, email: str, code: str, expires_in_s: int, use: CodeUse = "sign_in") -> None:
        """Write a code. Raises :class:`MailFault`."""
        path = await self._write_in_thread(write_code(DEVELOPMENT_SENDER, email, code, expires_in_s, use))
        _log.info("mail written to a file", email=email, code=code, file=str(path))

    async def send_alert(self, email: str, alert: Alert) -> None:
        """Write an alert. Raises :class:`MailFault`."""
        path = await self._write_in_thread(write_alert(DEVELOPMENT_SENDER, email, alert))
        _log.info("mail written to a file", email=email, subject=alert.subject, file=str(path))

    async def _write_in_thread(self, message: EmailMessage) -> Path:
        try:
            return await trio.to_thread.run_sync(self._write, message.as_bytes(), limiter=self._threads)
        except OSError as fault:
            raise MailFault(f"the message cannot be written: {fault.strerror}") from fault

    def _write(self, content: bytes) -> Path:
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        moment = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")
        path = self._directory / f"{moment}-{uuid.uuid4().hex[:8]}.eml"
        path.touch(mode=0o600)
        path.write_bytes(content)
        return path


def write_code(mail_from: str, email: str, code: str, expires_in_s: int, use: CodeUse = "sign_in") -> EmailMessage:
    """Return the message with the code. Raises :class:`MailFault` unless ``email`` is one address."""
    if not code.isascii() or not code.isalnum():
        raise MailFault("the code is malformed")
    message = _new_message(mail_from, email)
    what = _CODES[use]
    message["Subject"] = f"Your {what}: {code}"
    message["Message-ID"] = make_msgid(domain=_domain(mail_from))
    minutes = max(1, expires_in_s // 60)
    message.set_content(
        f"Your {what} is {code}\n\n"
        f"It is valid for {counted(minutes, 'minute')} and can be used once.\n"
        "If you did not request it, you can ignore this message.\n"
    )
    return message


def write_alert(mail_from: str, email: str, alert: Alert) -> EmailMessage:
    """Return the message of an alert. Raises :class:`MailFault` unless ``email`` is one address."""
    message = _new_message(mail_from, email)
    message["Subject"] = alert.subject
    message["Message-ID"] = f"<{alert.message_id}@{_domain(mail_from)}>"
    if alert.unsubscribe_url is None:
        message.set_content(f"{alert.text}\n")
        return message
    # As RFC 8058 says: a mail program may unsubscribe its user by one POST.
    message["List-Unsubscribe"] = f"<{alert.unsubscribe_url}>"
    message["List-Unsubscribe-Post"] = "List-Unsubscribe=One-Click"
    message.set_content(f"{alert.text}\n\nTo get no more of these mails: {alert.unsubscribe_url}\n")
    return message


def _new_message(mail_from: str, email: str) -> EmailMessage:
    if not _ADDRESS.match(email):
        raise MailFault("the recipient is not one plain address")
    message = EmailMessage(policy=_POLICY.clone(utf8=not email.isascii()))
    try:
        message["From"] = mail_from
        message["To"] = email
    except (ValueError, IndexError) as fault:
        raise MailFault("an address cannot be used in a header") from fault
    message["Date"] = format_datetime(datetime.now(UTC))
    message["Auto-Submitted"] = "auto-generated"
    return message


def _is_unknown_address(code: int, answer: bytes) -> bool:
    """Whether a refusal says that the address takes no mail. With the same code relays refuse for faults of ours.

    The enhanced status, by RFC 3463, says which: 5.1 is about addresses, ours in 5.1.7 and 5.1.8; 5.2.1 is a
    mailbox that is disabled. Without one, or with 5.0.0, only the code is known.
    """
    found = re.match(rb"5\.(\d{1,3}\.\d{1,3})\b", answer)
    status = b"0.0" if found is None else found[1]
    if status == b"0.0":
        return code in (550, 551, 553)
    return status == b"2.1" or (status.startswith(b"1.") and status not in (b"1.7", b"1.8"))


def _domain(mail_from: str) -> str:
    return parseaddr(mail_from)[1].rpartition("@")[2] or "localhost"


def _read_url(smtp_url: str) -> _Server:
    try:
        parts = urlsplit(smtp_url)
        port = parts.port
    except ValueError as fault:
        raise ValueError("the mail server's URL cannot be read") from fault
    if parts.scheme not in ("smtp", "smtps") or not parts.hostname or parts.path not in ("", "/"):
        raise ValueError("the mail server's URL is smtp://host:port or smtps://host:port")
    user = unquote(parts.username) if parts.username else None
    password = unquote(parts.password) if parts.password else None
    choice = parse_qs(parts.query).get("starttls", ["auto"])[-1]
    if choice not in ("auto", "required", "off"):
        raise ValueError("starttls is auto, required or off")
    if parts.scheme == "smtps":
        return _Server(parts.hostname, port or 465, user, password, "tls")
    if choice == "off":
        return _Server(parts.hostname, port or 587, user, password, "none")
    required = choice == "required" or user is not None
    return _Server(parts.hostname, port or 587, user, password, "starttls" if required else "opportunistic")
