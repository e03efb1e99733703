"""Posting events: which addresses may be chosen, and what an answer comes to, against a server on loopback."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import pytest
import trio

from holdfast.ledger.tasks.events import DeliveryResponse
from holdfast.providers.outbound.guarded import GuardedClient
from holdfast.providers.outbound.webhook_post import can_be_posted_to, post_event

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
PLAIN = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Loads no certificates, for nothing here speaks TLS."""


@pytest.mark.parametrize(
    "url",
    [
        "https://example.com",
        "https://example.com/hook?token=1",
        "https://example.com:8443/a/b",
        "https://xn--bcher-kva.example/hook",
        "https://93.184.216.34/",
        "https://[2606:2800:220:1::1]/hook",
        "https://example.com/" + "a" * 1004,
    ],
)
def test_public_https_addresses_may_be_chosen(url: str) -> None:
    assert can_be_posted_to(url, local_allowed=False)
    assert can_be_posted_to(url, local_allowed=True)


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com/hook",
        "https://localhost/",
        "https://hooks.localhost/",
        "https://printer.local/",
        "https://metadata.google.internal/",
        "https://intranet/hook",
        "https://127.0.0.1/",
        "https://10.0.0.7/",
        "https://169.254.169.254/latest/meta-data",
        "https://[::1]/",
        "https://[::ffff:127.0.0.1]/",
    ],
)
def test_http_and_private_hosts_are_for_machines_that_allow_it(url: str) -> None:
    assert not can_be_posted_to(url, local_allowed=False)
    assert can_be_posted_to(url, local_allowed=True)


@pytest.mark.parametrize("local_allowed", [True, False])
@pytest.mark.parametrize(
    "url",
    [
        "",
        "hook",
        "/hook",
        "//example.com/hook",
        "https:///hook",
        "https://",
        "ftp://example.com/",
        "javascript:alert(1)",
        "file:///etc/passwd",
        "https://user@example.com/",
        "https://user:pw@example.com/",
        "https://example.com:0/",
        "https://example.com:99999/",
        "https://example.com:x/",
        "https://[::1/",
        "https://2130706433/",
        "https://0x7f000001/",
        "https://0177.0.0.1/",
        "https://127.1/",
        "https://127.0.0.1./",
        "https://[fe80::1%25eth0]/",
        "https://%31%32%37.0.0.1/",
        "https://example.com/\r\nX: y",
        "https://example.com/a b",
        "https://ex\u00e4mple.com/",
        "https://127\u30020\u30020\u30021/",
        "https://example.com/" + "a" * 1005,
    ],
)
def test_only_plain_addresses_can_be_sent_to(url: str, local_allowed: bool) -> None:
    assert not can_be_posted_to(url, local_allowed=local_allowed)


@asynccontextmanager
async def answering(reply: bytes, *, then_hang: bool = False) -> AsyncIterator[tuple[int, list[bytes]]]:
    """Run a server that sends ``reply`` on every connection; yields its port and the requests received."""
    received: list[bytes] = []

    async def serve(stream: trio.SocketStream) -> None:
        async with stream:
            request = b""
            while not request.endswith(b"\r\n\r\n{}"):
                request += await stream.receive_some(65_536)
            received.append(request)
            try:
                await stream.send_all(reply)
                if then_hang:
                    await trio.sleep_forever()
            except trio.BrokenResourceError:
                pass

    async with trio.open_nursery() as nursery:
        [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, serve, [listener])
        yield listener.socket.getsockname()[1], received
        nursery.cancel_scope.cancel()


async def post(port: int, *, timeout_s: float = 60.0, local_allowed: bool = True) -> DeliveryResponse:
    client = GuardedClient(ssl_context=PLAIN, local_allowed=local_allowed)
    try:
        with trio.fail_after(60):
            return await post_event(
                client,
                "acct_1",
                f"http://127.0.0.1:{port}/hook",
                b"{}",
                {"webhook-id": "evt_1"},
                timeout_s=timeout_s,
                now=lambda: NOON,
            )
    finally:
        client.close()


async def test_an_event_goes_out_as_json_with_its_headers() -> None:
    async with answering(b"HTTP/1.1 204 No Content\r\n\r\n") as (port, received):
        assert await post(port) == DeliveryResponse(204)
    head, _, body = received[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /hook HTTP/1.1\r\n")
    assert b"content-type: application/json" in head.lower()
    assert b"webhook-id: evt_1" in head.lower()
    assert body == b"{}"


async def test_a_redirect_is_an_answer_and_not_followed() -> None:
    async with answering(b"HTTP/1.1 307 Elsewhere\r\nLocation: /there\r\nContent-Length: 0\r\n\r\n") as (
        port,
        received,
    ):
        assert await post(port) == DeliveryResponse(307)
    assert len(received) == 1


async def test_an_answer_that_never_ends_is_not_read() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\n" + b"x" * 1000
    async with answering(head, then_hang=True) as (port, _):
        assert await post(port) == DeliveryResponse(200)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("120", 120.0),
        ("Fri, 20 Nov 2026 12:02:00 GMT", 120.0),
        ("Fri, 20 Nov 2026 11:00:00 GMT", 0.0),
        ("9" * 400, 999_999_999.0),
        ("soon", None),
        ("-5", None),
        ("Fri, 99 Nov 9999999 12:02:00 GMT", None),
        ("\xff", None),
    ],
)
async def test_retry_after_is_read_in_seconds_and_as_a_date(header: str, seconds: float | None) -> None:
    reply = f"HTTP/1.1 503 Busy\r\nRetry-After: {header}\r\nContent-Length: 0\r\n\r\n".encode("latin-1")
    async with answering(reply) as (port, _):
        assert await post(port) == DeliveryResponse(503, retry_after_s=seconds)


async def test_silence_ends_with_the_time_allowed() -> None:
    async with answering(b"", then_hang=True) as (port, _):
        answer = await post(port, timeout_s=0.2)
    assert answer == DeliveryResponse(None, error="no answer within 0.2 s")


async def test_a_refused_connection_and_invalid_http_are_unreachable() -> None:
    with trio.socket.socket() as idle:
        await idle.bind(("127.0.0.1", 0))
        answer = await post(idle.getsockname()[1])
    assert (answer.status_code, answer.error) == (None, "unreachable: ConnectError")
    async with answering(b"what do you want?\r\n\r\n") as (port, _):
        answer = await post(port)
    assert (answer.status_code, answer.error) == (None, "unreachable: RemoteProtocolError")


async def test_a_name_that_leads_inside_is_found_out_at_the_connection() -> None:
    dialed: list[str] = []

    async def resolve(host: str, port: int, *, requester: str) -> Sequence[str]:
        return ["93.184.216.34", "10.0.0.7"]

    async def dial(address: str, port: int) -> trio.SocketStream:
        dialed.append(address)
        return await trio.open_tcp_stream(address, port)

    client = GuardedClient(ssl_context=PLAIN, resolve=resolve, dial=dial)
    answer = await post_event(
        client, "acct_1", "https://hooks.example.com/", b"{}", {}, timeout_s=5, now=lambda: NOON
    )
    client.close()
    assert answer.status_code is None
    assert "not on the public network" in str(answer.error)
    assert dialed == []


async def test_without_the_permission_this_machine_is_not_called() -> None:
    async with answering(b"HTTP/1.1 200 OK\r\n\r\n") as (port, received):
        answer = await post(port, local_allowed=False)
    assert str(answer.error).startswith("not allowed")
    assert received == []
