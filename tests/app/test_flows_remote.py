"""Flows of an application that knows a dispatcher alone: run, read, cancelled and resumed as beside a database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

import tenure
from tenure.app import App
from tenure.client import remote_flows
from tenure.client.remote import RemoteClient
from tenure.contracts import BUILT_IN
from tenure.errors import (
    BadInput,
    ConnectionLost,
    FlowConflict,
    FlowFailed,
    FlowNotFound,
    NotPermitted,
    WaitingForParents,
)
from tenure.jobs.flow import FlowMade, NewFlow, NewNode
from tenure.jobs.job import NewJob
from tenure.settings import Settings
from tests.harness import Harness
from tests.http.conftest import new_key, serving
from tests.http.stub import RESET, stub
from tests.worker.working import STEADY, until, working

CREATED = {"id": "7", "made": False, "jobs": {"a": "41"}}


@pytest_asyncio.fixture
async def app(dsn: str) -> AsyncIterator[App]:
    """An application that knows a dispatcher alone."""
    with serving(dsn, numbers=STEADY) as url:
        async with App(dispatcher_url=url, settings=Settings(), name="shop") as app:
            yield app


class Tasks:
    """The tasks of the flows on this page; `ran` is what they did, in order."""

    def __init__(self, app: App, contract: str = "standard") -> None:
        self.ran: list[Any] = []
        self.broken: set[Any] = set()

        @app.task(contract=contract)
        async def extract(count: int) -> list[int]:
            self._run("extract")
            return list(range(count))

        @app.task(contract=contract)
        async def transform(row: int) -> int:
            self._run(row)
            return 10 * row

        @app.task(contract=contract)
        async def load(rows: list[int]) -> int:
            self._run("load")
            return sum(rows)

        self.extract, self.transform, self.load = extract, transform, load

    def _run(self, what: Any) -> None:
        self.ran.append(what)
        if what in self.broken:
            raise tenure.PermanentError(f"{what} is broken")


def nightly(app: App, tasks: Tasks, **options: Any) -> Any:
    """Extract, transform each row, load all of them."""
    flow = app.flow("nightly", **options)
    rows = flow.node(tasks.extract.call(3))
    flow.node(tasks.load.call(flow.map(tasks.transform.call(rows.each)).result))
    return flow


@pytest.mark.parametrize("contract", BUILT_IN)
async def test_a_flow_runs_under_every_contract(app: App, contract: str) -> None:
    tasks = Tasks(app, contract)
    async with working(app):
        made = await nightly(app, tasks).start()
        assert await app.flows.result(made, timeout=60) == {"load": 30}
    assert (tasks.ran[0], sorted(tasks.ran[1:-1]), tasks.ran[-1]) == ("extract", [0, 1, 2], "load")
    nodes = await app.flows.nodes(made)
    assert [one.name for one in nodes] == ["extract", "transform", *(f"transform[{n}]" for n in range(3)), "load"]
    assert nodes[2].part_of == nodes[1].id
    assert {one.contract for one in nodes} == {contract}
    found = await app.flows.show(made)
    assert (found.state, found.nodes, found.open, found.created_by) == ("succeeded", 6, 0, "loopback")
    assert await app.flows.list(state="succeeded") == [found]


async def test_a_failed_flow_is_resumed(app: App) -> None:
    tasks = Tasks(app)
    tasks.broken.add("extract")
    async with working(app):
        made = await nightly(app, tasks).start()
        with pytest.raises(WaitingForParents, match=r"it waits for its parents|it is skipped") as waits:
            await app.job(made.jobs["load"])
        assert (waits.value.flow_id, waits.value.node, waits.value.job_id) == (made.id, "load", made.jobs["load"])
        with pytest.raises(FlowFailed, match="extract: dead"):
            await app.flows.result(made, timeout=60)
        with pytest.raises(BadInput, match="no node 'gone'"):
            await app.flows.resume(made, nodes=["gone"])
        tasks.broken.clear()
        resumed = await app.flows.resume(made)
        assert (resumed.flow.state, set(resumed.jobs), resumed.waiting) == ("running", {"extract"}, 2)
        assert await app.flows.result(made, "load", timeout=60) == 30
    with pytest.raises(FlowConflict, match="no node ended badly"):
        await app.flows.resume(made)


async def test_a_cancelled_flow_starts_no_node_any_more(app: App, db: Harness) -> None:
    made = await nightly(app, Tasks(app)).start()
    cancelled = await app.flows.cancel(made, mode="hard", reason="wrong day")
    assert (cancelled.flow.state, cancelled.waiting, cancelled.jobs, cancelled.left) == ("cancelled", 2, 1, {})
    assert db.value("select reason from tenure.event") == "wrong day"
    with pytest.raises(FlowNotFound):
        await app.flows.cancel(made.id + 1)


async def test_a_key_makes_a_flow_once(app: App, db: Harness) -> None:
    tasks = Tasks(app)
    first = await nightly(app, tasks, key="2030-01-02").start()
    again = await nightly(app, tasks, key="2030-01-02").start()
    assert (first.made, again) == (True, first._replace(made=False))
    other = app.flow("other", key="2030-01-02")
    other.node(tasks.extract.call(3))
    with pytest.raises(FlowConflict, match="used before for another flow"):
        await other.start()
    assert db.value("select count(*) from tenure.flow") == 1


async def test_every_option_of_a_node_reaches_the_dispatcher(app: App, db: Harness) -> None:
    tasks = Tasks(app)
    flow = app.flow("options", on_failure="skip", tenant="acme")
    options: dict[str, Any] = {"queue": "q", "priority": 2, "max_attempts": 7, "delay": 60, "expires": 3_600}
    first = flow.node(tasks.extract.options(**options, correlation_id="c").call(1), name="first", on_failure="continue")
    flow.node(tasks.load.call([1]), after=[first])
    flow.cleanup(tasks.load.call([2]), name="clean")
    made = await flow.start()
    job = await app.job(made.jobs["first"])
    assert (job.queue, job.priority, job.max_attempts, job.tenant_id) == ("q", 2, 7, "acme")
    assert (job.correlation_id, job.type) == ("c", "shop.extract")
    assert job.due_at is not None
    assert (job.due_at - job.created_at).total_seconds() == pytest.approx(60)
    stored = await app.flows.nodes(made)
    assert [(one.name, one.on_failure, one.is_cleanup, one.open) for one in stored] == [
        ("first", "continue", False, 0), ("load", None, False, 1), ("clean", None, True, 0),
    ]  # fmt: skip
    assert (await app.flows.show(made)).on_failure == "skip"


async def test_nodes_are_read_page_by_page_in_their_order(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = Tasks(app)
    made = await nightly(app, tasks).start()
    async with working(app):
        await until(lambda: "load" in tasks.ran)
    whole = await app.flows.nodes(made)
    monkeypatch.setattr(remote_flows, "_PAGE", 2)
    assert await app.flows.nodes(made) == whole


async def test_too_large_a_flow_is_refused_before_it_is_sent(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_flows, "_MAX_NODES", 1)
    with pytest.raises(BadInput, match="has 3 nodes, and a dispatcher takes 1"):
        await nightly(app, Tasks(app)).start()


def test_the_client_knows_the_limit_of_the_dispatcher() -> None:
    from tenure.http.models.flows import MAX_NODES

    assert remote_flows._MAX_NODES == MAX_NODES


async def test_a_key_that_may_not_enqueue_starts_no_flow(dsn: str, db: Harness) -> None:
    key = await asyncio.to_thread(new_key, dsn, "worker", "work")
    with serving(dsn) as url:
        async with App(dispatcher_url=url, settings=Settings(key=key)) as app:
            with pytest.raises(NotPermitted, match="scope enqueue"):
                await nightly(app, Tasks(app)).start()
            with pytest.raises(NotPermitted, match="scope read or operate"):
                await app.flows.list()
    assert db.value("select count(*) from tenure.flow") == 0


async def test_a_flow_whose_answer_was_lost_is_made_once() -> None:
    async with stub(lambda _: RESET if len(dispatcher.asked) == 1 else (200, CREATED)) as dispatcher:
        client = RemoteClient(dispatcher.url)
        made = await client.flows.create(NewFlow("f", [NewNode("a", NewJob("t"))]))
        await client.close()
        keys = {asked.body["idempotency_key"] for asked in dispatcher.asked}
    assert (made, len(dispatcher.asked), len(keys)) == (FlowMade(7, {"a": 41}, made=True), 2, 1)
    assert None not in keys


async def test_a_resume_whose_answer_was_lost_is_not_repeated() -> None:
    async with stub(lambda _: RESET) as dispatcher:
        client = RemoteClient(dispatcher.url)
        with pytest.raises(ConnectionLost):
            await client.flows.resume(7)
        await client.close()
    assert len(dispatcher.asked) == 1
