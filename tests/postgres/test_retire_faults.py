"""A range that began to leave leaves: after a crash at any step, and however long somebody stands in its way."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import pytest

from tenure.errors import Busy, ConnectionLost, Unavailable
from tenure.jobs.job import NewJob
from tenure.postgres import connect, retention
from tenure.postgres.store import Store
from tenure.proof import audit
from tests.harness import Harness
from tests.postgres.retiring import (
    WIDTH,
    begun,
    crashed_long_ago,
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

#: A backend that kills itself before the n-th of these: taking or forgetting a range, forgetting an effect, or a
#: command that changes a table.
_CRASH = """
create sequence public.steps;
create function public.crash() returns trigger language plpgsql as $$ begin
    if tg_op = 'UPDATE' then perform setval('public.steps', 1, false); end if;
    if nextval('public.steps') = {step} then perform pg_terminate_backend(pg_backend_pid()); end if;
    return coalesce(new, old);
end $$;
create function public.crash_of_command() returns event_trigger language plpgsql as $$ begin
    if nextval('public.steps') = {step} then perform pg_terminate_backend(pg_backend_pid()); end if;
end $$;
create trigger crash before update on tenure.range for each row when (new.taken is not null)
    execute function public.crash();
create trigger crash_at_the_end before delete on tenure.range for each row execute function public.crash();
create trigger crash before delete on tenure.effect for each row execute function public.crash();
create event trigger crash on ddl_command_start when tag in ('ALTER TABLE', 'DROP TABLE')
    execute function public.crash_of_command();
"""
_NO_CRASH = "drop event trigger crash; drop function public.crash() cascade; drop sequence public.steps"

#: Before which step, and how many of the range's two tables are there then.
STEPS = {
    "marking": (1, 2), "detaching one table": (2, 2), "dropping it": (3, 2), "detaching the other": (4, 1),
    "dropping that": (5, 1), "forgetting its effects": (6, 0), "forgetting the range": (7, 0),
}  # fmt: skip


async def held_up(store: Store) -> None:
    """Call again as long as transactions of other tests in the cluster hold it up: until the call raises."""
    give_up = time.monotonic() + 90
    while time.monotonic() < give_up:
        assert await store.history.retire_ranges() == 0


async def crash(db: Harness, dsn: str, step: int) -> None:
    """Let a process die before this step."""
    db.sql(_CRASH.format(step=step))
    async with Store.open(dsn) as victim:
        with pytest.raises(ConnectionLost):
            await held_up(victim)
    db.sql(_NO_CRASH)


@pytest.mark.parametrize("step", STEPS)
async def test_after_a_crash_the_next_call_goes_on(store: Store, db: Harness, dsn: str, step: str) -> None:
    number, left = STEPS[step]
    job_id = await leaving(store, db)
    db.sql(
        "insert into tenure.effect (job_id, node, claims, at)"
        " select id, 'charge', 1, started_at from tenure.job_done where id = %s",
        job_id,
    )
    await crash(db, dsn, number)
    assert (len(tables(db)), detaching(db)) == (left, [])
    assert begun(db) == taken(db) == ([0] if number > 1 else [])
    # Meanwhile life goes on elsewhere, and nobody who looks is alarmed.
    assert (await audit(store)).violations == []
    db.log_is_sound(await ended(store, queue="meanwhile"))
    assert await store.extend_ranges(9) > 0
    if number > 1:
        assert await asyncio.wait_for(store.history.retire_ranges(), 60) == 0, "it may be that the other is still at it"
        assert (len(tables(db)), lows(db)[0]) == (left, 0)
    crashed_long_ago(db)
    assert await retired(store) == 1
    await gone(store, db, job_id)


@contextmanager
def making(db: Harness, dsn: str) -> Iterator[int]:
    """Somebody's open transaction that has made a job in a range that is then full and old; commits at the end."""
    with Harness(dsn) as other:
        other.sql("begin")
        made = other.value(
            "insert into tenure.job (contract, version, state, role, type, max_attempts, queue) "
            "values ('standard', '1', 'queued', 'ready', 't', 5, 'q') returning id"
        )
        full(db)
        long_ago(db, 0)
        yield made
        other.sql("commit")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Open transactions are waited for only a moment."""
    monkeypatch.setattr(retention, "_MAX_CHECKS", 3)


async def nothing_leaves(store: Store, db: Harness) -> None:
    """Call until the first range, whose leaving was begun, is an ordinary one again."""
    give_up = time.monotonic() + 90
    while begun(db):
        assert await store.history.retire_ranges() == 0
        assert time.monotonic() < give_up, "its leaving is still begun"
    assert (tables(db), lows(db)[0], taken(db)) == (["event_0", "job_done_0"], 0, [])


@pytest.mark.usefixtures("impatient")
async def test_a_job_that_is_just_being_made_keeps_its_range(store: Store, db: Harness, dsn: str) -> None:
    old = await ended(store)
    with making(db, dsn) as made:
        for _ in range(2):
            assert await asyncio.wait_for(store.history.retire_ranges(), 60) == 0
            assert (begun(db), taken(db), len(tables(db))) == ([0], [], 2)
    await nothing_leaves(store, db)
    (job,) = await store.claim(queues=["q"], worker="w")
    assert job.id == made
    await store.succeed(job.held)
    db.log_is_sound(old, made)
    assert await store.history.retire_ranges() == 0, "it ended just now"
    assert begun(db) == []
    long_ago(db, 0)
    assert await retired(store) == 1
    await gone(store, db, old, made)


@pytest.mark.usefixtures("impatient")
async def test_a_job_that_was_just_made_and_has_ended_keeps_its_range_too(store: Store, db: Harness, dsn: str) -> None:
    with making(db, dsn) as made:
        assert await store.history.retire_ranges() == 0
    (job,) = await store.claim(queues=["q"], worker="w")
    assert job.id == made
    await store.succeed(job.held)
    await nothing_leaves(store, db)
    db.log_is_sound(made)


async def test_a_transaction_that_does_not_end_is_waited_for_only_a_moment(store: Store, db: Harness, dsn: str) -> None:
    job_id = await leaving(store, db)
    with Harness(dsn) as other:
        other.sql("begin")
        other.sql("select pg_current_xact_id()")
        assert await asyncio.wait_for(store.history.retire_ranges(), 60) == 0
        db.log_is_sound(job_id)
        other.sql("rollback")
    assert await retired(store) == 1
    await gone(store, db, job_id)


@contextmanager
def reading(dsn: str, table: str = "event") -> Iterator[Harness]:
    """Somebody who has read the table and keeps the transaction open; ends with the block, or when told."""
    with Harness(dsn) as reader:
        reader.sql("begin")
        reader.sql(f"select count(*) from tenure.{table}")
        yield reader


@pytest.fixture
async def hasty(dsn: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Store]:
    """A store that waits for a lock only a moment."""
    monkeypatch.setattr(connect, "LOCK_TIMEOUT_MS", 300)
    async with Store.open(dsn) as opened:
        await opened.jobs([1])
        yield opened


async def waiting(db: Harness, application: str = "tenure") -> int:
    """The backend that waits for the reader with its detaching begun."""
    give_up = time.monotonic() + 90
    waits = (
        "select pid from pg_stat_activity where query like '%%detach partition%%' and wait_event_type = 'Lock' "
        "and datname = current_database() and application_name = %s"
    )
    while not (rows := db.sql(waits, application)):  # it may wait for other tests' transactions before
        assert time.monotonic() < give_up, "nobody was seen waiting for the reader"
        await asyncio.sleep(0.005)
    return int(rows[0]["pid"])


@pytest.mark.parametrize("table", ["event", "event_0", "job_done"])
async def test_a_reader_makes_it_give_up_in_time_and_the_next_call_goes_on(
    store: Store, hasty: Store, db: Harness, dsn: str, table: str
) -> None:
    job_id = await leaving(store, db)
    with reading(dsn, table) as reader:
        for _ in range(2):  # the second one meets the detaching that the first has begun
            with pytest.raises(Busy, match="locked by another transaction"):
                await held_up(hasty)
            assert detaching(db) == [f"tenure.{table.removesuffix('_0')}_0"]
            assert taken(db) == []
        reader.sql("rollback")
    assert await retired(hasty) == 1
    await gone(store, db, job_id)


async def test_cancelled_half_way_through_detaching_it_goes_on(store: Store, db: Harness, dsn: str) -> None:
    job_id = await leaving(store, db)
    with reading(dsn):
        retiring = asyncio.create_task(retired(store))
        db.sql("select pg_cancel_backend(%s)", await waiting(db))
        with pytest.raises(Unavailable, match="could not execute the call"):
            await retiring
        assert (detaching(db), taken(db)) == (["tenure.event_0"], [])
    assert await retired(store) == 1
    await gone(store, db, job_id)


async def test_after_a_crash_half_way_through_detaching_it_goes_on(store: Store, db: Harness, dsn: str) -> None:
    job_id = await leaving(store, db)
    with reading(dsn):
        retiring = asyncio.create_task(retired(store))
        db.sql("select pg_terminate_backend(%s)", await waiting(db))
        with pytest.raises(ConnectionLost):
            await retiring
        assert (detaching(db), taken(db)) == (["tenure.event_0"], [0])
    assert await store.history.retire_ranges() == 0
    db.log_is_sound(await ended(store, queue="meanwhile"))
    crashed_long_ago(db)
    assert await retired(store) == 1
    await gone(store, db, job_id)


async def test_a_second_caller_does_nothing_and_does_not_wait(store: Store, db: Harness, dsn: str) -> None:
    job_id = await leaving(store, db)
    async with Store.open(dsn) as other:
        with reading(dsn) as reader:
            first = asyncio.create_task(retired(store))
            await waiting(db)
            assert await asyncio.wait_for(other.history.retire_ranges(), 60) == 0
            assert await asyncio.wait_for(store.history.retire_ranges(), 60) == 0, "nor one of the same process"
            reader.sql("commit")
            assert await first == 1
    await gone(store, db, job_id)


async def test_many_callers_at_once_retire_each_range_once(store: Store, db: Harness, dsn: str) -> None:
    job_id = await leaving(store, db)
    stores = [await Store.connect(dsn, connections=1) for _ in range(4)]
    total, give_up = 0, time.monotonic() + 90
    while 0 in lows(db) and time.monotonic() < give_up:
        total += sum(await asyncio.gather(*(each.history.retire_ranges() for each in stores)))
    for each in stores:
        await each.close()
    assert total == 1
    await gone(store, db, job_id)


async def test_while_it_waits_for_a_reader_others_read_and_write(store: Store, db: Harness, dsn: str) -> None:
    job_id = await leaving(store, db)
    async with Store.open(dsn) as other:
        with reading(dsn) as reader:
            retiring = asyncio.create_task(retired(store))
            await waiting(db)

            async def life() -> None:
                later = await ended(other, queue="meanwhile")
                assert later // WIDTH == 1
                assert [event.to_state for event in await other.events(later)] == ["running", "succeeded"]
                assert (await other.jobs([later]))[0].state == "succeeded"
                db.value("select count(*) from tenure_standard.events")
                assert await other.extend_ranges(9) > 0
                assert await other.history.forget_payloads(0) == 0
                assert await other.history.vacuum()

            await asyncio.wait_for(life(), 60)
            assert not retiring.done()
            reader.sql("commit")
            assert await retiring == 1
    await gone(store, db, job_id)


async def test_a_caller_that_is_cancelled_keeps_others_from_retiring_no_longer_than_a_crash(
    store: Store, db: Harness, dsn: str
) -> None:
    job_id = await leaving(store, db)
    with reading(dsn):
        retiring = asyncio.create_task(retired(store))
        await waiting(db)
        retiring.cancel()
        with pytest.raises(asyncio.CancelledError):
            await retiring
    assert db.value("select count(*) from tenure.range where taken > now() + interval '10 minutes'") == 0
    crashed_long_ago(db)
    async with Store.open(dsn) as other:
        assert await retired(other) == 1
    await gone(store, db, job_id)


async def test_a_lower_range_that_may_leave_later_waits_for_the_one_that_was_begun(
    store: Store, hasty: Store, db: Harness, dsn: str
) -> None:
    straggler = (await store.enqueue(NewJob("t", queue="late"))).job_id
    full(db, 0)
    second = await ended(store)
    full(db, 1)
    long_ago(db, 0, 1)
    with reading(dsn), pytest.raises(Busy):
        await held_up(hasty)
    assert detaching(db) == ["tenure.event_1"]
    (job,) = await store.claim(queues=["late"], worker="w")
    await store.succeed(job.held)
    long_ago(db, 0)
    assert await retired(store, 2) == 2
    assert tables(db, 1) == []
    await gone(store, db, straggler, second)
