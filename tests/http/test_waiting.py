"""Claims that wait: repeated, revoked, of another tenant's key, behind a locked row; nobody pays for a neighbour."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import httpx2
import pytest

from tenure.errors import BadInput
from tenure.http.callers import Caller as Who
from tenure.http.desk import Desk, Said
from tenure.http.lines import Which
from tenure.job import Job, NewJob
from tenure.outcome import Moved
from tenure.postgres.claiming import Claimer
from tenure.postgres.store import Store
from tests.harness import Harness
from tests.http.conftest import Caller, serving

ANYBODY = Who("w", frozenset({"admin"}))
MAIL = Which("standard", ("default",))


async def never() -> bool:
    return False


@asynccontextmanager
async def waiting(*asked: Awaitable[Any]) -> AsyncIterator[Sequence[asyncio.Future[Any]]]:
    """Calls that wait by the time the block begins."""
    tasks = [asyncio.ensure_future(one) for one in asked]
    await asyncio.sleep(0.2)
    yield tasks


async def test_a_waiting_claim_and_its_repeat_elsewhere_are_told_the_same(store: Store, dsn: str) -> None:
    here, key = Desk(store), uuid4()
    async with Store.open(dsn) as other:
        there = Desk(other)
        asked = [desk.claim(MAIL, Claimer("w1", 1, key), 10, never) for desk in (here, there, here)]
        async with waiting(*asked) as claims:
            made = await store.enqueue(NewJob("t"))
            for desk in (here, there):
                desk.bell.heard("standard", "default")
            answers = await asyncio.wait_for(asyncio.gather(*claims), 5)
    assert [[job.id for job in jobs] for jobs in answers] == [[made.job_id]] * 3


async def test_who_waits_with_a_spent_key_takes_no_job_from_others(store: Store) -> None:
    desk, key = Desk(store), uuid4()
    await store.enqueue(NewJob("t"))
    (first,) = await desk.claim(MAIL, Claimer("w1", 1, key), 0, never)
    await store.enqueue(NewJob("t"))
    began = time.monotonic()
    again, other = await asyncio.gather(
        desk.claim(MAIL, Claimer("w1", 1, key), 5, never), desk.claim(MAIL, Claimer("w2", 1, uuid4()), 5, never)
    )
    assert ([job.id for job in again], len(other)) == ([first.id], 1)
    assert time.monotonic() - began < 3


def test_a_claim_key_of_another_tenant_or_worker_tells_nothing(dsn: str, http: Caller, store: Store) -> None:
    http.enqueued(tenant_id="beta", payload={"iban": "DE12"})
    key = str(uuid4())
    http.claimed(claim_key=key)
    asked = {"contract": "standard", "worker_id": "w2", "claim_key": key}
    http.refused("/api/v1/claims", asked, 409, "LEASE_CONFLICT")
    with serving(dsn, admin_key="an admin's key, long enough") as url:
        made = asyncio.run(_tenant_key(dsn))
        answer = httpx2.post(
            f"{url}/api/v1/claims", json={**asked, "worker_id": "w1"}, headers={"Authorization": f"Bearer {made}"}
        )
    assert (answer.status_code, "DE12" in answer.text) == (403, False)


async def _tenant_key(dsn: str) -> str:
    async with Store.open(dsn) as store:
        return (await store.keys.create("acme", ["work"], "acme", None, "test"))[1]


def test_a_revoked_key_wins_nothing_any_more_though_it_waits(dsn: str, store: Store) -> None:
    async def made() -> tuple[int, str]:
        async with Store.open(dsn) as own:
            key, text = await own.keys.create("w", ["work"], None, None, "test")
            return key.id, text

    async def revoked(key_id: int) -> None:
        async with Store.open(dsn) as own:
            await own.keys.revoke(key_id, "test")
            await asyncio.sleep(2.1)  # as long as a key is believed
            await own.enqueue(NewJob("t"))

    key_id, text = asyncio.run(made())
    with serving(dsn) as url, ThreadPoolExecutor(1) as pool:
        body = {"worker_id": "w", "wait_seconds": 20}
        headers = {"Authorization": f"Bearer {text}"}
        asked = pool.submit(httpx2.post, f"{url}/api/v1/claims", json=body, headers=headers, timeout=30)
        time.sleep(0.3)
        asyncio.run(revoked(key_id))
        assert asked.result().status_code == 401


async def test_one_locked_row_stalls_no_other_claim_by_id(store: Store, db: Harness) -> None:
    desk = Desk(store)
    ids = [(await store.enqueue(NewJob("t", contract="dispatcher"))).job_id for _ in range(3)]
    with db.connection.transaction():
        db.sql("select from tenure.job where id = %s for update", ids[0])
        asked = [asyncio.ensure_future(desk.claim_by_id(n, Claimer(f"w{n}"), ANYBODY)) for n in ids]
        others = await asyncio.wait_for(asyncio.gather(*asked[1:]), 2)
        assert not asked[0].done()
    assert [job.id for job in [await asked[0], *others]] == ids


async def test_what_is_wrong_with_one_word_is_not_told_to_its_neighbours(store: Store, db: Harness) -> None:
    desk = Desk(store)
    await store.enqueue_many([NewJob("t"), NewJob("t")])
    first, second = await store.claim(worker="w", limit=2)
    with pytest.raises(BadInput):
        desk.say("hand-back", Said(second.held, reason="a\x00b"))
    gave_back = await asyncio.gather(
        desk.say("hand-back", Said(first.held, reason="fine")),
        desk.say("hand-back", Said(second.held, delay_ms=5_000, reason="another")),
    )
    assert [type(one) for one in gave_back] == [Moved, Moved]
    assert isinstance(first, Job)
    db.log_is_sound(first.id, second.id)
