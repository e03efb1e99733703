"""Addresses of pages: those that links and forms name, and the way back after an action."""

from __future__ import annotations

import re
from typing import Final

SIGN_IN: Final = "/ops/sign-in"
API: Final = "/ops/api/"
_LOCAL: Final = re.compile(r"/ops(?:[/?][\x21-\x5b\x5d-\x7e]*)?", re.ASCII)


def local_path(text: str) -> str:
    """Return the path of a page that a form or link named, ``/ops`` for anything else."""
    return text if _LOCAL.fullmatch(text) else "/ops"
