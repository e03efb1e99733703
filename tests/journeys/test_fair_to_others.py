"""A few free accounts take all that uploads, waits and streams may have: others are served as before."""

from __future__ import annotations

from contextlib import AsyncExitStack
from urllib.parse import urlsplit

import pytest
import trio
from tests.clients import ok
from tests.event_streams import StreamReader, reading

from .conftest import NewCustomer, NewService
from .service_process import Service

ATTACKER = "127.0.0.9"
ACCOUNTS = 8
UPLOADS_EACH = 32
OTHERS = 12
CONNECTIONS_MAX = 128
STREAMS_EACH = CONNECTIONS_MAX // 2 // ACCOUNTS
"""Half of the connections may wait or stream."""
UPLOAD = (
    "POST /v2/files HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n"
    "Content-Type: application/octet-stream\r\nContent-Length: 60000000\r\n\r\n"
)
STREAM = "GET /v2/control/stream HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {session}\r\n\r\n"


async def connected(service: Service, stack: AsyncExitStack, head: str) -> trio.SocketStream:
    """Open a connection from the attackers' address, and send the head of a request."""
    stream = trio.SocketStream(trio.socket.socket())
    await stack.enter_async_context(stream)
    await stream.socket.bind((ATTACKER, 0))
    await stream.socket.connect(("127.0.0.1", urlsplit(service.url).port))
    await stream.send_all(head.encode())
    return stream


@pytest.mark.slow
async def test_slow_uploads_of_many_free_accounts_block_no_other(
    new_service: NewService, new_customer: NewCustomer
) -> None:
    service = new_service()
    await trio.to_thread.run_sync(service.start)
    keys = [(await new_customer(service)).key for _ in range(ACCOUNTS)]
    ada = await new_customer(service)
    async with AsyncExitStack() as stack:
        for key in keys:
            for _ in range(UPLOADS_EACH):
                stream = await connected(service, stack, UPLOAD.format(key=key))
                await stream.send_all(bytes(100_000))
        for number in range(OTHERS):
            sent = bytes([number]) * 200_000
            with trio.fail_after(60):
                file = ok(await ada.as_key("POST", "/v2/files", content=sent))
            assert file["bytes"] == len(sent)
    assert service.faults() == []


@pytest.mark.slow
async def test_streams_of_many_free_accounts_block_no_wait_of_others(
    new_service: NewService, new_customer: NewCustomer
) -> None:
    service = new_service(CONNECTIONS_MAX=str(CONNECTIONS_MAX))
    await trio.to_thread.run_sync(service.start)
    sessions = [(await new_customer(service)).session for _ in range(ACCOUNTS)]
    others = [await new_customer(service, credit="5.00") for _ in range(3)]
    async with AsyncExitStack() as stack:
        streams = []
        for session in sessions:
            for _ in range(STREAMS_EACH):
                stream = StreamReader(await connected(service, stack, STREAM.format(session=session)))
                await stream.read_head()
                assert (stream.status, (await stream.next()) is not None) == (200, True)
                streams.append(stream)
        late = StreamReader(await connected(service, stack, STREAM.format(session=sessions[0])))
        await late.read_head()
        assert late.status == 503
        for other in others:
            wanted = {"model": "studio/image-1", "prompt": "a lighthouse", "size": "256x256"}
            assert ok(await other.as_key("POST", "/v1/images/generations", wanted))["data"]
            request_id = ok(await other.create())["request_id"]
            assert ok(await other.as_key("GET", f"/v2/task/{request_id}?wait=60"))["status"] == "succeeded"
            mine = await stack.enter_async_context(reading(service.url, other.session, path="/v2/control/stream"))
            assert await mine.next() is not None
        # Of who had the most, the oldest have ended, as they should.
        while await streams[0].next() is not None:
            pass
        assert streams[0].is_complete
    assert service.faults() == []
