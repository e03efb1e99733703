"""The account's uploaded files, which inputs of tasks may name."""

from __future__ import annotations

from typing import Final

from holdfast.http.endpoints.files import list_own_files, remove_own_file
from holdfast.http.kit.calls import Auth
from holdfast.ledger.refusals import Refusal
from holdfast_console.forms import Message
from holdfast_console.rendering import Html, Redirect
from holdfast_console.views import ViewResult, ViewTable, Visit

FILES: Final = "/account/files"

view = ViewTable(Auth.SESSION)


@view(FILES)
async def files(visit: Visit) -> ViewResult:
    """A page of the files that are stored."""
    return Html("files.html", {"files": await visit.read_list(list_own_files), "base": visit.call.deps.urls.base})


@view(f"{FILES}/{{file_id}}/delete", method="POST")
async def delete(visit: Visit) -> ViewResult:
    """Delete a file."""
    done, _ = await visit.submit(remove_own_file, fields={})
    return done if isinstance(done, Refusal) else Redirect(FILES, Message("The file is deleted.", False))
