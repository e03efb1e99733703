"""The address of an actor that a test plays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.actors.runtime.refs import TrioActorRef


class RecordedRef(TrioActorRef):
    """An address whose messages go to ``on_tell``."""

    def __init__(self, on_tell: Callable[[Any], None]) -> None:
        super().__init__("urn:test")
        self._on_tell = on_tell

    def tell(self, message: object) -> None:
        """Pass the message on."""
        self._on_tell(message)
