"""Keys: the text is told once and stored nowhere, the database's clock ends them, and revoking is done once."""

from __future__ import annotations

import asyncio
import re
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from tenure.errors import BadInput, Refused
from tenure.jobs.api_key import SCOPES, ApiKey, FoundApiKey, hash_key
from tenure.postgres.store import Store
from tests.harness import Harness

pytestmark = pytest.mark.core

BAD: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown scope": (
        {"scopes": ["work", "everything"]},
        r"no scope 'everything'.*Next: give one or more of read, enq",
    ),
    "no scope": ({"scopes": []}, "without a scope permits nothing.*Next: give one or more of read, enqueue, work"),
    "a text for the scopes": ({"scopes": "work"}, "scopes must be a list of strings, not 'work'"),
    "an approver without a name": ({"scopes": ["approve"]}, "needs a person.*Next: name the person"),
    "a blank person": ({"scopes": ["approve"], "person": " "}, "person must be a non-empty string"),
    "a blank name": ({"name": "\t"}, "key name must be a non-empty string"),
    "an endless name": ({"name": "x" * 201}, "key name has 201 characters"),
    "an empty tenant": ({"tenant_id": ""}, "tenant_id must be a non-empty string"),
    "nobody who made it": ({"created_by": ""}, "created_by must be a non-empty string"),
    "a lifetime of nothing": ({"expires_in_s": 0}, "lifetime in milliseconds is 0"),
    "a lifetime without an end": ({"expires_in_s": float("inf")}, "expires_in_s must be a timedelta or a number"),
}

CHECKS = {
    "an unknown scope": "set scopes = '{root}'",
    "no scope": "set scopes = '{}'",
    "a scope that is NULL": "set scopes = '{work,NULL}'",
    "an approver without a name": "set scopes = '{work,approve}'",
    "an approver whose name is blank": "set scopes = '{approve}', person = ' '",
    "the text in place of its hash": "set hash = 'tenure_'",
    "a revocation by nobody": "set revoked_at = now()",
}


async def made(store: Store, **given: Any) -> tuple[ApiKey, str]:
    """A key, by default one of a worker of all tenants."""
    wanted = {"name": "k", "scopes": ["work"], "tenant_id": None, "person": None, "created_by": "ada"}
    return await store.keys.create(**{**wanted, **given})


def everywhere(db: Harness) -> str:
    """All that is stored in Tenure's tables, as text and with bytes as they are."""
    tables = [row["name"] for row in db.sql("select tablename as name from pg_tables where schemaname = 'tenure'")]
    assert "api_key" in tables
    rows = [row["row"] for table in tables for row in db.sql(f"select t::text as row from tenure.{table} as t")]
    stored = "\n".join(rows)
    binary = re.findall(r"\\x((?:[0-9a-f]{2})+)", stored)
    return stored + "".join(bytes.fromhex(found).decode("latin-1") for found in binary)


async def test_a_key_is_found_by_its_text_which_is_stored_nowhere(store: Store, db: Harness) -> None:
    before = db.value("select clock_timestamp()")
    key, text = await made(
        store, name="Ada's", scopes=("approve", "work", "work"), tenant_id="acme", person="Ada Lovelace"
    )
    assert re.fullmatch(r"tenure_[\w-]{43}", text)
    assert (key.name, key.tenant_id, key.person, key.created_by) == ("Ada's", "acme", "Ada Lovelace", "ada")
    assert (key.scopes, key.hint) == (("work", "approve"), text[:11])
    assert (key.created_at > before, key.expires_at, key.revoked_at, key.revoked_by) == (True, None, None, None)
    other, _ = await made(store)
    assert await store.keys.find(hash_key(text)) == FoundApiKey(key, live=True)
    assert await store.keys.find(hash_key(f"{text} ")) is None
    assert await store.keys.list() == [FoundApiKey(key, live=True), FoundApiKey(other, live=True)]
    stored = everywhere(db)
    assert key.hint in stored
    assert not [n for n in range(40) if text[n : n + 12] in stored], "more of it is stored than its beginning"


async def test_no_two_keys_are_alike(store: Store, db: Harness) -> None:
    texts = [text for _, text in [await made(store) for _ in range(20)]]
    assert len(set(texts)) == db.value("select count(distinct hash) from tenure.api_key") == 20


async def test_a_key_expires_by_the_clock_of_the_database(store: Store, db: Harness) -> None:
    key, text = await made(store, expires_in_s=90 * 86_400)
    assert key.expires_at == key.created_at + timedelta(days=90)
    assert await store.keys.find(hash_key(text)) == FoundApiKey(key, live=True)
    db.sql("update tenure.api_key set expires_at = clock_timestamp() + interval '1 minute'")
    assert [found.live for found in await store.keys.list()] == [True]
    db.sql("update tenure.api_key set expires_at = clock_timestamp()")
    found = await store.keys.find(hash_key(text))
    assert found is not None
    assert (found.live, [listed.live for listed in await store.keys.list()]) == (False, [False])
    assert found.key.expires_at is not None
    moment = timedelta(microseconds=1)
    assert [found.key.is_live(found.key.expires_at + n * moment) for n in (-1, 0, 1)] == [True, False, False]


async def test_a_key_is_revoked_once(store: Store) -> None:
    (key, text), (other, _) = await made(store), await made(store)
    revoked, new = await store.keys.revoke(key.id, "bob")
    assert (new, revoked.revoked_by, revoked._replace(revoked_at=None, revoked_by=None)) == (True, "bob", key)
    assert revoked.revoked_at is not None
    assert await store.keys.find(hash_key(text)) == FoundApiKey(revoked, live=False)
    assert await store.keys.revoke(key.id, "late") == (revoked, False)
    assert await store.keys.list() == [FoundApiKey(revoked, live=False), FoundApiKey(other, live=True)]


async def test_who_waits_behind_another_who_revokes_is_told_that_he_was_not_the_first(
    store: Store, db: Harness, dsn: str
) -> None:
    key, _ = await made(store)
    with Harness(dsn) as first:
        first.sql("begin")
        first.sql("update tenure.api_key set revoked_at = clock_timestamp(), revoked_by = 'bob'")
        second = asyncio.create_task(store.keys.revoke(key.id, "late"))
        waiting = (
            "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
        )
        while not db.value(waiting):
            assert not second.done()
            await asyncio.sleep(0.005)
        first.sql("commit")
    revoked, new = await asyncio.wait_for(second, 60)
    assert (new, revoked.revoked_by) == (False, "bob")
    assert db.value("select revoked_by from tenure.api_key") == "bob"


async def test_a_key_that_there_is_not_cannot_be_revoked(store: Store) -> None:
    with pytest.raises(Refused, match=r"there is no key 7\. Next: tenure keys list") as refusal:
        await store.keys.revoke(7, "ada")
    assert refusal.value.reason_code == "KEY_NOT_FOUND"
    with pytest.raises(BadInput, match="key must be a whole number"):
        await store.keys.revoke("7", "ada")  # type: ignore[arg-type]


async def test_there_are_keys_for_ever_once_there_was_one(store: Store) -> None:
    assert not await store.keys.exist()
    key, _ = await made(store)
    assert await store.keys.exist()
    await store.keys.revoke(key.id, "ada")
    assert await store.keys.exist()


@pytest.mark.parametrize("what", BAD)
async def test_no_key_is_made_of(store: Store, what: str) -> None:
    given, message = BAD[what]
    with pytest.raises(BadInput, match=message):
        await made(store, **given)
    assert not await store.keys.exist()


@pytest.mark.parametrize("what", CHECKS)
async def test_the_database_itself_refuses(store: Store, db: Harness, what: str) -> None:
    await made(store)
    with pytest.raises(psycopg.errors.CheckViolation):
        db.sql(f"update tenure.api_key {CHECKS[what]}")
    with db.connection.transaction(force_rollback=True):
        db.sql("update tenure.api_key set scopes = %s, person = 'Ada'", list(SCOPES))


def test_whatever_a_stranger_sends_has_a_digest() -> None:
    assert len({hash_key(text) for text in ("", "\x00", "\ud800", "x" * 100_000, "ü")}) == 5
