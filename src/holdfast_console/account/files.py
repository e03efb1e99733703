"""The account's uploaded files, which inputs of tasks may name."""

from __future__ import annotations

from typing import Final

from holdfast.http.endpoints.files import list_own_files, remove_own_file
from holdfast.http.kit.calls import Auth
from holdfast_console.rendering import Html
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
    return await visit.act(remove_own_file, FILES, "The file is deleted.")
