"""The guard of outgoing calls. No packet leaves loopback here: every dialer records instead of dialing."""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from quart import Response, redirect, request
from quart_trio import QuartTrio

from holdfast.providers.outbound.addresses import is_plain_host, is_public
from holdfast.providers.outbound.connection_pool import TransportFault
from holdfast.providers.outbound.guarded import Blocked, GuardedClient
from holdfast.sockets.connected import ConnectedSocket

from .conftest import ServeApp

PUBLIC = [
    "93.184.216.34",
    "8.8.8.8",
    "2606:4700:4700::1111",
    "64:ff9b::808:808",
    "2002:808:808::1",
    "::ffff:8.8.8.8",
]
PRIVATE = [
    "127.0.0.1",
    "127.9.9.9",
    "0.0.0.0",
    "10.0.0.1",
    "172.16.0.1",
    "192.168.1.1",
    "169.254.169.254",
    "100.64.0.1",
    "100.100.100.200",
    "168.63.129.16",
    "192.0.0.1",
    "192.0.2.1",
    "192.88.99.1",
    "198.18.0.1",
    "203.0.113.1",
    "224.0.0.1",
    "239.1.1.1",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "::127.0.0.1",
    "64:ff9b::7f00:1",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::808:808",
    "2002:7f00:1::1",
    "2002:a00:1::",
    "2001:0:4136:e378:8000:63bf:3fff:fdd2",
    "2001:db8::1",
    "2606:4700::5efe:10.0.0.1",
    "fc00::1",
    "fd00:ec2::254",
    "fe80::1",
    "fe80::1%eth0",
    "2606:4700::1%eth0",
    "fec0::1",
    "ff02::1",
    "100::1",
    "5f00::1",
    "3fff::1",
    "not an address",
    "",
]


CONTEXT = ssl.create_default_context()


class Network:
    """A pretended network: names have the addresses given; every dial ends at one loopback server, or nowhere."""

    def __init__(self, names: Mapping[str, Sequence[str]], url: str | None = None) -> None:
        self.names = names
        self.port = None if url is None else int(url.rsplit(":", 1)[1])
        self.dialed: list[tuple[str, int]] = []
        self.tls_names: list[str | None] = []

    async def resolve(self, host: str, port: int, *, requester: str) -> Sequence[str]:
        if host not in self.names:
            raise OSError("no such name")
        return self.names[host]

    async def dial(self, address: str, port: int) -> trio.SocketStream:
        self.dialed.append((address, port))
        if self.port is None:
            raise ConnectionRefusedError
        return await trio.open_tcp_stream("127.0.0.1", self.port)

    async def start_tls(self, stream: ConnectedSocket, context: ssl.SSLContext, host: str) -> ConnectedSocket:
        """Record that TLS would start, so that https can be tried against a plain server."""
        assert context.check_hostname
        self.tls_names.append(host)
        return stream

    def client(self, *allow: tuple[str, int], **options: Any) -> GuardedClient:
        return GuardedClient(
            frozenset(allow),
            resolve=self.resolve,
            dial=self.dial,
            start_tls=self.start_tls,
            ssl_context=CONTEXT,
            **options,
        )


async def fetch(client: GuardedClient, url: str) -> tuple[int, bytes]:
    try:
        with await client.open("GET", url) as response:
            return response.status, await response.read(1000)
    finally:
        client.close()


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_pass(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize("address", PRIVATE)
def test_all_other_addresses_do_not(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize(
    "host", ["example.com", "example.com.", "a-b.example", "1.1.1.1", "::1", "1.example", "xn--a"]
)
def test_plain_hosts(host: str) -> None:
    assert is_plain_host(host)


@pytest.mark.parametrize(
    "host",
    ["", "2130706433", "0x7f000001", "0177.0.0.1", "127.1", "1.2.3.4.5", "a.0x1", "a b", "é.example", "fe80::1%1"],
)
def test_ambiguous_hosts(host: str) -> None:
    assert not is_plain_host(host)


@pytest.mark.parametrize("address", [address for address in PRIVATE if address and " " not in address])
async def test_name_that_leads_inside_is_never_dialed(address: str) -> None:
    for answers in ([address], ["93.184.216.34", address], [address, "93.184.216.34"]):
        network = Network({"innocent.example": answers})
        with pytest.raises(Blocked, match="public"):
            await fetch(network.client(), "https://innocent.example/a.png")
        assert network.dialed == []


@pytest.mark.parametrize(
    "url",
    [
        "http://public.example/a.png",
        "ftp://public.example/a",
        "file:///etc/passwd",
        "gopher://public.example/",
        "https:///a",
        "https://user:pw@public.example/",
        "https://2130706433/",
        "https://0x7f.0.0.1/",
        "https://0177.1/",
        "https://127.1/",
        "https://[::1%25lo]/",
        "https://public.example:99999/",
        "https://exa mple.com/",
        "//public.example/",
        "",
        "https://public.example/" + "a" * 9000,
        "https://[::ffff:127.0.0.1/",
    ],
)
async def test_url_that_is_not_for_us_sends_nothing(url: str) -> None:
    network = Network({"public.example": ["93.184.216.34"]})
    with pytest.raises((Blocked, TransportFault)):
        await fetch(network.client(), url)
    assert network.dialed == []


@pytest.mark.parametrize(
    "url", ["https://127.0.0.1/", "https://[::1]/", "https://[::ffff:7f00:1]/", "https://10.0.0.1/"]
)
async def test_private_literals_are_blocked_by_the_real_resolver_too(url: str) -> None:
    network = Network({})
    client = GuardedClient(dial=network.dial)
    with pytest.raises(Blocked, match="public"):
        await fetch(client, url)
    assert network.dialed == []


async def test_connection_goes_to_the_judged_address_and_tls_checks_the_name(serve_app: ServeApp) -> None:
    app = QuartTrio("public", static_folder=None)

    @app.get("/a.png")
    async def picture() -> Response:
        return Response(f"{request.host} {request.headers['Accept-Encoding']}")

    async with serve_app(app) as url:
        network = Network({"public.example": ["93.184.216.34"]}, url)
        assert await fetch(network.client(), "https://Public.example/a.png") == (
            200,
            b"public.example identity",
        )
        assert network.dialed == [("93.184.216.34", 443)]
        assert network.tls_names == ["public.example"]


async def test_next_address_is_tried_and_unreachable_is_said_so() -> None:
    network = Network({"public.example": ["93.184.216.34", "8.8.8.8"], "nowhere.example": []})
    with pytest.raises(TransportFault):
        await fetch(network.client(), "https://public.example/")
    assert network.dialed == [("93.184.216.34", 443), ("8.8.8.8", 443)]
    for url in ("https://nowhere.example/", "https://unknown.example/"):
        with pytest.raises(TransportFault):
            await fetch(network.client(), url)


async def test_configured_origin_is_reached_by_http_on_its_port_alone(serve_app: ServeApp) -> None:
    app = QuartTrio("studio", static_folder=None)

    @app.get("/")
    async def home() -> str:
        return "home"

    async with serve_app(app) as url:
        port = int(url.rsplit(":", 1)[1])
        assert await fetch(GuardedClient(frozenset({("127.0.0.1", port)})), f"{url}/") == (200, b"home")
        other = GuardedClient(frozenset({("127.0.0.1", port + 1)}))
        with pytest.raises(Blocked, match="https"):
            await fetch(other, f"{url}/")


async def test_a_kept_connection_serves_an_origin_only_while_it_is_configured(serve_app: ServeApp) -> None:
    app = QuartTrio("studio", static_folder=None)

    @app.get("/")
    async def home() -> str:
        return "home"

    async with serve_app(app) as url:
        network = Network({"studio.local": ["127.0.0.1"]}, url)
        origins = {("studio.local", 443)}
        client = GuardedClient(
            origins,
            resolve=network.resolve,
            dial=network.dial,
            start_tls=network.start_tls,
            ssl_context=CONTEXT,
        )
        for _ in range(2):
            with await client.open("GET", "https://studio.local/") as response:
                assert await response.read(1000) == b"home"
        assert network.dialed == [("127.0.0.1", 443)]
        origins.clear()
        with pytest.raises(Blocked, match="public"):
            await fetch(client, "https://studio.local/")
        assert network.dialed == [("127.0.0.1", 443)]


def redirecting(*targets: str) -> QuartTrio:
    app = QuartTrio("redirecting", static_folder=None)

    @app.get("/<int:hop>")
    async def hop_on(hop: int) -> Any:
        app.config.setdefault("SEEN", []).append((request.host, request.headers.get("X-Secret")))
        return redirect(targets[hop]) if hop < len(targets) else Response("there")

    return app


async def test_each_redirect_is_checked(serve_app: ServeApp) -> None:
    names = {"a.example": ["93.184.216.34"], "b.example": ["8.8.8.8"], "evil.example": ["169.254.169.254"]}
    async with serve_app(redirecting("/1", "https://b.example/2")) as url:
        assert await fetch(Network(names, url).client(), "https://a.example/0") == (200, b"there")
    for inside in ("https://evil.example/x", "http://b.example/2", "https://127.0.0.1/", "ftp://b.example/"):
        async with serve_app(redirecting(inside)) as url:
            network = Network({**names, "127.0.0.1": ["127.0.0.1"]}, url)
            with pytest.raises(Blocked):
                await fetch(network.client(), "https://a.example/0")
            assert network.dialed == [("93.184.216.34", 443)]


async def test_stranger_may_not_redirect_to_a_configured_origin(serve_app: ServeApp) -> None:
    async with serve_app(redirecting("http://studio.local:81/1")) as url:
        network = Network({"a.example": ["93.184.216.34"], "studio.local": ["127.0.0.1"]}, url)
        with pytest.raises(Blocked, match="configured"):
            await fetch(network.client(("studio.local", 81)), "https://a.example/0")
        assert network.dialed == [("93.184.216.34", 443)]


async def test_one_providers_request_does_not_lead_to_another_configured_origin(serve_app: ServeApp) -> None:
    origins = {("one.local", 81), ("two.local", 82)}
    names = {"one.local": ["127.0.0.1"], "two.local": ["127.0.0.1"]}
    async with serve_app(redirecting("http://two.local:82/1")) as url:
        network = Network(names, url)
        client = network.client(*origins)
        only = frozenset({("one.local", 81)})
        for start in ("http://one.local:81/0", "http://two.local:82/1", "https://two.local:82/1"):
            with pytest.raises(Blocked, match="another provider"):
                await client.open("GET", start, only=only)
        assert network.dialed == [("127.0.0.1", 81)]
        with await client.open("GET", "http://one.local:81/0") as response:
            assert response.status == 200
        client.close()


@given(text=st.text(max_size=60), start=st.sampled_from(["", "http://", "https://", "//", "https://a.example/"]))
async def test_any_text_is_a_plain_https_url_or_blocked(text: str, start: str) -> None:
    client = Network({}).client()
    with pytest.raises((Blocked, TransportFault)) as refused:
        await fetch(client, start + text)
    assert isinstance(refused.value, Blocked) or (start + text).lstrip().lower().startswith("https:")


async def test_redirects_are_counted(serve_app: ServeApp) -> None:
    async with serve_app(redirecting(*(f"/{hop}" for hop in range(1, 6)))) as url:
        network = Network({"a.example": ["93.184.216.34"]}, url)
        assert await fetch(network.client(), "https://a.example/0") == (200, b"there")
    async with serve_app(redirecting(*(f"/{hop}" for hop in range(1, 7)))) as url:
        network = Network({"a.example": ["93.184.216.34"]}, url)
        with pytest.raises(Blocked, match="redirects"):
            await fetch(network.client(), "https://a.example/0")


async def test_headers_do_not_cross_origins(serve_app: ServeApp) -> None:
    app = redirecting("/1", "https://b.example/2")
    async with serve_app(app) as url:
        network = Network({"a.example": ["93.184.216.34"], "b.example": ["8.8.8.8"]}, url)
        client = network.client()
        with await client.open("GET", "https://a.example/0", headers={"X-Secret": "s"}) as response:
            assert response.status == 200
            await response.read(1000)
        client.close()
    assert app.config["SEEN"] == [("a.example", "s"), ("a.example", "s"), ("b.example", None)]


async def test_a_post_without_redirects_tells_the_status_and_follows_nothing(serve_app: ServeApp) -> None:
    app = QuartTrio("hook", static_folder=None)

    @app.post("/hook")
    async def hook() -> Any:
        body = await request.get_data()
        return redirect("https://b.example/") if body == b"go" else Response(body, 202)

    async with serve_app(app) as url:
        network = Network({"a.example": ["93.184.216.34"]}, url)
        client = network.client()

        async def post(url: str, content: bytes) -> int:
            with await client.open("POST", url, content=content, redirects_max_count=0) as response:
                return response.status

        assert await post("https://a.example/hook", b"{}") == 202
        assert await post("https://a.example/hook", b"go") == 302
        with pytest.raises(Blocked):
            await post("http://a.example/hook", b"{}")
        client.close()


async def test_silent_server_is_let_go() -> None:
    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")

        async def silence(stream: trio.SocketStream) -> None:
            async with stream:
                await trio.sleep_forever()

        nursery.start_soon(trio.serve_listeners, silence, [listener])
        network = Network({"a.example": ["93.184.216.34"]}, f"x:{listener.socket.getsockname()[1]}")
        with pytest.raises(TransportFault):
            await fetch(network.client(idle_timeout_s=0.1), "https://a.example/")
        nursery.cancel_scope.cancel()
