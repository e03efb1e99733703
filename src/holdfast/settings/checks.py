"""Checks that involve more than one setting: values that are missing, weak, or used for two purposes.

They read the variables as given (without their prefix), so that their faults are listed beside those of single
values. None of the lines shows a value.
"""

from __future__ import annotations

import ipaddress
import re
import shlex
from collections.abc import Iterator, Mapping
from importlib.metadata import entry_points, requires
from itertools import combinations
from urllib.parse import parse_qs, urlsplit

from holdfast.settings.secret_strength import CHARS_MIN, find_weak
from holdfast.settings.values import read_cells, read_networks, split_list, trusts_the_public

REQUIRED_SECRETS = ("OPERATOR_TOKEN", "CALLBACK_SECRET", "SANDBOX_SECRET")
OWN_SECRETS = (*REQUIRED_SECRETS, "SERVER_KEY")
"""Secrets of this service, which development generates."""
PREVIOUS_SERVER_KEY = "SERVER_KEY_PREVIOUS"

MEMBER_TLS = ("MEMBER_CERTIFICATE", "MEMBER_KEY", "MEMBER_CA")
LOCAL_HOST = "127.0.0.1"
EVERY_HOST = {"0.0.0.0", "::"}  # noqa: S104 - not bound here
CARD_KEY_CHARS_MIN = 16
CARD_WEBHOOK_SECRET_CHARS_MIN = 24
_CARD_SECRET = re.compile(r"(?:sk|rk|whsec)_", re.ASCII)
_CARD_KEY = re.compile(r"(?:sk|rk)_(?:live|test)_[A-Za-z0-9_]{16,}", re.ASCII)
_CARD_PUBLIC_KEY = re.compile(r"pk_(?:live|test)_[A-Za-z0-9_]{16,}", re.ASCII)

EMULATORS = "holdfast.emulators"
"""The group of their entry points."""
CORE = "holdfast-credits"
"""The distribution of the core."""
INSTALL_EMULATORS = "install the package holdfast-emulators to use it"

Fault = tuple[str, str]
"""A variable's name, and the rest of the sentence."""


def has_emulators() -> bool:
    """Whether the emulators of external systems are installed: a wheel of its own, which production leaves out."""
    return bool(entry_points(group=EMULATORS))


def install_extra(extra: str) -> str:
    """Return the command that installs what an extra of the core needs, by the metadata of the installed core."""
    lines = (line.partition(";") for line in requires(CORE) or ())
    needed = [requirement for requirement, _, marker in lines if f"extra == '{extra}'" in marker]
    assert needed, f"the installed {CORE} has no extra {extra}"
    return shlex.join(["pip", "install", *needed])


def is_local(host: str) -> bool:
    """Whether a host is this machine: a name or address of the loopback, or the folder of a Unix socket."""
    if host in ("", "localhost") or host.startswith(("/", "@")):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def find_faults(given: Mapping[str, str]) -> Iterator[Fault]:
    """Yield the faults of combinations of settings. Blocks in production. Raises ``CannotEstimate``."""
    if given.get("ASSET_STORE") == "s3":
        for name in ("S3_BUCKET", "S3_ACCESS_KEY_ID", "S3_SECRET_ACCESS_KEY"):
            if name not in given:
                yield name, "is missing; HOLDFAST_ASSET_STORE=s3 needs it"
    yield from _member_faults(given)
    yield from find_cell_faults(given)
    yield from _port_faults(given)
    for name in ("STUDIO_PORT", "CARD_EMULATOR_PORT"):
        if given.get(name, "0") != "0" and not has_emulators():
            yield name, f"is of an emulator: {INSTALL_EMULATORS}"
    if _CARD_SECRET.match(given.get("CARD_PUBLISHABLE_KEY", "")):
        yield "CARD_PUBLISHABLE_KEY", "is a secret key, which would be sent to browsers"
    if given.get("ENV") == "production":
        yield from _production_faults(given)


def find_location_faults(given: Mapping[str, str]) -> Iterator[Fault]:
    """Yield the fault of an embedded database in production that no setting asked for."""
    if given.get("ENV") == "production" and "DATABASE_URL" not in given:
        yield "DATABASE_URL", "is missing; production needs it, or the value embedded for a ledger in DATA_DIR"


def _member_faults(given: Mapping[str, str]) -> Iterator[Fault]:
    """Yield what links between machines lack: TLS needs three files, and production needs TLS."""
    missing = [name for name in MEMBER_TLS if name not in given]
    if missing and (
        len(missing) < len(MEMBER_TLS) or ("MEMBER_ADDRESS" in given and given.get("ENV") == "production")
    ):
        for name in missing:
            yield name, f"is missing; links between machines need {', '.join(MEMBER_TLS)}"


def find_cell_faults(given: Mapping[str, str]) -> Iterator[Fault]:
    """Yield that one of two settings is missing, or that the list lacks this cell."""
    for name, other in (("CELL", "CELLS"), ("CELLS", "CELL")):
        if name not in given and other in given:
            yield name, f"is missing; HOLDFAST_{other} needs it"
    if "CELL" in given and "CELLS" in given and given["CELL"] not in _numbers(given["CELLS"]):
        yield "CELL", f"is not the number of a cell in {given['CELLS']}"


def _numbers(cells_file: str) -> set[str]:
    """Return the numbers of the cells in a file. What is wrong with the file is a fault of the value itself."""
    try:
        return {str(cell.number) for cell in read_cells(cells_file)}
    except ValueError:
        return set()


def _port_faults(given: Mapping[str, str]) -> Iterator[Fault]:
    """Yield the ports that two listeners of one address would share; 0 is any free port."""
    listeners = (
        ("PORT", given.get("HOST", LOCAL_HOST), given.get("PORT", "8000")),
        ("OPS_PORT", given.get("OPS_HOST", LOCAL_HOST), given.get("OPS_PORT", "0")),
        ("STUDIO_PORT", LOCAL_HOST, given.get("STUDIO_PORT", "0")),
        ("CARD_EMULATOR_PORT", LOCAL_HOST, given.get("CARD_EMULATOR_PORT", "0")),
    )
    for (name, host, port), (other, other_host, same) in combinations(listeners, 2):
        if port == same != "0" and (host == other_host or {host, other_host} & EVERY_HOST):
            yield other, f"has the same value as HOLDFAST_{name}; give each its own"


def _production_faults(given: Mapping[str, str]) -> Iterator[Fault]:
    for name in REQUIRED_SECRETS:
        if name not in given:
            yield name, "is missing; production needs it"
    yield from _weak_secrets(given)
    if PREVIOUS_SERVER_KEY in given and "SERVER_KEY" not in given:
        yield PREVIOUS_SERVER_KEY, "needs HOLDFAST_SERVER_KEY, the key that replaces it"
    yield from _card_faults(given)
    if _is_without_tls(given.get("PUBLIC_URL")):
        yield "PUBLIC_URL", "must begin with https://: tokens and operators' cookies would be sent unencrypted"
    if _trusts_the_public(given.get("TRUSTED_PROXIES", "")):
        yield (
            "TRUSTED_PROXIES",
            "trusts public addresses: clients could choose their origin and avoid the limits of sign-in",
        )
    if _sends_mail_in_clear(given.get("SMTP_URL", "")):
        yield (
            "SMTP_URL",
            "has starttls=off for another host: sign-in codes and the password would be sent unencrypted",
        )
    yield from find_location_faults(given)
    if "CATALOG" not in given:
        yield "CATALOG", "is missing; production needs one, or it would sell the placeholder pictures of the studio"
    for (name, value), (other, same) in combinations(_named_secrets(given), 2):
        if value == same and name != other:
            yield other, f"has the same value as HOLDFAST_{name}; give each its own"


def _weak_secrets(given: Mapping[str, str]) -> Iterator[Fault]:
    named = [(name, (given[name], CHARS_MIN)) for name in (*OWN_SECRETS, PREVIOUS_SERVER_KEY) if name in given]
    for secret in split_list(given.get("CARD_WEBHOOK_SECRET", "")):
        named.append(("CARD_WEBHOOK_SECRET", (secret, CARD_WEBHOOK_SECRET_CHARS_MIN)))
    weak = find_weak(candidate for _, candidate in named)
    yield from ((name, weak[candidate]) for name, candidate in named if candidate in weak)


def _card_faults(given: Mapping[str, str]) -> Iterator[Fault]:
    """Yield keys that cannot belong to the card provider; if ``CARD_API_BASE`` is set only lengths are checked."""
    key, public = given.get("CARD_API_KEY"), given.get("CARD_PUBLISHABLE_KEY")
    has_base = "CARD_API_BASE" in given
    if key is not None and "_test_" not in key and _is_without_tls(given.get("CARD_API_BASE")):
        yield "CARD_API_BASE", "must begin with https://: the card provider's key would be sent unencrypted"
    if key is not None and not (len(key) >= CARD_KEY_CHARS_MIN if has_base else _CARD_KEY.fullmatch(key)):
        yield "CARD_API_KEY", "is not a key of the card provider (sk_live_… or rk_live_…)"
    if public is not None and not has_base and not _CARD_PUBLIC_KEY.fullmatch(public):
        yield "CARD_PUBLISHABLE_KEY", "is not a publishable key of the card provider (pk_live_…)"


def _is_without_tls(url: str | None) -> bool:
    return url is not None and url.lower().startswith("http:")


def _trusts_the_public(networks: str) -> bool:
    """What are no networks is a fault of the value itself."""
    try:
        return trusts_the_public(read_networks(networks))
    except ValueError:
        return False


def _sends_mail_in_clear(smtp_url: str) -> bool:
    """Whether mail goes to another machine without TLS. What is no URL is a fault of the value itself."""
    try:
        parts = urlsplit(smtp_url)
        is_off = parse_qs(parts.query).get("starttls", [""])[-1] == "off"
        return parts.scheme == "smtp" and is_off and not is_local(parts.hostname or "")
    except ValueError:
        return False


def _named_secrets(given: Mapping[str, str]) -> list[Fault]:
    names = (*OWN_SECRETS, PREVIOUS_SERVER_KEY, "CARD_API_KEY", "S3_SECRET_ACCESS_KEY")
    several = split_list(given.get("CARD_WEBHOOK_SECRET", ""))
    return [(name, given[name]) for name in names if name in given] + [("CARD_WEBHOOK_SECRET", s) for s in several]
