"""The signed statement as it is sent, its public keys, and the program that checks it."""

from __future__ import annotations

import io
import os
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import msgspec
import psycopg
import pytest
import sqlalchemy
import trio
from tests.clients import refused
from tests.made_statements import REASONS, START, findings, made_history
from tests.persistence.tampered_rows import tamper

from holdfast.ledger.api_keys import ACCOUNT_READ, TASKS_READ
from holdfast.ledger.credit import verify_statement
from holdfast.ledger.credit.operations import Operation
from holdfast.ledger.credit.verify_statement import Check, Key, compare, read_keys
from holdfast.ledger.values import format_time
from holdfast.persistence.records import tables

if TYPE_CHECKING:
    from tests.http.api import Api

STATEMENT, KEYS, PROGRAM = (
    "/v2/control/statement",
    "/.well-known/holdfast-statement-keys.json",
    "/verify_statement.py",
)
SOURCE = Path(verify_statement.__file__).read_bytes()
PREVIOUS = "previous-server-key-0123456789-abcdef"


async def add_history(api: Api, history: Sequence[Operation]) -> None:
    """Write the rows of operations, postings and lots by COPY."""
    names = [column.name for column in tables.operations.columns]

    def copy(rows: sqlalchemy.Connection) -> None:
        driver = rows.connection.driver_connection
        assert isinstance(driver, psycopg.Connection)
        with driver.cursor() as cursor:
            with cursor.copy(f"copy operations ({', '.join(names)}) from stdin") as copied:
                for each in history:
                    copied.write_row([getattr(each, name) for name in names])
            with cursor.copy("copy postings from stdin") as copied:
                for each in history:
                    for line, posting in enumerate(each.postings):
                        copied.write_row([each.account_id, each.number, line, *posting])
            lots = "account_id, number, kind, source, reference, amount_micro, created_at, expires_at"
            with cursor.copy(f"copy credit_lots ({lots}) from stdin") as copied:
                for each in history:
                    if each.lot is not None:
                        kind, source, expires_at = each.lot
                        about = [each.reference, each.amount_micro, each.at]
                        copied.write_row([each.account_id, each.number, kind, source, *about, expires_at])

    await api.database.work(copy)


async def keys_of(api: Api) -> dict[str, Key]:
    response = await api.call("GET", KEYS)
    assert (response.status_code, response.headers["Content-Type"]) == (200, "application/jwk-set+json")
    assert response.headers["Cache-Control"] == "public, max-age=300"
    return read_keys(response.content)


async def statement(api: Api, query: str = "") -> bytes:
    response = await api.as_session("GET", f"{STATEMENT}{query}")
    assert response.status_code == 200, response.text
    assert response.headers["Content-Type"] == "application/x-ndjson"
    return response.content


def check(content: bytes, keys: dict[str, Key]) -> Check:
    checked = Check(io.BytesIO(content), keys)
    assert checked.findings == []
    return checked


async def test_a_statement_of_several_reads_proves_itself(api: Api) -> None:
    history = made_history(600, account_id=api.account_id)
    await add_history(api, history)
    response = await api.as_session("GET", STATEMENT)
    name = f"statement-{api.account_id}-600.jsonl"
    assert response.headers["Content-Disposition"] == f'attachment; filename="{name}"'
    checked = check(response.content, await keys_of(api))
    assert (checked.number, checked.end["hash"]) == (600, history[-1].chain_hash.hex())
    assert checked.first["issuer"] == api.public_url
    assert checked.first["issued_at"] == format_time(api.now)
    lines = response.content.splitlines()
    reasons = {msgspec.json.decode(line)["operation"][10] for line in lines[1:-1]}
    assert set(REASONS) <= reasons


async def test_an_account_without_operations_has_a_statement(api: Api) -> None:
    content = await statement(api)
    assert content.count(b"\n") == 2
    checked = check(content, await keys_of(api))
    assert (checked.first["first_number"], checked.first["last_number"], checked.totals) == (1, 0, (0, 0))


async def test_a_statement_of_a_time_goes_on_from_that_before_it(api: Api) -> None:
    history = made_history(400, account_id=api.account_id)
    await add_history(api, history)
    middle, late = history[149].at, history[299].at
    ends = [middle + timedelta(milliseconds=1), late + timedelta(milliseconds=1), START + timedelta(days=9)]
    keys, whole = await keys_of(api), await statement(api)
    parts = []
    for since, until in zip([START, *ends], ends, strict=False):
        parts.append(await statement(api, f"?from={format_time(since)}&to={format_time(until)}"))
    checked = [check(each, keys) for each in parts]
    assert [(each.first["first_number"], each.number) for each in checked] == [(1, 150), (151, 300), (301, 400)]
    assert checked[1].first["from"] == format_time(ends[0])
    for older, newer in pairwise(parts):
        assert compare(io.BytesIO(older), io.BytesIO(newer)) == []
        assert compare(io.BytesIO(older), io.BytesIO(whole)) == []
    assert compare(io.BytesIO(parts[0]), io.BytesIO(parts[2])) != []
    before = check(await statement(api, f"?to={format_time(START)}"), keys)
    after = check(await statement(api, "?from=2027-01-01"), keys)
    assert [(each.first["first_number"], each.number) for each in (before, after)] == [(1, 0), (401, 400)]
    assert after.totals == (history[-1].balance_after_micro, history[-1].held_after_micro)


async def test_who_may_read_the_statement_may_read_the_signed_one(api: Api) -> None:
    reader = await api.add_key(api.account_id, "key_" + "2" * 32, scopes=(ACCOUNT_READ,))
    allowed = await api.call("GET", STATEMENT, credential=reader.secret)
    assert allowed.status_code == 200
    other = await api.add_key(api.account_id, "key_" + "3" * 32, scopes=(TASKS_READ,))
    refused(await api.call("GET", STATEMENT, credential=other.secret), 403, "insufficient_scope")
    refused(await api.call("GET", STATEMENT), 401, "missing_credentials")
    refused(await api.as_session("GET", f"{STATEMENT}?limit=5"), 400, "invalid_parameter")
    refused(await api.as_session("GET", f"{STATEMENT}?from=x"), 400, "invalid_parameter")


async def test_the_program_is_sent_as_it_is(api: Api, tmp_path: Path) -> None:
    response = await api.call("GET", PROGRAM)
    assert response.headers["Content-Type"] == "text/x-python; charset=utf-8"
    assert response.content == SOURCE
    (tmp_path / "verify_statement.py").write_bytes(response.content)
    (tmp_path / "keys.json").write_bytes((await api.call("GET", KEYS)).content)
    await add_history(api, made_history(20, account_id=api.account_id))
    (tmp_path / "statement.jsonl").write_bytes(await statement(api))
    (tmp_path / "later.json").write_bytes((await api.call("GET", KEYS)).content)
    for keys in ("keys.json", "later.json"):
        words = [sys.executable, "-I", "verify_statement.py", "statement.jsonl", "--keys", keys]
        done = await trio.run_process(words, cwd=tmp_path, capture_stdout=True, capture_stderr=True, check=False)
        assert done.stdout.endswith(b"Nothing was altered.\n"), done


# ------------------------------------------------------------------------------------------------------- rotation


async def test_a_replaced_key_stays_known_until_its_last_use(api: Api) -> None:
    await add_history(api, made_history(20, account_id=api.account_id))
    api.configure(server_key=PREVIOUS)
    old = await statement(api)
    [[old_id, old_key]] = (await keys_of(api)).items()
    assert (old_key.valid_from, old_key.valid_until) == (api.now, None)

    # With the overlap both are configured, and the new one signs.
    api.configure(server_key="next-server-key-0123456789-abcdefgh", server_key_previous=PREVIOUS)
    later = api.now + timedelta(hours=20)
    api.change(now=lambda: later)
    both = await keys_of(api)
    assert [each.valid_until for each in both.values()] == [None, None]
    new = await statement(api)
    [new_id, _] = both
    assert check(new, both).first["key_id"] == new_id != old_id
    assert compare(io.BytesIO(old), io.BytesIO(new)) == []

    # After it the old key verifies what it signed, and nothing later.
    api.configure(server_key_previous="")
    left = await keys_of(api)
    assert left[old_id] == old_key._replace(valid_until=api.now + timedelta(hours=1))
    assert left[new_id].valid_from == later
    check(old, left)
    check(new, left)
    api.configure(server_key=PREVIOUS)
    backdated = await statement(api)
    assert findings(backdated, left) == [
        f"The key was not valid when the statement says that it was issued: {format_time(later)}"
    ]


async def test_the_use_of_a_key_is_written_once_an_hour(api: Api) -> None:
    async def times() -> tuple[Any, ...]:
        return await api.database.read(
            lambda rows: tuple(rows.execute(sqlalchemy.select(tables.statement_keys)).one())
        )

    first = api.now
    for minutes, noted in ((0, 0), (5, 0), (60, 0), (61, 61), (100, 61), (-5, 61)):
        at = first + timedelta(minutes=minutes)
        api.change(now=lambda at=at: at)
        await statement(api)
        assert (await times())[2:] == (first + min(timedelta(0), at - first), first + timedelta(minutes=noted))


async def test_all_values_of_a_key_are_those_of_the_standard(api: Api) -> None:
    [key] = (await api.call("GET", KEYS)).json()["keys"]
    assert (key["kty"], key["crv"], len(key["x"]), len(key["kid"])) == ("OKP", "Ed25519", 43, 43)
    assert (key["valid_from"], key["valid_until"]) == (None, None)


# -------------------------------------------------------------------------------------------- what is not signed


@pytest.mark.parametrize(
    "change",
    [
        "update operations set reason = 'forged' where number = {}",
        "update operations set balance_after_micro = balance_after_micro + 1 where number = {}",
        "update postings set amount_micro = amount_micro + 1 where number = {} and line = 0",
        "delete from operations where number = {}",
        "update credit_lots set source = 'coupon' where number = 1",
    ],
)
@pytest.mark.parametrize("number", [100, 300])
async def test_rows_that_do_not_follow_are_not_signed(api: Api, change: str, number: int) -> None:
    await add_history(api, made_history(400, account_id=api.account_id))
    tamper(api.database.url, change.format(number))
    async with api.serving() as base, httpx2.AsyncClient(base_url=base) as client:
        credential = {"Authorization": f"Bearer {api.session}"}
        if number < 250 or "credit_lots" in change:
            assert (await client.get(STATEMENT, headers=credential)).status_code == 500
        else:
            with pytest.raises(httpx2.RemoteProtocolError):
                await client.get(STATEMENT, headers=credential)


@pytest.mark.slow
async def test_many_rows_are_exported_and_proven(api: Api) -> None:
    count = int(os.environ.get("STATEMENT_OPERATIONS", "10000"))
    await add_history(api, made_history(count, seed=5, account_id=api.account_id))
    async with api.serving() as base, httpx2.AsyncClient(base_url=base, timeout=600) as client:
        begun, used = time.perf_counter(), time.process_time()
        content = (await client.get(STATEMENT, headers={"Authorization": f"Bearer {api.session}"})).content
        took = f"{time.perf_counter() - begun:.1f} s, {time.process_time() - used:.1f} s of CPU with the client's"
    used = time.process_time()
    assert check(content, await keys_of(api)).number == count
    checked = f"{time.process_time() - used:.1f} s of CPU"
    sys.stderr.write(f"{count} operations, {len(content)} bytes: exported in {took}; checked in {checked}\n")
