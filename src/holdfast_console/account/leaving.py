"""What the owner decides of the account as a whole: its address, an archive of it, and its deletion."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlencode

from holdfast.http.endpoints.account import read_account
from holdfast.http.endpoints.archives import ArchiveBody, request_archive
from holdfast.http.endpoints.leaving import (
    ClosingBody,
    EmailBody,
    EmailCodesSent,
    close_account,
    confirm_email_change,
    request_email_change,
)
from holdfast.http.kit.calls import Auth
from holdfast.http.schemas.common import AccountBody
from holdfast.ledger.refusals import Refusal
from holdfast_console.account.settings import SETTINGS
from holdfast_console.account.sign_in import ACCOUNT_COOKIE, SIGN_IN
from holdfast_console.formats import code_digits, minute_text
from holdfast_console.forms import Message
from holdfast_console.rendering import Html, Redirect
from holdfast_console.views import ViewResult, ViewTable, Visit

EMAIL: Final = f"{SETTINGS}/email"
DELETE: Final = f"{SETTINGS}/delete"

view = ViewTable(Auth.SESSION)


@view(EMAIL)
async def new_email(visit: Visit) -> ViewResult:
    """The form for the new address; once codes were sent, which the address of the page names, that for them."""
    sent = {name: visit.parameter(name) for name in ("email", "current", "new")}
    return Html("email_change.html", {"sent": sent if all(sent.values()) else None})


@view(EMAIL, method="POST")
async def send_codes(visit: Visit) -> ViewResult:
    """Send a code to the account's address, and one to the new one."""
    email = visit.form.get("email", "")
    sent = await visit.submit(request_email_change, EmailCodesSent, {"email": email})
    if isinstance(sent, Refusal):
        return sent
    text = f"A code is on its way to {visit.call.session.email}, and another to {email}."
    if sent.current.debug_otp and sent.new.debug_otp:
        text += f" Development shows them: {sent.current.debug_otp} and {sent.new.debug_otp}."
    query = urlencode({"email": email, "current": sent.current.otp_id, "new": sent.new.otp_id})
    return Redirect(f"{EMAIL}?{query}", Message(text))


@view(f"{EMAIL}/confirm", method="POST")
async def confirm_email(visit: Visit) -> ViewResult:
    """Change the address, with both codes."""
    form = visit.form
    codes = {
        which: {"otp_id": form.get(f"{which}_id", ""), "otp": code_digits(form.get(f"{which}.otp", ""))}
        for which in ("current", "new")
    }
    done = await visit.submit(confirm_email_change, EmailBody, {"email": form.get("email", ""), **codes})
    if isinstance(done, Refusal):
        return done
    text = f"You sign in with {done.email} from now on. All other sessions have ended."
    return Redirect(SETTINGS, Message(text))


@view(f"{SETTINGS}/archive", method="POST")
async def ask_for_archive(visit: Visit) -> ViewResult:
    """Have an archive made."""
    done = await visit.submit(request_archive, ArchiveBody)
    return done if isinstance(done, Refusal) else Redirect(f"{SETTINGS}#archive")


@view(DELETE)
async def deletion(visit: Visit) -> ViewResult:
    """What is deleted, what stays, and the form."""
    return Html("delete_account.html", {"account": await visit.read(read_account, AccountBody)})


@view(DELETE, method="POST")
async def delete(visit: Visit) -> ViewResult:
    """Have the account deleted in seven days. All sessions end, this one too."""
    form = visit.form
    fields = {"email": form.get("email", ""), "forfeit_credit": "forfeit_credit" in form}
    done = await visit.submit(close_account, ClosingBody, fields)
    if isinstance(done, Refusal):
        return done
    text = f"Your account will be deleted on {minute_text(done.closes_at)}. Sign in before then to keep it."
    headers = (ACCOUNT_COOKIE.end_header(visit.call.deps.settings),)
    return Redirect(SIGN_IN, Message(text), headers=headers)
