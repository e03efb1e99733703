"""Interpreters that find the core, and not some of the distributions beside it."""

from __future__ import annotations

from pathlib import Path

BESIDE = ("holdfast_compat", "holdfast_console", "holdfast_emulators")
_HIDE = """
import sys
from importlib import metadata

HIDDEN = {names!r}
sys.modules |= dict.fromkeys(HIDDEN)
found = metadata.entry_points


def entry_points(**wanted):
    return metadata.EntryPoints(each for each in found(**wanted) if each.module.partition(".")[0] not in HIDDEN)


metadata.entry_points = entry_points
"""


def hidden(folder: Path, *names: str) -> dict[str, str]:
    """Return the environment of interpreters without these packages. ``folder`` is written to."""
    place = folder / "hidden"
    place.mkdir()
    (place / "sitecustomize.py").write_text(_HIDE.format(names=names))
    return {"PYTHONPATH": str(place)}
