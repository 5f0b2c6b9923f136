"""Old ranges leave whole: only full ones in which nobody lives and all ended long ago, and nobody else notices."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from tenure.contracts import BUILT_IN
from tenure.errors import JobNotFound
from tenure.jobs.job import NewJob
from tenure.postgres import retention
from tenure.postgres.migrate import migrate
from tenure.postgres.store import Store
from tests.harness import Harness
from tests.postgres.retiring import (
    WIDTH,
    begun,
    detaching,
    ended,
    full,
    gone,
    leaving,
    long_ago,
    lows,
    retired,
    tables,
    taken,
)


async def test_a_full_range_whose_jobs_ended_long_ago_leaves(store: Store, db: Harness) -> None:
    ids = [await ended(store) for _ in range(3)]
    await store.enqueue(NewJob("t"))
    (job,) = await store.claim(worker="w")
    await store.effect(job.held, "charge", {"receipt": 1})
    await store.succeed(job.held)
    full(db)
    again = await store.requeue(job.id, actor="ada")
    long_ago(db, 0)
    others = await ended(store, queue="other")
    before = db.fingerprint(others)
    assert await retired(store) == 1
    await gone(store, db, *ids, job.id)
    assert await store.effects(job.id) == {}
    assert await store.reruns(job.id) == (None, None)
    assert await store.reruns(again) == (None, None)
    calls: list[Awaitable[object]] = [store.cancel(job.id), store.transition(job.id, "queued"), store.succeed(job.held)]
    for call in [*calls, store.requeue(job.id, actor="ada")]:
        with pytest.raises(JobNotFound):
            await call
    assert db.fingerprint(others) == before
    (rerun,) = await store.claim(worker="w")
    assert rerun.id == again
    assert (await store.succeed(rerun.held)).state == "succeeded"
    assert await store.history.retire_ranges() == 0


async def test_open_dead_letters_of_a_range_outlive_it(store: Store, db: Harness) -> None:
    job_id = await ended(store, well=False)
    letter = await store.letters.of_job(job_id)
    full(db)
    long_ago(db, 0)
    assert await retired(store) == 1
    await gone(store, db, job_id)
    assert await store.letters.show(letter.id) == letter
    assert (
        db.value("select last_error ->> 'code' from tenure_standard.dead_letters where job_id = %s", job_id) == "BROKEN"
    )
    again = await store.requeue(job_id, actor="ada")
    (job,) = await store.claim(queues=["q"], worker="w")
    assert (job.id, job.payload, job.origin_letter) == (again, {"n": 7}, letter.id)


async def alive(store: Store, db: Harness) -> None:
    await store.enqueue(NewJob("t", queue="late"))
    full(db)
    long_ago(db, 0)


async def held(store: Store, db: Harness) -> None:
    await store.enqueue(NewJob("t", queue="late"))
    await store.claim(queues=["late"], worker="w")
    full(db)
    long_ago(db, 0)


async def ended_lately(store: Store, db: Harness) -> None:
    full(db)
    long_ago(db, 0)
    last = db.value("select max(id) from tenure.job_done")
    db.sql("update tenure.job_done set finished_at = now() - interval '89 days' where id = %s", last)


async def not_full(store: Store, db: Harness) -> None:
    long_ago(db, 0)
    db.sql("select setval('tenure.job_id_seq', %s)", WIDTH - 1)


async def made_lately(store: Store, db: Harness) -> None:
    full(db)
    long_ago(db, 0)
    db.sql("update tenure.range set made_at = now() - interval '89 days'")


@pytest.mark.parametrize("why", [alive, held, ended_lately, not_full, made_lately])
async def test_a_range_stays_while(store: Store, db: Harness, why: Callable[[Store, Harness], Awaitable[None]]) -> None:
    ids = [await ended(store) for _ in range(2)]
    await why(store, db)
    before = db.fingerprint(*ids)
    assert await store.history.retire_ranges() == 0
    assert (db.fingerprint(*ids), tables(db), lows(db)[0]) == (before, ["event_0", "job_done_0"], 0)
    assert (begun(db), taken(db)) == ([], [])


async def test_all_ranges_that_may_leave_do_and_one_with_a_live_job_stays_between_them(
    store: Store, db: Harness
) -> None:
    await ended(store)
    full(db, 0)
    straggler = (await store.enqueue(NewJob("t", queue="late"))).job_id
    assert straggler // WIDTH == 1
    full(db, 1)
    last = await ended(store)
    assert last // WIDTH == 2
    full(db, 2)
    await store.extend_ranges()
    long_ago(db, 0, 1, 2)
    assert await retired(store, 2) == 2
    assert (tables(db, 0), tables(db, 1), tables(db, 2)) == ([], ["event_1", "job_done_1"], [])
    assert lows(db)[:2] == [1, 3]
    (job,) = await store.claim(queues=["late"], worker="w")
    await store.succeed(job.held)
    db.log_is_sound(straggler)
    long_ago(db, 1)
    assert await retired(store) == 1
    await gone(store, db, straggler, last)


async def test_an_empty_range_leaves_too(store: Store, db: Harness) -> None:
    full(db)
    long_ago(db, 0)
    assert await retired(store) == 1
    await gone(store, db)


async def test_effects_and_events_of_a_range_go_with_it_page_by_page(
    store: Store, db: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "_PAGE", 2)
    job_id = await leaving(store, db)
    db.sql(
        "insert into tenure.effect (job_id, node, claims, at)"
        " select id, n, 1, started_at from tenure.job_done, generate_series(1, 6) n where id = %s",
        job_id,
    )
    other = await ended(store, queue="other")
    db.sql(
        "insert into tenure.effect (job_id, node, claims, at)"
        " select id, 'charge', 1, started_at from tenure.job_done where id = %s",
        other,
    )
    for of, count in ((job_id, 5), (other, 1)):
        db.sql(
            "insert into tenure.emitted (job_id, claims, body) select %s, 1, '{}' from generate_series(1, %s)",
            of,
            count,
        )
    assert await retired(store) == 1
    await gone(store, db, job_id)
    assert await store.effects(other) == {"charge": None}
    assert db.value("select array_agg(job_id) from tenure.emitted") == [other]


async def test_keys_may_go_once_the_range_of_their_jobs_has_left(store: Store, db: Harness) -> None:
    job_id = await ended(store, key="k")
    full(db)
    long_ago(db, 0)
    db.sql("update tenure.key set created_at = now() - interval '31 days'")
    assert await store.history.forget_keys() == 0
    assert (await store.enqueue(NewJob("t", {"n": 7}, queue="q", key="k"))).job_id == job_id
    assert await retired(store) == 1
    assert await store.history.forget_keys() == 1
    assert (await store.enqueue(NewJob("t", {"n": 7}, queue="q", key="k"))).made


async def test_keys_of_ranges_that_left_go_also_beside_one_long_lived_job(store: Store, db: Harness) -> None:
    await store.enqueue(NewJob("t", queue="late", key="lives-long"))
    full(db, 0)
    await ended(store, key="ended")
    full(db, 1)
    await store.extend_ranges()
    long_ago(db, 0, 1)
    db.sql("update tenure.key set created_at = now() - interval '31 days'")
    assert await retired(store) == 1
    assert lows(db)[:2] == [0, 2]
    assert await store.history.forget_keys() == 1
    assert [row["key"] for row in db.sql("select key from tenure.key")] == ["lives-long"]


async def test_statements_that_were_prepared_before_a_range_left_go_on(store: Store, db: Harness) -> None:
    for _ in range(8):  # often enough that the driver has prepared them, and the server has one plan for all
        await ended(store)
    await leaving(store, db)
    assert await retired(store) == 1
    for _ in range(8):
        db.log_is_sound(await ended(store))
    assert detaching(db) == []


async def test_a_database_from_which_ranges_have_left_is_migrated_as_any_other(
    store: Store, db: Harness, dsn: str
) -> None:
    await leaving(store, db)
    assert await retired(store) == 1
    report = migrate(dsn, {"errand": replace(BUILT_IN["phase27"], name="errand", version="1")})
    assert report.registered == ["errand 1"]
    await store.enqueue(NewJob("t", contract="errand"))
    (job,) = await store.claim("errand", worker="w")
    assert (await store.succeed(job.held)).state == "completed"
