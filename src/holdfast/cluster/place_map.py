"""The map of places to servers by which HAProxy sends an account's requests to its owner.

HAProxy reads the map from a file when it starts or reloads. A running one takes a new map over its socket (the
Runtime API): the entries are added to a version of the map that is not in use yet, which then replaces the current
one at once. No connection notices.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, NoReturn

from holdfast.cluster.endpoints import HTTP
from holdfast.cluster.placement import owners_of_places
from holdfast.ledger.values import PLACES, place_digits
from holdfast.persistence.claims.processes import Member, read_ready_members
from holdfast.persistence.server.database_faults import DatabaseAway
from holdfast.persistence.server.migrate import pending

COMMAND_BYTES_MAX: Final = 8 * 1024
"""A command must fit into HAProxy's buffer (``tune.bufsize``, 16 KiB by default); half of it leaves a margin."""
ANSWER_S: Final = 5.0

_VERSION = re.compile(r"New version created: (\d+)")


class PlaceMapFault(Exception):
    """The map cannot be written, or HAProxy did not take it; the message says why."""


def place_map(servers: Mapping[str, str], places: Iterable[int] = range(PLACES)) -> str:
    """Return the map's text: a line for each of the places, by default all.

    ``servers`` has the name of each member's server, by member. Without members the map is empty, and HAProxy may
    send any request anywhere.
    """
    owners = owners_of_places(servers) if servers else ()
    return "".join(f"{place_digits(place)} {servers[owners[place]]}\n" for place in places if owners)


def servers_of(members: Iterable[Member]) -> dict[str, str]:
    """Return the name of each member's server in HAProxy: the address where clients reach it."""
    return {
        member.member_id: address.removeprefix(HTTP)
        for member in members
        for address in member.membership.addresses
        if address.startswith(HTTP)
    }


def members_map(database_url: str, places: Iterable[int] = range(PLACES)) -> str:
    """Return the map of the members in the database. Blocks. Raises :class:`DatabaseAway`."""
    return place_map(servers_of(read_ready_members(database_url)), places)


def follow_members(
    database_url: str,
    publish: Callable[[str], None],
    *,
    every_s: float,
    report: Callable[[str], None],
    places: Iterable[int] = range(PLACES),
) -> NoReturn:
    """Publish the map once the database has been migrated, and after each change.

    A failure is reported, and tried again; the old map goes on.
    """
    published, is_migrated = None, False
    while True:
        try:
            if not is_migrated and (missing := pending(database_url)):
                raise PlaceMapFault(f"The database lacks {', '.join(missing)}, which the start of a member adds.")
            is_migrated = True
            content = members_map(database_url, places)
            if content != published:
                publish(content)
                published = content
        except (DatabaseAway, PlaceMapFault) as fault:
            report(str(fault))
        time.sleep(every_s)


def publish_map(file: Path, control: Path | None, content: str) -> None:
    """Write the map for HAProxy's next start, and let a running HAProxy use it (without ``control``: none).

    The file is complete at any time. Raises :class:`PlaceMapFault`.
    """
    new = file.with_name(f".{file.name}.new")
    try:
        new.write_text(content, "ascii")
        new.replace(file)
    except OSError as exc:
        raise PlaceMapFault(f"{file} cannot be written: {exc.strerror}") from exc
    if control is not None:
        replace_map(control, file, content)


def replace_map(control: Path, file: Path, content: str) -> None:
    """Let a running HAProxy use this map instead of the one that it has read from ``file``.

    ``control`` is its socket, of level admin. Raises :class:`PlaceMapFault`.
    """
    found = _VERSION.search(answer := _command(control, f"prepare map {file}"))
    if found is None:
        raise PlaceMapFault(f"HAProxy has no map {file}: {answer}")
    version = f"@{found[1]}"
    for lines in _parts(content):
        if answer := _command(control, f"add map {version} {file} <<\n{lines}"):
            raise PlaceMapFault(f"HAProxy refuses the map: {answer}")
    if answer := _command(control, f"commit map {version} {file}"):
        raise PlaceMapFault(f"HAProxy refuses the map: {answer}")


def _parts(content: str) -> Iterator[str]:
    """Divide the map into lines that fit one command each."""
    part = ""
    for line in content.splitlines(keepends=True):
        if len(part) + len(line) > COMMAND_BYTES_MAX:
            yield part
            part = ""
        part += line
    if part:
        yield part


def _command(control: Path, command: str) -> str:
    """Return HAProxy's answer to one command."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(ANSWER_S)
            connection.connect(str(control))
            connection.sendall(f"{command}\n".encode("ascii"))
            with connection.makefile("rb") as answer:
                return answer.read().decode("utf-8", "replace").strip()
    except OSError as exc:
        raise PlaceMapFault(f"HAProxy does not answer at {control}: {exc}") from exc
