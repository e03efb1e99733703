"""The rows of poison messages: counted, bounded, replayed once, deleted."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from tests.sweepers import sweeper_of

from holdfast.persistence.operators.poison import (
    IN_ALL_MAX,
    PER_KEY_MAX,
    CannotDecrypt,
    RowCipher,
    claim_replay,
    discard_poison,
    finish_replay,
    keep_poison,
    list_poison,
    poison_by_id,
)
from holdfast.persistence.records.operator_tables import PoisonRecord
from holdfast.persistence.server.database import Database

NOW = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)
SOON = NOW + timedelta(seconds=15)


def record(number: int = 1, *, key: str = "acct_1", mac: bytes | None = None, at: datetime = NOW) -> PoisonRecord:
    return PoisonRecord(
        poison_id=f"poi_{number:032x}",
        group_name="accounts",
        key=key,
        message_type="SettleTask",
        body=b"encrypted",
        body_mac=mac if mac is not None else b"%d" % number,
        state="kept",
        first_at=at,
        last_at=at,
        crashes=1,
        trace_id="trace",
        reason_type="ValueError",
        reason="broken",
        location="module:1",
        incarnation=number,
        version=7,
        state_digest="d",
    )


async def test_a_message_that_crashes_again_is_counted(database: Database) -> None:
    first = await database.work(keep_poison, record(1, mac=b"same"))
    later = NOW + timedelta(hours=1)
    again = await database.work(keep_poison, record(2, mac=b"same", at=later))
    assert (again.poison_id, again.crashes) == (first.poison_id, 2)
    found = await database.read(poison_by_id, first.poison_id)
    assert found is not None
    assert (found.first_at, found.last_at, found.incarnation) == (NOW, later, 2)


async def test_a_message_is_claimed_for_one_replay(database: Database) -> None:
    kept = await database.work(keep_poison, record())

    async def claim(now: datetime = NOW, *, repeatable: bool = True) -> bool:
        until = now + timedelta(seconds=15)
        return await database.work(claim_replay, kept.poison_id, now=now, until=until, repeatable=repeatable)

    assert await claim()
    assert not await claim()
    assert not await claim(NOW + timedelta(seconds=16), repeatable=False)
    assert await claim(NOW + timedelta(seconds=16))
    await database.work(finish_replay, kept.poison_id, "unknown", "no result")
    assert not await claim(repeatable=False)
    assert await claim()
    await database.work(finish_replay, kept.poison_id, "replayed", "done: Settled")
    assert not await claim()
    assert not await database.work(discard_poison, kept.poison_id, NOW)
    found = await database.read(poison_by_id, kept.poison_id)
    assert found is not None
    assert (found.state, found.replays, found.replay_result) == ("replayed", 3, "done: Settled")
    # The same message crashing later is a row of its own.
    new = await database.work(keep_poison, record(9, mac=b"1"))
    assert (new.poison_id, new.crashes) != (kept.poison_id, 2)


async def test_a_message_that_crashes_in_its_replay_is_kept_and_counted(database: Database) -> None:
    kept = await database.work(keep_poison, record(1, mac=b"same"))
    await database.work(claim_replay, kept.poison_id, now=NOW, until=SOON, repeatable=True)
    again = await database.work(keep_poison, record(2, mac=b"same"))
    await database.work(finish_replay, kept.poison_id, "kept", "it crashed again")
    found = await database.read(poison_by_id, kept.poison_id)
    assert found is not None
    assert (again.poison_id, found.state, found.crashes) == (kept.poison_id, "kept", 2)


async def test_a_discarded_message_has_no_content(database: Database) -> None:
    kept = await database.work(keep_poison, record())
    assert await database.work(discard_poison, kept.poison_id, NOW)
    assert not await database.work(discard_poison, kept.poison_id, NOW)
    found = await database.read(poison_by_id, kept.poison_id)
    assert found is not None
    assert (found.state, found.body) == ("discarded", None)


async def test_the_oldest_of_a_key_are_deleted_beyond_the_limit(database: Database) -> None:
    for number in range(PER_KEY_MAX + 3):
        await database.work(keep_poison, record(number, at=NOW + timedelta(seconds=number)))
    await database.work(keep_poison, record(999, key="acct_2"))
    found = await database.read(list_poison, filters={"key": "acct_1"}, limit=100)
    assert [each.incarnation for each in found if isinstance(each, PoisonRecord)] == list(
        range(PER_KEY_MAX + 2, 2, -1)
    )
    assert len(await database.read(list_poison, filters={}, limit=100)) == PER_KEY_MAX + 1
    assert PER_KEY_MAX < IN_ALL_MAX


async def test_messages_are_deleted_after_their_retention(database: Database) -> None:
    long_ago = datetime.now(UTC) - timedelta(days=2)
    await database.work(keep_poison, record(1, at=long_ago))
    await database.work(keep_poison, record(2, at=datetime.now(UTC)))
    sweeper = sweeper_of(database, now=lambda: datetime.now(UTC), idempotency_ttl_s=60, reports_max=100)
    assert (await sweeper.sweep())["poison_messages"] == 1


def test_an_encrypted_text_opens_with_its_key_and_for_its_row_only() -> None:
    cipher = RowCipher([b"k" * 32])
    encrypted = cipher.encrypt(b"a secret", "poi_1")
    assert b"secret" not in encrypted
    assert cipher.decrypt(encrypted, "poi_1") == b"a secret"
    for other, row, text in (
        (cipher, "poi_2", encrypted),
        (RowCipher([b"x" * 32]), "poi_1", encrypted),
        (cipher, "poi_1", encrypted[:-1] + bytes([encrypted[-1] ^ 1])),
        (cipher, "poi_1", b""),
    ):
        with pytest.raises(CannotDecrypt):
            other.decrypt(text, row)
    rotated = RowCipher([b"x" * 32, b"k" * 32])
    assert rotated.decrypt(encrypted, "poi_1") == b"a secret"
    assert RowCipher([b"x" * 32]).decrypt(rotated.encrypt(b"new", "poi_2"), "poi_2") == b"new"
    assert cipher.digest(b"a") != RowCipher([b"x" * 32]).digest(b"a")
