"""Reading a configuration table key by key, so that every fault in it is found in one pass.

A reader never raises: it notes a line for each fault and hands back a stand-in, which nobody sees because the
caller gives up once any fault is noted. Keys that nobody asked for are faults too: they are mostly typos.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime

_PRICE = re.compile(r"(0|[1-9][0-9]{0,5})(\.[0-9]{1,12})?", re.ASCII)
_MARKUP = re.compile(r"(0|[1-9][0-9]{0,2})(\.[0-9]{1,4})?", re.ASCII)


class Table:
    """One table, where it stands (for the fault lines), and the list its faults go to."""

    def __init__(self, data: Mapping[str, object], where: str, faults: list[str]) -> None:
        self._data = data
        self._where = where
        self._faults = faults
        self._asked: set[str] = set()

    def fault(self, key: str, text: str) -> None:
        """Note that the value of ``key`` is wrong."""
        self._faults.append(f"{self._where}: {key} {text}")

    def has(self, key: str) -> bool:
        """Whether the table sets ``key``."""
        return key in self._data

    def value(self, key: str) -> object:
        """The value of ``key`` as it stands, None where it is not set."""
        self._asked.add(key)
        return self._data.get(key)

    def text(self, key: str, default: str | None = None, *, pattern: str | None = None) -> str:
        """A string, by default required; ``pattern`` must match all of it."""
        found = self.optional_text(key, pattern=pattern)
        if found is not None:
            return found
        if default is None and key not in self._data:
            self.fault(key, "is missing")
        return default or ""

    def optional_text(self, key: str, *, pattern: str | None = None) -> str | None:
        """A string that may be missing."""
        found = self.value(key)
        if found is None:
            return None
        if not isinstance(found, str) or not found:
            self.fault(key, "must be a string that is not empty")
            return None
        if pattern is not None and re.fullmatch(pattern, found) is None:
            self.fault(key, f"has a form that is not allowed: '{found[:80]}'")
            return None
        return found

    def price(self, key: str) -> str | None:
        """A price: a plain decimal string with at most 6 digits before the point and 12 behind it."""
        return self._decimal(key, _PRICE, 'a string such as "0.05" (at most 12 decimals)')

    def markup(self, key: str, default: str) -> str:
        """A multiplier above zero, at most 999.9999."""
        found = self._decimal(key, _MARKUP, 'a string such as "1.20" (at most 4 decimals)')
        if found is not None and not found.strip("0."):
            self.fault(key, "must be greater than zero")
        return found or default

    def integer(self, key: str, default: int, *, least: int, most: int) -> int:
        """A whole number within bounds."""
        found = self.value(key)
        if found is None:
            return default
        if not isinstance(found, int) or isinstance(found, bool) or not least <= found <= most:
            self.fault(key, f"must be an integer from {least} to {most}")
            return default
        return found

    def optional_switch(self, key: str) -> bool | None:
        """True or false, or None where it is not set."""
        found = self.value(key)
        if found is not None and not isinstance(found, bool):
            self.fault(key, "must be true or false")
            return None
        return found

    def choice(self, key: str, allowed: Sequence[str], default: str | None = None) -> str:
        """One of the allowed words."""
        found = self.value(key)
        if found is None and default is not None:
            return default
        if found is None:
            self.fault(key, "is missing")
        elif found not in allowed:
            self.fault(key, f"must be one of {', '.join(allowed)}")
        else:
            return str(found)
        return allowed[0]

    def texts(self, key: str, default: tuple[str, ...] = ()) -> tuple[str, ...]:
        """A list of strings."""
        found = self.value(key)
        if found is None:
            return default
        if not isinstance(found, list) or not all(isinstance(item, str) and item for item in found):
            self.fault(key, "must be a list of strings")
            return default
        return tuple(found)

    def day(self, key: str, default: int | None = None) -> int:
        """A date (TOML's own, or a string YYYY-MM-DD), as seconds since the epoch at 00:00 UTC."""
        found = self.value(key)
        if found is None and default is not None:
            return default
        if isinstance(found, str):
            try:
                found = date.fromisoformat(found)
            except ValueError:
                found = ""
        if isinstance(found, date) and not isinstance(found, datetime):
            return int(datetime(found.year, found.month, found.day, tzinfo=UTC).timestamp())
        self.fault(key, "is missing" if found is None else "must be a date YYYY-MM-DD")
        return 0

    def table(self, key: str) -> Table:
        """A table inside this one; an empty one where it is missing."""
        found = self.value(key)
        if found is not None and not isinstance(found, dict):
            self.fault(key, "must be a table")
        return Table(found if isinstance(found, dict) else {}, f"{self._where}: {key}", self._faults)

    def tables(self, key: str) -> list[Table]:
        """A list of tables; fault lines count them from 1."""
        found = self.value(key)
        if found is None:
            return []
        if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
            self.fault(key, "must be a list of tables")
            return []
        return [Table(item, f"{self._where}: {key} {number}", self._faults) for number, item in enumerate(found, 1)]

    def keys(self) -> tuple[str, ...]:
        """The keys the table sets, in file order."""
        return tuple(self._data)

    def close(self) -> None:
        """Note every key that nobody asked for."""
        for key in self._data:
            if key not in self._asked:
                self.fault(key, "is not a known key")

    def _decimal(self, key: str, form: re.Pattern[str], wanted: str) -> str | None:
        found = self.value(key)
        if found is None:
            return None
        if not isinstance(found, str) or form.fullmatch(found) is None:
            self.fault(key, f"must be {wanted}")
            return None
        return found
