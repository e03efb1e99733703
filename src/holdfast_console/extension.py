"""What the pages add to the front end: nothing but pages."""

from __future__ import annotations

from functools import partial
from typing import Final

from holdfast.http.kit.calls import Auth
from holdfast.http.kit.extensions import Extension, ServedPage
from holdfast_console.account.site import SITE as ACCOUNT
from holdfast_console.operators.site import SITE as OPERATORS
from holdfast_console.serving import redirect_to, refused_page, serve_view

EXTENSION: Final = Extension(
    name="console",
    pages=(
        *(
            ServedPage(
                method=view.method,
                path=view.path,
                serve=partial(serve_view, site, view),
                refuse=partial(refused_page, site),
                needs_session=view.auth is Auth.SESSION,
            )
            for site in (OPERATORS, ACCOUNT)
            for view in site.views
        ),
        *(
            ServedPage(method="GET", path=f"{site.root}/", serve=partial(redirect_to, site.root))
            for site in (OPERATORS, ACCOUNT)
        ),
    ),
    operators_pages=(ServedPage(method="GET", path="/", serve=partial(redirect_to, OPERATORS.root)),),
)
