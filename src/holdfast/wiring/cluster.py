"""This process as a member of the cluster: where others reach it, and which of its actors they may ask."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from urllib.parse import urlsplit

from holdfast.actors.runtime.messages import Command
from holdfast.actors.runtime.refs import WorkerRef
from holdfast.actors.task.messages import DeliveryEnded, SlotFreed, TaskQueued
from holdfast.actors.workers.heartbeat import Presence
from holdfast.cluster.codec import DISPATCHER, OUTBOX, codecs
from holdfast.cluster.endpoints import MemberEndpoint, MutualTls, UnusableFile, mutual_tls
from holdfast.cluster.members import Members, reports_of, slots_of
from holdfast.cluster.placed import PlacedDirectory, SingletonRef
from holdfast.persistence.journal.changes import Changes
from holdfast.settings.checks import MEMBER_TLS
from holdfast.settings.settings import PREFIX, Settings, SettingsFault
from holdfast.supervision.directory import KeyedDirectory


def cluster_members(settings: Settings, presence: Presence, changes: Changes, *, local_url: str) -> Members:
    """Return this process's membership. ``local_url`` is where it listens for clients.

    Raises :class:`SettingsFault` if the TLS files cannot be used.
    """
    address = _member_address(settings)
    folder, machine = settings.data_dir / "members", presence.process.machine
    endpoint = MemberEndpoint(folder, machine, address, _tls(settings), http=http_address(settings, local_url))
    # Members with other secrets could not read each other's codes and signatures, and serve their callers alone.
    cluster = hashlib.sha256(settings.derived_key("members")).hexdigest()[:16]
    return Members(presence, endpoint, cluster=cluster, codecs=codecs(), changes=changes)


def http_address(settings: Settings, local_url: str) -> str:
    """Return the host and port where a load balancer reaches this process.

    One that listens on every address is reached at the one that other members use, if there is one.
    """
    listening, address = urlsplit(local_url), _member_address(settings)
    everywhere = settings.host in {"0.0.0.0", "::"}  # noqa: S104 - only recognised
    host = address[0] if everywhere and address is not None else listening.hostname
    return f"{host}:{listening.port}"


def _member_address(settings: Settings) -> tuple[str, int] | None:
    if settings.member_address is None:
        return None
    host, _, port = settings.member_address.rpartition(":")
    return host.strip("[]"), int(port)


def _tls(settings: Settings) -> MutualTls | None:
    certificate, key, authority = settings.member_certificate, settings.member_key, settings.member_ca
    if certificate is None or key is None or authority is None:
        return None
    try:
        return mutual_tls(certificate=certificate, key=key, authority=authority)
    except UnusableFile as fault:
        raise SettingsFault((f"A file of {', '.join(PREFIX + name for name in MEMBER_TLS)}: {fault}",)) from None


def placed(group: str, local: KeyedDirectory, members: Members, place_of: Callable[[str], int]) -> PlacedDirectory:
    """Return the directory of a group in all members; other members may ask the actors of ``local``."""
    members.serve(group, local)
    return PlacedDirectory(group, local, members, place_of)


def dispatcher_of_all(worker: WorkerRef, members: Members) -> SingletonRef:
    """Return the address of the one dispatcher; other members may send messages to ``worker``, which may be it."""

    def name_of(message: Command[object]) -> str:
        assert isinstance(message, TaskQueued | SlotFreed)
        return slots_of(message.provider)

    members.serve(DISPATCHER, worker)
    return SingletonRef(DISPATCHER, worker, members, name_of)


def outbox_that_reports(worker: WorkerRef, members: Members) -> SingletonRef:
    """Return the address of the one outbox worker that reports of a host, as :func:`dispatcher_of_all` does."""

    def name_of(message: Command[object]) -> str:
        assert isinstance(message, DeliveryEnded)
        return reports_of(message.host)

    members.serve(OUTBOX, worker)
    return SingletonRef(OUTBOX, worker, members, name_of)
