"""However many id ranges there are, a statement locks a few partitions, and everything works with stock settings.

PostgreSQL's lock table has 6,400 entries with stock settings, for all connections together. A statement that locks
every partition of the log uses them up with a few hundred ranges, and then every connection fails.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import httpx2
import psycopg
import pytest
from psycopg import sql
from psycopg.pq import TransactionStatus

from tenure.app import App
from tenure.cli.command_table import COMMANDS, GROUPS, load_command
from tenure.contracts import BUILT_IN
from tenure.jobs.dataset import NewDataset
from tenure.jobs.job import Failure, NewJob
from tenure.jobs.outcome import Enqueued, Moved
from tenure.jobs.validation import ID_UNIT, MAX_UNITS
from tenure.postgres import statement as statements
from tenure.postgres.connect import engine_dsn
from tenure.postgres.migrate import migrate
from tenure.postgres.statement import Statement, query, statement
from tenure.postgres.store import Store
from tenure.postgres.views import schema
from tenure.proof.audit import audit
from tests.cli import forked
from tests.conftest import OwnCluster, own_database
from tests.harness import Harness
from tests.holder_calls import calls
from tests.http.processes import dispatching
from tests.postgres.retiring import ended, full, long_ago, retired, tables
from tests.proof.histories import live_all
from tests.races.sessions import Session

#: An insert locks a partition, a look also its index, and some statements touch both tables.
MOST = 3 * MAX_UNITS
#: While a statement runs it also has the indexes to which it writes: of a range two tables and eight indexes.
MOST_AT_ONCE = 10 * MAX_UNITS

#: A value for each parameter by which a statement is told the ids that it reads.
SAMPLES: dict[str, Any] = {
    "id": 5, "ids": [5, 6], "after": 4, "before": 7, "low": 0, "high": ID_UNIT, "limit": 10, "scan": 10, "rows": 10,
    "keys": ["k"], "contracts": ["reliability"], "facts": ["heartbeat"], "keep_sec": 1.0,
}  # fmt: skip
STATEMENTS = [
    path.name.removesuffix(".sql")
    for path in sorted(files("tenure.postgres").joinpath("queries").iterdir(), key=lambda path: path.name)
    if path.name.endswith(".sql") and path.name != "begin_snapshot.sql"  # begins a transaction, and has no plan
]

#: By name, and not by a join: that would walk over the catalogue's tens of thousands of relations each time.
LOCKED = r"""
select count(distinct relation) from pg_locks
where pid = pg_backend_pid() and locktype = 'relation'
  and relation::regclass::text ~ '^(tenure\.)?(event|job_done)_[0-9]'
"""


#: What a backend has locked while its INSERT runs (PostgreSQL lets go of the indexes when it ends), and as a command on
#: tables ends, whichever connection it is on.
WATCH = rf"""
create table public.locked (what text, partitions bigint);
grant insert on public.locked to public;
create function public.watch() returns trigger language plpgsql as $$
begin insert into public.locked select tg_table_name, ({LOCKED}); return null; end $$;
create trigger watch after insert on tenure.event for each statement execute function public.watch();
create trigger watch after insert on tenure.job_done for each statement execute function public.watch();
create function public.watch_commands() returns event_trigger language plpgsql as $$
begin insert into public.locked select tg_tag, ({LOCKED}); end $$;
create event trigger watch_commands on ddl_command_end execute function public.watch_commands()
"""
WATCHED = "select what, max(partitions) as most from public.locked group by what"
#: Tables of history that are not the owner's.
THEIRS = """
select oid::regclass::text from pg_class
where relname ~ '^(event|job_done)' and relkind in ('r', 'p') and relowner <> 'tenure_owner'::regrole
"""
UNWATCH = """
drop event trigger watch_commands;
drop trigger watch on tenure.event;
drop trigger watch on tenure.job_done;
drop function public.watch, public.watch_commands;
drop table public.locked
"""


@pytest.fixture(scope="module")
def stock(own_cluster: OwnCluster) -> Iterator[str]:
    """A server with PostgreSQL's own limits."""
    with own_cluster(max_connections="100", max_locks_per_transaction="64") as cluster:
        yield cluster.dsn


@pytest.fixture(scope="module", params=[60, pytest.param(3_000, marks=pytest.mark.prove)], ids="{}-ranges".format)
def many_ranges(stock: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """A database with many id ranges."""
    with own_database(stock) as dsn:
        migrate(dsn)
        with psycopg.connect(dsn, autocommit=True) as connection:
            made = 0
            while made < request.param:
                connection.execute("select setval('tenure.job_id_seq', greatest(1, max(high) - 1)) from tenure.range")
                connection.execute("select tenure.extend_ranges(10)")
                ((made,),) = connection.execute("select count(*) from tenure.range").fetchall()
            connection.execute("select setval('tenure.job_id_seq', 1)")
        yield dsn


@pytest.mark.parametrize("mode", ["custom", "generic"])
def test_no_plan_locks_more_than_a_few_partitions(many_ranges: str, mode: str) -> None:
    locked: dict[str, int] = {}
    with psycopg.connect(engine_dsn(many_ranges), autocommit=True) as engine:
        for name in STATEMENTS:
            asked = statement(name, {each: SAMPLES.get(each) for each in query(name).names})
            given = sql.SQL("({})").format(sql.SQL(", ").join(map(sql.Literal, asked.values)))
            with engine.transaction(force_rollback=True):
                engine.execute(f"set local plan_cache_mode = force_{mode}_plan".encode())
                engine.execute(b"prepare asked as " + asked.query.text.encode())
                engine.execute(sql.SQL("explain execute asked {}").format(given if asked.values else sql.SQL("")))
                engine.execute("deallocate asked")
                ((locked[name],),) = engine.execute(LOCKED.encode()).fetchall()
    assert len(locked) > 90
    assert {name: count for name, count in locked.items() if count > 10} == {}


@pytest.fixture
def most_locked(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The most partitions that were locked after each statement in its transaction, by the statement's name."""
    seen: Counter[str] = Counter()
    execute = statements._execute

    async def counted(connection: psycopg.AsyncConnection[Any], step: Any) -> Any:
        if not isinstance(step, Statement) or step.alone:
            return await execute(connection, step)
        inside = connection.info.transaction_status is not TransactionStatus.IDLE
        async with nullcontext() if inside else connection.transaction():
            cursor = await execute(connection, step)
            rows = await (await connection.execute(LOCKED.encode())).fetchall()
            seen[step.query.name] = max(seen[step.query.name], rows[0][0])
        return cursor

    monkeypatch.setattr(statements, "_execute", counted)
    return seen


@pytest.fixture
def watched(many_ranges: str) -> Iterator[Harness]:
    """A database that writes down what is locked while it works."""
    with Harness(many_ranges) as db:
        db.sql(WATCH)
        yield db
        db.sql(UNWATCH)


async def finished_long_ago(store: Store, db: Harness, unit: int) -> None:
    """Finish a job in the range that begins with this unit of ids, a hundred days ago."""
    db.sql("select setval('tenure.job_id_seq', %s)", unit * ID_UNIT)
    await ended(store, queue="long ago")
    full(db, unit)
    long_ago(db, unit)


async def test_whole_lives_upkeep_lists_and_the_audit_lock_a_few_partitions(
    many_ranges: str, most_locked: Counter[str], watched: Harness
) -> None:
    db = watched
    async with Store.open(many_ranges) as store:
        await live_all(store, db)
        await finished_long_ago(store, db, 5)
        await scattered(store, db)
        for contract in await store.contracts():
            await asyncio.gather(store.reap(contract), store.promote(contract), store.settle(contract))
        await store.tally()
        await store.find(type="nothing")
        await store.extend_ranges()
        await store.history.forget_payloads(0)
        await store.history.forget_keys(0)
        await store.history.forget_claims(60)
        assert await retired(store) == 1
        assert tables(db, 5) == []
        assert (await audit(store)).violations == []
    at_once = {row["what"]: row["most"] for row in db.sql(WATCHED)}
    assert len(most_locked) > 40
    assert {name: count for name, count in most_locked.items() if count > MOST} == {}
    assert set(at_once) >= {"event", "job_done", "ALTER TABLE", "DROP TABLE"}
    assert {what: count for what, count in at_once.items() if count > MOST_AT_ONCE} == {}


async def test_operations_on_jobs_of_many_ranges_lock_a_few_partitions_at_a_time(
    many_ranges: str, most_locked: Counter[str], watched: Harness
) -> None:
    async with Store.open(many_ranges) as store:
        for n in range(48):
            watched.sql("select setval('tenure.job_id_seq', %s)", (n + 7) * ID_UNIT + 2_000)
            await store.enqueue(NewJob("operated", {"n": n}, queue="operated"))
        asked: dict[str, dict[str, Any]] = {"move": {"queue": "slow"}, "cancel": {"reason": "r"}, "requeue": {}}
        for verb, options in asked.items():
            preview = await store.operations.preview("jobs", verb, "type:operated", actor="ada", **options)
            while not preview.collected:
                preview = await store.operations.collect(preview.id)
            await store.operations.start(preview.id, actor="ada")
            await store.operations.work(preview.id)
            done = await store.operations.show(preview.id)
            assert (done.state, done.done) == ("done", 48)
    assert {name: count for name, count in most_locked.items() if count > MOST} == {}
    assert {row["what"]: row["most"] for row in watched.sql(WATCHED) if row["most"] > MOST_AT_ONCE} == {}


async def scattered(store: Store, db: Harness) -> None:
    """Claim, beat, fail, end and reap jobs that lie in four dozen ranges."""
    for n in range(48):
        db.sql("select setval('tenure.job_id_seq', %s)", (n + 7) * ID_UNIT)
        await store.enqueue_many(
            [NewJob("t", {"n": n}, contract=contract, queue="scattered") for contract in ("standard", "reliability")]
        )
    for contract in ("standard", "reliability"):
        won = []
        while jobs := await store.claim(contract, ["scattered"], worker="w", limit=100):
            won += [job.held for job in jobs]
        assert len(won) == 48
        await store.report("start", calls(won)) if contract == "reliability" else None
        await store.report("heartbeat", calls(won))
        await store.report(
            "fail",
            calls(won[:16], failures=[Failure("no", retryable=True)] * 16, keys=[f"fail-{n}" for n in range(16)]),
        )
        await store.report("succeed", calls(won[16:32]))
        await store.cancel_many([held.id for held in won[:16]], actor="ada")
        db.expire(*(held.id for held in won[32:]))


VIEWS = [
    (f"{schema(contract)}.{view.name}", next(column for column, field in view.columns.items() if field == key))
    for contract in BUILT_IN.values()
    for view in contract.views
    for key in [{"jobs": "id", "finished": "id"}.get(view.rows, "job_id")]
]


@pytest.mark.parametrize("ids", ["= 7", f"in (7, {5 * ID_UNIT})", "between 5 and 9", "= any ('{7, 8}')"])
@pytest.mark.parametrize(("view", "key"), VIEWS, ids=[view for view, _ in VIEWS])
def test_a_view_locks_the_partitions_of_the_jobs_that_are_asked_for(
    many_ranges: str, view: str, key: str, ids: str
) -> None:
    with Harness(many_ranges) as reader, reader.connection.transaction():
        reader.sql(f"select * from {view} where {key} {ids}")
        assert reader.value(LOCKED) <= 2 * MOST_AT_ONCE // MAX_UNITS


def test_grants_lock_one_partition_at_a_time(many_ranges: str, watched: Harness) -> None:
    """To give all partitions to their owner in one transaction took a dozen locks for each."""
    watched.sql("do $$ begin if to_regrole('tenure_owner') is null then create role tenure_owner; end if; end $$")
    watched.sql("alter table tenure.event owner to current_user; alter table tenure.event_3 owner to current_user")
    assert migrate(many_ranges, grants=True).granted
    assert watched.sql(THEIRS) == []
    assert watched.value("select max(partitions) from public.locked where what like 'ALTER %%'") <= MOST_AT_ONCE


def test_ranges_are_made_beside_thirty_busy_connections_with_stock_settings(many_ranges: str) -> None:
    """The connections had used up the lock table once, and no job could be made beyond the last range."""
    with ExitStack() as stack:
        db = stack.enter_context(Harness(many_ranges))
        busy = [stack.enter_context(Session(many_ranges, f"busy-{n}")) for n in range(30)]
        for unit in range(20, 20 + MAX_UNITS):
            db.sql("select setval('tenure.job_id_seq', %s)", unit * ID_UNIT + 1_000)
            busy[0].enqueue(*(NewJob("t", queue=session.name) for session in busy))
        for session in busy:
            session.begin()
            won = session.claim("standard", session.name, limit=MAX_UNITS)
            assert len(won) == MAX_UNITS
            for n, job in enumerate(won):
                session.finish(("succeed", "fail")[n % 2], job.held)
        assert max(session.sql(LOCKED)[0]["count"] for session in busy) <= MOST_AT_ONCE
        before = db.value("select max(high) from tenure.range")
        db.sql("select setval('tenure.job_id_seq', %s)", before - 1)
        with Session(many_ranges, "late") as late:
            (made,) = late.enqueue(NewJob("t", queue="late"))
            assert isinstance(made, Enqueued)
            assert made.job_id >= before
        for session in busy:
            session.end("commit")


async def test_many_connections_fail_jobs_at_once_with_stock_settings(many_ranges: str) -> None:
    """Each failure was thousands of locks once: two dozen connections used up the lock table."""

    async def retry(n: int) -> list[Any]:
        async with Store.open(many_ranges) as store:
            await store.enqueue_many([NewJob("t", queue=f"at-once-{n}")] * 10)
            held = [job.held for job in await store.claim(queues=[f"at-once-{n}"], worker="w", limit=10)]
            return [await store.fail(one, Failure("no", retryable=True), key="k") for one in held]

    for outcomes in await asyncio.gather(*(retry(n) for n in range(24))):
        assert [type(outcome) for outcome in outcomes] == [Moved] * 10


TASKS = """
import tenure

app = tenure.App()


@app.task
def later(fails: bool = False) -> None:
    if fails:
        raise tenure.PermanentError("no")
"""


def nap() -> None:
    """What a schedule enqueues."""


#: Commands that look at no database, or bring one of their own.
ELSEWHERE = {"openapi", "demo", "dev", "contracts diagram", "contracts diff", "contracts verify", "conformance", "top"}


def commands() -> set[str]:
    """Every command of `tenure --help`, with its group."""
    return set(COMMANDS) | {f"{group} {name}" for group in GROUPS for name in load_command(group).commands}


async def test_every_command_works_with_stock_settings(many_ranges: str, tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text(TASKS)
    path = os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", "")))
    environment = {**os.environ, "DATABASE_URL": many_ranges, "PYTHONPATH": path}
    run: set[str] = {"worker", "serve"}

    def tenure(command: str) -> str:
        done = forked.tenure(*shlex.split(command), cwd=tmp_path, DATABASE_URL=many_ranges)
        # What doctor finds here depends on the machine.
        assert done.returncode == 0 or command == "doctor", f"tenure {command}: {done.stdout}{done.stderr}"
        run.update(name for name in commands() if f"{command} ".startswith(f"{name} "))
        return done.stdout

    def made(options: str = "") -> str:
        return str(json.loads(tenure(f"enqueue later --json {options}"))["id"])

    def work() -> None:
        worker = [sys.executable, "-m", "tenure", "worker", "tasks:app", "--until-idle"]
        worked = subprocess.run(worker, env=environment, capture_output=True, text=True)
        assert worked.returncode == 0, worked.stdout + worked.stderr

    with Harness(many_ranges) as db:
        async with Store.open(many_ranges) as store:
            await finished_long_ago(store, db, 56)
            await store.datasets.declare(NewDataset("prices"))
            await store.datasets.new_generation("prices")
        job_id, *dead = made(), made("""--payload '{"fails": true}'"""), made("""--payload '{"fails": true}'""")
        work()
        letters = [db.value("select id from tenure.dead_letter where job_id = %s", each) for each in dead]
        gone = db.value("select name from tenure.past_worker")
        with dispatching(many_ranges) as (process, url), httpx2.Client(base_url=url) as client:
            asked = {"queues": ["default"], "worker_id": "far", "limit": 1, "types": ["later"]}
            served = client.post("/api/v1/jobs", json={"type": "later"}).raise_for_status().json()["id"]
            (claim,) = client.post("/api/v1/claims", json=asked).raise_for_status().json()["claims"]
            proof = {"claims": claim["claims"], "lease_token": claim["lease_token"]}
            client.post(f"/api/v1/jobs/{served}/succeed", json=proof).raise_for_status()
            assert client.get(f"/api/v1/jobs/{served}").raise_for_status().json()["state"] == "succeeded"
            assert client.get(f"/api/v1/jobs/{served}/events").status_code == 200
            process.terminate()
            assert process.wait(60) == 0
        key = json.loads(tenure("keys create k --scope work --json"))["id"]
        async with App(many_ranges) as app:
            nap_task = app.task(nap)
            await app.schedule("late", nap_task.call(), days=1)
            graph = app.flow("late")
            graph.node(nap_task.call())
            flow = (await graph.start()).id
        moving = json.loads(tenure("jobs move type:nap --queue other --dry-run --json"))["id"]
        for command in (
            f"jobs show {job_id}", f"jobs events {job_id}", f"jobs why {job_id}", f"replay --job {job_id}",
            f"jobs requeue {job_id}", "jobs list", "jobs list --state succeeded", "jobs list --type nothing",
            f"jobs move {made()} --queue other", f"jobs transition {made()} running", f"jobs cancel {made()} {made()}",
            "schedules list", "schedules show late", "schedules next late", "schedules pause late",
            "schedules resume late", "schedules run late", "schedules delete late", "outbox list", "outbox retry",
            "flows list", f"flows show {flow}", f"flows cancel {flow}", f"flows resume {flow}", "datasets list",
            "datasets show prices", "datasets rows prices", "datasets history", "datasets cutover prices=2",
            "datasets rollback prices", "alarms list", "alarms mute xmin-pinned --for 1h", "alarms unmute xmin-pinned",
            "alarms test", "stats", "doctor", f"workers show {gone}", "jobs count --by worker",
            "jobs list worker:w", "jobs list took:>1s", "dlq groups", "operations list",
            f"operations show {moving}", f"operations run {moving}", f"operations items {moving}",
            "queues list", "queues pause other", "queues resume other", "workers list", "types list",
            "types show later", "types reset later", "keys list", f"keys revoke {key}", "contracts list",
            "contracts show reliability", "dlq list", f"dlq show {letters[0]}", f"dlq requeue {letters[0]}",
            f"dlq discard {letters[1]} --reason old --person ada", "migrate", "migrate --grants", "migrate --grants",
            "upkeep --once", "verify",
        ):  # fmt: skip
            tenure(command)
        assert "succeeded" in tenure(f"jobs show {job_id}")
        assert db.value("select count(*) from tenure.range where low = %s", 56 * ID_UNIT) == 0
        assert db.sql(THEIRS) == []
    assert commands() - run - ELSEWHERE == {
        "dlq approve",
        "operations abort",
        "operations resume",
        "jobs retry-now",  # they need a state that is not made here
    }
    errand = replace(BUILT_IN["gate_b2"], name="errand", version="1")
    assert migrate(many_ranges, {**BUILT_IN, "errand": errand}, grants=True).registered == ["errand 1"]
