"""The emulators' sockets: nothing else has their ports before the emulators do, nor between two starts."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

import httpx2
import msgspec
import pytest
import trio

from holdfast.settings.settings import Settings, SettingsFault, load_settings
from holdfast.sockets import emulator_sockets
from holdfast.sockets.emulator_sockets import (
    EMULATOR_HOST,
    EmulatorSockets,
    card_emulator_port,
    open_emulator_sockets,
)
from holdfast.sockets.listening import CannotListen
from holdfast_emulators.card.app import serve_card_emulator


def settings_of(folder: Path, **given: str) -> Settings:
    return load_settings({f"HOLDFAST_{name}": value for name, value in {"DATA_DIR": str(folder), **given}.items()})


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[EmulatorSockets]:
    with closing(open_emulator_sockets(settings_of(tmp_path))) as found:
        yield found


def is_free(port: int) -> bool:
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            other.bind((EMULATOR_HOST, port))
        except OSError:
            return False
    return True


def test_a_port_belongs_to_its_emulator_before_that_runs(opened: EmulatorSockets) -> None:
    assert {name: is_free(port) for name, port in opened.ports.items()} == {
        "studio_port": False,
        "card_emulator_port": False,
    }


def test_an_emulator_that_does_not_run_refuses_connections(opened: EmulatorSockets) -> None:
    for port in opened.ports.values():
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((EMULATOR_HOST, port))


def test_services_that_start_at_the_same_time_have_different_ports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(emulator_sockets, "PORTS", emulator_sockets.PORTS[:40])
    monkeypatch.setattr(emulator_sockets, "PORTS_TRIED", 40)
    with ExitStack() as stack:
        services = [settings_of(tmp_path / str(number)) for number in range(8)]
        ports = [
            port
            for settings in services
            for port in stack.enter_context(closing(open_emulator_sockets(settings))).ports.values()
        ]
    assert len(set(ports)) == 16


def test_no_outgoing_connection_takes_a_port_between_two_starts(opened: EmulatorSockets) -> None:
    range_file = Path("/proc/sys/net/ipv4/ip_local_port_range")
    first = int(range_file.read_text().split()[0]) if range_file.exists() else 49_152
    assert max(opened.ports.values()) < first


def test_a_stored_port_that_is_taken_or_no_number_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(emulator_sockets, "ORPHANS_S", 0)
    settings = settings_of(tmp_path)
    file = tmp_path / "studio.port"
    with socket.create_server((EMULATOR_HOST, 0)) as taken:
        for stored in (str(taken.getsockname()[1]).encode(), b"\xff", b"70000"):
            file.write_bytes(stored)
            with closing(open_emulator_sockets(settings)) as opened:
                assert int(file.read_text()) == opened.ports["studio_port"] != taken.getsockname()[1]
    file.unlink()
    file.mkdir()
    with pytest.raises(SettingsFault, match=r"cannot write .*studio\.port: Is a directory"):
        open_emulator_sockets(settings)


def test_a_configured_port_that_is_taken_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulator_sockets, "ORPHANS_S", 0)
    with socket.create_server((EMULATOR_HOST, 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CannotListen, match=rf"^Cannot listen on 127\.0\.0\.1:{port}: it is taken\.$"):
            open_emulator_sockets(settings_of(tmp_path, STUDIO_PORT=str(port)))
    assert not (tmp_path / "studio.port").exists()


@pytest.mark.parametrize("is_configured", [True, False])
def test_the_emulators_of_a_killed_service_are_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_configured: bool
) -> None:
    with socket.create_server((EMULATOR_HOST, 0)) as orphan:
        port = orphan.getsockname()[1]
        (tmp_path / "studio.port").write_text(f"{port}\n")
        settings = settings_of(tmp_path, **({"STUDIO_PORT": str(port)} if is_configured else {}))
        monkeypatch.setattr(time, "sleep", lambda _: orphan.close())
        with closing(open_emulator_sockets(settings)) as opened:
            assert opened.ports["studio_port"] == port


def test_production_has_no_card_emulator(tmp_path: Path) -> None:
    settings = msgspec.structs.replace(settings_of(tmp_path), env="production")
    with closing(open_emulator_sockets(settings)) as opened:
        assert opened.card is None
    assert not (tmp_path / "card.port").exists()


async def use_card_emulator(bound: socket.socket | None, folder: Path) -> None:
    """Run it for one request, after which it hangs up, so that the connection is in TIME_WAIT."""
    assert bound is not None
    serve = partial(
        serve_card_emulator,
        api_key="sk_test_key",
        webhook_secret="whsec_secret",
        webhook_url=lambda: "",
        files_dir=folder,
        bound=bound,
    )
    async with trio.open_nursery() as nursery:
        port = await nursery.start(serve)
        async with httpx2.AsyncClient(trust_env=False, timeout=60) as http:
            url = f"http://{EMULATOR_HOST}:{port}/v1/payment_intents"
            assert (await http.get(url, headers={"Connection": "close"})).status_code == 401
        nursery.cancel_scope.cancel()


async def test_an_emulator_that_starts_again_has_its_port(opened: EmulatorSockets, tmp_path: Path) -> None:
    for _ in range(2):
        await use_card_emulator(opened.card, tmp_path)
        assert not is_free(opened.ports["card_emulator_port"])


async def test_the_ports_of_the_last_start_are_taken_again(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    assert card_emulator_port(settings) is None
    with closing(open_emulator_sockets(settings)) as first:
        ports = first.ports
        await use_card_emulator(first.card, tmp_path)
    with closing(open_emulator_sockets(settings)) as second:
        assert second.ports == ports
    assert card_emulator_port(settings) == ports["card_emulator_port"]
