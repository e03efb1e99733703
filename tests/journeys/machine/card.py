"""The card emulator on port 7000. It trusts public authorities alone, so its events go past the proxy."""

from __future__ import annotations

import socket
from functools import partial
from pathlib import Path

import trio

from holdfast_emulators.card.app import serve_card_emulator

if __name__ == "__main__":
    given = dict(line.split("=", 1) for line in Path(__file__).with_name("card.env").read_text().splitlines())
    bound = socket.create_server(("127.0.0.1", 7000))
    trio.run(
        partial(
            serve_card_emulator,
            api_key=given["HOLDFAST_CARD_API_KEY"],
            webhook_secret=given["HOLDFAST_CARD_WEBHOOK_SECRET"],
            webhook_url=lambda: "http://127.0.0.1:8000/v2/control/payments/cardprovider/webhook",
            files_dir=Path("/run"),
            bound=bound,
        )
    )
