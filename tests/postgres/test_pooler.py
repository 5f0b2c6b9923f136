"""Through PgBouncer in transaction mode: the engine finds out by itself, and leaves nothing behind on its sessions."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Iterator

import psycopg
import pytest

from tenure.app import App
from tenure.errors import BadInput, Busy
from tenure.jobs.job import Failure, NewJob
from tenure.postgres import connect
from tenure.postgres.connect import probe_dsn, session_settings
from tenure.postgres.doctor.examination import examine
from tenure.postgres.store import Store
from tenure.settings import Settings
from tests.harness import Harness
from tests.pooler import Pooler, pooling
from tests.postgres.test_borrowed import _KEEP_SETTINGS
from tests.worker.working import until, working

PROGRAM = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="PgBouncer is not installed: apt install pgbouncer")


@pytest.fixture(scope="module")
def bouncer(server: str) -> Iterator[Pooler]:
    """A PgBouncer with two sessions a database, so that nobody has one for long."""
    assert PROGRAM is not None
    with pooling(server, PROGRAM, "default_pool_size = 2", everybody=False) as started:
        yield started


@pytest.fixture
def pooled_dsn(dsn: str, bouncer: Pooler) -> Iterator[str]:
    """This test's database, through it."""
    yield bouncer.through(dsn)
    bouncer.let_go(dsn)


async def test_a_store_finds_out_by_itself_that_a_pooler_stands_in_between(dsn: str, pooled_dsn: str) -> None:
    assert (await probe_dsn(dsn))[1] is False
    address, behind_pooler = await probe_dsn(pooled_dsn)
    assert behind_pooler
    assert "options" not in address


async def test_doctor_asks_for_the_address_behind_the_pooler(dsn: str, pooled_dsn: str) -> None:
    assert "direct-address-missing" not in {found.code for found in await examine(dsn)}
    found = await examine(pooled_dsn)
    assert "direct-address-missing" in {one.code for one in found}
    assert "check-failed" not in {one.code for one in found}
    found = await examine(pooled_dsn, direct_url=dsn)
    assert not {"direct-address-missing", "direct-address-wrong"} & {one.code for one in found}


async def test_a_pooler_that_swallows_the_settings_is_noticed_too(server: str, dsn: str) -> None:
    assert PROGRAM is not None
    with pooling(server, PROGRAM, "ignore_startup_parameters = options", everybody=False) as silent:
        assert (await probe_dsn(silent.through(dsn)))[1] is True
        silent.let_go(dsn)


async def test_every_row_is_written_under_the_engines_settings_and_nothing_of_them_is_left(
    pooled_dsn: str, db: Harness
) -> None:
    db.sql(_KEEP_SETTINGS.replace("%s", ",".join(session_settings())))
    async with Store.open(pooled_dsn, connections=4) as store:
        ids = [made.job_id for made in await store.enqueue_many([NewJob("t")] * 20) if not isinstance(made, Exception)]
        jobs = await store.claim("standard", worker="w", limit=20)
        await asyncio.gather(*(store.succeed(job.held, {"n": n}) for n, job in enumerate(jobs)))
    kept = db.sql("select distinct name, value from public.setting")
    assert {row["name"]: row["value"] for row in kept} == session_settings()
    db.log_is_sound(*ids)
    for _ in range(4):  # whichever session it is
        with psycopg.connect(pooled_dsn, autocommit=True, prepare_threshold=None) as connection:
            (row,) = connection.execute(
                "select current_setting('enable_seqscan'), (select count(*) from pg_prepared_statements)"
            ).fetchall()
            assert row == ("on", 0)


async def test_more_callers_than_sessions_are_all_served(pooled_dsn: str, db: Harness) -> None:
    async with Store.open(pooled_dsn, connections=16) as store:
        made = await asyncio.gather(*(store.enqueue(NewJob("t", key=f"k{n % 40}")) for n in range(80)))
        won = await asyncio.gather(*(store.claim("standard", worker=f"w{n}", limit=10) for n in range(16)))
        jobs = [job for some in won for job in some]
        assert len({job.id for job in jobs}) == len(jobs) == len({one.job_id for one in made}) == 40
        await asyncio.gather(*(store.fail(job.held, Failure("again", retryable=True)) for job in jobs))
    db.log_is_sound(*(job.id for job in jobs))


async def test_a_locked_row_is_given_up_in_time(pooled_dsn: str, db: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "LOCK_TIMEOUT_MS", 200)
    async with Store.open(pooled_dsn) as store:
        made = await store.enqueue(NewJob("t"))
        with db.connection.transaction():
            db.sql("select from tenure.job where id = %s for update", made.job_id)
            async with asyncio.timeout(60):
                with pytest.raises(Busy):
                    await store.cancel(made.job_id, actor="ada")
        assert (await store.jobs([made.job_id]))[0].state == "queued"


async def test_a_database_at_another_isolation_level_is_refused(pooled_dsn: str, db: Harness) -> None:
    name = db.value("select current_database()")
    db.sql(f"alter database {name} set default_transaction_isolation = 'serializable'")
    with pytest.raises(BadInput, match="needs read committed"):
        await Store.connect(pooled_dsn)


async def test_a_worker_with_its_upkeep_works_through_it(pooled_dsn: str, db: Harness) -> None:
    numbers = {"standard": {"lease_ms": 60_000, "backoff_base_ms": 1, "backoff_cap_ms": 1}}
    async with App(pooled_dsn, settings=Settings(database_url=pooled_dsn, numbers=numbers)) as app:

        @app.task(max_attempts=2)
        async def double(n: int) -> int:
            if n < 0:
                raise ValueError("negative")
            return 2 * n

        async with working(app) as worker:
            tickets = [await double.enqueue(n) for n in range(30)]
            assert [await app.result(ticket, timeout=60) for ticket in tickets] == [2 * n for n in range(30)]
            bad = await double.enqueue(-1)
            await until(lambda: db.row(bad.id)["state"] == "dead", 60)
            held = await double.options(queue="other").enqueue(1)
            await app.cancel(held)
    assert worker.counts["succeeded"] == 30
    db.log_is_sound(*(ticket.id for ticket in (*tickets, bad, held)))
