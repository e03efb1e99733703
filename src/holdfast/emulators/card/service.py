"""The card emulator as one child function: state, deliveries and web server, started and stopped in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import trio
from quart_trio import QuartTrio

from holdfast.emulators.card.app import create_card_emulator
from holdfast.emulators.card.changes import Changes
from holdfast.emulators.card.state import Store
from holdfast.emulators.card.state_file import StateFile, load_state
from holdfast.emulators.card.webhooks import WebhookSender
from holdfast.emulators.serving import serve_app
from holdfast.emulators.signed_sender import RETRY_DELAYS_S
from holdfast.ledger.clock import Now, utc_now

SETTLE_DELAY_S = 1.0


async def serve_card_emulator(
    *,
    api_key: str,
    webhook_secret: str,
    webhook_url: Callable[[], str],
    files_dir: Path,
    host: str = "127.0.0.1",
    port: int = 0,
    settle_delay_s: float = SETTLE_DELAY_S,
    retry_delays_s: Sequence[float] = RETRY_DELAYS_S,
    now: Now = utc_now,
    sender: type[WebhookSender] = WebhookSender,
    create: Callable[..., QuartTrio] = create_card_emulator,
    task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until cancelled; reports the bound port (``port`` 0 takes a free one).

    ``api_key`` authorizes calls, ``webhook_secret`` signs events, ``webhook_url`` returns where to send them, or an
    empty string while there is no receiver. The state is stored in ``files_dir`` and loaded at the next start.
    ``sender`` and ``create`` are replaced by test harnesses that inject faults.

    Raises ``ValueError`` for an empty key or secret, and, in a group, ``OSError`` if the port is taken.
    """
    if not api_key.strip() or not webhook_secret.strip():
        raise ValueError("the card emulator needs an API key and a webhook signing secret")
    state = await trio.to_thread.run_sync(load_state, files_dir, limiter=trio.CapacityLimiter(1))
    store = Store(state, now=now)
    webhook_sender = sender(store, webhook_secret, webhook_url, now=now, retry_delays_s=retry_delays_s)
    changes = Changes(store, StateFile(store, files_dir), webhook_sender, settle_delay_s=settle_delay_s)
    app = create(changes, api_key=api_key)

    async with trio.open_nursery() as nursery:
        await nursery.start(changes.run)
        address = await nursery.start(partial(serve_app, app, bind=f"{host}:{port}"))
        task_status.started(urlsplit(address).port or 0)
