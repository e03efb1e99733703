"""The studio's models by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from holdfast.standins.studio import render_clip, render_edit, render_image, render_tone
from holdfast.standins.studio.model import Prepare

MODELS: Mapping[str, Prepare] = MappingProxyType(
    {
        "poster": render_image.prepare,
        "edit": render_edit.prepare,
        "tone": render_tone.prepare,
        "clip": render_clip.prepare,
    }
)
