"""A role or a database may have any setting: the engine's statements mean the same under all of them."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest

from tenure.contracts import BUILT_IN
from tenure.errors import InvalidTransition, JobFailed
from tenure.jobs.job import Failure, NewJob
from tenure.jobs.outcome import Enqueued, Moved, Noted
from tenure.postgres.migrate import migrate
from tenure.postgres.store import Store
from tests.harness import Harness
from tests.holder_calls import calls
from tests.races.sessions import CONTRACTS
from tests.worker.working import steady, working

#: What people set for a role or a database; the engine needs none of it to be otherwise.
SETTINGS = {
    "array_nulls": "off",
    "backslash_quote": "off",
    "bytea_output": "escape",
    "client_encoding": "LATIN1",
    "constraint_exclusion": "off",
    "datestyle": "SQL, DMY",
    "default_transaction_deferrable": "on",
    "default_transaction_isolation": "serializable",
    "enable_indexscan": "off",
    "enable_nestloop": "off",
    "enable_partition_pruning": "off",
    "extra_float_digits": "-15",
    "idle_in_transaction_session_timeout": "1ms",
    "intervalstyle": "iso_8601",
    "jit": "on",
    "jit_above_cost": "0",
    "lock_timeout": "1ms",
    "plan_cache_mode": "force_generic_plan",
    "quote_all_identifiers": "on",
    "row_security": "off",
    "search_path": "nowhere",
    "standard_conforming_strings": "off",
    "statement_timeout": "1ms",
    "synchronous_commit": "off",
    "timezone": "America/St_Johns",
    "transform_null_equals": "on",
    "xmloption": "document",
}
TEXT = "日本 € ü \\ ' \" {NULL} NULL"


def set_for_the_database(db: Harness, name: str, value: str) -> None:
    """Let new sessions begin with this value."""
    database = db.value("select current_database()")
    db.sql(f"alter database {database} set {name} = {value if ', ' in value else repr(value)}")


async def a_life(store: Store, db: Harness, contract: str) -> int:
    """Make, claim, beat, fail, claim again and end jobs, and read them; which one ended well."""
    later = datetime.now(UTC) + timedelta(days=1)
    jobs = [
        NewJob("t", {"text": TEXT, "n": 0.1}, contract, key=f"{contract}:{TEXT}"),
        NewJob("t", {"n": 1}, contract, priority=9, trace_id="trace"),
        NewJob("other", {"n": 2}, contract, queue="später", tenant_id="tenant"),
        NewJob("t", {"n": 3}, contract, run_at=later, correlation_id="c"),
        NewJob("t", {"n": 4}, contract, delay_ms=86_400_000),
    ]
    made = [one for one in await store.enqueue_many(jobs) if isinstance(one, Enqueued)]
    assert [one.made for one in made] == [True] * 5
    assert (await store.enqueue(jobs[0])) == Enqueued(made[0].job_id, made=False)
    assert db.row(made[3].job_id)["due_at"] == later
    won = await store.claim(contract, ["default", "später"], worker="w", limit=10)
    assert {job.id for job in won} == {one.job_id for one in made[:3]}
    assert next(job for job in won if job.id == made[0].job_id).payload == {"text": TEXT, "n": 0.1}
    started = await store.report("start", calls([job.held for job in won]))
    assert all(one is None or isinstance(one, Moved) for one in started)
    assert all(isinstance(one, Noted) for one in await store.report("heartbeat", calls([job.held for job in won])))
    first, second, third = sorted(won, key=lambda job: job.id)
    ended = await store.report("succeed", calls([first.held, third.held], results=[{"text": TEXT}, None]))
    assert [type(one) for one in ended] == [Moved, Moved]
    failed = await store.fail(second.held, Failure(TEXT, retryable=True))
    assert failed.will_retry
    if BUILT_IN[contract].path("cancel"):
        with suppress(InvalidTransition):  # one document has no cancel from where the job is
            await store.cancel(made[4].job_id, reason=TEXT, actor="ada")
    (seen,) = await store.jobs([first.id])
    assert (seen.result, seen.role) == ({"text": TEXT}, "done")
    assert (await store.events(first.id))[-1].hop
    db.log_is_sound(*(one.job_id for one in made))
    return first.id


@pytest.mark.parametrize("name", SETTINGS)
async def test_a_job_lives_under_any_setting_of_the_database(dsn: str, db: Harness, name: str) -> None:
    set_for_the_database(db, name, SETTINGS[name])
    async with Store.open(dsn) as store:
        ended = await a_life(store, db, "standard")
        assert (await store.find(contract="standard", younger_s=3_600.0)).jobs
        assert (await store.details(ended)).job.result == {"text": TEXT}
        assert await store.registered_contracts()


async def test_jobs_of_every_contract_live_when_all_settings_are_changed(dsn: str, db: Harness) -> None:
    for name, value in SETTINGS.items():
        set_for_the_database(db, name, value)
    async with Store.open(dsn) as store:
        for contract in CONTRACTS:
            await a_life(store, db, contract)
            await store.enqueue_many([NewJob("t", contract=contract, queue="reaped") for _ in range(3)])
            lost = await store.claim(contract, ["reaped"], worker="w", limit=3)
            db.expire(*(job.id for job in lost))
            await store.reap(contract)
            await store.promote(contract)


async def test_a_worker_works_when_all_settings_are_changed(dsn: str, db: Harness) -> None:
    for name, value in SETTINGS.items():
        set_for_the_database(db, name, value)
    async with steady(dsn) as app:

        @app.task
        async def echo(text: str, *, fails: bool = False) -> str:
            if fails:
                raise ValueError(text)
            return text

        async with working(app):
            assert await app.result(await echo.enqueue(TEXT), timeout=60) == TEXT
            ids = await app.enqueue_many(echo.call(f"{TEXT}{n}") for n in range(20))
            assert [await app.result(one, timeout=60) for one in ids] == [f"{TEXT}{n}" for n in range(20)]
            bad = await echo.options(max_attempts=1).enqueue(TEXT, fails=True)
            with pytest.raises(JobFailed, match="日本"):
                await app.result(bad, timeout=60)


def test_a_database_is_migrated_when_all_settings_are_changed(empty_dsn: str) -> None:
    with Harness(empty_dsn) as db:
        for name, value in SETTINGS.items():
            if not value.endswith("ms"):  # its session has its own timeouts as soon as it is there, and not before
                set_for_the_database(db, name, value)
    assert migrate(empty_dsn).registered
