"""Helpers for tests of your tasks: run due jobs, inspect enqueued jobs, and move time instead of waiting.

    async def test_mail(tenure_database: str) -> None:     a pytest fixture: a database for this test, for every App
        await testing.drain(app)                           run every due job here, to its end or its next wait
        await testing.advance(app, hours=1)                let an hour pass: retries become due, leases expire
        await testing.assert_enqueued(app, send, "a")      the job with these arguments, waiting or done

`drain` and `advance` act on jobs of the app's own tasks, and refuse a database that was not made for tests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ParamSpec

from tenure.client.direct import DirectClient
from tenure.errors import BadInput, NotATestDatabase
from tenure.jobs.job import Job
from tenure.jobs.keyword_options import refuse_unknown

if TYPE_CHECKING:
    from tenure.app import App
    from tenure.postgres.store import Store
    from tenure.task import Task

P = ParamSpec("P")
_SPANS = ("weeks", "days", "hours", "minutes", "seconds", "milliseconds", "microseconds")


@contextmanager
def use_database(url: str) -> Iterator[str]:
    """Let every App of this process use this database during the block, instead of its own address."""
    from tenure.client.connections import redirected

    with redirected(url):
        yield url


def mark_database(app: App) -> None:
    """Mark the app's database as made for tests; refuses one that has ever had a job."""
    from tenure.postgres.test_databases import mark

    if not mark(app.database_url()):
        raise NotATestDatabase("this database has had jobs, so it was not made for tests. Next: make an empty one")


async def drain(
    app: App, *, queues: Sequence[str] | None = None, concurrency: int = 50, allow_any_database: bool = False
) -> Counter[str]:
    """Run the due jobs of this app's tasks, and the jobs that they enqueue, until none is due; counts the outcomes.

    Events of datasets become jobs too.

    Refuses a database that was not made for tests, unless `allow_any_database`.
    """
    from tenure.postgres.test_databases import upkeep

    store = await _test_store(app, "drain", allow_any_database)
    types = list(app.tasks)
    for contract in await store.contracts():
        await upkeep(store, contract, types)
    counts = Counter[str]()
    while True:
        worker = app.worker(queues=queues, concurrency=concurrency, poll=0.05, upkeep=False, wakeups=False)
        await worker.run(until_idle=True, handle_signals=False)  # the test runner handles signals
        counts += worker.counts
        if not app._subscriptions or not (await store.datasets.route()).jobs:
            return counts


async def advance(app: App, *, allow_any_database: bool = False, **span: float) -> None:
    """Let time pass for unfinished jobs of this app's tasks: `advance(app, minutes=5)`; keywords as of timedelta.

    Refuses a database that was not made for tests, unless `allow_any_database`.
    """
    from tenure.postgres.test_databases import advance as advance_jobs

    refuse_unknown("testing.advance", span, _SPANS)
    await advance_jobs(await _test_store(app, "advance", allow_any_database), timedelta(**span), list(app.tasks))


async def enqueued(app: App, task: Task[..., Any] | None = None) -> list[Job]:
    """Jobs, newest first, finished or not: of this task, or of all tasks of the app."""
    store = _store(await app._client())
    found = await store.find(type=None if task is None else task.name, limit=1_000)
    types = app.tasks if task is None else (task.name,)
    jobs = await store.jobs([listed.id for listed in found.jobs])
    return sorted((job for job in jobs if job.type in types), key=lambda job: job.id, reverse=True)


async def assert_enqueued(app: App, task: Task[P, Any], *args: P.args, **kwargs: P.kwargs) -> Job:
    """The newest job of this task with these arguments; else an AssertionError that lists the jobs of the task."""
    payload = task.call(*args, **kwargs).job.payload
    jobs = await enqueued(app, task)
    for job in jobs:
        if job.payload == payload:
            return job
    found = "\n".join(f"  {job.payload}" for job in jobs) or "  none at all"
    raise AssertionError(f"no job of {task.name} has the arguments {payload}; there are:\n{found}")


async def _test_store(app: App, function: str, allow_any_database: bool) -> Store:
    """The store of the app's database; refuses a database that was not made for tests."""
    from tenure.postgres.test_databases import foreign_database_name

    store = _store(await app._client())
    if not allow_any_database and (name := await foreign_database_name(store)) is not None:
        raise NotATestDatabase(
            f"testing.{function} changes jobs, and the database {name!r} was not made for tests. "
            "Next: use the pytest fixture tenure_database, or testing.mark_database(app) on an empty one, "
            "or allow_any_database=True"
        )
    return store


def _store(client: object) -> Store:
    """The store of the app's database; refuses an app that uses a dispatcher."""
    if not isinstance(client, DirectClient):
        raise BadInput("tenure.testing needs the database, and this app uses a dispatcher")
    return client.store
