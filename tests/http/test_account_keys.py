"""The pages of API keys, limits and webhooks: what the forms ask for, and what is shown once."""

from __future__ import annotations

import html
import json
import re
import subprocess
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, get_args

import msgspec
import pytest
from tests.strict_html import StrictHtml

from holdfast.actors.account.group_messages import ChangeKeyGroup, DeleteKeyGroup
from holdfast.actors.account.messages import (
    ChangeApiKey,
    CreateApiKey,
    DeleteWebhook,
    PutWebhook,
    RevokeApiKey,
    RevokedKeys,
    RevokeWithMade,
    SetLimits,
)
from holdfast.http.endpoints.api_keys import list_api_keys
from holdfast.ledger.api_keys import ALL_SCOPES
from holdfast.ledger.credit.limits import Limit
from holdfast.ledger.refusals import Refusal
from holdfast.persistence.records import tables
from holdfast.persistence.records.event_rows import WebhookRow
from holdfast.persistence.records.key_rows import ApiKeyRecord, ApiKeyRevokedRow, KeyGroupRow
from holdfast.persistence.records.rows import AccountChange, AccountChangeRow
from holdfast_console.account.history import WORDS
from holdfast_console.account.keys import SCOPE_WORDS
from holdfast_console.account.samples import create_samples
from holdfast_console.views import Visit

from .page_reader import check_headers, message_of
from .test_account_pages import HOSTILE, WEBHOOK_ID, AccountReader, owner

if TYPE_CHECKING:
    from tests.http.api import Api

__all__ = ["owner"]

KEYS = "/account/keys"
WEBHOOKS = "/account/webhooks"
STOPPED = Refusal(code="api_key_limit_reached", message="Too many keys.")


async def form_of(owner: AccountReader, page: str) -> dict[str, str]:
    """What every form of a page has."""
    return {"csrf_token": await owner.hidden(page), "return_to": page}


def created(command: CreateApiKey, api: Api) -> ApiKeyRecord:
    limit = command.limit
    amount, window = (None, None) if limit is None else (limit.credits_micro, limit.window)
    return ApiKeyRecord(
        api.account_id,
        command.key_id,
        command.prefix,
        command.terms,
        api.now,
        limit_micro=amount,
        limit_window=window,
        more_limits=command.more_limits,
    )


async def test_a_new_key_is_shown_once_with_calls_that_use_it(api: Api, owner: AccountReader) -> None:
    made: list[CreateApiKey] = []

    async def answer(_key: str, command: Any) -> ApiKeyRecord:
        made.append(command)
        return created(command, api)

    api.accounts.answer = answer
    fields = {
        "name": HOSTILE, "day": "5.00", "month": "50", "models": "studio/*, studio/edit-1",
        "expires_at": "2027-01-31", "scope.tasks:read": "true",
    }  # fmt: skip
    response = await owner.send(f"{KEYS}/create", **await form_of(owner, KEYS), **fields)
    assert response.status_code == 200, response.text
    check_headers(response)
    page = StrictHtml(response.text)
    assert page.faults == []
    [command] = made
    assert command.terms.name == HOSTILE
    assert command.terms.scopes == ("tasks:read",)
    assert command.terms.models == ("studio/*", "studio/edit-1")
    assert command.terms.expires_at == datetime(2027, 1, 31, tzinfo=UTC)
    assert (command.limit, command.more_limits) == (Limit(50_000_000, "month"), (Limit(5_000_000, "day"),))
    assert "5.00 credits a day" in response.text
    [secret] = set(re.findall(r"hk_test_[\w-]+", response.text))
    assert response.text.count(secret) == 4
    assert HOSTILE not in response.text
    assert secret not in (await owner.read(KEYS)).text


async def test_the_preset_for_an_agent_fills_in_the_form(api: Api, owner: AccountReader) -> None:
    """A limit a day, a cap on each task, the models that are there now, and the address for its client."""
    assert f"{KEYS}?preset=agent#new" in (await owner.read(KEYS)).links
    assert f"{api.public_url}/mcp" in (await owner.read(f"{KEYS}?preset=agent")).text
    preset = await owner.get(f"{KEYS}?preset=agent")
    form = html.unescape(preset.text).partition('action="/account/keys/create"')[2].partition("</form>")[0]
    given = dict(re.findall(r'<input[^>]* name="([\w.:]+)"[^>]* value="([^"]*)"', form))
    checked = re.findall(r'<input[^>]* name="(scope[\w.:]+)"[^>]* checked', form)
    assert {name: given[name] for name in ("name", "day", "max_credits_per_task")} == {
        "name": "agent", "day": "5.00", "max_credits_per_task": "0.50",
    }  # fmt: skip
    assert "studio/image-1" in given["models"]
    assert checked == ["scope.tasks:read", "scope.tasks:write", "scope.account:read"]

    made: list[CreateApiKey] = []

    async def answer(_key: str, command: Any) -> ApiKeyRecord:
        made.append(command)
        return created(command, api)

    api.accounts.answer = answer
    fields = {name: given[name] for name in ("name", "day", "models", "max_credits_per_task")}
    scopes = dict.fromkeys(checked, "true")
    response = await owner.send(f"{KEYS}/create", **await form_of(owner, KEYS), **fields, **scopes)
    assert response.status_code == 200, response.text
    [command] = made
    assert (command.limit, command.terms.max_credits_per_task_micro) == (Limit(5_000_000, "day"), 500_000)
    assert command.terms.models == tuple(given["models"].split(", "))


async def test_what_is_left_empty_has_no_bound(api: Api, owner: AccountReader) -> None:
    key_id = "key_" + "2" * 32
    form = await form_of(owner, KEYS)
    api.accounts.answer = Refusal(code="api_key_limit_reached", message="Too many keys.")
    refused = await owner.send(f"{KEYS}/create", **form, name="again", **{"scope.tasks:write": "true"})
    assert (refused.status_code, "Too many keys." in refused.text) == (409, True)
    assert 'value="again"' in refused.text
    wrong = await owner.send(f"{KEYS}/create", **form, models="none/*", **{"scope.tasks:read": "true"})
    assert (wrong.status_code, 'value="none/*"' in wrong.text) == (404, True), wrong.text
    [(_, command)] = api.accounts.asked
    assert isinstance(command, CreateApiKey)
    assert (command.limit, command.terms.models, command.terms.expires_at) == (None, (), None)
    gone = await owner.send(f"{KEYS}/{key_id}/change", **form, name="x")
    assert gone.status_code == 404
    foreign = await owner.send(f"{KEYS}/{key_id}/revoke", **form)
    assert foreign.status_code == 404


async def test_a_key_is_changed_paused_and_revoked(api: Api, owner: AccountReader) -> None:
    form, path = await form_of(owner, KEYS), f"{KEYS}/{api.key_id}"
    api.accounts.answer = "done"
    for action, fields, words in (
        ("change", {"name": "render farm", "credits": "2", "window": "month"}, "The key is changed."),
        ("pause", {"paused": "true"}, "refused until you resume it"),
        ("pause", {"paused": "false"}, "The key works again."),
    ):
        done = await owner.send(f"{path}/{action}", **form, **fields)
        assert done.status_code == 303, done.text
        assert words in message_of(done).text
    changes = [command for _, command in api.accounts.asked]
    assert all(isinstance(each, ChangeApiKey) and each.key_id == api.key_id for each in changes)
    assert [each.changes.get("is_paused") for each in changes if isinstance(each, ChangeApiKey)] == [
        None, True, False,
    ]  # fmt: skip
    api.accounts.answer = ApiKeyRevokedRow(api.account_id, api.key_id, api.now)
    assert (await owner.send(f"{path}/revoke", **form)).status_code == 303
    assert api.accounts.asked[-1][1] == RevokeApiKey(key_id=api.key_id)


async def test_groups_are_made_changed_and_deleted_and_keys_put_into_them(api: Api, owner: AccountReader) -> None:
    some: list[dict[str, Any]] = [
        {"credits_micro": 2_000_000, "window": "day"},
        {"credits_micro": 1_000_000, "window": "total", "models": ["studio/*"]},
    ]
    groups, form = tables.key_groups, await form_of(owner, KEYS)

    def last() -> Any:
        return api.accounts.asked[-1][1]

    assert 'name="group_id"' not in (await owner.get(KEYS)).text
    for group_id, name, limits in (("grp_1", HOSTILE, some), ("grp_2", "empty", [])):
        row = {"group_id": group_id, "name": name, "limits": limits, "created_at": api.now}
        await api.write(groups.insert().values(account_id=api.account_id, **row))
    member = {"account_id": api.account_id, "key_id": api.key_id, "group_id": "grp_1"}
    await api.write(tables.group_keys.insert().values(**member))
    page = html.unescape((await owner.get(KEYS)).text)
    assert "in the group" in page
    assert f"{KEYS}/groups/grp_1/delete" not in page
    assert f"{KEYS}/groups/grp_2/delete" in page
    await owner.read(KEYS)
    api.accounts.answer = KeyGroupRow(api.account_id, "grp_1", "x", (), api.now)
    sent = await owner.send(f"{KEYS}/groups/create", **form, name="farm", month="20")
    assert (sent.status_code, last().name) == (303, "farm")
    assert last().limits == (Limit(20_000_000, "month"),)
    # The limits for models, which the form has no fields for, stay.
    await owner.send(f"{KEYS}/groups/grp_1/change", **form, name="farm", day="3")
    kept = (Limit(3_000_000, "day"), Limit(1_000_000, "total", ("studio/*",)))
    assert last() == ChangeKeyGroup("grp_1", "farm", kept)
    await owner.send(f"{KEYS}/groups/grp_2/delete", **form)
    assert last() == DeleteKeyGroup("grp_2")
    api.accounts.answer = ()
    path = f"{KEYS}/{api.key_id}/change"
    changes: list[tuple[dict[str, str], Any]] = [
        ({"has_group": "1", "group_id": "grp_2"}, "grp_2"),
        ({"has_group": "1"}, None),
        ({}, msgspec.UNSET),
    ]
    for fields, group_id in changes:
        assert (await owner.send(path, **form, name="k", **fields)).status_code == 303
        assert last().group_id == group_id


async def test_the_form_of_a_key_keeps_its_limits_for_models(api: Api, owner: AccountReader) -> None:
    more: list[dict[str, Any]] = [{"credits_micro": 2_000_000, "window": "day"}]
    more.append({"credits_micro": 1_000_000, "window": "total", "models": ["studio/*"]})
    limits: dict[str, Any] = {"limit_micro": 9_000_000, "limit_window": "week", "more_limits": more}
    await api.add_key(api.account_id, "key_several", **limits)
    page = html.unescape((await owner.get(KEYS)).text)
    assert "of 1.00 in total for" in page
    form = page.partition(f'action="{KEYS}/key_several/change"')[2].partition("</form>")[0]
    given = dict(re.findall(r'<input[^>]* name="([\w.:]+)"[^>]* value="([^"]*)"', form))
    assert (given["day"], given["week"], given.get("total", "")) == ("2.00", "9.00", "")
    api.accounts.answer = ()
    sent = await owner.send(
        f"{KEYS}/key_several/change", **await form_of(owner, KEYS), name="k", day="3", month="20"
    )
    assert sent.status_code == 303
    [(_, command)] = api.accounts.asked
    assert isinstance(command, ChangeApiKey)
    assert command.limit == Limit(20_000_000, "month")
    assert command.more_limits == (Limit(3_000_000, "day"), Limit(1_000_000, "total", ("studio/*",)))


async def test_limits_for_models_are_not_lost_when_they_cannot_be_read(
    api: Api, owner: AccountReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Visit.read

    async def read_no_keys(visit: Visit, handler: Any, *given: Any, **named: Any) -> Any:
        return STOPPED if handler is list_api_keys else await read(visit, handler, *given, **named)

    form = await form_of(owner, KEYS)
    monkeypatch.setattr(Visit, "read", read_no_keys)
    api.accounts.answer = ()
    sent = await owner.send(f"{KEYS}/{api.key_id}/change", **form, name="k", day="3")
    assert sent.status_code == 409, sent.text
    assert STOPPED.message in sent.text
    assert api.accounts.asked == []


async def test_limits_of_the_account_are_replaced_as_one(api: Api, owner: AccountReader) -> None:
    form = await form_of(owner, KEYS)
    wrong = await owner.send(f"{KEYS}/limits", **form, day="1,5", month="20")
    assert (wrong.status_code, 'value="1,5"' in wrong.text) == (400, True)
    assert api.accounts.asked == []
    api.accounts.answer = ()
    assert (await owner.send(f"{KEYS}/limits", **form, day="1.5", month="20")).status_code == 303
    assert (await owner.send(f"{KEYS}/limits", **form)).status_code == 303
    assert [command for _, command in api.accounts.asked] == [
        SetLimits((Limit(1_500_000, "day"), Limit(20_000_000, "month"))),
        SetLimits(()),
    ]


async def test_revoked_keys_are_shown_on_request(api: Api, owner: AccountReader) -> None:
    await api.add_key(api.account_id, "key_gone", revoked_at=api.now, name="the old one")
    assert "the old one" not in (await owner.read(KEYS)).text
    page = (await owner.get(KEYS, all="1")).text
    assert "the old one" in page
    assert "Hide revoked keys" in page
    assert f"{KEYS}/key_gone/" not in page


def test_each_scope_and_each_entry_has_words() -> None:
    assert sorted(scope for group in SCOPE_WORDS.values() for scope in group) == sorted(ALL_SCOPES)
    assert WORDS.keys() == set(get_args(AccountChange))


async def test_a_key_is_made_with_what_was_ticked(api: Api, owner: AccountReader) -> None:
    page = (await owner.read(KEYS)).text
    assert page.count("It may manage the account") == 1
    api.accounts.answer = STOPPED
    ticked = {f"scope.{scope}": "true" for scope in ("keys:write", "webhooks:write", "made:up")}
    await owner.send(f"{KEYS}/create", **await form_of(owner, KEYS), **ticked)
    [(_, command)] = api.accounts.asked
    assert isinstance(command, CreateApiKey)
    assert command.terms.scopes == ("keys:write", "webhooks:write")


async def test_who_has_made_a_key_is_shown_and_both_are_revoked(api: Api, owner: AccountReader) -> None:
    await api.add_key(api.account_id, "key_made", name="the made one", makers=[api.key_id])
    await api.add_key(api.account_id, "key_deeper", name="another", makers=["key_long_gone"])
    page = (await owner.read(KEYS)).text
    assert page.count("made by a key") == 2  # its maker's name is "a key"
    assert "made by a key that is gone" in page
    assert page.count("Revoke the keys that it has made, too") == 1
    form, path = await form_of(owner, KEYS), f"{KEYS}/{api.key_id}"
    rows = (ApiKeyRevokedRow(api.account_id, api.key_id, api.now), ApiKeyRevokedRow(api.account_id, "k", api.now))
    api.accounts.answer = RevokedKeys(rows)
    done = await owner.send(f"{path}/revoke", **form, made_keys="true")
    assert "never works again, nor do the 1 that it has made." in message_of(done).text
    assert api.accounts.asked[-1][1] == RevokeWithMade(api.key_id)


async def test_the_history_names_keys(api: Api, owner: AccountReader) -> None:
    entries: list[tuple[AccountChange, str | None, str | None]] = [
        ("closing", None, None),
        ("webhook_created", api.key_id, "wh_7"),
        ("api_key_revoked", "key_gone", api.key_id),
    ]
    for number, (what, key_id, subject) in enumerate(entries):
        row = AccountChangeRow(api.account_id, api.now, what, f"chg_{number}", key_id, subject)
        values = {name: getattr(row, name) for name in row.__struct_fields__}
        await api.write(tables.account_changes.insert().values(**values))
        values |= {"account_id": api.other_account_id, "subject": "wh_other"}
        await api.write(tables.account_changes.insert().values(**values))
    page = (await owner.read("/account/history")).text
    for words in ("The account is to be deleted", "Created the webhook", "wh_7", "Revoked the key a key"):
        assert words in page
    assert "a key that is gone" in page
    assert "wh_other" not in page
    narrowed = (await owner.get("/account/history", api_key_id=api.key_id)).text
    assert ("Created the webhook" in narrowed, "Revoked the key" in narrowed) == (True, False)


async def test_a_webhook_is_made_changed_and_deleted(api: Api, owner: AccountReader) -> None:
    form, path = await form_of(owner, WEBHOOKS), f"{WEBHOOKS}/{WEBHOOK_ID}"
    row = WebhookRow(api.account_id, WEBHOOK_ID, "https://a.example/", ("*",), True, api.now, api.now)
    api.accounts.answer = row
    new = await owner.send(f"{WEBHOOKS}/create", **form, url="https://a.example/", **{"event.*": "true"})
    assert (new.status_code, new.headers["Location"]) == (303, path)
    wrong = await owner.send(f"{WEBHOOKS}/create", **form, url="ftp://a.example/", **{"event.*": "true"})
    assert (wrong.status_code, 'value="ftp://a.example/"' in wrong.text) == (400, True)
    none = await owner.send(f"{WEBHOOKS}/create", **form, url="https://a.example/")
    assert none.status_code == 400
    sent = {"url": "https://b.example/", "event.task.failed": "true"}
    assert (await owner.send(f"{path}/change", **form, **sent)).headers["Location"] == path
    assert (await owner.send(f"{path}/enable", **form, enabled="false")).headers["Location"] == path
    commands = [command for _, command in api.accounts.asked]
    assert all(isinstance(each, PutWebhook) for each in commands)
    assert [(each.url, each.events, each.enabled) for each in commands if isinstance(each, PutWebhook)] == [
        ("https://a.example/", ("*",), None),
        ("https://b.example/", ("task.failed",), None),
        (None, None, False),
    ]
    api.accounts.answer = row
    assert (await owner.send(f"{path}/delete", **form)).headers["Location"] == WEBHOOKS
    assert api.accounts.asked[-1][1] == DeleteWebhook(WEBHOOK_ID)


async def test_the_signing_secret_and_hostile_addresses_are_shown_safely(owner: AccountReader) -> None:
    listed = (await owner.read(WEBHOOKS)).text
    assert re.search(r"whsec_[\w+/=]{20,}", listed)
    one = (await owner.read(f"{WEBHOOKS}/{WEBHOOK_ID}")).text
    for text in (listed, one):
        assert html.escape(HOSTILE) not in text  # a parsed text has no entities
        assert f"https://shop.example/{HOSTILE}" in text
    assert (await owner.get(f"{WEBHOOKS}/wh_" + "2" * 32)).status_code == 404


HOSTILE_BODY = {"model": "studio/image-1", "input": {"prompt": 'it\'s "so" $HOME `id`\\ \n</script>', "n": 2}}


def test_a_sample_for_a_shell_sends_the_body_as_it_is() -> None:
    shell = create_samples("https://holdfast.example", HOSTILE_BODY, "hk_live_1")[0].text
    show = "import json, sys; print(json.dumps(sys.argv[1:]))"
    run = f"curl() {{ {sys.executable} -c '{show}' \"$@\"; }}\n{shell}"
    sent = json.loads(subprocess.run(["sh", "-c", run], capture_output=True, check=True).stdout)
    assert sent[sent.index("-H") + 1] == "Authorization: Bearer hk_live_1"
    assert json.loads(sent[-1]) == HOSTILE_BODY
    assert sent[1] == "https://holdfast.example/v2/task/create"


def test_a_sample_in_python_sends_the_body_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    text = create_samples("https://holdfast.example", {**HOSTILE_BODY, "metadata": None}, "hk_live_1")[1].text
    calls: list[dict[str, Any]] = []

    class Requests:
        @staticmethod
        def post(url: str, **how: Any) -> Any:
            calls.append({"url": url, **how})
            raise StopIteration

    monkeypatch.setitem(sys.modules, "requests", Requests)
    with pytest.raises(StopIteration):
        exec(compile(text, "sample", "exec"), {})
    [call] = calls
    assert call["json"] == {**HOSTILE_BODY, "metadata": None}
    assert call["headers"] == {"Authorization": "Bearer hk_live_1"}
