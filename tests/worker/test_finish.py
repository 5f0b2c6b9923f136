"""Successes are told of in groups, and each is judged alone: a neighbour's trouble is not its own."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import psycopg
import pytest

from tenure.app import App
from tenure.errors import Busy, ConnectionLost, Refused
from tenure.jobs.holder_call import HolderCall
from tenure.jobs.job import Job
from tenure.jobs.outcome import Moved
from tenure.middleware import Middleware
from tenure.postgres import connect, move
from tenure.postgres.statement import statement
from tenure.postgres.store import Store
from tenure.worker import Worker
from tests.faults.fleet import verified
from tests.harness import Harness
from tests.worker.rounds import Polls
from tests.worker.working import steady, until, working

_SUCCEEDED = "select count(*) from tenure.job_done where state = 'succeeded' and claims = 1"
_GATE = 4712

_RAISING = """
create function public.refuse() returns trigger language plpgsql as $$
begin if new.payload ->> 'n' = '4' then raise exception 'not this one'; end if; return new; end $$;
create trigger refuse before insert on tenure.job_done for each row execute function public.refuse();
"""
_HALTING = f"""
create function public.halt() returns trigger language plpgsql as $$
begin perform pg_advisory_xact_lock_shared({_GATE}); return new; end $$;
create trigger halt before insert on tenure.job_done for each row execute function public.halt();
"""


class Heard(Middleware):
    """Hears what became of jobs."""

    def __init__(self) -> None:
        self.became: dict[int, list[object]] = {}

    async def finish(self, job: Job, became: object) -> None:
        self.became.setdefault(job.id, []).append(became)

    def once(self, ids: Sequence[int]) -> list[object]:
        """What became of these jobs, of each of which it was told once."""
        assert {job_id: len(became) for job_id, became in self.became.items()} == dict.fromkeys(ids, 1)
        return [self.became[job_id][0] for job_id in ids]


@asynccontextmanager
async def ending_together(app: App, db: Harness, result: Callable[[int], Any], jobs: int = 9) -> AsyncIterator[Any]:
    """A worker whose handlers have all begun, and end at once when the event that is given is set: in one group."""
    go = asyncio.Event()

    @app.task(max_attempts=2)
    async def work(n: int) -> Any:
        await go.wait()
        return result(n)

    ids = await app.enqueue_many(work.call(n) for n in range(jobs))
    async with working(app, concurrency=jobs) as worker:
        await until(lambda: db.value("select count(*) from tenure.job where role = 'active'") == jobs)
        yield worker, ids, go
        go.set()  # whatever the test did
    at_rest(worker)


def at_rest(worker: Worker) -> None:
    """Assert that a worker keeps nothing of jobs that it has told of."""
    slots = worker._slots
    assert (worker._heartbeats.held, slots.busy, slots.unanswered, slots.free) == (set(), 0, 0, slots.concurrency)


@contextmanager
def held_up(db: Harness) -> Iterator[psycopg.Connection[Any]]:
    """Let nobody finish a job while the block lasts; whoever tries waits for the connection that is given."""
    db.sql(_HALTING)
    with psycopg.connect(db.dsn, autocommit=True) as other:
        other.execute("select pg_advisory_lock(%s)", [_GATE])
        yield other


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """How often the success of which job was told of and found its row locked."""
    found, report = Counter[int](), Store.report

    async def noted(store: Store, verb: str, calls: Sequence[HolderCall]) -> list[Any]:
        answers = await report(store, verb, calls)
        if verb == "succeed":
            found.update(one.held.id for one, answer in zip(calls, answers, strict=True) if isinstance(answer, Busy))
        return answers

    monkeypatch.setattr(Store, "report", noted)
    return found


@pytest.mark.parametrize("bad", ["too large", "a NUL", "a lone surrogate", "no JSON"])
async def test_one_result_that_cannot_be_stored_fails_its_own_job_alone(dsn: str, db: Harness, bad: str) -> None:
    unstorable = {
        "too large": "x" * 2_000_000,
        "a NUL": "a\x00b",
        "a lone surrogate": "\ud800",
        "no JSON": float("nan"),
    }
    heard = Heard()
    async with (
        steady(dsn, middleware=[heard]) as app,
        ending_together(app, db, lambda n: unstorable[bad] if n == 4 else n) as (worker, ids, go),
    ):
        go.set()
        await until(lambda: worker.counts["succeeded"] + worker.counts["failed"] == 9)
    rows = [db.row(job_id) for job_id in ids]
    assert [row["result"] for row in rows] == [0, 1, 2, 3, None, 5, 6, 7, 8]
    assert [row["state"] for row in rows] == ["succeeded"] * 4 + ["dead"] + ["succeeded"] * 4
    assert rows[4]["last_error"]["type"] == "PermanentError"
    assert {row["claims"] for row in rows} == {1}
    heard.once(ids)


async def test_one_lease_that_was_lost_is_refused_alone(dsn: str, db: Harness) -> None:
    heard = Heard()
    async with steady(dsn, middleware=[heard]) as app, ending_together(app, db, lambda n: n) as (worker, ids, go):
        db.sql("update tenure.job set lease_token = gen_random_uuid() where id = %s", ids[4])
        before = db.fingerprint(ids[4])
        go.set()
        await until(lambda: worker.counts["succeeded"] == 8 and worker.counts["refused"] == 1)
        assert db.fingerprint(ids[4]) == before
    became = heard.once(ids)
    assert isinstance(became[4], Refused)
    assert all(type(one) is Moved for n, one in enumerate(became) if n != 4)
    assert db.value(_SUCCEEDED) == 8


async def test_a_success_whose_row_stays_locked_is_said_until_it_is_heard(
    dsn: str, db: Harness, busy: Counter[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connect, "LOCK_TIMEOUT_MS", 200)
    heard = Heard()
    async with steady(dsn, middleware=[heard]) as app, ending_together(app, db, lambda n: n) as (worker, ids, go):
        with psycopg.connect(dsn) as other:
            other.execute("select from tenure.job where id = %s for update", [ids[4]])
            go.set()
            await until(lambda: worker.counts["succeeded"] == 8)
            await until(lambda: busy[ids[4]] >= 2)
            other.rollback()
        await until(lambda: worker.counts["succeeded"] + worker.counts["refused"] == 9)
    assert dict(worker.counts) == {"claimed": 9, "succeeded": 9}
    assert db.value(_SUCCEEDED) == 9
    assert all(type(one) is Moved for one in heard.once(ids))


async def test_worker_that_stops_while_a_row_is_locked_waits_until_its_success_is_heard(
    app: App, db: Harness, dsn: str, busy: Counter[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connect, "LOCK_TIMEOUT_MS", 50)
    async with ending_together(app, db, lambda n: n) as (worker, ids, go):
        with psycopg.connect(dsn) as other:
            other.execute("select from tenure.job where id = %s for update", [ids[4]])
            go.set()
            await until(lambda: worker.counts["succeeded"] == 8)
            await until(lambda: busy[ids[4]] >= 1)
            worker.stop()
            told = busy[ids[4]]
            await until(lambda: busy[ids[4]] >= told + 2)
    assert dict(worker.counts) == {"claimed": 9, "succeeded": 9}
    assert db.value(_SUCCEEDED) == 9


async def test_an_error_that_nobody_expects_costs_no_neighbour_and_no_slot(dsn: str, db: Harness) -> None:
    db.sql(_RAISING)
    async with steady(dsn) as app, ending_together(app, db, lambda n: n) as (worker, ids, go):
        go.set()
        await until(lambda: db.value(_SUCCEEDED) == 8)
        await until(lambda: not worker._heartbeats.held)  # nobody beats for it: its lease runs out
        assert worker._slots.unanswered == 0
    assert db.row(ids[4])["state"] != "succeeded"


async def test_while_the_database_does_not_answer_no_more_than_twice_the_concurrency_is_held(
    app: App, db: Harness, polls: Polls
) -> None:
    @app.task
    async def work() -> None: ...

    ids = await app.enqueue_many(work.call() for _ in range(60))
    with held_up(db) as other:
        async with working(app, concurrency=5) as worker:
            await until(lambda: worker.counts["claimed"] == 10)
            await polls.another()
            assert worker.counts["claimed"] == len(worker._heartbeats.held) == 10
            assert db.value("select count(*) from tenure.job where role = 'active'") == 10
            other.execute("select pg_advisory_unlock(%s)", [_GATE])
            await until(lambda: worker.counts["succeeded"] == 60)
    at_rest(worker)
    assert db.value(_SUCCEEDED) == 60
    await verified(db, len(ids))


async def test_connection_that_is_killed_under_a_group_costs_no_job_and_doubles_none(dsn: str, db: Harness) -> None:
    heard = Heard()
    kill = (
        "select pg_terminate_backend(pid) from pg_stat_activity"
        " where wait_event = 'advisory' and application_name = 'tenure' and datname = current_database()"
    )
    async with steady(dsn, middleware=[heard]) as app:
        with held_up(db) as other:
            async with ending_together(app, db, lambda n: n, 50) as (worker, ids, go):
                go.set()
                await until(lambda: len(db.sql(kill)) > 0)
                await until(lambda: len(db.sql(kill)) > 0)  # and again when it is said again
                other.execute("select pg_advisory_unlock(%s)", [_GATE])
                await until(lambda: worker.counts["succeeded"] == 50)
    assert all(type(one) is Moved for one in heard.once(ids))
    assert dict(worker.counts) == {"claimed": 50, "succeeded": 50}
    await every_job_ended_once(db, ids)


async def test_answer_to_a_group_that_is_lost_is_found_in_the_log(
    dsn: str, db: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard, sizes, report = Heard(), list[int](), Store.report

    async def lose_the_first(store: Store, verb: str, calls: Sequence[HolderCall]) -> list[Any]:
        answers = await report(store, verb, calls)
        if verb == "succeed":
            sizes.append(len(calls))
        if verb == "succeed" and len(sizes) == 1:
            raise ConnectionLost("the answer is lost")
        return answers

    async with (
        steady(dsn, middleware=[heard]) as app,
        ending_together(app, db, lambda n: n, 50) as (worker, ids, go),
    ):
        monkeypatch.setattr(Store, "report", lose_the_first)
        go.set()
        await until(lambda: worker.counts["succeeded"] + worker.counts["refused"] == 50)
    assert dict(worker.counts) == {"claimed": 50, "succeeded": 50}
    assert all(type(one) is Moved and one.state == "succeeded" for one in heard.once(ids))
    await every_job_ended_once(db, ids)


async def every_job_ended_once(db: Harness, ids: list[int]) -> None:
    """Assert that each of these jobs was claimed once and succeeded once, and that nothing else happened."""
    rows = db.sql("select job_id, trigger from tenure.event where hop")
    assert Counter((row["job_id"], row["trigger"]) for row in rows) == Counter(
        (job_id, trigger) for job_id in ids for trigger in ("claim", "succeed")
    )
    await verified(db, len(ids))


async def test_groups_with_large_results_are_cut_to_what_a_statement_may_carry(
    app: App, db: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []

    def measured(*given: Any, **more: Any) -> Any:
        made = statement(*given, **more)
        sizes.append(sum(len(value) for value in made.values if isinstance(value, str)))
        return made

    monkeypatch.setattr(move, "statement", measured)
    async with ending_together(app, db, lambda n: "x" * 1_000_000, 36) as (_, _, go):
        go.set()
        await until(lambda: db.value(_SUCCEEDED) == 36)
    assert max(sizes) < 18 * 1024 * 1024, "results of 1 MiB and groups of 1,000: no server takes that"


async def test_a_thousand_jobs_that_end_together_are_finished_by_few_statements(
    app: App, db: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes, report = list[int](), Store.report

    async def counted(store: Store, verb: str, calls: Sequence[HolderCall]) -> list[Any]:
        if verb == "succeed":
            sizes.append(len(calls))
        return await report(store, verb, calls)

    monkeypatch.setattr(Store, "report", counted)
    async with ending_together(app, db, lambda n: n, 1_000) as (worker, ids, go):
        go.set()
        await until(lambda: worker.counts["succeeded"] == 1_000)
    assert sum(sizes) == 1_000
    assert len(sizes) <= 10, sizes
    assert [db.row(job_id)["result"] for job_id in ids] == list(range(1_000))
