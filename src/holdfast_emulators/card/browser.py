"""What the emulator serves to customers' browsers: the provider's script, its frame, and its 3-D Secure page.

``/v3/`` is used as the real script is, with the calls that pages of Holdfast make. The card is chosen in a frame of
the provider's own origin, as there, and only the frame calls the API. To choose a test card stands for its number.
"""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files
from typing import Final
from urllib.parse import urlencode

from quart import Response, request
from quart_trio import QuartTrio

from holdfast_emulators.card.state import PaymentIntent

_FOLDER: Final = files("holdfast_emulators.card")
CHALLENGE_PATH: Final = "/v3/challenge"


def challenge_url(intent: PaymentIntent) -> str:
    """Return the address, for the client of this request, at which a cardholder approves the payment."""
    named = urlencode({"payment_intent": intent.id, "client_secret": intent.client_secret})
    return f"{request.host_url.rstrip('/')}{CHALLENGE_PATH}#{named}"


def add_browser_parts(app: QuartTrio) -> None:
    """Add the script and its pages to the application."""
    script = _FOLDER.joinpath("element.js").read_text(encoding="utf-8")

    @app.get("/v3/")
    async def element_script() -> Response:
        return Response(
            script, content_type="text/javascript; charset=utf-8", headers={"Cache-Control": "no-store"}
        )

    add_page(app, "/v3/frame", "frame.html", "frame-ancestors *")
    add_page(app, CHALLENGE_PATH, "challenge.html", "frame-ancestors 'none'; img-src data:")


def add_page(app: QuartTrio, path: str, name: str, policy: str) -> None:
    """Add a page: one file with inline style and script, which connects to its own origin only.

    ``policy`` completes its Content-Security-Policy.
    """
    page = _FOLDER.joinpath(name).read_text(encoding="utf-8")
    headers = {
        "Content-Security-Policy": (
            f"default-src 'none'; base-uri 'none'; form-action 'none'; connect-src 'self'; "
            f"style-src {_hash_of(page, 'style')}; script-src {_hash_of(page, 'script')}; {policy}"
        ),
        "Cache-Control": "no-store",
    }

    async def serve() -> Response:
        return Response(page, content_type="text/html; charset=utf-8", headers=headers)

    app.add_url_rule(path, name, serve, methods=["GET"])


def _hash_of(page: str, tag: str) -> str:
    content = page.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0]
    return "'sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode("ascii") + "'"
