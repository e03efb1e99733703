"""The change of an account's address: both addresses confirm it, in one process and in two, in any order."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import trio
from tests.actors.leaving_setup import PEPPER, Clock, Member, rows_of, start_member

from holdfast.actors.account.messages import EmailChanged, TriedCode
from holdfast.actors.sign_in.messages import CodeIssued, RequestCode, SignedIn
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.sign_in_codes import code_mac, email_purpose
from holdfast.persistence.audit.audit import run_audit
from holdfast.persistence.journal.writer import BatchWriter, CommitUnanswered, ConnectionLost
from holdfast.persistence.server.connections import connected
from holdfast.persistence.server.database import Database

OLD, NEW = "ada@example.com", "ada@new.example"


@pytest.fixture
async def member(database: Database, nursery: trio.Nursery) -> Member:
    return await start_member(database, nursery, Clock())


async def session_ids(database: Database, account_id: str) -> list[str]:
    found = await rows_of(
        database,
        "select session_id from sessions where account_id = :id and revoked_at is null order by created_at",
        id=account_id,
    )
    return [row.session_id for row in found]


async def test_both_codes_change_the_address_and_end_other_sessions(
    member: Member, database: Database, database_url: str
) -> None:
    await member.sign_in(OLD)
    owner = await member.sign_in(OLD)
    assert len(await session_ids(database, owner.account_id)) == 2
    assert await member.changed(owner, NEW) == EmailChanged(NEW, "User")
    assert await session_ids(database, owner.account_id) == [owner.session_id]
    again = await member.sign_in(NEW)
    assert again.account_id == owner.account_id
    # The old address is free again.
    other = await member.sign_in(OLD)
    assert other.account_id != owner.account_id
    [change] = await rows_of(database, "select account_id, what from account_changes")
    assert tuple(change) == (owner.account_id, "email_changed")
    [notice] = await rows_of(database, "select kind, url, receiver, snapshot::text as data from outbox")
    assert (notice.kind, notice.url) == ("account.email_changed", f"mailto:{OLD}")
    assert "example" not in notice.data
    with connected(database_url) as rows:
        assert run_audit(rows) == {}


async def test_a_code_serves_its_own_purpose_alone(member: Member) -> None:
    owner = await member.sign_in(OLD)
    issued = await member.code(NEW, email_purpose(owner.account_id, NEW))
    refused = await member.verify(NEW, issued)
    assert isinstance(refused, Refusal)
    assert refused.code == "invalid_otp"
    # One for a change to another address, or of another account, is of no use for this one.
    right = await member.change(owner, NEW)
    purpose = email_purpose(owner.account_id, NEW)
    for other in ("", email_purpose(owner.account_id, "eve@evil.example"), email_purpose("acct_2", NEW)):
        issued = await member.code(OLD, other)
        current = TriedCode(issued.otp_id, code_mac(PEPPER, issued.otp_id, issued.code, purpose))
        reply = await member.ask(owner.account_id, msgspec.structs.replace(right, current=current))
        assert (reply.code, reply.param) == ("invalid_otp", "current.otp")


@pytest.mark.parametrize("wrong", ["current", "new"])
async def test_one_wrong_code_changes_nothing_and_is_counted(
    member: Member, database: Database, wrong: str
) -> None:
    owner = await member.sign_in(OLD)
    bad: dict[str, str] = {wrong: "x"}
    command = await member.change(owner, NEW, **bad)
    for _ in range(5):
        reply = await member.ask(owner.account_id, command)
        assert (reply.code, reply.param) == ("invalid_otp", f"{wrong}.otp")
    assert (await member.ask(owner.account_id, command)).code == "otp_attempts_exceeded"
    counted = await rows_of(
        database, "select key, json_array_length(state -> 'wrong_tries') as n from sign_ins order by key"
    )
    assert {row.key: row.n or 0 for row in counted if row.key.startswith("email:")} == {
        f"email:{OLD}": 5 if wrong == "current" else 0,
        f"email:{NEW}": 5 if wrong == "new" else 0,
    }
    assert (await member.sign_in(OLD)).account_id == owner.account_id


async def test_an_address_of_another_account_is_refused_with_both_codes_alone(member: Member) -> None:
    owner, other = await member.sign_in(OLD), await member.sign_in(NEW)
    wrong = await member.change(owner, NEW, new="x")
    assert (await member.ask(owner.account_id, wrong)).code == "invalid_otp"
    right = await member.change(owner, NEW)
    assert (await member.ask(owner.account_id, right)).code == "email_taken"
    # The codes are used up, so that they do not say it again.
    assert (await member.ask(owner.account_id, right)).code == "invalid_otp"
    assert (await member.sign_in(NEW)).account_id == other.account_id


async def test_sign_ins_that_race_with_the_change_through_another_process(
    database: Database, nursery: trio.Nursery
) -> None:
    """Whichever unit is first, no session is created for an address that the account does not have."""
    clock = Clock()
    here, there = [await start_member(database, nursery, clock) for _ in range(2)]
    owner = await here.sign_in(OLD)
    command = await here.change(owner, NEW)
    # The other process has both addresses in memory: the old one with the account, the new one without.
    codes: dict[str, CodeIssued] = {}
    for email in (OLD, NEW):
        issued = await there.sign_ins.ref(f"email:{email}").ask(RequestCode("198.51.100.9"))
        assert isinstance(issued, CodeIssued)
        codes[email] = issued
    results: dict[str, Any] = {}

    async def change() -> None:
        results["changed"] = await here.ask(owner.account_id, command)

    async def sign_in(email: str) -> None:
        results[email] = await there.verify(email, codes[email])

    async with trio.open_nursery() as racing:
        racing.start_soon(change)
        racing.start_soon(sign_in, OLD)
        racing.start_soon(sign_in, NEW)
    signed_in_new = results[NEW]
    assert isinstance(signed_in_new, SignedIn)
    assert isinstance(results[OLD], SignedIn)
    accounts = {row.email: row.id for row in await rows_of(database, "select id, email from accounts")}
    if isinstance(results["changed"], EmailChanged):
        assert accounts[NEW] == owner.account_id == signed_in_new.account_id
    else:
        # The sign-in was first, and made an account of the new address.
        assert results["changed"].code == "email_taken"
        assert accounts == {OLD: owner.account_id, NEW: signed_in_new.account_id}
    after = {email: await there.sign_in(email) for email in (OLD, NEW)}
    accounts = {row.email: row.id for row in await rows_of(database, "select id, email from accounts")}
    assert {email: each.account_id for email, each in after.items()} == accounts


class CutWriter(BatchWriter):
    """A writer whose connection breaks around the commit of one batch: before it, or after."""

    cut: str = ""

    def write(self, units: Any) -> Any:
        cut, self.cut = self.cut, ""
        if cut == "before":
            raise ConnectionLost(OSError("cut"))
        results = super().write(units)
        if cut == "after":
            [batch] = self._connected().connection.execute(
                "select batch_id from journal_batches order by at desc, batch_id desc limit 1"
            ).fetchone() or ("",)
            self._connected().connection.rollback()
            raise CommitUnanswered(batch, OSError("cut"), if_durable=results, if_void=results)
        return results


@pytest.mark.parametrize("cut", ["before", "after"])
async def test_a_connection_that_breaks_around_the_commit_changes_all_or_nothing(
    database: Database, nursery: trio.Nursery, cut: str
) -> None:
    clock = Clock()
    writer = CutWriter(database.keep_writer(), now=clock)
    member = await start_member(database, nursery, clock, writer=writer)
    owner = await member.sign_in(OLD)
    command = await member.change(owner, NEW)
    writer.cut = cut
    assert await member.ask(owner.account_id, command) == EmailChanged(NEW, "User")
    assert len(await rows_of(database, "select from account_changes")) == 1
    assert (await member.sign_in(NEW)).account_id == owner.account_id
