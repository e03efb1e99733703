"""Sending codes: through a small SMTP server on loopback, and into files."""

from __future__ import annotations

import base64
import socket
from email import message_from_bytes, policy
from pathlib import Path

import pytest
import structlog
import trio
from tests.mail_server import Post, running

from holdfast.providers.mail.base import Alert, MailFault, NoMailer
from holdfast.providers.mail.mailers import (
    ALERT_THREADS_MAX_COUNT,
    THREADS_MAX_COUNT,
    DevelopmentMailer,
    SmtpMailer,
    write_code,
)


async def test_code_is_mailed() -> None:
    async with running(Post()) as post:
        mailer = SmtpMailer(f"smtp://127.0.0.1:{post.port}", "Holdfast <hello@holdfast.example>")
        await mailer.send_code("ann@example.com", "123456", 600)
    assert b"mail from:<hello@holdfast.example>" in [
        command.split(b" size")[0].lower() for command in post.commands
    ]
    assert b"rcpt to:<ann@example.com>" in [command.lower() for command in post.commands]
    message = message_from_bytes(post.messages[0], policy=policy.default)
    assert message["To"] == "ann@example.com"
    assert message["Subject"] == "Your sign-in code: 123456"
    assert message["Date"]
    assert message["Message-ID"].endswith("@holdfast.example>")
    content = message.get_content()
    assert "123456" in content
    assert "10 minutes" in content


ALERT = Alert("evt_1", "Your credit is below 5.00", "It is 4.99.", "https://holdfast.example/unsubscribe?sig=1")


async def test_an_alert_can_be_unsubscribed_from_in_one_step() -> None:
    async with running(Post()) as post:
        mailer = SmtpMailer(f"smtp://127.0.0.1:{post.port}", "Holdfast <hello@holdfast.example>")
        for _ in range(2):
            await mailer.send_alert("ann@example.com", ALERT)
    first, second = [message_from_bytes(each, policy=policy.default) for each in post.messages]
    assert first["Subject"] == "Your credit is below 5.00"
    # Sent again, it is the same message.
    assert first["Message-ID"] == second["Message-ID"] == "<evt_1@holdfast.example>"
    assert "It is 4.99." in first.get_content()
    assert ALERT.unsubscribe_url in first.get_content()


@pytest.mark.parametrize("email", ["ann@example.com", "änn@example.com"])
@pytest.mark.parametrize("length", [1, 60, 400, 900])
async def test_the_address_to_unsubscribe_at_is_literal_on_the_wire(email: str, length: int) -> None:
    """Mail programs read these headers as they are, and not as encoded words."""
    url = f"https://holdfast.example/unsubscribe?account={'a' * length}&sig=1"
    async with running(Post(extensions=(b"SMTPUTF8",))) as post:
        mailer = SmtpMailer(f"smtp://127.0.0.1:{post.port}", "Holdfast <hello@holdfast.example>")
        await mailer.send_alert(email, ALERT._replace(unsubscribe_url=url))
    [message] = post.messages
    head = message.partition(b"\r\n\r\n")[0].split(b"\r\n")
    assert b"List-Unsubscribe: <%b>" % url.encode() in head
    assert b"List-Unsubscribe-Post: List-Unsubscribe=One-Click" in head
    assert b"=?" not in message.partition(b"\r\n\r\n")[0]


@pytest.mark.parametrize(
    ("refuse", "status", "is_refused"),
    [
        (b"RCPT", b"550", True),
        (b"RCPT", b"550 5.1.1", True),
        (b"RCPT", b"550 5.2.1", True),
        (b"RCPT", b"554 5.1.1", True),
        (b"RCPT", b"550 5.0.0", True),
        (b"RCPT", b"451", False),
        # Faults of ours: the relay has no credentials of us, or does not like our address; and a full mailbox.
        (b"RCPT", b"554", False),
        (b"RCPT", b"554 5.7.1", False),
        (b"RCPT", b"550 5.7.26", False),
        (b"RCPT", b"550 5.1.8", False),
        (b"RCPT", b"552 5.2.2", False),
        (b"MAIL", b"550", False),
        (b"DATA", b"554", False),
    ],
)
async def test_only_an_address_that_is_refused_for_good_counts_as_refused(
    refuse: bytes, status: bytes, is_refused: bool
) -> None:
    post = Post(refuse)
    post.refusal = status
    async with running(post):
        mailer = SmtpMailer(f"smtp://127.0.0.1:{post.port}", "a@b.example")
        with pytest.raises(MailFault) as caught:
            await mailer.send_alert("ann@example.com", ALERT)
    assert caught.value.is_refused is is_refused
    assert "ann" not in str(caught.value)


class HeldPost(Post):
    """An SMTP server that answers a command only once it may."""

    def __init__(self, held: bytes) -> None:
        super().__init__()
        self.held = held
        self.may_answer = trio.Event()
        self.connections = 0

    async def serve(self, stream: trio.SocketStream) -> None:
        self.connections += 1
        await super().serve(stream)

    async def before_answer(self, line: bytes) -> None:
        if line.upper().startswith(self.held):
            await self.may_answer.wait()


async def test_alerts_that_wait_for_the_server_delay_no_code() -> None:
    """As many as wait, they have threads of their own."""
    async with running(HeldPost(b"RCPT TO:<SLOW")) as post, trio.open_nursery() as nursery:
        mailer = SmtpMailer(f"smtp://127.0.0.1:{post.port}", "a@b.example", total_timeout_s=60.0)
        for _ in range(3 * THREADS_MAX_COUNT):
            nursery.start_soon(mailer.send_alert, "slow@example.com", ALERT)
        with trio.fail_after(60):
            while post.connections < ALERT_THREADS_MAX_COUNT:
                await trio.lowlevel.checkpoint()
            await mailer.send_code("ann@example.com", "123456", 600)
        assert len(post.messages) == 1
        assert post.connections == ALERT_THREADS_MAX_COUNT + 1
        post.may_answer.set()
    assert len(post.messages) == 1 + 3 * THREADS_MAX_COUNT


async def test_mail_that_was_given_up_is_not_sent_afterwards() -> None:
    async with running(HeldPost(b"EHLO")) as post:
        mailer = SmtpMailer(f"smtp://127.0.0.1:{post.port}", "a@b.example", total_timeout_s=0.2)
        with pytest.raises(MailFault, match="in time"):
            await mailer.send_alert("ann@example.com", ALERT)
        post.may_answer.set()
        with trio.fail_after(60):
            await post.closed.wait()
    assert [command.split()[0].upper() for command in post.commands] == [b"EHLO"]


async def test_an_alert_is_written_to_a_file_in_development(tmp_path: Path) -> None:
    await DevelopmentMailer(tmp_path / "mail").send_alert("ann@example.com", ALERT)
    [file] = (tmp_path / "mail").iterdir()
    assert b"List-Unsubscribe:" in file.read_bytes()
    with pytest.raises(MailFault):
        await NoMailer().send_alert("ann@example.com", ALERT)


async def test_credentials_are_given_where_encryption_is_waived() -> None:
    async with running(Post(extensions=(b"AUTH PLAIN",))) as post:
        url = f"smtp://ann%40x:p%3Aw@127.0.0.1:{post.port}?starttls=off"
        await SmtpMailer(url, "a@b.example").send_code("ann@example.com", "123456", 60)
    (auth,) = [command for command in post.commands if command.startswith(b"AUTH")]
    assert base64.b64decode(auth.split()[-1]) == b"\0ann@x\0p:w"


@pytest.mark.parametrize("query", ["", "?starttls=auto", "?starttls=required"])
async def test_credentials_never_go_in_the_clear_by_default(query: str) -> None:
    async with running(Post(extensions=(b"AUTH PLAIN",))) as post:
        mailer = SmtpMailer(f"smtp://ann:pw@127.0.0.1:{post.port}{query}", "a@b.example")
        with pytest.raises(MailFault):
            await mailer.send_code("ann@example.com", "123456", 60)
    assert not any(command.startswith(b"AUTH") for command in post.commands)


@pytest.mark.parametrize("refuse", [b"EHLO", b"MAIL", b"RCPT", b"DATA"])
async def test_refusal_of_the_server_is_a_fault_that_tells_nothing(refuse: bytes) -> None:
    async with running(Post(refuse)) as post:
        mailer = SmtpMailer(f"smtp://127.0.0.1:{post.port}", "a@b.example")
        if refuse == b"EHLO":
            await mailer.send_code("ann@example.com", "123456", 60)
            return
        with pytest.raises(MailFault) as caught:
            await mailer.send_code("ann@example.com", "123456", 60)
    assert "ann" not in str(caught.value)
    assert "123456" not in str(caught.value)


async def test_server_that_is_away_or_silent_is_a_fault() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        away = SmtpMailer(f"smtp://127.0.0.1:{held.getsockname()[1]}", "a@b.example")
        with pytest.raises(MailFault):
            await away.send_code("a@b.example", "1", 60)
    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")

        async def silence(stream: trio.SocketStream) -> None:
            async with stream:
                await trio.sleep_forever()

        nursery.start_soon(trio.serve_listeners, silence, [listener])
        url = f"smtp://127.0.0.1:{listener.socket.getsockname()[1]}"
        with pytest.raises(MailFault):
            await SmtpMailer(url, "a@b.example", timeout_s=0.1).send_code("a@b.example", "1", 60)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    "email",
    [
        "",
        "ann",
        "ann@",
        "@example.com",
        "ann@example.com\r\nBcc: eve@example.com",
        "ann@example.com, eve@example.com",
        "ann@example.com;eve@example.com",
        "Ann <ann@example.com>",
        "ann@exam ple.com",
        "a\x00@b.example",
        "ann@@example.com",
    ],
)
def test_only_one_plain_address_is_written_to(email: str) -> None:
    with pytest.raises(MailFault):
        write_code("a@b.example", email, "123456", 600)


def test_code_cannot_carry_headers() -> None:
    with pytest.raises(MailFault):
        write_code("a@b.example", "ann@example.com", "1\r\nBcc: eve@example.com", 600)


@pytest.mark.parametrize(
    "url",
    ["", "http://a", "smtp://", "smtp://a:x", "smtp://a/path", "smtp://a?starttls=maybe", "smtp://a:99999999"],
)
def test_mail_server_needs_a_mail_url(url: str) -> None:
    with pytest.raises(ValueError, match=r"mail server|starttls"):
        SmtpMailer(url, "a@b.example")


@pytest.mark.parametrize("sender", ["", "ann", "a@b.example\r\nBcc: eve@example.com"])
def test_sender_must_be_an_address(sender: str) -> None:
    with pytest.raises(ValueError, match="sender"):
        SmtpMailer("smtp://127.0.0.1", sender)


async def test_development_mail_is_a_file_for_its_owner(tmp_path: Path) -> None:
    mailer = DevelopmentMailer(tmp_path / "mail")
    await mailer.send_code("ann@example.com", "123456", 600)
    await mailer.send_code("bob@example.com", "654321", 600)
    first, second = sorted((tmp_path / "mail").iterdir())
    assert first.stat().st_mode & 0o777 == 0o600
    assert message_from_bytes(first.read_bytes(), policy=policy.default)["To"] == "ann@example.com"
    assert b"654321" in second.read_bytes()


async def test_development_mail_that_cannot_be_written_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "mail").write_bytes(b"")
    with pytest.raises(MailFault):
        await DevelopmentMailer(tmp_path / "mail").send_code("ann@example.com", "123456", 600)


async def test_production_without_a_mail_server_discloses_no_code() -> None:
    with structlog.testing.capture_logs() as lines, pytest.raises(MailFault) as fault:
        await NoMailer().send_code("ann@example.com", "123456", 600)
    assert lines == []
    assert "123456" not in str(fault.value)


async def test_a_mail_server_that_never_answers_is_given_up_in_time() -> None:
    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")

        async def say_nothing(stream: trio.SocketStream) -> None:
            await stream.receive_some()

        nursery.start_soon(trio.serve_listeners, say_nothing, [listener])
        port = listener.socket.getsockname()[1]
        mailer = SmtpMailer(f"smtp://127.0.0.1:{port}", "post@example.com", timeout_s=600.0, total_timeout_s=0.1)
        with pytest.raises(MailFault, match="in time"):
            await mailer.send_code("ada@example.com", "123456", 600)
        nursery.cancel_scope.cancel()


def test_messages_share_the_classes_of_their_headers() -> None:
    def classes() -> list[type]:
        message = write_code("Holdfast <codes@holdfast.test>", "ada@example.com", "123456", 600)
        return [type(header) for header in message.values()]

    assert classes() == classes()
