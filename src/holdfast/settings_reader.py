"""Takes typed values out of the environment, gathering a line for each that does not fit."""

from __future__ import annotations

import difflib
import ipaddress
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from holdfast.ledger.money import parse_amount
from holdfast.secret_strength import weakness

S = TypeVar("S", bound=str)
T = TypeVar("T")

IPNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network

PREFIX = "HOLDFAST_"

_EMAIL = re.compile(r"[^@\s,]+@[^@\s,]+", re.ASCII)
_SECRET = re.compile(r"[!-~]+", re.ASCII)


class SettingsFault(Exception):
    """The environment cannot be served from. ``lines`` has one clear line for each fault."""

    def __init__(self, lines: tuple[str, ...]) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


class Reader:
    """Takes typed values out of the environment, gathering a line for each that does not fit."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._given = {
            name.removeprefix(PREFIX): value.strip()
            for name, value in environ.items()
            if name.startswith(PREFIX) and value.strip()
        }
        self._known: set[str] = set()
        self._lines: list[str] = []

    def fault(self, name: str, trouble: str) -> None:
        self._lines.append(f"{PREFIX}{name} {trouble}")

    def raise_faults(self) -> None:
        if self._lines:
            raise SettingsFault(tuple(self._lines))

    def refuse_unknown(self) -> None:
        for name in sorted(set(self._given) - self._known):
            near = difflib.get_close_matches(name, self._known, n=1)
            self.fault(name, "is not a setting" + (f"; did you mean {PREFIX}{near[0]}?" if near else ""))

    def text(self, name: str) -> str | None:
        self._known.add(name)
        return self._given.get(name)

    def _read(self, name: str, default: T, convert: Callable[[str], T | None], expected: str) -> T:
        text = self.text(name)
        if text is None:
            return default
        value = convert(text)
        if value is None:
            self.fault(name, f"must be {expected}")
            return default
        return value

    def data_dir(self) -> Path:
        return Path(self.text("DATA_DIR") or "./var").expanduser().absolute()

    def database_url(self) -> str | None:
        return self.url("DATABASE_URL", ("postgresql", "postgres"), host_needed=False)

    def choice(self, name: str, among: tuple[S, ...], *, default: S) -> S:
        by_text = {str(each): each for each in among}
        return self._read(name, default, by_text.get, " or ".join(among))

    def truth(self, name: str, *, default: bool) -> bool:
        words = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
        return self._read(name, default, lambda text: words.get(text.lower()), "true or false")

    def whole(self, name: str, default: int, *, least: int = 1, most: int = 2**31 - 1) -> int:
        def convert(text: str) -> int | None:
            fits = re.fullmatch(r"[0-9]{1,10}", text, re.ASCII) is not None and least <= int(text) <= most
            return int(text) if fits else None

        return self._read(name, default, convert, f"a whole number from {least} to {most}")

    def whole_or_none(self, name: str, *, least: int = 1, most: int = 2**31 - 1) -> int | None:
        return None if self.text(name) is None else self.whole(name, least, least=least, most=most)

    def seconds(self, name: str, default: float) -> float:
        def convert(text: str) -> float | None:
            plain = re.fullmatch(r"[0-9]{1,7}(\.[0-9]{1,3})?", text, re.ASCII)
            return float(text) if plain and float(text) > 0 else None

        return self._read(name, default, convert, "a number of seconds above zero")

    def credits(self, name: str, default: str) -> int:
        default_micro = parse_amount(default, decimals_max=6)
        assert default_micro is not None
        return self._read(
            name,
            default_micro,
            lambda text: parse_amount(text, decimals_max=6),
            'an amount of credits above zero, such as "10000.00"',
        )

    def several(self, name: str) -> tuple[str, ...]:
        return tuple(part.strip() for part in (self.text(name) or "").split(",") if part.strip())

    def emails(self, name: str) -> tuple[str, ...]:
        found = tuple(email.lower() for email in self.several(name))
        if not all(_EMAIL.fullmatch(email) for email in found):
            self.fault(name, "must be e-mail addresses separated by commas")
        return found

    def networks(self, name: str) -> tuple[IPNetwork, ...]:
        try:
            return tuple(ipaddress.ip_network(text) for text in self.several(name))
        except ValueError:
            self.fault(name, "must be networks such as 10.0.0.0/8 or single addresses, separated by commas")
            return ()

    def file(self, name: str) -> Path | None:
        def convert(text: str) -> Path | None:
            path = Path(text).expanduser().absolute()
            return path if path.is_file() else None

        return self._read(name, None, convert, "the name of a file that exists")

    def url(self, name: str, schemes: tuple[str, ...], *, host_needed: bool = True) -> str | None:
        def convert(text: str) -> str | None:
            try:
                parts = urlsplit(text)
                # libpq's URLs may name several hosts, or none; elsewhere asking for a bad port raises.
                named = (parts.hostname and parts.port != 0) if host_needed else parts.netloc + parts.path
            except ValueError:
                return None
            return text if parts.scheme in schemes and named else None

        expected = "a URL beginning " + " or ".join(f"{scheme}://" for scheme in schemes)
        return self._read(name, None, convert, expected)

    def base_url(self, name: str) -> str | None:
        url = self.url(name, ("https", "http"))
        if url is not None and (urlsplit(url).query or urlsplit(url).fragment):
            self.fault(name, "must be a base address, without a query")
        return None if url is None else url.rstrip("/")

    def secret(self, name: str, *, required: bool, strong: bool | None = None) -> str | None:
        """A secret, or None; ``strong`` (by default ``required``) refuses a weak one. Never shows the value."""
        value = self.text(name)
        if value is None:
            if required:
                self.fault(name, "is missing; production needs it")
        elif not _SECRET.fullmatch(value):
            self.fault(name, "must be printable ASCII without blanks")
        elif (required if strong is None else strong) and (reason := weakness(value)) is not None:
            self.fault(name, reason)
        return value
