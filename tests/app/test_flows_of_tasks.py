"""Flows under the contract of document 001: workers that know a dispatcher alone, and wake-ups through SQS."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tenure.app import App
from tenure.postgres.store import Store
from tests.harness import Harness
from tests.message_queues import MessageServer
from tests.worker.woken import dispatcher, publishing, queue, short_waits, sqs, status, through
from tests.worker.working import steady, until, working

__all__ = ["dispatcher", "queue", "short_waits", "sqs"]


def declare(app: App, ran: list[Any]) -> tuple[Any, Any, Any]:
    """The tasks of a flow; `ran` is what they did, in order."""

    @app.task
    async def extract(count: int) -> list[int]:
        ran.append("extract")
        return list(range(count))

    @app.task
    async def transform(row: int) -> int:
        ran.append(row)
        return 2 * row

    @app.task
    async def load(rows: list[int]) -> int:
        ran.append("load")
        return sum(rows)

    return extract, transform, load


async def test_messages_wake_the_workers_of_each_node_in_the_order_of_the_flow(
    dsn: str, dispatcher: str, store: Store, db: Harness, sqs: MessageServer, queue: str, short_waits: None
) -> None:
    ran: list[Any] = []
    async with (
        publishing(store, queue) as publisher,
        steady(dsn, contract="dispatcher") as app,
        through(dispatcher) as remote,
    ):
        extract, transform, load = declare(app, [])
        declare(remote, ran)
        flow = app.flow("nightly")
        rows = flow.node(extract.call(3))
        flow.node(load.call(flow.map(transform.call(rows.each)).result))
        made = await flow.start()
        async with working(remote, sqs=queue):
            # A message for a node that waits has no effect and is deleted: its start publishes another.
            sqs.put(queue, made.jobs["load"])
            await until(lambda: sqs.count(queue) == 0)
            while (await app.flows.show(made)).state == "running":
                await publisher.publish()
                await asyncio.sleep(0.05)
        assert await app.flows.result(made) == {"load": 6}
    assert [one for one in ran if isinstance(one, str)] == ["extract", "load"]
    assert sorted(ran[1:-1]) == [0, 1, 2]
    assert status(db, made.jobs["load"]) == "Completed"
    assert db.hops(made.jobs["load"]) == ["Queued->Running", "Running->Completed"]


async def test_workers_of_a_dispatcher_run_nodes_that_they_poll_for(dsn: str, dispatcher: str) -> None:
    ran: list[Any] = []
    async with steady(dsn, contract="dispatcher") as app, through(dispatcher) as remote:
        extract, _, load = declare(app, [])
        declare(remote, ran)
        flow = app.flow("nightly")
        flow.chain(extract.call(3), load)
        made = await flow.start()
        async with working(remote):
            assert await app.flows.result(made, timeout=60) == {"load": 3}
    assert ran == ["extract", "load"]


@pytest.mark.req("S1-77")
async def test_tasks_run_in_the_order_of_their_dependencies_and_not_of_their_messages(
    dsn: str, dispatcher: str, store: Store, db: Harness, sqs: MessageServer, queue: str, short_waits: None
) -> None:
    ran: list[str] = []
    async with (
        publishing(store, queue) as publisher,
        steady(dsn, contract="dispatcher") as app,
        through(dispatcher) as remote,
    ):
        for one in (app, remote):

            @one.task
            async def work(name: str) -> None:
                ran.append(name)

        flow = app.flow("chain")
        a = flow.node(work.call("a"), name="a")
        b = flow.node(work.call("b"), name="b", after=[a])
        flow.node(work.call("c"), name="c", after=[b])
        made = await flow.start()
        async with working(remote, sqs=queue):
            for name in ("c", "b"):
                sqs.put(queue, made.jobs[name])
                await until(lambda: sqs.count(queue) == 0)
            assert ran == []
            sqs.put(queue, made.jobs["a"])
            await until(lambda: ran == ["a"] and sqs.count(queue) == 0)
            while (await app.flows.show(made)).state == "running":
                await publisher.publish()
                await asyncio.sleep(0.05)
    assert ran == ["a", "b", "c"]
    for name in "abc":
        assert db.hops(made.jobs[name]) == ["Queued->Running", "Running->Completed"]


@pytest.mark.req("S1-77")
async def test_the_join_of_a_diamond_waits_for_both_of_its_parents(
    dsn: str, dispatcher: str, store: Store, db: Harness, sqs: MessageServer, queue: str, short_waits: None
) -> None:
    ran: list[str] = []
    go = asyncio.Event()
    async with (
        publishing(store, queue) as publisher,
        steady(dsn, contract="dispatcher") as app,
        through(dispatcher) as remote,
    ):
        for one in (app, remote):

            @one.task
            async def work(name: str) -> None:
                ran.append(name)
                if name == "c":
                    await go.wait()

        flow = app.flow("diamond")
        a = flow.node(work.call("a"), name="a")
        b, c = (flow.node(work.call(name), name=name, after=[a]) for name in "bc")
        flow.node(work.call("d"), name="d", after=[b, c])
        made = await flow.start()
        async with working(remote, sqs=queue):
            while not {"b", "c"} <= {*ran} or status(db, made.jobs["b"]) != "Completed":
                await publisher.publish()
                await asyncio.sleep(0.05)
            for _ in range(3):
                sqs.put(queue, made.jobs["d"])
            # All are deleted: of the messages only that of c is left, which the worker keeps while it runs.
            await until(lambda: sqs.count(queue) == 1)
            assert "d" not in ran
            go.set()
            while (await app.flows.show(made)).state == "running":
                await publisher.publish()
                await asyncio.sleep(0.05)
    assert sorted(ran) == ["a", "b", "c", "d"]
    assert (ran[0], ran[-1]) == ("a", "d")
