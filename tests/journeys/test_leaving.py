"""Leaving over real HTTP: a changed address, deleted results, a closing that is cancelled, and one that is not.

After the last nothing of the account's owner is in any table but that of receipts, in any stored content, or in the
log.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import psycopg
import pytest
import trio
from tests.clients import IMAGE, Customer, code_of, ok, refused, until

from holdfast.actors.workers.sweeper import SIGN_INS_RETENTION_S
from holdfast.ledger.values import utc_now
from holdfast.persistence.claims.expired import delete_expired
from holdfast.persistence.records.tables import metadata
from holdfast.persistence.server.connections import connected

from .card_provider import CardProviderProcess, Payer, save_card
from .conftest import NewCustomer, NewService
from .service_process import OPERATOR_TOKEN, Service

ACCOUNT, EMAIL, ARCHIVE = "/v2/control/account", "/v2/control/email", "/v2/control/archive"
PROMPT = "the lighthouse keeper's unmistakable wallpaper"
END_USER, KEY_NAME, FILENAME, HOOK = (
    "end-user-of-ada-77",
    "adas-laptop-key",
    "adas-holiday.txt",
    "adas-hook.example",
)
LOGGED = {"the webhook", "the key's prefix", "the card in an event"}
"""What the log may have: hosts that do not answer, and how a refused key begins. Four digits are also in ids."""


def changed(service: Service, sql: str, *values: object) -> int:
    """Change rows, as time would."""
    with psycopg.connect(service.database_url) as rows:
        return rows.execute(sql, values).rowcount


def found(service: Service, sql: str, *values: object) -> list[tuple[Any, ...]]:
    """Read rows."""
    with psycopg.connect(service.database_url) as rows:
        return rows.execute(sql, values).fetchall()


def places_of(service: Service, needles: dict[str, str]) -> list[str]:
    """Return where any of the texts is: in a table, also as bytes; in a stored content or its name; in the log."""
    places = []
    with psycopg.connect(service.database_url) as rows:
        for table in metadata.tables:
            for (row,) in rows.execute(f"select t::text from {table} t"):
                places += [
                    f"{what} in {table}: {row[:200]}"
                    for what, needle in needles.items()
                    if needle in row or needle.encode().hex() in row
                ]
    for file in filter(Path.is_file, (service.data_dir / "assets").rglob("*")):
        content = file.read_bytes()
        places += [f"{what} in {file.name}" for what, needle in needles.items() if needle.encode() in content]
    for line in service.log_path.read_text("utf-8", "replace").splitlines():
        # In development the mailer writes codes into the log, instead of sending them.
        if "mail written to a file" not in line:
            places += [
                f"{what} in the log: {line[:300]}"
                for what, needle in needles.items()
                if needle in line and what not in LOGGED
            ]
    return places


async def sign_in(ada: Customer) -> None:
    """Sign in again, with the key that there is."""
    sent = ok(await ada.http.post("/v2/control/auth/otp", json={"email": ada.email}))
    proof = {"email": ada.email, "otp_id": sent["otp_id"], "otp": sent["debug_otp"]}
    verified = ok(await ada.http.post("/v2/control/auth/verify", json=proof))
    ada.account_id, ada.session = verified["account_id"], verified["session"]["token"]


async def change_email(ada: Customer, email: str) -> dict[str, Any]:
    """Change the account's address."""
    sent = ok(await ada.as_session("POST", EMAIL, {"email": email}))
    codes = {each: {"otp_id": sent[each]["otp_id"], "otp": sent[each]["debug_otp"]} for each in ("current", "new")}
    done = ok(await ada.as_session("POST", f"{EMAIL}/confirm", {"email": email, **codes}))
    ada.email = email
    return done


def check_archive(content: bytes, ada: Customer, key: dict[str, Any]) -> None:
    """Check that an archive has what its account has, all of it readable, and no secret."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        assert archive.testzip() is None
        files = {name: archive.read(name) for name in archive.namelist()}
    records = {
        name.removesuffix(".jsonl"): [json.loads(line) for line in body.splitlines()]
        for name, body in files.items()
        if name.endswith(".jsonl")
    }
    manifest = json.loads(files["manifest.json"])
    assert manifest["account_id"] == ada.account_id
    assert manifest["records"] == {name: len(rows) for name, rows in records.items()} | {"usage": 2}
    assert [row["email"] for row in records["account"]] == [ada.email]
    assert {row["input"]["prompt"] for row in records["tasks"]} == {PROMPT}
    assert {row["account_id"] for rows in records.values() for row in rows if "account_id" in row} == {
        ada.account_id
    }
    assert [each["key_id"] for each in records["api_keys"] if each["name"] == KEY_NAME] == [key["api_key_id"]]
    secret = hashlib.sha256(key["api_key"].encode()).hexdigest()
    assert all(secret not in body.decode("utf-8", "replace") for body in files.values())
    assert len(records["orders"]) == 1
    usage = list(csv.DictReader(io.StringIO(files["usage.csv"].decode())))
    assert [row["end_user"] for row in usage] == [END_USER] * 2
    assert manifest["omitted_contents"] == []
    [file] = records["files"]
    assert hashlib.sha256(files[f"files/{file['file_id']}.bin"]).hexdigest() == file["sha256"]
    assert len(records["results"]) == 2
    for row in records["results"]:
        assert hashlib.sha256(files[f"results/{row['asset_id']}.png"]).hexdigest() == row["sha256"]


async def close(ada: Customer, **more: object) -> Any:
    """Ask for the closing of the account."""
    return await ada.as_session("DELETE", ACCOUNT, {"email": ada.email, **more})


@pytest.mark.slow
async def test_an_account_leaves_nothing_of_its_owner_behind(
    new_service: NewService, card_provider: CardProviderProcess, new_customer: NewCustomer
) -> None:
    service = new_service(OPERATOR_TOKEN=OPERATOR_TOKEN, **card_provider.settings())
    await trio.to_thread.run_sync(service.start)
    card_provider.serve(service)
    with trio.fail_after(240):
        ada, bob = await new_customer(service, credit="1.00"), await new_customer(service, credit="1.00")
        first_email = ada.email
        payer = Payer(ada, card_provider)
        await payer.paid_order("10.00")
        card_id = await save_card(ada, card_provider)
        made = ok(await ada.as_session("POST", "/v2/control/api-keys", {"name": KEY_NAME}))
        ada.key = made["api_key"]
        file = {"file": (FILENAME, b"my holiday at the lighthouse")}
        ok(await ada.as_key("POST", "/v2/files", files=file))
        hook = {"url": f"https://{HOOK}/events", "events": ["*"]}
        ok(await ada.as_session("POST", "/v2/control/webhooks", hook))
        wanted = {
            "model": "studio/image-1",
            "input": {**IMAGE, "prompt": PROMPT},
            "metadata": {"end_user": END_USER},
            "webhook_url": f"https://{HOOK}/task",
        }
        tasks = [ok(await ada.as_key("POST", "/v2/task/create", wanted))["request_id"] for _ in range(2)]
        await ada.all_ended()

        # All that is stored, in one file.
        asked = ok(await ada.as_session("POST", ARCHIVE))
        assert asked["state"] in {"making", "ready"}

        async def is_made() -> dict[str, Any] | None:
            archive = ok(await ada.as_session("GET", ARCHIVE))
            return archive if archive["state"] == "ready" else None

        archive = await until(is_made)
        assert (
            ok(await ada.as_session("POST", ARCHIVE))["archive_id"] == archive["archive_id"] == asked["archive_id"]
        )
        fetched = await ada.http.get(archive["url"])
        assert (fetched.status_code, len(fetched.content)) == (200, archive["bytes"])
        assert fetched.headers["Content-Disposition"] == f'attachment; filename="{archive["archive_id"]}.zip"'
        refused(
            await ada.http.get(archive["url"][:-1] + ("0" if archive["url"][-1] != "0" else "1")),
            403,
            "invalid_link",
        )
        check_archive(fetched.content, ada, made)

        # The address is changed; the old one signs in to another account.
        await sign_in(ada)
        other_session = ada.session
        await sign_in(ada)
        body = await change_email(ada, "ada-lovelace@new.example")
        assert body == {"account_id": ada.account_id, "email": ada.email, "role": "User"}
        refused(await ada.call("GET", "/v2/control/session", credential=other_session), 401, "invalid_session")
        assert ok(await ada.as_session("GET", "/v2/control/session"))["email"] == ada.email
        taken = ok(await ada.as_session("POST", EMAIL, {"email": bob.email}))
        codes = {each: {"otp_id": taken[each]["otp_id"], "otp": "000000"} for each in ("current", "new")}
        wrong = await ada.as_session("POST", f"{EMAIL}/confirm", {"email": bob.email, **codes})
        assert code_of(wrong) in {"invalid_otp", "email_taken"}

        # Results are deleted at once; those of the other task stay.
        [item] = (await ada.task(tasks[0]))["output"]
        gone = ok(await ada.as_key("DELETE", f"/v2/task/{tasks[0]}/results"))
        assert (gone["hosting"]["status"], gone["output"][0]["url"]) == ("expired", None)
        refused(await ada.http.get(item["url"]), 410, "asset_expired")
        assert (await ada.http.get((await ada.task(tasks[1]))["output"][0]["url"])).status_code == 200

        # The closing: confirmed, begun, cancelled by signing in, begun again.
        refused(await ada.as_session("DELETE", ACCOUNT, {"email": bob.email}), 400, "invalid_parameter")
        left = refused(await close(ada), 409, "credit_remains")
        assert left["available"] == str((await ada.totals()).available)
        closing = ok(await close(ada, forfeit_credit=True))
        assert (closing["state"], closing["forfeited_credit"]) == ("closing", left["available"])
        refused(await ada.as_key("GET", "/v2/task/list"), 403, "account_closing")
        refused(await ada.create(), 403, "account_closing")
        refused(await ada.as_session("GET", ACCOUNT), 401, "invalid_session")
        operator = {"Authorization": f"Bearer {OPERATOR_TOKEN}"}
        [listed] = ok(await ada.http.get("/ops/api/closing-accounts", headers=operator))["data"]
        assert (listed["account_id"], listed["state"]) == (ada.account_id, "closing")
        account_id = ada.account_id
        await sign_in(ada)
        assert ada.account_id == account_id
        assert ok(await ada.as_key("GET", "/v2/task/list"))["data"]
        ok(await close(ada, forfeit_credit=True))

        needles = {
            "the first address": first_email,
            "the address": ada.email,
            "the prompt": PROMPT,
            "the end user": END_USER,
            "the key's name": KEY_NAME,
            "the key's prefix": made["api_key_prefix"],
            "the file's name": FILENAME,
            "the webhook": HOOK,
            "the card": card_id,
            "the last digits of the card": '"last4":"4242"',
            "the card in an event": "4242",
        }
        assert {each.partition(" in ")[0] for each in places_of(service, needles)} > {"the address", "the prompt"}

        # Seven days later.
        changed(service, "update accounts set closes_at = now(), version = version + 1 where id = %s", account_id)

        async def is_closed() -> bool:
            return found(service, "select closed_at from accounts where id = %s", account_id) != [(None,)]

        await until(is_closed)
        [(closed_at,)] = found(service, "select closed_at from accounts where id = %s", account_id)
        # It is killed with the deletion ahead, and what was under way has ended when it runs again.
        await trio.to_thread.run_sync(service.kill)
        await trio.to_thread.run_sync(service.start)
        changed(service, "update accounts set closed_at = closed_at - interval '1 day' where id = %s", account_id)

        async def is_erased() -> bool:
            return found(service, "select erased_at from accounts where id = %s", account_id) != [(None,)]

        await until(is_erased)
        changed(service, "update accounts set closed_at = %s where id = %s", closed_at, account_id)
        changed(service, "update contents set claimed_until = now() - interval '1 day'")

        async def has_no_content() -> bool:
            return not any(map(Path.is_file, (service.data_dir / "assets").rglob("*")))

        await until(has_no_content)
        # What is stored of the address that was given up is deleted after a day.
        changed(service, "update sign_ins set updated_at = updated_at - interval '2 days'")
        with connected(service.database_url) as rows:
            delete_expired(rows, "sign_ins", retention_s=SIGN_INS_RETENTION_S, now=utc_now(), most=100)
            rows.commit()
        # Only the receipt still names its buyer, as it did when it was issued.
        left_behind = places_of(service, needles)
        [receipt] = [place for place in left_behind if place.startswith("the first address in receipts: ")]
        assert left_behind == [receipt], "\n".join(left_behind)
        line = ok(await ada.http.get(f"/ops/api/accounts/{account_id}/timeline?source=account", headers=operator))
        whats = [entry["what"] for entry in line["data"]]
        assert whats == [
            "erased",
            "closed",
            "closing",
            "kept",
            "closing",
            "email_changed",
            "archive_made",
            "archive_requested",
        ]

        # The ledger is whole, others work on, and the address makes a new account.
        assert service.audit() == []
        assert ok(await bob.create())["status"] == "queued"
        await sign_in(ada)
        assert ada.account_id != account_id
        assert (await ada.totals()).balance == 0
        assert ok(await ada.as_session("GET", "/v2/control/payments"))["data"] == []
    assert service.faults() == []
