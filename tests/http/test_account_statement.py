"""The page of the account's statement: its downloads, and the check of a file by the program's own code."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import pytest
from tests.made_statements import made_history
from tests.strict_html import StrictHtml

from holdfast.ledger.credit.verify_statement import Check, read_keys
from holdfast_console.account.statement import CHECKED_BYTES_MAX, STATEMENT

from .identities import TOKEN
from .page_reader import SAME_ORIGIN, check_headers
from .test_account_pages import AccountReader
from .test_signed_statements import SOURCE, add_history

if TYPE_CHECKING:
    import httpx2
    from tests.http.api import Api

CHECK = f"{STATEMENT}/check"


@pytest.fixture
async def owner(api: Api) -> AccountReader:
    """The browser of the account's owner, signed in."""
    browser = AccountReader(api, SAME_ORIGIN)
    browser.take_cookie(TOKEN)
    return browser


async def upload(api: Api, owner: AccountReader, content: bytes) -> httpx2.Response:
    """Send a file by the form, as a browser does."""
    fields = {"csrf_token": await owner.hidden(STATEMENT), "return_to": STATEMENT}
    files = {"file": ("statement.jsonl", content, "application/octet-stream")}
    return await api.http.post(CHECK, data=fields, files=files, headers=owner.headers)


async def test_the_files_are_those_of_the_api(api: Api, owner: AccountReader) -> None:
    await add_history(api, made_history(30, account_id=api.account_id))
    page = await owner.read(STATEMENT)
    keys = (await owner.get(STATEMENT, file="keys")).content
    signed = await owner.get(STATEMENT, **{"file": "signed", "from": "", "to": ""})
    assert signed.headers["Content-Disposition"].startswith("attachment; filename=")
    checked = Check(io.BytesIO(signed.content), read_keys(keys))
    assert (checked.findings, checked.number) == ([], 30)
    assert checked.first["key_id"] in page.text
    csv = await owner.get(STATEMENT, file="csv")
    assert (csv.headers["Content-Type"], csv.text.count("\r\n")) == ("text/csv; charset=utf-8", 31)
    assert (await owner.get(STATEMENT, file="program")).content == SOURCE
    none = await owner.get(STATEMENT, **{"file": "signed", "from": "2027-01-01"})
    assert none.content.count(b"\n") == 2
    assert (await owner.get(STATEMENT, **{"file": "signed", "from": "x"})).status_code == 400


async def test_a_file_is_checked_on_the_page(api: Api, owner: AccountReader) -> None:
    await add_history(api, made_history(30, account_id=api.account_id))
    signed = (await owner.get(STATEMENT, file="signed")).content
    for content, words in (
        (signed, "Nothing was altered: operations 1 to\n      30 of account"),
        (signed.replace(b'"hold"', b'"gift"', 1), "was altered, or the line before it"),
        (signed[:-3000], "The statement was cut off after operation"),
        (b"\xff\0<script>alert(1)</script>", "Line 1 is not the first line of a statement"),
    ):
        response = await upload(api, owner, content)
        assert response.status_code == 200
        check_headers(response)
        page = StrictHtml(response.text)
        assert page.faults == []
        assert words in page.text, response.text
        assert f'value="{STATEMENT}"' in response.text
    hostile = signed.replace(b'"key_id":"', b'"key_id":"<b>', 1)
    assert "&lt;b&gt;" in (await upload(api, owner, hostile)).text


async def test_what_is_no_file_or_too_large_is_refused(api: Api, owner: AccountReader) -> None:
    empty = await upload(api, owner, b"")
    assert (empty.status_code, "Choose a signed statement." in empty.text) == (400, True)
    large = await upload(api, owner, b"x" * CHECKED_BYTES_MAX)
    assert large.status_code == 413
    token = await owner.hidden(STATEMENT)
    for content_type in ("multipart/form-data", "multipart/form-data; boundary=x"):
        headers = {**owner.headers, "Content-Type": content_type}
        broken = await api.http.post(CHECK, content=b"--y\r\n" + token.encode(), headers=headers)
        assert broken.status_code in {400, 403}
    assert api.deps.access.body_memory.bytes_count == 0
