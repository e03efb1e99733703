"""The types of settings: each reads the text of one variable, or says what it must be."""

from __future__ import annotations

import ipaddress
import re
import stat
from functools import partial
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo

from holdfast.ledger.money import parse_amount
from holdfast.settings.checks import split_list

IPNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network
ProxyHeader = Literal["X-Forwarded-For", "Forwarded"]
EMBEDDED = "embedded"
"""The name of the embedded database, where a URL names another."""

_PUBLIC_V6 = ipaddress.IPv6Network("2000::/3")


def _secret(text: str) -> str:
    if not re.fullmatch(r"[!-~]*", text, re.ASCII):
        raise ValueError("must be printable ASCII without blanks")
    return text


def _file(path: Path) -> Path:
    try:
        if not path.is_file():
            raise ValueError("must be the name of a file that exists")
        with path.open("rb"):
            return path
    except OSError as fault:
        raise ValueError(f"names {path}, which cannot be read: {fault.strerror}") from None


def _private_file(path: Path) -> Path:
    mode = path.stat().st_mode
    if mode & (stat.S_IROTH | stat.S_IWOTH):
        raise ValueError(f"names {path}, which every user may read or write (mode {stat.S_IMODE(mode):o})")
    return path


def _absolute(path: Path) -> Path:
    try:
        return path.expanduser().absolute()
    except RuntimeError:
        raise ValueError("names the home folder of a user who does not exist") from None


def _database_url(text: str) -> str | None:
    if text == EMBEDDED:
        return None
    try:
        parts = urlsplit(text)
    except ValueError:
        parts = urlsplit("")
    # libpq's URLs may name several hosts, or none.
    if parts.scheme not in {"postgresql", "postgres", "postgresql+psycopg"} or not parts.netloc + parts.path:
        raise ValueError(f"must be {EMBEDDED}, or begin postgresql://, postgres:// or postgresql+psycopg://")
    return text.replace("postgresql+psycopg:", "postgresql:", 1)


def _host_and_port(text: str) -> str:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) <= 65535:
        raise ValueError("must be a host and a port, such as 10.0.0.5:7400")
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
    parts = urlsplit(_url(text, ("https", "http")))
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


def _networks(text: str) -> tuple[IPNetwork, ...]:
    try:
        return tuple(ipaddress.ip_network(part) for part in split_list(text))
    except ValueError:
        message = "must be networks such as 10.0.0.0/8 or single addresses, separated by commas"
        raise ValueError(message) from None


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


def _proxies(networks: tuple[IPNetwork, ...], fields: ValidationInfo) -> tuple[IPNetwork, ...]:
    if fields.data.get("env") == "production" and trusts_the_public(networks):
        raise ValueError(
            "trusts public addresses: clients could choose their origin and avoid the limits of sign-in"
        )
    return networks


Port = Annotated[int, Field(ge=0, le=65535)]
Count = Annotated[int, Field(ge=1, lt=2**31)]
Seconds = Annotated[float, Field(gt=0, lt=10_000_000)]
MicroCredits = Annotated[int, BeforeValidator(_micro)]
AbsolutePath = Annotated[Path, AfterValidator(_absolute)]
BaseUrl = Annotated[str, AfterValidator(_base_url)]
Secret = Annotated[str, AfterValidator(_secret)]
ExistingFile = Annotated[AbsolutePath, AfterValidator(_file)]
PrivateFile = Annotated[ExistingFile, AfterValidator(_private_file)]
DatabaseUrl = Annotated[str | None, AfterValidator(_database_url)]
SmtpUrl = Annotated[str, AfterValidator(partial(_url, schemes=("smtp", "smtps")))]
HostAndPort = Annotated[str, AfterValidator(_host_and_port)]
TextList = Annotated[tuple[str, ...], BeforeValidator(split_list)]
Emails = Annotated[tuple[str, ...], BeforeValidator(_emails)]
Proxies = Annotated[tuple[IPNetwork, ...], BeforeValidator(_networks), AfterValidator(_proxies)]
