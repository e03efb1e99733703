"""The emulator's page: one file with inline style and script, which connects to its own origin only."""

from __future__ import annotations

import base64
import hashlib
import re
from importlib.resources import files
from typing import Final

from quart import Response

_PAGE: Final = files("holdfast.standins.card").joinpath("page.html").read_text(encoding="utf-8")


def _hash_of(tag: str) -> str:
    found = re.search(rf"<{tag}>(.*?)</{tag}>", _PAGE, re.DOTALL)
    assert found is not None, tag
    return "'sha256-" + base64.b64encode(hashlib.sha256(found.group(1).encode()).digest()).decode("ascii") + "'"


PAGE_CSP: Final = (
    f"default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; connect-src 'self'; "
    f"style-src {_hash_of('style')}; script-src {_hash_of('script')}; img-src data:"
)


def page_response() -> Response:
    """Return the page, with a policy that runs only its own script."""
    return Response(
        _PAGE,
        content_type="text/html; charset=utf-8",
        headers={"Content-Security-Policy": PAGE_CSP, "Cache-Control": "no-store"},
    )
