"""A claim takes no more than one answer can carry, and whoever asks for more gets the rest with the next one."""

from __future__ import annotations

import random
import string

import pytest

from tenure.app import App
from tenure.http.long_poll import ClaimFilter, ClaimGroup
from tenure.jobs import claim_cursor
from tenure.jobs.claim_cursor import MAX_CLAIM_BYTES
from tenure.jobs.job import NewJob
from tenure.postgres import claim
from tenure.postgres.claim import Claimer
from tenure.postgres.store import Store
from tests.harness import Harness
from tests.worker.working import until, working

_MIB = 1_048_576


def heavy(size: int) -> str:
    """So many characters that cannot be packed well."""
    return "".join(random.Random(size).choices(string.printable[:94], k=size)).replace("\\", "/").replace('"', "'")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ten thousand bytes be heavy."""
    monkeypatch.setattr(claim, "MAX_CLAIM_BYTES", 10_000)
    monkeypatch.setattr(claim_cursor, "_MAY_BE_HEAVY", 1_000)


async def test_a_claim_of_large_payloads_ends_at_sixteen_mebibytes(store: Store, db: Harness) -> None:
    text = heavy(_MIB - 100)
    ids = [one.job_id for one in await store.enqueue_many([NewJob("t", {"text": text}) for _ in range(20)])]
    first = [job.id for job in await store.claim(worker="w", limit=1_000)]
    assert len(first) in (MAX_CLAIM_BYTES // _MIB, MAX_CLAIM_BYTES // _MIB + 1)
    rest = [job.id for job in await store.claim(worker="w", limit=1_000)]
    assert [*first, *rest] == ids
    db.log_is_sound(*(job_id for job_id in ids if job_id))


@pytest.mark.parametrize("contract", ["standard", "phase27"])
async def test_one_job_that_is_heavier_than_a_claim_may_be_is_claimed_alone(
    store: Store, small: None, contract: str
) -> None:
    jobs = [NewJob("t", {"text": heavy(50_000)}, contract=contract) for _ in range(3)]
    ids = [one.job_id for one in await store.enqueue_many(jobs)]
    assert [[job.id for job in await store.claim(contract, worker="w", limit=9)] for _ in range(4)] == [
        [ids[0]], [ids[1]], [ids[2]], [],
    ]  # fmt: skip


async def test_what_is_stored_packed_counts_for_what_it_may_unpack_to(store: Store, small: None) -> None:
    await store.enqueue_many([NewJob("t", {"text": "x" * 100_000}) for _ in range(9)])  # some 1,200 bytes each
    assert len(await store.claim(worker="w", limit=9)) == 1


async def test_a_checkpoint_counts_too(store: Store, small: None) -> None:
    await store.enqueue_many([NewJob("t") for _ in range(3)])
    for job in await store.claim(worker="w", limit=3):
        await store.checkpoint(job.held, {"text": heavy(6_000)})
        await store.hand_back(job.held)
    assert len(await store.claim(worker="w", limit=3)) == 2


async def test_of_those_who_claim_together_each_gets_its_job_however_large(store: Store, small: None) -> None:
    ids = [one.job_id for one in await store.enqueue_many([NewJob("t", {"text": heavy(20_000)}) for _ in range(5)])]
    line = ClaimGroup(store, ClaimFilter("standard", ("default",)))
    dealt = await line._claim([Claimer(f"w{n}", limit) for n, limit in enumerate((3, 1, 1, 1, 1, 1))])
    assert [len(part) for part in dealt if isinstance(part, list)] == [1, 1, 1, 1, 1, 0]
    assert sorted(job.id for part in dealt if isinstance(part, list) for job in part) == ids


async def test_a_worker_goes_on_at_once_after_a_claim_that_was_too_heavy(dsn: str, small: None) -> None:
    done: list[int] = []
    async with App(dsn) as app:

        @app.task
        async def work(n: int, text: str) -> None:
            done.append(n)

        await app.enqueue_many(work.call(n, heavy(20_000)) for n in range(9))
        async with working(app, poll=3_600, wakeups=False):  # nobody would look before long
            await until(lambda: len(done) == 9, 60)
