"""The account's own pages: who sees them, what they may contain, and what their forms do.

A page that is added is tried by each test here: signed out, with forms of elsewhere and of another session, and by
its text. One that is at a path with parameters needs a line of ``EXAMPLES``.
"""

from __future__ import annotations

import html
import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import msgspec
import pytest
from tests.event_streams import reading
from tests.strict_html import StrictHtml

from holdfast.actors.account.messages import SetAlerts
from holdfast.actors.sign_in.messages import AdmitOrigin, CodeIssued, OriginAdmitted, RequestCode, SignedIn
from holdfast.http.app import OPERATORS_ROUTES, PUBLIC_ROUTES, HoldfastApp
from holdfast.http.kit.calls import Auth
from holdfast.ledger.alerts.alerts import Alerts
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.sign_in_codes import new_otp_id
from holdfast.ledger.tasks.task import TaskStatus
from holdfast.persistence.queries.accounts import find_totals
from holdfast.persistence.queries.credentials import find_sessions
from holdfast.persistence.records import tables
from holdfast.persistence.records.rows import SessionRevokedRow
from holdfast.persistence.server.lookups import GroupedLookups, Lookup
from holdfast_console.account.overview import HELD_MOST
from holdfast_console.account.sign_in import ACCOUNT_COOKIE, EVENTS, SIGN_IN, SIGNED_IN_AGAIN
from holdfast_console.account.site import NAVIGATION, SITE
from holdfast_console.forms import MESSAGE_COOKIE

from .fake_rows import AwayRows
from .identities import TOKEN
from .page_reader import SAME_ORIGIN, PageReader, check_headers
from .stage import in_process

if TYPE_CHECKING:
    from tests.http.api import Api
    from tests.http.stage import Stage

TASK_ID = "task_" + "1" * 32
WEBHOOK_ID = "wh_" + "1" * 32
HOSTILE = "<script>alert(1)</script>"
OTHER_TOKEN = "hst_" + "B" * 43
EXAMPLES = {
    "request_id": TASK_ID,
    "api_key_id": "key_" + "1" * 32,
    "group_id": "grp_" + "1" * 32,
    "webhook_id": WEBHOOK_ID,
    "event_id": "evt_" + "1" * 32,
    "card_id": "pm_1",
    "order_id": "ord_1",
    "number": "R-000001",
    "file_id": "file_" + "1" * 32,
}
"""Parameters of paths, by their names."""
PROTECTED = [view for view in SITE.views if view.auth is Auth.SESSION]
FORMS = [view for view in PROTECTED if view.method == "POST"]
SIGN_IN_AND_BACK = f"{SIGN_IN}?return_to=%2Faccount"
PAGES = [
    re.sub(r"\{(\w+)\}", lambda found: EXAMPLES[found[1]], view.path) for view in PROTECTED if view.method == "GET"
]
APART = re.compile(r"/account/buy/|.*(\.csv|/pdf)$")
"""Files, and pages of orders and cards, which test_account_buy.py reads."""
READ = [path for path in PAGES if path != EVENTS and not APART.match(path)]


class AccountReader(PageReader):
    """A browser on the account's pages."""

    ours = re.compile(r"/account\b|#|/docs|/models|(https://holdfast\.example)?/v2/assets/")

    def take_cookie(self, token: str) -> None:
        """Have the cookie of a session."""
        self.headers = {**self.headers, "Cookie": f"{ACCOUNT_COOKIE.name_for(self.stage.deps.settings)}={token}"}


@pytest.fixture
async def owner(api: Api) -> AccountReader:
    """The browser of the account's owner, signed in."""
    await api.write(
        tables.webhooks.insert().values(
            account_id=api.account_id, webhook_id=WEBHOOK_ID, url=f"https://shop.example/{HOSTILE}",
            events=["task.*"], enabled=True, created_at=api.now, updated_at=api.now,
        )
    )  # fmt: skip
    await api.add_task(api.task(TASK_ID))
    browser = AccountReader(api, SAME_ORIGIN)
    browser.take_cookie(TOKEN)
    return browser


async def issue(key: str, command: object) -> object:
    if isinstance(command, AdmitOrigin):
        return OriginAdmitted()
    assert isinstance(command, RequestCode)
    return CodeIssued(otp_id="otp_1", code="123456", expires_in_s=600)


def sign_in_succeeds(api: Api, token: str = TOKEN) -> dict[str, str]:
    """Let a code be right, and return its form."""
    ends_at = api.now + timedelta(hours=24)
    api.sign_ins.answer = SignedIn(api.account_id, "ada@example.com", "User", "ses_2", token, ends_at)
    otp_id = new_otp_id(api.deps.settings.otp_pepper, "ada@example.com")
    return {"email": "ada@example.com", "otp_id": otp_id, "otp": "123 456"}


def fields_of(text: str) -> dict[str, str]:
    """The fields of the first form of a page, as a browser has them: hidden inputs and texts."""
    form = re.search(r"<form method=\"post\" action=\"/account/sign-in\">(.*?)</form>", text, re.DOTALL)
    assert form is not None
    inputs = re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)"', form[1])
    areas = re.findall(r'<textarea name="([^"]+)"[^>]*>\n?(.*?)</textarea>', form[1], re.DOTALL)
    return {name: html.unescape(value) for name, value in (*inputs, *areas)}


# ------------------------------------------------------------------------------------------ every page


@pytest.mark.parametrize("path", PAGES)
async def test_without_a_session_there_is_no_page(stage: Stage, path: str) -> None:
    for headers in ({}, {"Cookie": "__Host-holdfast_account=x"}, {"Authorization": f"Bearer {TOKEN}"}):
        response = await AccountReader(stage, headers).get(path)
        assert (response.status_code, response.content) == (303, b"")
        assert response.headers["Location"] == f"{SIGN_IN}?" + urlencode({"return_to": path})


@pytest.mark.parametrize("path", READ)
async def test_a_page_is_valid_small_and_without_secrets(api: Api, owner: AccountReader, path: str) -> None:
    page = await owner.read(path)
    assert len(page.text.encode()) < 100_000
    assert "Skip to the content" in page.text
    assert [secret for secret in (*api.deps.settings.secret_values(), TOKEN) if secret in page.text] == []


async def test_a_form_of_elsewhere_or_of_another_session_does_nothing(api: Api, owner: AccountReader) -> None:
    await api.add_session(api.other_account_id, "ses_" + "2" * 32, OTHER_TOKEN)
    token = await owner.hidden("/account")
    other = AccountReader(api, SAME_ORIGIN)
    other.take_cookie(OTHER_TOKEN)
    others_token = await other.hidden("/account")
    attempts: list[tuple[dict[str, str], str]] = [
        ({}, ""),
        ({}, token[:-1] + "!"),
        ({}, others_token),
        ({"Origin": "https://evil.example"}, token),
        ({"Origin": "null"}, token),
        ({"Sec-Fetch-Site": "same-site"}, token),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}, token),
    ]
    paths = [re.sub(r"\{(\w+)\}", lambda found: EXAMPLES[found[1]], view.path) for view in FORMS]
    without = {name: value for name, value in owner.headers.items() if name not in SAME_ORIGIN}
    for path in paths:
        for changed, sent in attempts:
            response = await owner.send(path, changed, csrf_token=sent, return_to="/account")
            assert response.status_code == 403, (path, changed, sent)
            check_headers(response)
        assert (await AccountReader(api, without).send(path, csrf_token=token)).status_code == 403, path
        signed_out = await AccountReader(api, SAME_ORIGIN).send(path, csrf_token=token)
        found = (signed_out.status_code, signed_out.headers.get("Location"))
        assert found == (303, SIGN_IN_AND_BACK), (path, signed_out.text)
    # Who kept the cookie sends the form again after the session was ended.
    ended = tables.sessions.update().values(revoked_at=api.now)
    await api.write(ended.where(tables.sessions.c.account_id == api.account_id))
    for path in paths:
        replayed = await owner.send(path, csrf_token=token, return_to="/account")
        assert (replayed.status_code, replayed.headers["Location"]) == (303, SIGN_IN_AND_BACK), path
    assert [*api.accounts.asked, *api.tasks.asked, *api.sign_ins.asked] == []


async def test_the_navigation_has_the_pages_that_exist(owner: AccountReader) -> None:
    page = await owner.read("/account")
    entries = [entry.path for _, entries in NAVIGATION for entry in entries]
    shown = [path for path in entries if path in page.links]
    assert shown == [path for path in entries if path in {view.path for view in SITE.views}]
    for path in shown:
        await owner.read(path)


# --------------------------------------------------------------------------------------------- sign-in


async def test_a_code_begins_a_session_and_leads_back(api: Api) -> None:
    stranger = AccountReader(api, SAME_ORIGIN)
    api.sign_ins.answer = issue
    asked = await stranger.send(SIGN_IN, email=" Ada@EXAMPLE.com", return_to="/account/settings?a=b")
    page = StrictHtml(asked.text)
    assert page.faults == []
    for words in ('autocomplete="one-time-code"', 'inputmode="numeric"', "in 30 s", "Send another code"):
        assert words in asked.text
    assert fields_of(asked.text) == {
        "email": "Ada@EXAMPLE.com", "otp_id": "otp_1", "return_to": "/account/settings?a=b"
    }  # fmt: skip
    begun = await stranger.send(SIGN_IN, **sign_in_succeeds(api), return_to="/account/settings?a=b")
    assert (begun.status_code, begun.headers["Location"]) == (303, "/account/settings?a=b")
    cookie = begun.headers["Set-Cookie"]
    assert cookie == f"holdfast_account={TOKEN}; Path=/; Max-Age=86400; HttpOnly; SameSite=Lax"
    stranger.take_cookie(TOKEN)
    assert "one@example.com" not in (await stranger.read("/account")).text
    there = await stranger.get(SIGN_IN, return_to="/account/settings")
    assert (there.status_code, there.headers["Location"]) == (303, "/account/settings")


def test_with_tls_only_this_host_gets_the_cookie(stage: Stage) -> None:
    stage.configure(public_url="https://holdfast.example")
    name, cookie = ACCOUNT_COOKIE.header("hst_1", 60, stage.deps.settings)
    assert (name, cookie.partition("=")[0]) == ("Set-Cookie", "__Host-holdfast_account")
    assert cookie.endswith("; Path=/; Max-Age=60; HttpOnly; SameSite=Lax; Secure")


@pytest.mark.parametrize(
    "elsewhere", ["https://evil.example", "//evil.example", "/ops", "/accounts", "/account\\evil"]
)
async def test_the_way_back_stays_among_the_pages(api: Api, elsewhere: str) -> None:
    stranger = AccountReader(api, SAME_ORIGIN)
    begun = await stranger.send(SIGN_IN, **sign_in_succeeds(api), return_to=elsewhere)
    assert begun.headers["Location"] == "/account"


async def test_a_sign_in_that_keeps_the_account_says_so(api: Api) -> None:
    stranger = AccountReader(api, SAME_ORIGIN)
    for was_kept in (False, True):
        form = sign_in_succeeds(api)
        api.sign_ins.answer = msgspec.structs.replace(api.sign_ins.answer, was_kept=was_kept)
        begun = await stranger.send(SIGN_IN, **form)
        message = [each for each in begun.headers.get_list("Set-Cookie") if each.startswith(f"{MESSAGE_COOKIE}=")]
        assert (begun.status_code, len(message)) == (303, int(was_kept))


async def test_a_refused_code_says_so_and_how_long_to_wait(api: Api) -> None:
    stranger = AccountReader(api, SAME_ORIGIN)
    form = sign_in_succeeds(api)
    api.sign_ins.answer = Refusal(code="invalid_otp", message="This code is not valid.")
    wrong = await stranger.send(SIGN_IN, **form)
    assert wrong.status_code == 400
    assert "This code is not valid." in wrong.text
    assert fields_of(wrong.text)["otp_id"] == form["otp_id"]
    assert "123 456" not in wrong.text
    api.sign_ins.answer = Refusal(code="otp_rate_limited", message="A code was sent.", retry_after_s=17)
    early = await stranger.send(SIGN_IN, **{**form, "otp": ""}, resend="1")
    assert "A code was sent." in early.text
    assert "Try again in 17 s." in early.text
    assert fields_of(early.text)["otp_id"] == form["otp_id"]


async def test_pages_of_other_origins_begin_no_session(api: Api) -> None:
    stranger = AccountReader(api, SAME_ORIGIN)
    for changed in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        stolen = await stranger.send(SIGN_IN, changed, **sign_in_succeeds(api))
        assert (stolen.status_code, "Set-Cookie" in stolen.headers) == (403, False)
    assert api.sign_ins.asked == []


async def test_hostile_text_of_the_form_is_escaped(api: Api) -> None:
    hostile = '"><script>alert(1)</script>@example.com'
    response = await AccountReader(api, SAME_ORIGIN).send(SIGN_IN, email=hostile, return_to='/account"><b>')
    assert response.status_code == 400
    assert "<script>alert" not in response.text
    page = StrictHtml(response.text)
    assert page.faults == []


async def test_sign_out_ends_the_session(api: Api, owner: AccountReader) -> None:
    token = await owner.hidden("/account")
    api.accounts.answer = SessionRevokedRow(api.account_id, api.session_id, api.now)
    out = await owner.send("/account/sign-out", csrf_token=token)
    assert (out.status_code, out.headers["Location"]) == (303, SIGN_IN)
    cookies = out.headers.get_list("Set-Cookie")
    assert any(each.startswith("holdfast_account=; Path=/; Max-Age=0") for each in cookies)
    assert [type(command).__name__ for _, command in api.accounts.asked] == ["SignOut"]


# ----------------------------------------------------------------------------------------------- forms

ALERTS = "/account/settings/alerts"


async def test_a_refused_form_is_shown_again_as_it_was_filled_in(api: Api, owner: AccountReader) -> None:
    token = await owner.hidden("/account/settings")
    sent = {"csrf_token": token, "return_to": "/account/settings", "balance_below": '5,"<b>'}
    wrong = await owner.send(ALERTS, **sent)
    assert wrong.status_code == 400
    page = StrictHtml(wrong.text)
    assert page.faults == []
    assert 'value="5,&#34;&lt;b&gt;"' in wrong.text
    assert 'aria-invalid="true"' in wrong.text
    assert not re.search(r'name="email"[^>]* checked', wrong.text)
    assert api.accounts.asked == []
    api.accounts.answer = Alerts()
    done = await owner.send(ALERTS, **{**sent, "balance_below": "5"}, email="true")
    assert (done.status_code, done.headers["Location"]) == (303, "/account/settings")
    assert [command for _, command in api.accounts.asked] == [
        SetAlerts(balance_below_micro=5_000_000, limit_share=1.0, email=True)
    ]


async def test_a_form_outlives_its_session(api: Api, owner: AccountReader) -> None:
    """It is kept through the sign-in, and shown again as it was filled in, but for secrets. Nothing is done."""
    sent = {"return_to": "/account/settings", "balance_below": "7.5", "email": "true", "code": "a secret"}
    ended = AccountReader(api, SAME_ORIGIN)
    ended.take_cookie("hst_" + "C" * 43)
    kept = await ended.send(ALERTS, csrf_token="x", **sent)
    assert kept.status_code == 401
    assert "a secret" not in kept.text
    api.sign_ins.answer = issue
    asked = await ended.send(SIGN_IN, **{**fields_of(kept.text), "email": "ada@example.com"})
    wrong = await ended.send(SIGN_IN, **fields_of(asked.text), otp="12")
    assert wrong.status_code == 400
    begun = await ended.send(SIGN_IN, **{**fields_of(wrong.text), **sign_in_succeeds(api)})
    assert begun.status_code == 200
    assert SIGNED_IN_AGAIN in begun.text
    page = StrictHtml(begun.text)
    assert page.faults == []
    assert 'value="7.5"' in begun.text
    assert re.search(r'name="email"[^>]* checked', begun.text)
    assert 'data-here="/account/settings"' in begun.text
    assert begun.headers["Set-Cookie"].startswith(f"holdfast_account={TOKEN};")
    assert api.accounts.asked == []
    found = re.search(r'name="csrf_token" value="([^"]+)"', begun.text)
    assert found is not None
    api.accounts.answer = Alerts()
    assert (await owner.send(ALERTS, csrf_token=found[1], **sent)).status_code == 303


async def test_a_large_form_is_kept_too(api: Api) -> None:
    stranger = AccountReader(api, SAME_ORIGIN)
    api.sign_ins.answer = issue
    kept = {"kept.prompt": "x" * 250_000, "email": "ada@example.com"}
    assert len(fields_of((await stranger.send(SIGN_IN, **kept)).text)["kept.prompt"]) == 250_000
    assert (await stranger.send(SIGN_IN, **kept, **{"kept.more": "x" * 100_000})).status_code == 413


async def test_a_form_of_an_earlier_session_is_shown_again(api: Api, owner: AccountReader) -> None:
    """Who signs out and in again in one tab finds what was typed in the other."""
    stale = await owner.send(ALERTS, csrf_token="of-another", return_to="/account/settings", balance_below="3")
    assert stale.status_code == 403
    assert 'value="3"' in stale.text
    assert api.accounts.asked == []


# ------------------------------------------------------------------------------------------ the overview


async def add_held(api: Api, number: int, status: TaskStatus, settled_number: int | None = None) -> None:
    """Add a task and its hold, which is open unless it was settled."""
    task = api.task(f"task_{number:x}{'1' * 30}", status=status, wake_at=None)
    await api.add_task(task)
    hold = {"account_id": api.account_id, "hold_id": f"hold_{number}", "reference": task.request_id}
    amounts = {"amount_micro": 120_000 + number, "opened_number": number, "settled_number": settled_number}
    await api.write(tables.holds.insert().values(**hold, **amounts))


async def test_the_overview_has_what_the_api_says(api: Api, owner: AccountReader) -> None:
    await add_held(api, 0x20, "processing")
    await add_held(api, 0x30, "review")
    await add_held(api, 0x40, "succeeded", settled_number=0x41)
    limit = {"limit_window": "day", "limit_micro": 7_000_000, "captured_micro": 1_500_000}
    since = api.now.replace(hour=0)
    await api.write(tables.account_limits.insert().values(account_id=api.account_id, window_start=since, **limit))
    lot = {"account_id": api.account_id, "kind": "promotional", "source": "grant", "created_at": api.now}
    ends = {"reference": "op_1", "amount_micro": 2_000_000, "expires_at": api.now + timedelta(days=3)}
    await api.write(tables.credit_lots.insert().values(**lot, **ends, number=1))
    await api.write(tables.accounts.update().values(lots="[]"))
    page = await owner.read("/account")
    for words in ("9.76", "0.24", "0.120032", "of 7.00, held included", "in 3 d", "2.00", "processing", "review"):
        assert words in page.text, words
    assert page.text.index("task_20111") < page.text.index("task_30111")
    assert "task_40111" not in page.text
    assert "are shown" not in page.text
    totals = (await owner.stage.call("GET", "/v2/control/account", credential=TOKEN)).json()
    assert totals["available_balance"] in page.text


async def test_the_overview_of_many_tasks_is_as_small(api: Api, owner: AccountReader) -> None:
    for number in range(HELD_MOST + 2):
        await add_held(api, 0x20 + number, "processing")
    await add_held(api, 0x50, "review")
    page = await owner.read("/account")
    assert page.text.count("processing") == HELD_MOST
    assert page.text.count("review") == 1
    assert f"At most the newest {HELD_MOST} of each status are shown." in page.text


async def test_a_page_reads_its_session_once(owner: AccountReader, monkeypatch: pytest.MonkeyPatch) -> None:
    """What its endpoints read is read for this one request."""
    found: list[object] = []
    run = GroupedLookups.run

    async def counted(lookups: GroupedLookups, *wanted: Lookup[Any, Any]) -> None:
        found.extend(each.find for each in wanted)
        await run(lookups, *wanted)

    monkeypatch.setattr(GroupedLookups, "run", counted)
    await owner.read("/account")
    assert found == [find_sessions, find_totals]


async def test_what_a_first_call_lacks_is_shown_until_there_is_one(api: Api) -> None:
    await api.add_session(api.other_account_id, "ses_" + "2" * 32, OTHER_TOKEN)
    new = AccountReader(api, SAME_ORIGIN)
    new.take_cookie(OTHER_TOKEN)

    async def steps() -> tuple[bool, int]:
        page = (await new.read("/account")).text
        return "Your first call" in page, page.count(": done")

    assert await steps() == (True, 0)
    await api.add_key(api.other_account_id, "key_other")
    own = tables.accounts.c.id == api.other_account_id
    await api.write(tables.accounts.update().values(balance_micro=1).where(own))
    assert await steps() == (True, 2)
    await api.add_task(api.task("task_2" + "1" * 31, account_id=api.other_account_id))
    assert await steps() == (False, 0)
    # A page that is open keeps it, so that nothing below it moves.
    new.headers = {**new.headers, "X-Refresh": "first-call"}
    assert await steps() == (True, 3)


async def test_pages_say_what_is_not_available(api: Api, owner: AccountReader) -> None:
    await owner.read("/account")
    api.change(database=AwayRows())
    page = await owner.get("/account")
    assert page.status_code == 503
    assert "The database is not available" in page.text


async def test_a_hostile_address_is_shown_as_text(api: Api, owner: AccountReader) -> None:
    hostile = tables.accounts.update().values(email="<script>alert(1)</script>\u202e@evil.example")
    await api.write(hostile.where(tables.accounts.c.id == api.account_id))
    for path in READ:
        page = await owner.read(path)
        assert "<script>alert(1)" in page.text
    assert "<script>alert(1)" not in (await owner.get("/account")).text


async def test_the_events_of_the_account_are_for_its_own_pages(api: Api, owner: AccountReader) -> None:
    headers: dict[str, Any] = {
        "Accept": "text/event-stream",
        "Sec_Fetch_Site": "same-origin",
        "Cookie": owner.headers["Cookie"],
    }
    async with api.serving() as url:
        async with reading(url, None, path=EVENTS, **headers) as stream:
            event = await stream.next()
            assert event is not None
            assert (event.fields["event"], event.data["available_balance"]) == ("account", "9.76")
        for changed, status in (({"Sec_Fetch_Site": "same-site"}, 403), ({"Cookie": "a=b"}, 401)):
            async with reading(url, None, path=EVENTS, status=status, **{**headers, **changed}):
                pass


# ---------------------------------------------------------------------------------------- for everybody


@pytest.mark.parametrize("path", ["/", "/models"])
async def test_a_browser_is_shown_what_this_is_and_costs(stage: Stage, path: str) -> None:
    navigation = {"Accept": "text/html", "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    response = await stage.call("GET", path, headers=navigation)
    check_headers(response)
    page = StrictHtml(response.text)
    assert (response.status_code, page.faults) == (200, [])
    assert {"/account", "/models", "/docs"} <= {*page.links}


async def test_prices_are_those_that_are_charged(stage: Stage) -> None:
    listed = (await stage.call("GET", "/v2/models")).json()["data"]
    page = (await stage.call("GET", "/models", headers={"Accept": "text/html"})).text
    for model in listed:
        assert model["id"] in page
        if model["estimate"] is not None:
            assert model["estimate"]["credits"] in page
    image = next(model for model in listed if model["id"] == "studio/image-1")
    assert f"<b>{image['estimate']['unit_price']}</b> per image" in page


async def test_each_listener_has_its_own_pages(stage: Stage) -> None:
    browser = {"Accept": "text/html"}
    operators = in_process(HoldfastApp(stage.deps, OPERATORS_ROUTES))
    public = in_process(HoldfastApp(stage.deps, PUBLIC_ROUTES))
    root = await operators.get("/", headers=browser)
    assert (root.status_code, root.headers["Location"]) == (303, "/ops")
    for path, status in (("/account", 404), ("/account/sign-in", 404), ("/models", 404), ("/ops/sign-in", 200)):
        assert (await operators.get(path, headers=browser)).status_code == status
    for path, status in (
        ("/", 200),
        ("/account/sign-in", 200),
        ("/models", 200),
        ("/ops", 404),
        ("/ops/sign-in", 404),
    ):
        assert (await public.get(path, headers=browser)).status_code == status
