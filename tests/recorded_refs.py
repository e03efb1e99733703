"""The address of an actor that a test plays."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from holdfast.actors.runtime.refs import TrioActorRef, WhileDown


class RecordedRef(TrioActorRef):
    """An address whose messages go to ``on_tell``, or to ``on_ask``, which returns the reply."""

    def __init__(
        self, on_tell: Callable[[Any], None], on_ask: Callable[[Any], Awaitable[Any]] | None = None
    ) -> None:
        super().__init__("urn:test")
        self._on_tell = on_tell
        self._on_ask = on_ask

    def tell(self, message: object) -> None:
        """Pass the message on."""
        self._on_tell(message)

    def ask(  # type: ignore[override]  # untyped
        self, message: Any, *, deadline_s: float = 0, while_down: WhileDown = "queue"
    ) -> Awaitable[Any]:
        """Pass the message on and return the reply."""
        assert self._on_ask is not None
        return self._on_ask(message)
