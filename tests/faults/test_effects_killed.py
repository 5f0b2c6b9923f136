"""Workers killed with SIGKILL: no job is seen succeeded whose result and effects are not there."""

from __future__ import annotations

import random
import subprocess
import sys
import time

import pytest
from psycopg.conninfo import make_conninfo

from tenure.jobs.job import NewJob
from tests.harness import Harness
from tests.races.sessions import Session, now

pytestmark = [pytest.mark.serial, pytest.mark.timeout(600)]

_JOBS = 200

#: A worker of its own process: two effects, then the end, job by job, until nothing is due.
_WORKER = """
import asyncio, sys
from tenure.postgres.store import Store

async def work(dsn):
    async with Store.open(dsn, connections=1) as store:
        while jobs := await store.claim("reliability", worker="w1", limit=3):
            for job in jobs:
                await store.start(job.held)
                for node in ("charge", "ship"):
                    await store.effect(job.held, node, {"claims": job.claims})
                await store.succeed(job.held, {"nodes": 2})

asyncio.run(work(sys.argv[1]))
"""

_BACKENDS = "select count(*) from pg_stat_activity where application_name = 'worker' and datname = current_database()"
_EFFECTS = "select count(*) from tenure.effect"
_WITHOUT = """
select id from tenure.job_done as job
where state = 'succeeded' and (result is null or 2 <> (
    select count(*) from tenure.effect where job_id = job.id and node in ('charge', 'ship') and at <= job.finished_at))
"""


@pytest.mark.req("S2-06")
def test_no_job_is_succeeded_without_what_it_did_however_its_workers_die(db: Harness, dsn: str) -> None:
    chance = random.Random(6)
    with Session(dsn, "maker") as maker:
        killed_at_work = half_done = rounds = 0
        # Which statement a kill meets is chance: go on until one came between an effect and the end.
        while rounds < 3 or ((killed_at_work < 3 or not half_done) and rounds < 20):
            rounds += 1
            # More for each round: however long the kills take, the workers find something to do.
            maker.enqueue(*(NewJob("index", contract="reliability", max_attempts=100) for _ in range(_JOBS)))
            address = make_conninfo(dsn, application_name="worker")
            workers = [subprocess.Popen([sys.executable, "-c", _WORKER, address]) for _ in range(2)]
            had = db.value(_EFFECTS)
            while db.value(_EFFECTS) < had + 3 and any(worker.poll() is None for worker in workers):
                time.sleep(0.001)  # they are at work, however long this machine took to start them
            time.sleep(chance.uniform(0, 0.02))
            for worker in workers:
                killed_at_work += worker.poll() is None
                worker.kill()
                worker.wait()
                assert db.sql(_WITHOUT) == []
            while db.value(_BACKENDS):
                time.sleep(0.001)  # what the dead had sent may still be committed
            assert db.sql(_WITHOUT) == []
            half_done += db.value("select count(distinct job_id) from tenure.effect join tenure.job on job.id = job_id")
            db.sql("update tenure.job set lease_expires_at = now() - interval '1 second' where role <> 'ready'")
        assert killed_at_work >= 3, "the workers were killed before they were done"
        assert half_done, "some were killed between their first effect and their end"
        # Whoever comes after them ends what they began, and has no effect twice.
        while jobs := maker.claim("reliability", "default", 100):
            for job in jobs:
                maker.finish("start", job.held)
                for node in ("charge", "ship"):
                    now(maker.store.effect(job.held, node))
                now(maker.store.succeed(job.held, {"nodes": 2}))
    assert db.sql(_WITHOUT) == []
    assert db.value("select count(*) from tenure_reliability.jobs where status = 'succeeded'") == rounds * _JOBS
    assert db.value("select count(*) from tenure.effect") == 2 * rounds * _JOBS
