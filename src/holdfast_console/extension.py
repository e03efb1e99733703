"""What the operators' pages add to the front end: nothing but pages."""

from __future__ import annotations

from functools import partial
from typing import Final

from holdfast.http.kit.extensions import Extension, ServedPage
from holdfast_console.serving import serve_view
from holdfast_console.subjects import all_views

EXTENSION: Final = Extension(
    name="console",
    pages=tuple(
        ServedPage(method=view.method, path=view.path, serve=partial(serve_view, view)) for view in all_views()
    ),
)
