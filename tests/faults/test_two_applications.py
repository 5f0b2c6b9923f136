"""Two applications on one database: neither takes, delays or ends a job of the other."""

from __future__ import annotations

import signal

import pytest

from tenure.postgres.store import Store
from tests.faults.two_apps import charge, send, send_bill
from tests.harness import Harness
from tests.worker.processes import steady_worker
from tests.worker.working import steady, until

pytestmark = [pytest.mark.serial, pytest.mark.timeout(600)]
_DONE = "select count(*) from tenure.job_done where state = 'succeeded' and type = %s"

_CONNECTIONS = (
    "select count(*) from pg_stat_activity where application_name ~ '^tenure' and datname = current_database()"
)


async def test_an_idle_foreign_worker_neither_delays_nor_ends_the_jobs_of_another_application(
    dsn: str, store: Store, db: Harness
) -> None:
    async with steady(dsn) as app:
        with steady_worker(dsn, app="tests.faults.two_apps:theirs") as foreign:
            await until(lambda: db.value(_CONNECTIONS) > 3)
            await app.enqueue_many(send.call(n) for n in range(300))
            db.sql("update tenure.job set due_at = now() - interval '2 hours', created_at = now() - interval '2 hours'")
            await store.queues.resume("default", actor="a test")
            await app._enqueue(charge.call(1).job)
            await until(lambda: db.value(_DONE, "billing.charge") == 1)  # it works, and has passed the 300
            assert db.value("select count(*) from tenure.job where claims = 0 and type = 'send'") == 300
            assert db.value("select count(*) from tenure.event where trigger = 'hand_back'") == 0
            with steady_worker(dsn, app="tests.faults.two_apps:ours") as own:
                await until(lambda: db.value(_DONE, "send") == 300)
                own.send_signal(signal.SIGTERM)
                own.wait(60)
            foreign.send_signal(signal.SIGTERM)
            foreign.wait(60)
    assert db.value("select max(claims) from tenure.job_done") == 1
    assert db.value("select count(*) from tenure.job_done where last_error is not null") == 0


async def test_two_applications_may_use_the_same_names(dsn: str, db: Harness) -> None:
    async with steady(dsn) as app:
        await app.enqueue_many([send.call(1), send_bill.call(1), send.call(2), send_bill.call(2)])
        assert {row["type"] for row in db.sql("select type from tenure.job")} == {"send", "billing.send"}
        with (
            steady_worker(dsn, app="tests.faults.two_apps:ours"),
            steady_worker(dsn, app="tests.faults.two_apps:theirs"),
        ):
            await until(lambda: db.value("select count(*) from tenure.job_done") == 4)
    results = {(row["type"], row["result"]) for row in db.sql("select type, result from tenure.job_done")}
    assert results == {
        ("send", "ours 1"), ("send", "ours 2"), ("billing.send", "theirs 1"), ("billing.send", "theirs 2"),
    }  # fmt: skip
