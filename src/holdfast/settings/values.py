"""The types of settings: each reads the text of one variable, or says what it must be.

Beside the bounds of numbers a type has a function that turns the text into its value, or raises ValueError with the
rest of the sentence that begins with the variable's name.
"""

from __future__ import annotations

import ipaddress
import re
import stat
from functools import partial
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from holdfast.ledger.cells import Cell, parse_cells
from holdfast.ledger.public_types import expected_value
from holdfast.ledger.values import parse_amount

IPNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network
ProxyHeader = Literal["X-Forwarded-For", "Forwarded"]
EMBEDDED = "embedded"
"""The name of the embedded database, where a URL names another."""
CONTAINER_SECRETS = Path("/run/secrets")
"""Where engines mount the secrets of a container."""
SHOWN_CHARS_MAX = 20
"""A longer invalid value is not shown: it could be a secret in the wrong variable."""

FILE_BYTES_MAX = 65_536
"""A file with the value of one setting has no more."""

_PUBLIC_V6 = ipaddress.IPv6Network("2000::/3")
_BOOLEANS = dict.fromkeys(("true", "1", "yes", "on", "t", "y"), True) | dict.fromkeys(
    ("false", "0", "no", "off", "f", "n"), False
)


def read_value(kind: Any, text: str) -> Any:
    """Return the value of a setting of this type. Raises ValueError."""
    if NoneType in get_args(kind):
        kind = get_args(kind)[0]
    plain, *notes = get_args(kind) if get_origin(kind) is Annotated else (kind,)
    value: Any = text
    for note in notes:
        value = note(value) if callable(note) else value
    try:
        if plain is bool:
            return _BOOLEANS[text.lower()]
        if plain in (int, float) and value is text:
            # Of digits, Python's functions accept those of all scripts.
            value = plain(text.encode("ascii"))
        return msgspec.convert(value, kind) if plain in (int, float) or get_origin(plain) is Literal else value
    except (KeyError, ValueError):
        shown = f", not {text!r}" if len(text) <= SHOWN_CHARS_MAX else ""
        raise ValueError(f"must be {expected_value(kind)}{shown}") from None


def read_file_value(name: str) -> str:
    """Return the text of a file that has the value of one setting, without blanks around it. Raises ValueError."""
    path = _file(name)
    try:
        with path.open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
    except OSError as fault:
        raise ValueError(f"names {path}, which cannot be read: {fault.strerror}") from None
    if len(content) > FILE_BYTES_MAX:
        raise ValueError(f"names {path}, which has more than {FILE_BYTES_MAX} bytes")
    try:
        text = content.decode().strip()
    except UnicodeDecodeError:
        raise ValueError(f"names {path}, which is not UTF-8") from None
    if not text:
        raise ValueError(f"names {path}, which is empty")
    if "\0" in text:
        # No variable can have one.
        raise ValueError(f"names {path}, which has a NUL character")
    return text


def split_list(text: str) -> tuple[str, ...]:
    """Split a comma-separated value; blank parts are left out."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def is_open_to_all(path: Path) -> bool:
    """Whether every user may read or write the file, as far as its own mode says. Raises OSError.

    The secrets of a container, which has one user, are mounted with modes that its engine decides.
    """
    return not path.is_relative_to(CONTAINER_SECRETS) and bool(path.stat().st_mode & (stat.S_IROTH | stat.S_IWOTH))


def trusts_the_public(networks: tuple[IPNetwork, ...]) -> bool:
    """Whether the networks together are a sixteenth of IPv4 or of public IPv6, so that clients may choose their own
    address.
    """
    four = ipaddress.collapse_addresses(each for each in networks if isinstance(each, ipaddress.IPv4Network))
    six = ipaddress.collapse_addresses(
        each for each in networks if isinstance(each, ipaddress.IPv6Network) and each.overlaps(_PUBLIC_V6)
    )
    return (
        sum(each.num_addresses for each in four) >= 2**32 // 16
        or sum(each.num_addresses for each in six) >= _PUBLIC_V6.num_addresses // 16
    )


def read_networks(text: str) -> tuple[IPNetwork, ...]:
    """Read networks separated by commas. Raises ValueError."""
    try:
        return tuple(ipaddress.ip_network(part) for part in split_list(text))
    except ValueError:
        message = "must be networks such as 10.0.0.0/8 or single addresses, separated by commas"
        raise ValueError(message) from None


def _printable(text: str) -> str:
    if not re.fullmatch(r"[!-~]*", text, re.ASCII):
        raise ValueError("must be printable ASCII without blanks")
    return text


def _absolute(text: str) -> Path:
    try:
        return Path(text).expanduser().absolute()
    except RuntimeError:
        raise ValueError("names the home folder of a user who does not exist") from None


def _file(text: str) -> Path:
    path = _absolute(text)
    try:
        if not path.is_file():
            raise ValueError("must be the name of a file that exists")
        with path.open("rb"):
            return path
    except OSError as fault:
        raise ValueError(f"names {path}, which cannot be read: {fault.strerror}") from None


def _private_file(text: str) -> Path:
    path = _file(text)
    if is_open_to_all(path):
        mode = stat.S_IMODE(path.stat().st_mode)
        raise ValueError(f"names {path}, which every user may read or write (mode {mode:o})")
    return path


def read_cells(text: str) -> tuple[Cell, ...]:
    """Read the list of cells in the file of this name. Raises ValueError."""
    content = read_file_value(text)
    try:
        return parse_cells(content)
    except ValueError as fault:
        raise ValueError(f"names {text}, which {fault}") from None


class DatabaseUrlParts(NamedTuple):
    """The parts of a URL of libpq, which may name several hosts, or none."""

    hosts: str
    query: str


def split_database_url(url: str) -> DatabaseUrlParts | None:
    """Split a URL of libpq; return None if it is none.

    ``urlsplit`` refuses several hosts with an IPv6 address among them.
    """
    found = re.fullmatch(
        r"postgres(?:ql(?:\+psycopg)?)?://(?:[^/?#]*@)?([^/?#]*)(?:/[^?#]*)?(?:\?([^#]*))?(?:#.*)?", url
    )
    return None if found is None else DatabaseUrlParts(found[1], found[2] or "")


def _database_url(text: str) -> str | None:
    if text == EMBEDDED:
        return None
    if split_database_url(text) is None:
        raise ValueError(f"must be {EMBEDDED}, or begin postgresql://, postgres:// or postgresql+psycopg://")
    return text.replace("postgresql+psycopg:", "postgresql:", 1)


def _host_and_port(text: str) -> str:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) <= 65535:
        raise ValueError("must be a host and a port, such as 10.0.0.5:7400")
    return text


def _number_prefix(text: str) -> str:
    # A digit at its end would make numbers of two prefixes the same.
    if not re.fullmatch(r"[A-Za-z0-9._-]{0,15}[A-Za-z._-]", text, re.ASCII):
        raise ValueError("must be up to 16 of A-Z a-z 0-9 . _ - without a digit at the end")
    return text


def _url(text: str, schemes: tuple[str, ...]) -> str:
    try:
        parts = urlsplit(text)
        is_valid = parts.scheme in schemes and parts.hostname and parts.port != 0
    except ValueError:
        is_valid = False
    if not is_valid:
        raise ValueError("must be a URL beginning " + " or ".join(f"{scheme}://" for scheme in schemes))
    return text


def _base_url(text: str) -> str:
    parts = urlsplit(_url(_printable(text), ("https", "http")))
    if parts.query or parts.fragment:
        raise ValueError("must be a base address, without a query")
    return parts.geturl().rstrip("/")


def _micro(text: str) -> int:
    amount = parse_amount(text, decimals_max=6)
    if amount is None:
        raise ValueError('must be an amount of credits above zero, such as "10000.00"')
    return amount


def _emails(text: str) -> tuple[str, ...]:
    found = split_list(text.lower())
    if not all(re.fullmatch(r"[^@\s,*]+@[^@\s,*]+", email, re.ASCII) for email in found):
        raise ValueError("must be whole e-mail addresses separated by commas, without patterns")
    return found


Port = Annotated[int, Meta(ge=0, le=65535)]
Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Lifetime = Annotated[int, Meta(ge=60, le=2**31 - 1)]
Seconds = Annotated[float, Meta(gt=0, lt=10_000_000, description="a number of seconds above 0 and below 10000000")]
Share = Annotated[float, Meta(ge=0, le=1, description="a number from 0 to 1")]
MicroCredits = Annotated[int, _micro]
AbsolutePath = Annotated[Path, _absolute]
BaseUrl = Annotated[str, _base_url]
Secret = Annotated[str, _printable]
ExistingFile = Annotated[Path, _file]
PrivateFile = Annotated[Path, _private_file]
DatabaseUrl = Annotated[str | None, _database_url]
SmtpUrl = Annotated[str, partial(_url, schemes=("smtp", "smtps"))]
HostAndPort = Annotated[str, _host_and_port]
NumberPrefix = Annotated[str, _number_prefix]
TextList = Annotated[tuple[str, ...], split_list]
Emails = Annotated[tuple[str, ...], _emails]
Proxies = Annotated[tuple[IPNetwork, ...], read_networks]
CellsFile = Annotated[tuple[Cell, ...], read_cells]
LogLevel = Annotated[Literal["debug", "info", "warning", "error"], str.lower]
