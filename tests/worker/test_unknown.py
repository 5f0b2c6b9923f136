"""Jobs that this worker cannot run: of a task it does not know, or with arguments that no longer fit."""

from __future__ import annotations

import pytest

import tenure
from tenure.app import App
from tenure.contracts import BUILT_IN
from tenure.jobs.job import NewJob
from tenure.postgres.store import Store
from tenure.upkeep.unknown_types import UnknownTypes
from tests.harness import Harness
from tests.postgres.test_unloggable import SPOIL, of_a_later_release
from tests.worker.rounds import Polls
from tests.worker.working import until, working


async def test_a_job_of_an_unknown_task_waits_unclaimed_and_is_ended_by_nobody(
    app: App, store: Store, db: Harness, polls: Polls
) -> None:
    @app.task
    async def known() -> str:
        return "ran"

    made = await store.enqueue(NewJob("from_the_next_release"))
    db.sql("update tenure.job set due_at = due_at - interval '2 hours', created_at = created_at - interval '2 hours'")
    async with working(app, queues=["default"], poll=0.05) as worker:
        assert await app.result(await known.enqueue(), timeout=60) == "ran"
        seen = polls.ended
        await until(lambda: polls.ended > seen + 3)
    assert (db.row(made.job_id)["state"], db.row(made.job_id)["claims"], db.log(made.job_id)) == ("queued", 0, [])
    assert worker.counts["claimed"] == 1


def a_worker(db: Harness, *types: str) -> None:
    """Enter a worker of every contract on the queue `default` that knows these types."""
    db.sql(
        "insert into tenure.worker (name, queues, contracts, types) values ('their worker', '{default}', %s, %s)",
        sorted(BUILT_IN), list(types),
    )  # fmt: skip


async def made_long_ago(store: Store, db: Harness, contract: str = "standard") -> int:
    """A job that is due for two hours."""
    made = await store.enqueue(NewJob("theirs", contract=contract))
    db.sql("update tenure.job set due_at = now() - interval '2 hours', created_at = now() - interval '2 hours'")
    return made.job_id


@pytest.mark.parametrize("contract", sorted(BUILT_IN))
async def test_what_no_live_worker_knew_for_as_long_as_was_set_is_ended(
    store: Store, db: Harness, contract: str
) -> None:
    job_id = await made_long_ago(store, db, contract)
    a_worker(db, "mine")
    moment = 1_000.0
    unknown = UnknownTypes(store, 3_600.0, lambda: moment)
    assert await unknown.end_expired() == 0, "it was never seen before: its worker may be restarting"
    moment += 3_599.0
    assert await unknown.end_expired() == 0
    moment += 1.0
    assert await unknown.end_expired() == 1
    row = db.row(job_id)
    assert row["role"] == ("waiting" if contract == "dispatcher" else row["role"])
    assert row["last_error"]["code"] == "UNKNOWN_TASK"


#: The database refuses that a job leaves the table of live jobs.
_REFUSED = """
create function public.refuse() returns trigger language plpgsql as $$ begin raise 'refused by a test'; end $$;
create trigger refuse before delete on tenure.job for each row when (old.id = {}) execute function public.refuse();
"""


@pytest.mark.parametrize("cause", ["of a later release", "cannot be logged", "refused by the database"])
async def test_a_job_that_cannot_be_ended_does_not_keep_others(store: Store, db: Harness, cause: str) -> None:
    bad, ended = [await made_long_ago(store, db) for _ in range(2)]
    if cause == "of a later release":
        of_a_later_release(db, bad)
        db.sql("update tenure.job set priority = 0 where id = %s", bad)
    elif cause == "cannot be logged":
        db.sql(SPOIL, [bad])
    else:
        db.sql(_REFUSED.format(bad))
    moment = 1_000.0
    unknown = UnknownTypes(store, 60.0, lambda: moment)
    await unknown.end_expired()
    moment += 60.0
    assert await unknown.end_expired() == 1
    assert db.row(ended)["last_error"]["code"] == "UNKNOWN_TASK"
    was_claimed = cause == "refused by the database"
    assert (db.row(bad)["claims"], db.row(bad)["role"]) == ((1, "active") if was_claimed else (0, "ready"))


async def test_of_jobs_that_no_worker_knows_the_oldest_are_ended_first(store: Store, db: Harness) -> None:
    ids = [await made_long_ago(store, db) for _ in range(6)]
    for n, minutes in enumerate((10, 60, 30, 20, 50, 40)):
        due = "due_at = now() - make_interval(mins => %s), priority = %s"
        db.sql(f"update tenure.job set {due} where id = %s", minutes, 3 * (n % 2), ids[n])
    (kind,) = await store.watch.unknown_types()
    found = [one.id for one in await store.watch.unknown_jobs([kind], 900.0, limit=3)]
    assert found == [ids[1], ids[4], ids[5]]
    assert [one.id for one in await store.watch.unknown_jobs([kind], 3_300.0)] == [ids[1]]


async def test_a_type_is_known_again_as_soon_as_a_worker_knows_it(store: Store, db: Harness) -> None:
    job_id = await made_long_ago(store, db)
    moment = 1_000.0
    unknown = UnknownTypes(store, 3_600.0, lambda: moment)
    for _ in range(3):
        assert await unknown.end_expired() == 0
        moment += 3_000.0
        a_worker(db, "theirs")
        assert await unknown.end_expired() == 0
        db.sql("delete from tenure.worker")
    assert db.row(job_id)["claims"] == 0


async def test_what_somebody_holds_or_a_paused_queue_keeps_is_not_unknown(store: Store, db: Harness) -> None:
    await made_long_ago(store, db)
    assert len(await store.watch.unknown_types()) == 1
    await store.queues.pause("default", actor="ann")
    assert await store.watch.unknown_types() == []
    await store.queues.resume("default", actor="ann")
    await store.enqueue(NewJob("theirs"))
    await store.claim(worker="of an earlier release")
    assert await store.watch.unknown_types() == []


@pytest.mark.parametrize(
    ("payload", "reason"), [([1, 2], "parse_error"), ({"n": "three"}, "validation_failed"), ({}, "validation_failed")]
)
async def test_payload_that_no_longer_fits_goes_the_contracts_way(
    app: App, store: Store, db: Harness, payload: object, reason: str
) -> None:
    @app.task(contract="reliability")
    async def double(n: int) -> int:
        return 2 * n

    made = await store.enqueue(NewJob("double", payload, contract="reliability"))
    async with working(app):
        with pytest.raises(tenure.JobFailed, match="dead_lettered"):
            await app.result(made.job_id, timeout=60)
    assert db.value("select reason_code from tenure_reliability.dead_letters where job_id = %s", made.job_id) == reason
