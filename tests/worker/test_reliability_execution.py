"""Document 002 through the real worker: user code runs while its job is running, and its effects are there first."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

import tenure
from tenure.app import App
from tenure.jobs.holder_call import HolderCall
from tenure.jobs.job import Held, NewJob
from tenure.postgres.store import Store
from tests.contracts.reliability import running, shown
from tests.harness import Harness
from tests.worker.working import quick, until, working

#: What other sessions see of a job's effects in the very transaction that makes it succeeded.
_AT_SUCCESS = """
create table public.at_success (id bigint, effects bigint, result jsonb, txid bigint);
create function public.at_success() returns trigger language plpgsql as $$
begin
    if new.state = 'succeeded' then
        insert into public.at_success
        values (new.id, (select count(*) from tenure.effect where job_id = new.id), new.result, txid_current());
    end if;
    return null;
end $$;
create trigger at_success after insert on tenure.job_done for each row execute function public.at_success();
"""


def read(dsn: str, query: str, *values: Any) -> dict[str, Any]:
    """The only row of a query, on a connection of its own: what everybody sees now."""
    with psycopg.connect(dsn, autocommit=True, row_factory=dict_row) as connection:
        (row,) = connection.execute(query.encode(), values).fetchall()
    return row


@pytest.mark.req("S2-04")
@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_the_handlers_first_statement_sees_its_own_job_running(
    app: App, dsn: str, db: Harness, kind: str
) -> None:
    seen: list[dict[str, Any]] = []
    mine = "select status, owner, lease_expires_at > now() as leased from tenure_reliability.jobs where job_id = %s"

    if kind == "async":

        @app.task(contract="reliability", max_attempts=2)
        async def index(ctx: tenure.Context) -> None:
            seen.append(read(dsn, mine, ctx.job.id))
            if ctx.attempt == 1:
                raise tenure.TransientError("busy")
    else:

        @app.task(contract="reliability", max_attempts=2)
        def index(ctx: tenure.Context) -> None:
            seen.append(read(dsn, mine, ctx.job.id))
            if ctx.attempt == 1:
                raise tenure.TransientError("busy")

    async with working(app) as worker:
        tickets = [await index.enqueue() for _ in range(5)]
        await until(lambda: worker.counts["succeeded"] == 5)
    assert len(seen) == 2 * len(tickets)
    assert {(row["status"], row["leased"]) for row in seen} == {("running", True)}
    assert all(row["owner"] for row in seen)


@pytest.mark.req("S2-04")
async def test_a_job_that_is_assigned_has_a_lease_and_its_handler_has_not_begun(
    app: App, dsn: str, store: Store, db: Harness
) -> None:
    began = asyncio.Event()

    @app.task(contract="reliability")
    async def index() -> None:
        began.set()

    with psycopg.connect(dsn) as other:
        # Nobody can write a log row of a start while this transaction is open; a claim's own is let through.
        other.execute(
            "create function public.wait() returns trigger language plpgsql as $$ begin "
            "if new.trigger = 'start' then perform pg_advisory_xact_lock(7); end if; return new; end $$"
        )
        other.execute("create trigger wait before insert on tenure.event for each row execute function public.wait()")
        other.commit()
        other.execute("select pg_advisory_xact_lock(7)")
        async with working(app):
            ticket = await index.enqueue()
            waits = (
                "select count(*) from pg_locks where locktype = 'advisory' and not granted and objid = 7 "
                "and database = (select oid from pg_database where datname = current_database())"
            )
            await until(lambda: db.value(waits) == 1)  # the worker has asked for its start, and has no answer
            row = shown(db, ticket.id)
            assert (row["status"], row["owner"] is not None) == ("assigned", True)
            assert row["lease_expires_at"] > db.value("select now()")
            assert not began.is_set()
            other.rollback()
            await asyncio.wait_for(began.wait(), 20)
            await until(lambda: shown(db, ticket.id)["status"] == "succeeded")


@pytest.mark.req("S2-06")
@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_effects_are_committed_when_the_handler_goes_on_and_before_its_job_is_succeeded(
    app: App, dsn: str, db: Harness, kind: str
) -> None:
    db.sql(_AT_SUCCESS)
    seen: list[int] = []
    count = "select count(*) as n from tenure.effect where job_id = %s"

    if kind == "async":

        @app.task(contract="reliability")
        async def index(ctx: tenure.Context) -> dict[str, str]:
            for node in ("charge", "ship"):
                await ctx.effect(node, lambda: "receipt")
                seen.append(read(dsn, count, ctx.job.id)["n"])
            return {"artifact": "page"}
    else:

        @app.task(contract="reliability")
        def index(ctx: tenure.Context) -> dict[str, str]:
            for node in ("charge", "ship"):
                ctx.effect_sync(node, lambda: "receipt")
                seen.append(read(dsn, count, ctx.job.id)["n"])
            return {"artifact": "page"}

    async with working(app):
        ticket = await index.enqueue()
        assert await app.result(ticket, timeout=60) == {"artifact": "page"}
    assert seen == [1, 2]
    told = db.one("select * from public.at_success where id = %s", ticket.id)
    assert (told["effects"], told["result"]) == (2, {"artifact": "page"})
    finished = shown(db, ticket.id)["finished_at"]
    assert all(row["at"] < finished for row in db.sql("select at from tenure.effect where job_id = %s", ticket.id))


@pytest.mark.req("S2-06")
async def test_artifacts_that_a_holder_reports_with_its_success_come_with_it_or_not_at_all(
    store: Store, db: Harness
) -> None:
    async def new() -> Held:
        await store.enqueue(NewJob("index", contract="reliability"))
        return (await running(store)).held

    kept, lost = await new(), await new()
    artifacts = [{"artifact": 1}, {"artifact": 2}]
    await store.report("succeed", [HolderCall(kept, result={"pages": 2}, events=artifacts)])
    written = db.one(
        "select d.xmin::text as job, array_agg(distinct e.xmin::text) as artifacts, count(*) as n "
        "from tenure.job_done d join tenure.emitted e on e.job_id = d.id where d.id = %s group by 1", kept.id,
    )  # fmt: skip
    assert (written["artifacts"], written["n"]) == ([written["job"]], 2)
    # Where the artifacts cannot be written, the job has not succeeded.
    db.sql(f"alter table tenure.emitted add constraint none check (job_id <> {lost.id})")
    before = db.fingerprint(lost.id)
    with pytest.raises((tenure.TenureError, psycopg.Error)):
        await store.report("succeed", [HolderCall(lost, result={"pages": 1}, events=[{"artifact": 1}])])
    assert db.fingerprint(lost.id) == before
    assert shown(db, lost.id)["status"] == "running"


@pytest.mark.req("S2-61")
@pytest.mark.timeout(300)
async def test_a_thousand_jobs_and_four_workers_make_exactly_three_thousand_events(dsn: str, db: Harness) -> None:
    db.spy()
    async with AsyncExitStack() as stack:
        apps = [await stack.enter_async_context(quick(dsn)) for _ in range(4)]
        owners, all_begun = set[str | None](), asyncio.Event()
        for app in apps:

            @app.task(contract="reliability")
            async def load(ctx: tenure.Context, n: int) -> int:
                owners.add(ctx.job.lease_owner)
                if len(owners) == len(apps):
                    all_begun.set()
                await all_begun.wait()  # no worker ends a job before each of them has begun one
                return n

        await apps[0].enqueue_many(apps[0].tasks["load"].call(n) for n in range(1_000))
        workers = [
            await stack.enter_async_context(working(app, concurrency=20, name=f"w{n}")) for n, app in enumerate(apps)
        ]
        await until(lambda: sum(worker.counts["succeeded"] for worker in workers) == 1_000, 240)
    counted = db.sql(
        "select type, count(*) as events, count(distinct job_id) as jobs from tenure_reliability.job_events group by 1"
    )
    assert {row["type"]: (row["events"], row["jobs"]) for row in counted} == {
        "job_claimed": (1000, 1000), "job_started": (1000, 1000), "job_succeeded": (1000, 1000),
    }  # fmt: skip
    seen = db.sql("select new, count(*) as hops from public.spy group by new")
    assert {row["new"]: row["hops"] for row in seen} == {"assigned": 1000, "running": 1000, "succeeded": 1000}
    assert db.value("select count(distinct actor) from tenure.event") == 4
