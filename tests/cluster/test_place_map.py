"""HAProxy sends an account's requests to the server that its place map names."""

from __future__ import annotations

import os
import re
import secrets
import shlex
import shutil
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import httpx2
import msgspec
import psycopg
import pytest
import typer
from sqlalchemy import Engine, text
from tests.certificates import Authority
from tests.fresh_databases import drop_tables
from tests.haproxy_process import BIND, CONTROL, LOOK_UP, MAP, SERVERS, Proxy, configured, haproxy
from tests.threaded_server import serving
from tests.tools import path_of
from typer.testing import CliRunner

from holdfast.actors.sign_in.actor import new_session_token
from holdfast.cluster import place_map as place_map_module
from holdfast.cluster.place_map import (
    PlaceMapFault,
    follow_members,
    members_map,
    place_map,
    publish_map,
    replace_map,
)
from holdfast.cluster.placement import owners_of_places
from holdfast.commands.cli import app
from holdfast.http.endpoints.operators.providers import ProviderCheckRequest
from holdfast.http.kit import waiting
from holdfast.http.kit.credentials import mint_api_key
from holdfast.http.kit.errors import ERROR_TABLE
from holdfast.ledger.values import PLACES, new_id, new_id_at, new_id_of_account, place_of
from holdfast.persistence.claims.processes import LEASE_S, Membership, MemberState, Process, renew_lease
from holdfast.persistence.server.connections import make_engine
from holdfast.persistence.server.migrate import migrate
from holdfast.persistence.server.revisions import installed_revisions
from holdfast.persistence.server.service_clock import ServiceClock
from holdfast.providers.media.provider_check import CALLBACK_LATE_S
from holdfast.settings.env_file import parse_env_file
from holdfast.settings.settings import load_settings
from holdfast.settings.warnings import find_warnings
from holdfast.wiring.cluster import http_address

ROOT = Path(__file__).parents[2]


class Upstream(BaseHTTPRequestHandler):
    """A server that is ready, and says who it is and for whom it was asked."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Answer."""
        self.rfile.read(int(self.headers["Content-Length"] or 0))
        assert isinstance(self.server, ThreadingHTTPServer)
        body = msgspec.json.encode(
            {
                "server": f"127.0.0.1:{self.server.server_port}",
                "forwarded_for": self.headers.get_all("X-Forwarded-For"),
            }
        )
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        """Answer alike."""
        self.do_GET()

    def log_message(self, *_: object) -> None:
        """Log nothing."""


class UpstreamServer(ThreadingHTTPServer):
    """Its server; HAProxy closes a health check's connection by a reset."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore the reset."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


@pytest.fixture(scope="module")
def servers() -> Iterator[list[str]]:
    """Three servers, by the names they have in HAProxy."""
    with ExitStack() as stack:
        running = [UpstreamServer(("127.0.0.1", 0), Upstream) for _ in SERVERS]
        yield [stack.enter_context(serving(server)).removeprefix("http://") for server in running]


@pytest.fixture(scope="module")
def proxy(servers: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    """HAProxy before them."""
    with haproxy(tmp_path_factory.mktemp("haproxy"), servers, socket.create_server(("127.0.0.1", 0))) as found:
        yield found


@pytest.fixture(scope="module")
def accounts(servers: list[str]) -> list[str]:
    """Four accounts of each server, whatever the servers' ports are."""
    owners = owners_of_places(servers)
    found: dict[str, list[str]] = {server: [] for server in servers}
    while min(map(len, found.values())) < 4:
        account_id = new_id("acct")
        found[owners[place_of(account_id)]].append(account_id)
    return [account_id for owned in found.values() for account_id in owned[:4]]


@pytest.fixture
def client(proxy: Proxy) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=proxy.url, verify=False) as found:
        yield found


def give_map(proxy: Proxy, servers: list[str], accounts: list[str]) -> dict[str, str]:
    """Install the map of these servers, and return the server of each of the accounts."""
    content = place_map({server: server for server in servers})
    publish_map(proxy.places, proxy.control, content)
    assert proxy.places.read_text() == content
    owners = owners_of_places(servers)
    return {account_id: owners[place_of(account_id)] for account_id in accounts}


def server_of(response: httpx2.Response) -> str:
    assert response.status_code == 200, response.text
    return str(response.json()["server"])


def bearer(credential: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {credential}"}


def test_without_tls_browsers_are_redirected_and_credentials_refused(proxy: Proxy) -> None:
    transport = httpx2.HTTPTransport(uds=str(proxy.control.with_name("plain.sock")))
    with httpx2.Client(base_url="http://api.example.com", transport=transport) as browser:
        sent_on = browser.get("/docs?a=1")
        assert (sent_on.status_code, sent_on.headers["Location"]) == (301, "https://api.example.com/docs?a=1")
        for refused in (browser.get("/docs", headers={"Authorization": "Bearer hk"}), browser.post("/v2/quote")):
            assert (refused.status_code, refused.json()["error"]["code"]) == (400, "malformed_request")


def test_a_client_has_as_few_connections_without_tls_as_with_it(servers: list[str], tmp_path: Path) -> None:
    """Both take of the same connections of HAProxy."""
    listening = socket.create_server(("127.0.0.1", 0))
    plain = ("127.0.0.9", listening.getsockname()[1])
    limits = {
        "sc0_conn_cur gt 500": "sc0_conn_cur gt 3",
        "frontend plain\n": f"frontend plain\n    bind {plain[0]}:{plain[1]}\n",
    }
    answers = []
    with haproxy(tmp_path / "haproxy", servers, listening, limits), ExitStack() as connections:
        for _ in range(4):
            with suppress(ConnectionError):
                connection = connections.enter_context(socket.create_connection(plain, timeout=60))
                connection.sendall(b"GET / HTTP/1.1\r\nHost: api.example.com\r\n\r\n")
                answers.append(connection.recv(12))
    assert [each for each in answers if each] == [b"HTTP/1.1 301"] * 3


def test_browsers_remember_to_use_tls(client: httpx2.Client) -> None:
    assert client.get("/v2/models").headers["Strict-Transport-Security"] == "max-age=31536000"


def test_the_shipped_configuration_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "certs").mkdir()
    (tmp_path / "certs" / "api.pem").write_bytes(Authority(tmp_path).issue("api.example.com").read_bytes())
    places = tmp_path / "places.map"
    places.write_text(place_map({server: server for server in SERVERS}))
    file = tmp_path / "haproxy.cfg"
    file.write_text(configured({BIND: BIND.replace("/etc/haproxy", str(tmp_path)), MAP: str(places)}))
    checked = subprocess.run(
        [path_of("haproxy"), "-c", "-f", str(file)], capture_output=True, text=True, check=False
    )
    assert (checked.returncode, checked.stderr) == (0, "")


SCALING = (ROOT / "docs" / "scaling.md").read_text("utf-8")
ENVIRONMENTS = [
    parse_env_file(block.encode()).variables for block in re.findall(r"^```ini\n(.*?)^```$", SCALING, re.M | re.S)
]
"""The settings of docs/scaling.md: those of a machine, and those of the command that keeps HAProxy's map."""


def test_the_documented_settings_of_a_machine_are_valid(tmp_path: Path) -> None:
    variables, _ = ENVIRONMENTS
    service = (ROOT / "deploy" / "systemd" / "holdfast.service").read_text("utf-8")
    assert f"StateDirectory={Path(variables['HOLDFAST_DATA_DIR']).name}\n" in service
    for name in ("catalog.toml", "member.crt", "member.key", "members-ca.crt"):
        (tmp_path / name).touch(mode=0o600)
    variables = {name: value.replace("/etc/holdfast", str(tmp_path)) for name, value in variables.items()}
    for name in ("OPERATOR_TOKEN", "SERVER_KEY", "CALLBACK_SECRET", "SANDBOX_SECRET", "S3_SECRET_ACCESS_KEY"):
        variables[f"HOLDFAST_{name}"] = secrets.token_urlsafe(32)
    settings = load_settings({**variables, "HOLDFAST_S3_ACCESS_KEY_ID": "a-key"})
    assert settings.member_address == "10.0.0.5:7400"
    assert f"{settings.host}:{settings.port}" == SERVERS[0]
    assert [line for line in find_warnings(settings) if "DATABASE_URL" in line] == []


def test_the_documented_sockets_listen_where_the_settings_say(tmp_path: Path) -> None:
    variables, _ = ENVIRONMENTS
    command = re.search(r"`(sed -i .*)`$", SCALING, re.M)
    assert command is not None
    for name in ("holdfast.socket", "holdfast-operators.socket"):
        shutil.copy(ROOT / "deploy" / "systemd" / name, tmp_path)
    subprocess.run(["sh", "-c", command[1].replace("/etc/systemd/system", str(tmp_path))], check=True)
    for name, prefix in (("holdfast.socket", "HOLDFAST"), ("holdfast-operators.socket", "HOLDFAST_OPS")):
        address = f"{variables[f'{prefix}_HOST']}:{variables[f'{prefix}_PORT']}"
        assert f"ListenStream={address}\n" in (tmp_path / name).read_text()


@pytest.mark.parametrize("instance", ["", "2"], ids=["one database", "a cell"])
def test_the_unit_of_the_map_fits_haproxy_and_has_one_setting(instance: str) -> None:
    unit = (ROOT / "deploy" / "systemd" / "holdfast-places.service").read_text("utf-8").replace("%i", instance)
    words = shlex.split(re.search(r"^ExecStart=\S+/holdfast places (.*)$", unit, re.M)[1])  # type: ignore[index]
    group: Any = typer.main.get_command(app)
    options = group.commands["places"].make_context("places", words).params
    file = MAP.replace("places/", f"places{instance}/")
    assert (str(options["file"]), str(options["socket"]), options["every"]) == (file, CONTROL, 2)
    assert (LOOK_UP.replace(MAP, file) in SCALING) == bool(instance)
    assert f"StateDirectory={Path(file).parent.name}\n" in unit
    [settings] = re.findall(r"^EnvironmentFile=(.*)$", unit, re.M)
    assert f"`{settings.replace('2', '1')}`" in SCALING
    assert ENVIRONMENTS[1].keys() == {"HOLDFAST_DATABASE_URL"}


@pytest.mark.parametrize(
    ("host", "member_address", "published"),
    [
        ("10.0.0.5", None, "10.0.0.5:8000"),
        ("10.0.0.5", "10.1.0.5:7400", "10.0.0.5:8000"),
        ("0.0.0.0", "10.1.0.5:7400", "10.1.0.5:8000"),
        ("::", "[fd00::5]:7400", "fd00::5:8000"),
        ("0.0.0.0", None, "127.0.0.1:8000"),
    ],
)
def test_a_member_publishes_where_clients_reach_it(
    tmp_path: Path, host: str, member_address: str | None, published: str
) -> None:
    given = {"HOST": host, "MEMBER_ADDRESS": member_address or "", "DATA_DIR": str(tmp_path)}
    settings = load_settings({f"HOLDFAST_{name}": value for name, value in given.items()})
    local = "127.0.0.1" if host in {"0.0.0.0", "::"} else host
    assert http_address(settings, f"http://{local}:8000") == published


def test_errors_of_haproxy_have_the_form_of_ours() -> None:
    starts = ("http-error status", "http-request return status")
    shipped = [line.strip() for line in configured({}).splitlines()]
    lines = [
        line.replace("http-request return", "http-error").split() for line in shipped if line.startswith(starts)
    ]
    assert {line[2] for line in lines} == {"400", "408", "429", "502", "503", "504"}
    for line in lines:
        text = " ".join(line)
        error = msgspec.json.decode(text[text.index("'") + 1 : text.rindex("'")])["error"]
        row = ERROR_TABLE[error["code"]]
        # What it answers with 502 or 504 is sent as 503.
        assert row.status == (int(line[2]) if line[2] < "500" else 503)
        assert error["type"] == row.type
        assert ("Retry-After" in text) == (row.retry_after_s is not None)
        assert set(error) == {"message", "type", "code", "param", "request_id"}


def test_haproxy_waits_for_the_longest_provider_check() -> None:
    [waits_s] = re.findall(
        r"^ +http-request set-timeout server (\d+)s if { path_beg /ops/ }$", configured({}), re.M
    )
    schema = msgspec.json.schema(ProviderCheckRequest)["$defs"]["ProviderCheckRequest"]
    longest_s = schema["properties"]["wait_s"]["maximum"]
    # It waits for the callback, and downloads, after the job.
    assert int(waits_s) >= longest_s + CALLBACK_LATE_S + 60


def test_haproxy_waits_for_waiting_requests_and_silent_streams() -> None:
    shown = configured({})
    [waits_s] = re.findall(r"^ +http-request set-timeout server (\d+)s if { url_param\(wait\) ", shown, re.M)
    # In two cells, one after the other, if the account moves meanwhile.
    assert int(waits_s) > waiting.WAIT_MAX_S + waiting.CHECK_S
    [others] = re.findall(r"^ +http-request set-timeout server \d+s if { path_beg /v2/task/ } (.*)$", shown, re.M)
    assert others == "!{ url_param(wait) -m found } !{ path_end /stream }"
    assert {
        int(each) > waiting.CHECK_S for each in re.findall(r"^ +timeout (?:server|client) (\d+)s", shown, re.M)
    } == {True}


def test_an_accounts_requests_reach_the_owner_of_its_place(
    proxy: Proxy, servers: list[str], accounts: list[str], client: httpx2.Client
) -> None:
    owners = give_map(proxy, servers, accounts)
    assert set(owners.values()) == set(servers)
    for account_id, owner in owners.items():
        task = f"/v2/task/{new_id_of_account('task', account_id)}"
        for key in (mint_api_key(account_id, live=True), mint_api_key(account_id, live=False)):
            assert server_of(client.get("/v2/task/list?limit=1", headers=bearer(key.secret))) == owner
            assert server_of(client.post("/v2/task/create", headers=bearer(key.secret), json={})) == owner
        session = {"Authorization": f"bearer   {new_session_token(account_id)}"}
        assert server_of(client.get("/v2/control/account", headers=session)) == owner
        assert server_of(client.get(task)) == owner
        assert server_of(client.post(f"{task}/cancel?reason=none", json={})) == owner


def test_a_page_and_a_result_reach_the_owner_of_their_account(
    proxy: Proxy, servers: list[str], accounts: list[str], client: httpx2.Client
) -> None:
    for account_id, owner in give_map(proxy, servers, accounts).items():
        cookie = {"Cookie": f"a=b; __Host-holdfast_account={new_session_token(account_id)}"}
        assert server_of(client.get("/account", headers=cookie)) == owner
        asset_id = new_id_at("asset", place_of(account_id))
        assert server_of(client.get(f"/v2/assets/{asset_id}?exp=1&sig=a")) == owner


def test_each_cell_keeps_the_map_of_its_own_places(servers: list[str], accounts: list[str], tmp_path: Path) -> None:
    """A cell whose map is empty, because it is away, has its requests answered by any other one."""
    halves = (range(PLACES // 2), range(PLACES // 2, PLACES))
    of_cells = (servers[:1], servers[1:])
    listening = socket.create_server(("127.0.0.1", 0))
    with haproxy(tmp_path / "haproxy", servers, listening, cells=2) as proxy:
        for number, (places, named) in enumerate(zip(halves, of_cells, strict=True), 1):
            publish_map(proxy.map_of(number), proxy.control, place_map({each: each for each in named}, places))
        with httpx2.Client(base_url=proxy.url, verify=False) as client:

            def owner_of(account_id: str) -> str:
                task = f"/v2/task/{new_id_of_account('task', account_id)}"
                return server_of(client.get(task))

            owners = owners_of_places(of_cells[1])
            for account_id in accounts:
                place = place_of(account_id)
                assert owner_of(account_id) == (servers[0] if place in halves[0] else owners[place])
            publish_map(proxy.map_of(1), proxy.control, "")
            away = next(each for each in accounts if place_of(each) in halves[0])
            assert {owner_of(away) for _ in servers} == set(servers)


def test_requests_without_a_place_go_to_every_server(
    proxy: Proxy, servers: list[str], client: httpx2.Client
) -> None:
    give_map(proxy, servers, [])
    paths = ["/v2/models", "/v2/task/task_x", "/v2/control/auth/otp"] * 3
    strange = bearer("hk_live_" + "Z" * 38)
    assert Counter(server_of(client.get(path)) for path in paths) == dict.fromkeys(servers, 3)
    assert {server_of(client.get("/v2/task/list", headers=strange)) for _ in servers} == set(servers)


def test_the_clients_address_is_passed_on_behind_what_the_client_says(client: httpx2.Client) -> None:
    said = client.get("/v2/models", headers={"X-Forwarded-For": "203.0.113.9"}).json()
    assert said["forwarded_for"] == ["203.0.113.9", "127.0.0.1"]


def test_the_log_has_requests_without_their_queries(proxy: Proxy, client: httpx2.Client) -> None:
    """A signed link has its signature there."""
    with socket.create_connection(("127.0.0.1", httpx2.URL(proxy.url).port)) as connection:
        connection.sendall(b"GET https://api.example.com/v2/assets/whole?sig=whole HTTP/1.1\r\nHost: a\r\n\r\n")
        connection.recv(1)
        connection.sendall(b"GET /v2/assets/faulty?sig=faulty HTTP/1.1\r\nHost :\r\n\r\n")
    client.get("/v2/assets/asset_1?exp=1&sig=secret")
    while not proxy.served_by("/v2/assets/asset_1"):
        client.get("/healthz")
    [line] = [line for line in proxy.log.read_text().splitlines() if "asset_1" in line]
    assert line.endswith(' "GET /v2/assets/asset_1 HTTP/1.1"')
    assert re.search(r"sig=|secret", proxy.log.read_text()) is None


def test_a_new_map_is_used_at_once_and_closes_no_connection(
    proxy: Proxy, servers: list[str], accounts: list[str]
) -> None:
    before = give_map(proxy, servers, accounts)
    with httpx2.Client(base_url=proxy.url, verify=False, limits=httpx2.Limits(max_connections=1)) as client:
        stop = threading.Event()
        connections = set()

        def ask() -> None:
            while not stop.is_set():
                response = client.get("/v2/models")
                assert response.status_code == 200
                connections.add(response.extensions["network_stream"].get_extra_info("client_addr"))

        asking = threading.Thread(target=ask)
        asking.start()
        try:
            after = give_map(proxy, servers[:2], accounts)
        finally:
            stop.set()
            asking.join()
        found = {
            account_id: server_of(client.get("/v2/control/account", headers=bearer(new_session_token(account_id))))
            for account_id in accounts
        }
    assert len(connections) == 1
    assert found == after
    assert {each for each in accounts if before[each] != after[each]} == {
        each for each in accounts if before[each] == servers[2]
    }


def test_a_map_that_haproxy_does_not_take_is_reported(proxy: Proxy, tmp_path: Path) -> None:
    with pytest.raises(PlaceMapFault, match=r"HAProxy has no map /elsewhere\.map: Unknown map identifier"):
        replace_map(proxy.control, Path("/elsewhere.map"), "")
    with pytest.raises(PlaceMapFault, match=r"HAProxy does not answer at .*/none\.sock"):
        publish_map(tmp_path / "places.map", tmp_path / "none.sock", "")
    with pytest.raises(PlaceMapFault, match="cannot be written: No such file"):
        publish_map(tmp_path / "none" / "places.map", None, "")


@pytest.fixture
def rows(database_url: str) -> Iterator[Engine]:
    """The database's rows, to write as members do."""
    engine = make_engine(database_url, pool_size=1, statement_timeout_ms=5_000, use="transactions")
    yield engine
    engine.dispose()


def add_member(engine: Engine, number: int, state: MemberState = "ready", *, lapsed: bool = False) -> str:
    """Write a member's row, and return the name of its server."""
    server = f"10.0.0.{number}:8000"
    process = Process(f"proc_{number}", f"machine-{number}", os.getpid(), None)
    membership = Membership(state, (f"tcp:10.0.0.{number}:7400", f"http:{server}"), 1)
    clock = ServiceClock(process.member_id)
    with engine.begin() as connection:
        clock.measure(connection)
        beaten = clock.now() - timedelta(seconds=LEASE_S + 1 if lapsed else 0)
        renew_lease(connection, process, beaten, [], membership)
    return server


def test_the_members_that_are_ready_own_the_places(rows: Engine, database_url: str) -> None:
    assert members_map(database_url) == ""
    servers = [add_member(rows, number) for number in (1, 2, 3)]
    add_member(rows, 4, "joining")
    add_member(rows, 5, "draining")
    add_member(rows, 6, lapsed=True)
    lines = [line.split() for line in members_map(database_url).splitlines()]
    assert [place for place, _ in lines] == [f"{place:03x}" for place in range(PLACES)]
    owners = owners_of_places(["proc_1", "proc_2", "proc_3"])
    assert [server for _, server in lines] == [servers[int(owner[-1]) - 1] for owner in owners]


def test_the_map_follows_the_members(rows: Engine, database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each change is published once, also after HAProxy did not answer."""

    class Stop(Exception):
        pass

    def stop() -> None:
        raise Stop

    published: list[set[str]] = []
    reported: list[str] = []
    steps = iter(
        [
            lambda: add_member(rows, 1),
            lambda: None,
            lambda: add_member(rows, 2),
            lambda: None,
            lambda: add_member(rows, 3),
            stop,
        ]
    )

    def publish(content: str) -> None:
        servers = {line.split()[1] for line in content.splitlines()}
        if len(servers) == 2 and not reported:
            raise PlaceMapFault("HAProxy does not answer")
        published.append(servers)

    monkeypatch.setattr(place_map_module, "time", SimpleNamespace(sleep=lambda _: next(steps)()))
    with pytest.raises(Stop):
        follow_members(database_url, publish, every_s=1, report=reported.append)
    assert [len(servers) for servers in published] == [0, 1, 2, 3]
    assert reported == ["HAProxy does not answer"]


def test_the_map_waits_until_the_database_has_been_migrated(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command that starts with the members, none of which has made the tables yet."""

    class Stop(Exception):
        pass

    published: list[str] = []
    reported: list[str] = []

    def sleep(_: float) -> None:
        if published:
            raise Stop
        migrate(database_url)

    drop_tables(database_url)
    monkeypatch.setattr(place_map_module, "time", SimpleNamespace(sleep=sleep))
    with pytest.raises(Stop):
        follow_members(database_url, published.append, every_s=1, report=reported.append)
    assert published == [""]
    [line] = reported
    assert line == f"The database lacks {', '.join(installed_revisions())}, which the start of a member adds."


def test_an_unreachable_database_is_reported_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[str] = []

    class Stop(Exception):
        pass

    def sleep(_: float) -> None:
        if len(reported) == 2:
            raise Stop

    monkeypatch.setattr(place_map_module, "time", SimpleNamespace(sleep=sleep))
    with pytest.raises(Stop):
        follow_members(
            "postgresql://postgres@127.0.0.1:1/holdfast", lambda _: None, every_s=1, report=reported.append
        )
    assert [line for line in reported if "refused" not in line] == []


def test_the_command_prints_or_writes_the_map(
    rows: Engine, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_DATABASE_URL", database_url)
    add_member(rows, 1)

    def run(*words: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, ["places", *words], catch_exceptions=False)
        return result.exit_code, result.output

    assert run("b:8000", "a:8000") == (0, place_map({"a:8000": "a:8000", "b:8000": "b:8000"}))
    assert run() == (0, place_map({"proc_1": "10.0.0.1:8000"}))
    file = tmp_path / "places.map"
    assert run("--file", str(file)) == (0, "")
    assert file.read_text() == place_map({"proc_1": "10.0.0.1:8000"})
    assert run("--socket", str(tmp_path / "admin.sock")) == (2, "--socket and --every need --file.\n")
    code, output = run("--file", str(file), "--socket", str(tmp_path / "none"))
    assert code == 1
    assert output.startswith("HAProxy does not answer at ")
    with rows.begin() as connection:
        connection.execute(text("delete from alembic_version"))
    code, output = run()
    assert code == 1
    assert output.startswith("The database lacks 1000")


def test_the_command_of_a_cell_writes_the_places_of_that_cell(
    rows: Engine, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = re.search(r"^```toml\n(.*?)^```$", SCALING, re.M | re.S)
    assert cells is not None
    (tmp_path / "cells.toml").write_text(cells[1])
    add_member(rows, 1)
    monkeypatch.setenv("HOLDFAST_DATABASE_URL", database_url)
    monkeypatch.setenv("HOLDFAST_CELLS", str(tmp_path / "cells.toml"))
    missing = CliRunner().invoke(app, ["places"])
    assert missing.output == "HOLDFAST_CELL is missing; HOLDFAST_CELLS needs it\n"
    monkeypatch.setenv("HOLDFAST_CELL", "2")
    for words in ([], ["10.0.0.1:8000"]):
        printed = CliRunner().invoke(app, ["places", *words], catch_exceptions=False)
        assert printed.output == "".join(f"{place:03x} 10.0.0.1:8000\n" for place in range(0x800, 0x1000))


def test_the_command_needs_a_role_that_reads_the_members_alone(
    rows: Engine, database_url: str, tmp_path: Path
) -> None:
    """docs/scaling.md: the role, and the one setting of its environment file."""
    add_member(rows, 1)
    statements = re.search(r"^```sql\n(.*?)^```$", SCALING, re.M | re.S)
    assert statements is not None
    role = f"places_{secrets.token_hex(4)}"
    with rows.begin() as connection:
        connection.exec_driver_sql(statements[1].replace("holdfast_places", role))
    try:
        as_role = urlsplit(database_url)._replace(
            netloc=f"{role}@{urlsplit(database_url).netloc.rpartition('@')[2]}"
        )
        file = tmp_path / "places.env"
        file.write_text(f"HOLDFAST_DATABASE_URL={as_role.geturl()}\n")
        environ = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
        command = [sys.executable, "-m", "holdfast", "places", "--env-file", str(file)]
        done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (0, place_map({"proc_1": "10.0.0.1:8000"})), done.stderr
        with psycopg.connect(as_role.geturl()) as connection:
            tables = (
                "select relname from pg_class where relkind in ('r', 'p', 'v') "
                "and relnamespace = 'public'::regnamespace"
            )
            readable = connection.execute(f"{tables} and has_any_column_privilege(oid, 'SELECT') order by relname")
            assert readable.fetchall() == [("alembic_version",), ("processes",), ("service_clock",)]
            rights = "'INSERT, UPDATE, DELETE, TRUNCATE'"
            assert connection.execute(f"{tables} and has_table_privilege(oid, {rights})").fetchall() == []
    finally:
        with rows.begin() as connection:
            connection.exec_driver_sql(f"DROP OWNED BY {role}; DROP ROLE {role}")
