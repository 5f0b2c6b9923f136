"""The number of statements does not grow with the batch: 500 jobs cost as many as one, under every contract."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from tenure.contracts import BUILT_IN
from tenure.contracts.declaration import Contract
from tenure.errors import TenureError
from tenure.jobs.job import Failure, Job, NewJob
from tenure.postgres.store import Store
from tests.harness import Harness
from tests.holder_calls import calls

RETRIED = Failure("again", type="TransientError", retryable=True)
HOPELESS = Failure("never", type="PermanentError", retryable=False)


@pytest.fixture
async def store(dsn: str) -> AsyncIterator[Store]:
    """A store without wake-ups: nobody waits for those, and they would be counted with whoever happens to run."""
    async with Store.open(dsn, wake=False) as opened:
        yield opened


@dataclass
class Counted:
    """How often the driver sent something and waited for the answer: statements, BEGIN and COMMIT alike."""

    sent: int = 0
    verbs: dict[str, int] = field(default_factory=dict)

    def watching(self, steps: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        """The driver's own steps, counted as one when the first of them waits for the server."""
        ready, waited = None, 0
        while True:
            try:
                step = steps.send(ready)
            except StopIteration as stop:
                return stop.value
            waited += 1
            self.sent += waited == 1
            ready = yield step

    async def __call__(self, verb: str, answer: Awaitable[Any]) -> Any:
        """Count what this call sends; a batch must be answered job by job, without a refusal."""
        before = self.sent
        result = await answer
        self.verbs[verb] = self.sent - before
        if isinstance(result, list):
            assert not [one for one in result if isinstance(one, TenureError)], f"{verb} was refused"
        return result


@contextmanager
def counting() -> Iterator[Counted]:
    """Count everything that asynchronous connections send."""
    counted, wait = Counted(), psycopg.AsyncConnection.wait

    async def count_and_wait(self: Any, steps: Generator[Any, Any, Any], *args: Any, **options: Any) -> Any:
        return await wait(self, counted.watching(steps), *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(psycopg.AsyncConnection, "wait", count_and_wait)
        patch.setattr("tenure.postgres.engine.idle_seconds", lambda _: 0.0)  # no connection is tried before its use
        yield counted


@dataclass(frozen=True)
class Batch:
    """As many jobs as a verb is to be given, in a queue of their own."""

    store: Store
    contract: Contract
    size: int

    def new(self, queue: str, **options: Any) -> list[NewJob]:
        """Jobs to be made."""
        return [NewJob("t", {"n": n}, self.contract.name, queue=queue, **options) for n in range(self.size)]

    async def claimed(self, queue: str, **options: Any) -> list[Job]:
        """Jobs made and claimed and, where the contract has that step, started."""
        await self.store.enqueue_many(self.new(queue, **options))
        jobs = await self.store.claim(self.contract.name, [queue], worker="w", limit=self.size)
        assert len(jobs) == self.size
        await self.store.report("start", calls([job.held for job in jobs]))
        return jobs

    @property
    def once(self) -> dict[str, int]:
        """The option that lets a job run once, where the contract allows one."""
        return {"max_attempts": 1} if self.contract.budget.minimum <= 1 else {}


async def count_holders(batch: Batch, counted: Counted) -> None:
    """Enqueue, claim, start, succeed and fail."""
    store, name, size = batch.store, batch.contract.name, batch.size
    await counted("enqueue", store.enqueue_many(batch.new("a")))
    keyed = [NewJob("t", contract=name, queue="k", key=f"{uuid4()}") for _ in range(size)]
    await counted("enqueue with keys", store.enqueue_many(keyed))
    await counted("enqueue with keys again", store.enqueue_many(keyed))
    key = uuid4()
    jobs = await counted("claim", store.claim(name, ["a"], worker="w", limit=size, claim_key=key))
    assert len(jobs) == size
    again = await counted("claim again", store.claim(name, ["a"], worker="w", limit=size, claim_key=key))
    assert len(again) == size
    await counted("start", store.report("start", calls([job.held for job in jobs])))
    await counted(
        "succeed", store.report("succeed", calls([job.held for job in jobs], results=[{"n": n} for n in range(size)]))
    )
    retried = await batch.claimed("r")
    await counted(
        "fail, to retry", store.report("fail", calls([job.held for job in retried], failures=[RETRIED] * size))
    )
    ended = await batch.claimed("e", **batch.once)
    await counted(
        "fail, to the end", store.report("fail", calls([job.held for job in ended], failures=[HOPELESS] * size))
    )
    made = await store.enqueue_many(batch.new("i"))
    ids = [one.job_id for one in made if one.job_id is not None]
    assert len(await counted("claim by id", store.claim_by_id(ids, worker="w", contract=name))) == size
    assert len(await counted("read", store.jobs(ids))) == size


async def count_repeats(batch: Batch, counted: Counted) -> None:
    """Finish with a key for each job, then ask the same again."""
    store, size = batch.store, batch.size
    keys = [f"key {n}" for n in range(size)]
    ended, retried, hopeless = [[job.held for job in await batch.claimed(f"keyed {way}")] for way in range(3)]
    for again in ("", " again"):
        await counted(f"succeed with keys{again}", store.report("succeed", calls(ended, keys=keys)))
        await counted(
            f"fail with keys{again}", store.report("fail", calls(retried, failures=[RETRIED] * size, keys=keys))
        )
        await counted(
            f"end with keys{again}", store.report("fail", calls(hopeless, failures=[HOPELESS] * size, keys=keys))
        )


async def count_upkeep(batch: Batch, counted: Counted, db: Harness) -> None:
    """Reap, promote and settle."""
    store, name, size = batch.store, batch.contract.name, batch.size
    db.sql("update tenure.job set due_at = now() where contract = %s and role = 'waiting'", name)
    promoted = await counted("promote", store.promote(name))
    assert len(promoted) == (size if batch.contract.path("promote") else 0)
    for verb, options in (("reap", {}), ("reap, the last claim", batch.once)):
        jobs = await batch.claimed(f"x {verb}", **options)
        db.expire(*(job.id for job in jobs))
        reaped = await counted(verb, store.reap(name))
        assert len(reaped) == size or (verb == "reap" and batch.contract.path("reclaim"))
    if batch.contract.path("settle"):
        left = await batch.claimed("s")
        db.sql(
            "update tenure.job set state = 'dlq_pending', role = 'settling', lease_token = null, lease_owner = null, "
            "lease_expires_at = null where id = any(%s)", [job.id for job in left],
        )  # fmt: skip
        assert len(await counted("settle", store.settle(name))) == size


async def counts(store: Store, db: Harness, contract: Contract, size: int) -> dict[str, int]:
    """How many statements each verb took for a batch of this size."""
    db.sql("delete from tenure.job")  # what an earlier size left behind
    with counting() as counted:
        batch = Batch(store, contract, size)
        await count_holders(batch, counted)
        await count_upkeep(batch, counted, db)
        await count_repeats(batch, counted)
    return counted.verbs


@pytest.mark.parametrize("name", BUILT_IN)
async def test_batch_of_any_size_takes_as_many_statements_as_one(store: Store, db: Harness, name: str) -> None:
    await store.claim(name, worker="w")  # the registry is read once
    of_one, of_ten, of_many = [await counts(store, db, BUILT_IN[name], size) for size in (1, 10, 500)]
    assert of_ten == of_one
    assert of_many == of_one


async def test_hot_path_takes_one_statement_a_verb(store: Store, db: Harness) -> None:
    await store.claim(worker="w")
    counted = await counts(store, db, BUILT_IN["standard"], 10)
    hot = (
        "enqueue", "claim", "succeed", "fail, to retry", "fail, to the end", "succeed with keys", "fail with keys",
        "end with keys",
    )  # fmt: skip
    assert {verb: counted[verb] for verb in hot} == dict.fromkeys(hot, 1)
    assert counted["enqueue with keys"] == 4  # begin, the keys, the jobs, commit
