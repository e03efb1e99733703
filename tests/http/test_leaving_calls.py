"""The endpoints of addresses, archives and the end of accounts: whom they ask, and what they refuse and show."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from tests.clients import ok, refused

from holdfast.actors.account.messages import ChangeEmail, CloseAccount, ClosingSet, EmailChanged, TriedCode
from holdfast.actors.sign_in.messages import AdmitOrigin, CodeIssued, OriginAdmitted, RequestCode
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.sign_in_codes import code_mac, email_purpose, new_otp_id
from holdfast.persistence.claims.archives import KEPT, finish_archive
from holdfast.persistence.records import tables

if TYPE_CHECKING:
    from tests.http.api import Api

EMAIL, CONFIRM, ACCOUNT, ARCHIVE = (
    f"/v2/control/{each}" for each in ("email", "email/confirm", "account", "archive")
)
NEW = "ada@new.example"


def email_of(api: Api) -> str:
    return f"{api.account_id}@example.com"


async def test_a_code_goes_to_each_address_for_this_change_alone(api: Api) -> None:
    async def answer(_: str, command: Any) -> Any:
        return OriginAdmitted() if isinstance(command, AdmitOrigin) else CodeIssued("otp_1", "123456", 600)

    api.sign_ins.answer = answer
    body = ok(await api.as_session("POST", EMAIL, {"email": " ada@NEW.example "}))
    assert [body[each]["delivery"]["destination"] for each in ("current", "new")] == [email_of(api), NEW]
    purpose = email_purpose(api.account_id, NEW)
    asked = [(key, sent.purpose) for key, sent in api.sign_ins.asked if isinstance(sent, RequestCode)]
    assert asked == [(f"email:{email_of(api)}", purpose), (f"email:{NEW}", purpose)]
    refused(await api.as_session("POST", EMAIL, {"email": email_of(api)}), 400, "invalid_parameter")
    refused(await api.as_session("POST", EMAIL, {"email": "no address"}), 400, "invalid_email")


async def test_codes_are_verified_by_their_mac_and_only_those_of_the_addresses(api: Api) -> None:
    pepper = api.deps.settings.otp_pepper
    current, new = new_otp_id(pepper, email_of(api)), new_otp_id(pepper, NEW)
    proof = {
        "email": NEW,
        "current": {"otp_id": current, "otp": "123456"},
        "new": {"otp_id": new, "otp": "654321"},
    }
    api.accounts.answer = EmailChanged(NEW, "User")
    body = ok(await api.as_session("POST", CONFIRM, proof))
    assert body == {"account_id": api.account_id, "email": NEW, "role": "User"}
    purpose = email_purpose(api.account_id, NEW)
    [(account_id, command)] = api.accounts.asked
    assert (account_id, command) == (
        api.account_id,
        ChangeEmail(
            NEW,
            "User",
            api.session_id,
            TriedCode(current, code_mac(pepper, current, "123456", purpose)),
            TriedCode(new, code_mac(pepper, new, "654321", purpose)),
        ),
    )
    assert "123456" not in repr(command)
    swapped = {**proof, "current": proof["new"], "new": proof["current"]}
    error = refused(await api.as_session("POST", CONFIRM, swapped), 401, "invalid_otp")
    assert error["param"] == "current.otp"
    short = {**proof, "new": {"otp_id": new, "otp": "12"}}
    assert refused(await api.as_session("POST", CONFIRM, short), 400, "invalid_parameter")["param"] == "new.otp"
    api.accounts.answer = Refusal(code="email_taken", message="Taken.", final=True)
    taken = await api.as_session("POST", CONFIRM, proof)
    refused(taken, 409, "email_taken")
    assert taken.headers["X-Should-Retry"] == "false"


async def test_the_address_typed_again_confirms_the_end_of_the_account(api: Api) -> None:
    refused(await api.as_session("DELETE", ACCOUNT, {"email": NEW}), 400, "invalid_parameter")
    assert api.accounts.asked == []
    api.accounts.answer = ClosingSet(api.now + timedelta(days=7), 2_500_000)
    body = ok(await api.as_session("DELETE", ACCOUNT, {"email": email_of(api), "forfeit_credit": True}))
    assert (body["state"], body["forfeited_credit"]) == ("closing", "2.50")
    assert api.accounts.asked == [(api.account_id, CloseAccount(forfeits_credit=True))]
    api.accounts.answer = Refusal(code="credit_remains", message="Credit.", available_micro=2_500_000)
    error = refused(await api.as_session("DELETE", ACCOUNT, {"email": email_of(api)}), 409, "credit_remains")
    assert error["available"] == "2.50"
    refused(await api.as_key("DELETE", ACCOUNT, {"email": email_of(api)}), 401, "wrong_credential_type")


async def test_a_closing_account_refuses_its_keys_and_sessions(api: Api) -> None:
    await api.write(tables.accounts.update().values(closes_at=api.now + timedelta(days=7)))
    refused(await api.as_key("GET", "/v2/task/list"), 403, "account_closing")
    refused(await api.as_session("GET", "/v2/control/session"), 403, "account_closing")


async def test_an_archive_is_one_at_a_time_and_its_link_ends(api: Api) -> None:
    refused(await api.as_session("GET", ARCHIVE), 404, "archive_not_found")
    asked = ok(await api.as_session("POST", ARCHIVE))
    assert (asked["state"], asked["url"]) == ("making", None)
    assert ok(await api.as_session("POST", ARCHIVE)) == asked

    def finish(rows: Any) -> None:
        about = (api.account_id, asked["archive_id"], "chg_1", api.now)
        finish_archive(rows, *about, sha256="0" * 64, bytes_=7)

    await api.database.work(finish)
    made = ok(await api.as_session("GET", ARCHIVE))
    assert (made["state"], made["bytes"]) == ("ready", 7)
    assert ok(await api.as_session("POST", ARCHIVE))["archive_id"] == asked["archive_id"]
    path = made["url"].partition("/v2")[2]
    other = path.replace(asked["archive_id"], "arc_" + "1" * 32)
    refused(await api.http.get(f"/v2{other}"), 403, "invalid_link")
    await api.write(tables.archives.update().values(expires_at=api.now - KEPT))
    refused(await api.http.get(f"/v2{path}"), 410, "asset_expired")
    refused(await api.as_session("GET", ARCHIVE), 404, "archive_not_found")
    assert ok(await api.as_session("POST", ARCHIVE))["archive_id"] != asked["archive_id"]
