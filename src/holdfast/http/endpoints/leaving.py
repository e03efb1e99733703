"""What concerns an account as a whole: its e-mail address, and its closing."""

from __future__ import annotations

from typing import Annotated

import msgspec

from holdfast.actors.account.messages import ChangeEmail, CloseAccount, TriedCode
from holdfast.actors.sign_in.messages import AdmitOrigin, CodeIssued, RequestCode
from holdfast.http.endpoints.sign_in import is_code, normalise_email, read_email, send_code
from holdfast.http.kit.calls import Auth, Call
from holdfast.http.kit.dependencies import Dependencies
from holdfast.http.kit.routes import Outcome, RouteTable
from holdfast.http.kit.values import invalid_parameter
from holdfast.http.schemas.common import Code, CodeSent, Email, render
from holdfast.ledger.public_types import AccountId, Amount, Role, Time
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.sign_in_codes import INVALID_OTP, code_mac, email_purpose, is_otp_id_of
from holdfast.ledger.values import format_amount, place_of

route = RouteTable("Account", auth=Auth.SESSION)

OtpId = Annotated[str, msgspec.Meta(examples=["otp_01935f6c2b7d7c3e8a4d5e6f70819203"])]


class EmailRequest(msgspec.Struct, frozen=True):
    """The new e-mail address."""

    email: Email
    """The address that shall sign in to the account."""


class EmailCodesSent(msgspec.Struct, frozen=True):
    """A code was sent to each of the two addresses."""

    current: CodeSent
    """The code that was sent to the address that the account has."""
    new: CodeSent
    """The code that was sent to the new one."""


class SentCode(msgspec.Struct, frozen=True):
    """A code, with the id that its request returned."""

    otp_id: OtpId
    """The `otp_id` of this code."""
    otp: Code
    """The code, six digits."""


class EmailConfirmation(msgspec.Struct, frozen=True):
    """The new e-mail address, and the codes that were sent to both."""

    email: Email
    """The new address, as in the request for the codes."""
    current: SentCode
    """The code that was sent to the address that the account has."""
    new: SentCode
    """The code that was sent to the new one."""


class EmailBody(msgspec.Struct, frozen=True):
    """The address that signs in to the account."""

    account_id: AccountId
    email: str
    """The address, in lower case."""
    role: Role
    """`Operator` if the settings name the address as an operator's."""


class ClosingRequest(msgspec.Struct, frozen=True):
    """The confirmation that the account shall be deleted."""

    email: Email
    """The account's e-mail address, typed again."""
    forfeit_credit: bool = False
    """Whether what is left of the credit is given up. It is required if something is."""


class ClosingBody(msgspec.Struct, frozen=True):
    """The account is to be closed."""

    account_id: AccountId
    state: Annotated[str, msgspec.Meta(extra_json_schema={"enum": ["closing"]})]
    """Always `closing`."""
    closes_at: Time
    """When it is closed and its data deleted, unless its owner signs in before."""
    forfeited_credit: Amount
    """The credit that is forfeited then."""


@route(
    "POST",
    "/v2/control/email",
    summary="Begin to change the e-mail address: send a code to the account's address, and one to the new",
    body=EmailRequest,
    reply=EmailCodesSent,
    errors=("invalid_email", "otp_rate_limited", "otp_attempts_exceeded", "otp_delivery_failed"),
)
async def request_email_change(call: Call) -> Outcome:
    """These codes do not sign in. The response is the same whether or not the new address has an account.

    They count towards the limits of sign-in codes of each address.
    """
    session, deps, origin = call.session, call.deps, call.origin()
    email = read_email(call.body(EmailRequest).email)
    if isinstance(email, Refusal):
        return email
    if email == session.email:
        return invalid_parameter("email", "is the account's address already")
    if not _can_have(deps, session.account_id, email):
        message = "This account cannot have this address; use another one."
        return Refusal(code="invalid_email", message=message, param="email")
    admitted = await call.ask(deps.sign_ins.ref(f"origin:{origin}"), AdmitOrigin())
    if isinstance(admitted, Refusal):
        return admitted
    issued: list[tuple[str, CodeIssued]] = []
    request = RequestCode(origin, email_purpose(session.account_id, email))
    for address in (session.email, email):
        code = await call.ask(deps.sign_ins.ref(f"email:{address}"), request)
        if isinstance(code, Refusal):
            return code
        issued.append((address, code))
    sent = []
    for address, code in issued:
        one = await send_code(call, address, code, "email_change")
        if isinstance(one, Refusal):
            return one
        sent.append(one)
    return EmailCodesSent(*sent)


def _can_have(deps: Dependencies, account_id: str, email: str) -> bool:
    """Whether sign-in with an address would find an account here: this cell alone must know where the address is.

    An account that was moved here is found by the address that it had then.
    """
    cells = deps.cells
    return cells is None or (
        cells.of_email(email) == (cells.own,) and cells.own in cells.of_place(place_of(account_id))
    )


@route(
    "POST",
    "/v2/control/email/confirm",
    summary="Change the e-mail address, with the codes sent to both; all other sessions end",
    body=EmailConfirmation,
    reply=EmailBody,
    errors=("invalid_email", "invalid_otp", "otp_expired", "otp_attempts_exceeded", "email_taken"),
)
async def confirm_email_change(call: Call) -> Outcome:
    """The old address gets a notice. Whether another account has the new one is said only with both codes right."""
    session, deps, given = call.session, call.deps, call.body(EmailConfirmation)
    email = read_email(given.email)
    if isinstance(email, Refusal):
        return email
    if not _can_have(deps, session.account_id, email):
        return invalid_parameter("email", "cannot be that of this account")
    pepper, purpose = deps.settings.otp_pepper, email_purpose(session.account_id, email)
    tried = []
    for param, address, sent in (("current", session.email, given.current), ("new", email, given.new)):
        if not is_code(sent.otp):
            return invalid_parameter(f"{param}.otp", "must have six digits")
        if not is_otp_id_of(pepper, address, sent.otp_id):
            return msgspec.structs.replace(INVALID_OTP, param=f"{param}.otp")
        tried.append(TriedCode(sent.otp_id, code_mac(pepper, sent.otp_id, sent.otp, purpose)))
    role: Role = "Operator" if email in deps.settings.operators else "User"
    command = ChangeEmail(email, role, session.session_id, *tried)
    done = await call.ask(deps.accounts.ref(session.account_id), command)
    return done if isinstance(done, Refusal) else render(EmailBody, done, account_id=session.account_id)


@route(
    "DELETE",
    "/v2/control/account",
    summary="Delete the account in seven days; signing in before keeps it",
    body=ClosingRequest,
    reply=ClosingBody,
    errors=(
        "invalid_email", "account_in_debt", "tasks_not_ended", "dispute_open", "payment_in_progress",
        "credit_remains",
    ),
)  # fmt: skip
async def close_account(call: Call) -> Outcome:
    """All sessions end, this one too, and API keys are refused with `account_closing`. The owner gets a mail.

    After that the e-mail address, keys, webhooks, saved cards, inputs, results and files are gone, and signing in
    creates a new account. Ledger operations, payment orders and their amounts stay, without personal data. Receipts
    stay as they were issued, with the address.
    """
    session, given = call.session, call.body(ClosingRequest)
    if normalise_email(given.email) != session.email:
        return invalid_parameter("email", "is not the account's address")
    command = CloseAccount(given.forfeit_credit)
    done = await call.ask(call.deps.accounts.ref(session.account_id), command)
    if isinstance(done, Refusal):
        return done
    forfeited = format_amount(done.forfeited_micro)
    return render(ClosingBody, done, account_id=session.account_id, state="closing", forfeited_credit=forfeited)
