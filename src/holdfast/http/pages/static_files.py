"""The pages' stylesheet, script and icon. Their names contain a hash, so that browsers may keep them for a year."""

from __future__ import annotations

import functools
import hashlib
from importlib.resources import files
from typing import Final, NamedTuple

CONTENT_TYPES: Final = {
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_FOLDER: Final = files("holdfast.http.pages") / "static"


class StaticFile(NamedTuple):
    """A file as it is served."""

    content: bytes
    content_type: str


@functools.cache
def static_files() -> dict[str, StaticFile]:
    """Return all files, by the names they are served under: ``pages.css`` is ``pages-0123456789ab.css``."""
    found = {}
    for file in sorted(_FOLDER.iterdir(), key=lambda each: each.name):
        stem, _, extension = file.name.rpartition(".")
        content = file.read_bytes()
        name = f"{stem}-{hashlib.sha256(content).hexdigest()[:12]}.{extension}"
        found[name] = StaticFile(content, CONTENT_TYPES[extension])
    return found


@functools.cache
def static_path(name: str) -> str:
    """Return the path of a file: ``pages.css`` is at ``/ops/static/pages-0123456789ab.css``."""
    stem, _, extension = name.rpartition(".")
    served = next(each for each in static_files() if each.startswith(f"{stem}-") and each.endswith(f".{extension}"))
    return f"/ops/static/{served}"
