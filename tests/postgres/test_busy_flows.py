"""Nobody waits for a flow that another transaction works on, and nothing that ends meanwhile is forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import psycopg
import pytest

from tenure.jobs.flow import NewFlow
from tenure.jobs.holder_call import HolderCall
from tenure.postgres.store import Store
from tests.flow_nodes import claim_all, fail, node, run, states
from tests.harness import Harness

_BLOCKED = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"


async def is_not_blocked(call: asyncio.Task[Any], db: Harness, others: int = 0) -> None:
    """Wait for the end of a call; assert that it waits for no lock beside these other calls."""
    while not call.done():
        assert db.value(_BLOCKED) <= others, "the call waits for a lock"
        await asyncio.sleep(0.01)
    await call


async def test_a_busy_flow_delays_no_other_one(store: Store, dsn: str, db: Harness) -> None:
    busy, free = [await store.flows.create(NewFlow(name, [node("a"), node("b", "a")])) for name in ("busy", "free")]
    jobs = await claim_all(store)
    with psycopg.connect(dsn) as other:
        other.execute("select from tenure.flow where id = %s for update", [busy.id])
        ending = asyncio.create_task(store.report("succeed", [HolderCall(job.held) for job in jobs]))
        await is_not_blocked(ending, db)
        assert await states(store, free) == {"a": "succeeded", "b": "started"}
        assert await states(store, busy) == {"a": "started", "b": "waiting"}
        assert (await store.flows.advance()).ends == 0
        assert db.value("select count(*) from tenure.flow_end") == 1
    assert (await store.flows.advance()).ends == 1
    assert await states(store, busy) == {"a": "succeeded", "b": "started"}


async def test_what_ends_while_another_advances_the_flow_is_seen_by_that_one(
    store: Store, dsn: str, db: Harness
) -> None:
    made = await store.flows.create(NewFlow("two", [node("a"), node("b"), node("c", "a", "b")]))
    a, b = await claim_all(store)
    with psycopg.connect(dsn) as other:
        other.execute("select from tenure.flow_node where id = %s for update", [made.jobs["c"]])
        first = asyncio.create_task(store.succeed(a.held))
        while not db.value(_BLOCKED):  # noqa: ASYNC110 (it counts down `c` under the lock of the flow)
            await asyncio.sleep(0.01)
        await is_not_blocked(asyncio.create_task(store.succeed(b.held)), db, others=1)
        assert db.value("select count(*) from tenure.flow_end") > 0
        other.commit()
    await first
    assert await states(store, made) == {"a": "succeeded", "b": "succeeded", "c": "started"}
    assert await run(store) == ["c"]


async def test_many_ends_of_a_busy_flow_hide_no_other_one(store: Store, dsn: str, db: Harness) -> None:
    made = [await store.flows.create(NewFlow(name, [node("a"), node("b", "a")])) for name in ("busy", "free")]
    busy, free = made
    (job,) = [job for job in await claim_all(store) if job.id == free.jobs["a"]]
    db.sql(
        "insert into tenure.flow_end (flow_id, job_id, node, at, outcome, state) "
        "select %s, -n, -n, now(), 'succeeded', 'succeeded' from generate_series(1, 20000) as n",
        busy.id,
    )
    with psycopg.connect(dsn) as other:
        other.execute("select from tenure.flow order by id for update")
        await store.succeed(job.held)
        other.rollback()
        other.execute("select from tenure.flow where id = %s for update", [busy.id])
        assert (await store.flows.advance()).ends == 1
        assert await states(store, free) == {"a": "succeeded", "b": "started"}
    assert (await store.flows.advance(1)).ends == 20_000


@pytest.mark.parametrize("operation", ["cancel", "resume", "requeue"])
async def test_what_ends_during_an_operation_on_the_flow_is_seen_by_it(
    store: Store, dsn: str, db: Harness, operation: str
) -> None:
    nodes = [node("bad"), node("a"), node("held"), node("c", "a"), node("undo", cleanup=True)]
    made = await store.flows.create(NewFlow("busy", nodes, on_failure="skip"))
    jobs = {job.type: job for job in await claim_all(store)}
    await fail(store, jobs["bad"])
    calls: dict[str, Callable[[], Coroutine[Any, Any, object]]] = {
        "cancel": lambda: store.flows.cancel(made.id),
        "resume": lambda: store.flows.resume(made.id),
        "requeue": lambda: store.requeue(jobs["bad"].id, actor="ada"),
    }
    with psycopg.connect(dsn) as other:
        other.execute("select from tenure.flow_node where flow_id = %s for update", [made.id])
        operating = asyncio.create_task(calls[operation]())
        while not db.value(_BLOCKED):  # noqa: ASYNC110 (it works on the nodes under the lock of the flow)
            await asyncio.sleep(0.01)
        await store.succeed(jobs["a"].held)
        assert db.value("select count(*) from tenure.flow_end") == 1
        other.commit()
    await operating
    assert db.value("select count(*) from tenure.flow_end") == 0
    assert (await states(store, made))["a"] == "succeeded"
    assert (await states(store, made))["c"] == ("cancelled" if operation == "cancel" else "started")


async def test_catching_up_waits_for_what_ended_before_it_alone(store: Store, dsn: str, db: Harness) -> None:
    made = [await store.flows.create(NewFlow(name, [node("a"), node("b", "a")])) for name in ("first", "second")]
    jobs = {job.id: job for job in await claim_all(store)}
    first, second = made
    with psycopg.connect(dsn) as other, psycopg.connect(dsn) as another:
        other.execute("select from tenure.flow where id = %s for update", [first.id])
        await store.succeed(jobs[first.jobs["a"]].held)
        begun = await store.flows.catch_up()
        assert begun == db.value("select at from tenure.flow_end")
        another.execute("select from tenure.flow where id = %s for update", [second.id])
        await store.succeed(jobs[second.jobs["a"]].held)
        assert await store.flows.catch_up(begun) == begun
        other.rollback()
        assert await store.flows.catch_up(begun) is None
        assert await states(store, first) == {"a": "succeeded", "b": "started"}
        assert await states(store, second) == {"a": "started", "b": "waiting"}
    assert await store.flows.catch_up() is None
    assert await states(store, second) == {"a": "succeeded", "b": "started"}
