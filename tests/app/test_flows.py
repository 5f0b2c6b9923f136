"""Flows run by real workers: results reach the nodes that need them, failures do what the policy says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

import pytest
import pytest_asyncio

import tenure
from tenure import testing
from tenure.app import App
from tenure.contracts import BUILT_IN
from tenure.errors import BadInput, FlowConflict, FlowFailed, FlowNotFound, JobNotFound, WaitingForParents
from tenure.flow import FlowGraph, Node
from tenure.jobs.job import NewJob
from tests.harness import Harness
from tests.worker import program
from tests.worker.processes import steady_worker
from tests.worker.working import steady, until, working


@dataclass
class Row:
    """What a node returns and the next one takes."""

    day: date
    n: int


@pytest_asyncio.fixture
async def app(dsn: str) -> AsyncIterator[App]:
    """An application on the test's database."""
    async with steady(dsn) as app:
        yield app


class Tasks:
    """The tasks of the flows on this page; `ran` is what they did, in order."""

    def __init__(self, app: App, **options: Any) -> None:
        self.ran: list[Any] = []
        self.broken: set[Any] = set()

        @app.task(**options)
        async def extract(day: date, count: int = 3) -> list[Row]:
            self._run("extract")
            return [Row(day, n) for n in range(count)]

        @app.task(**options)
        async def transform(row: Row, *, factor: int = 1) -> int:
            assert isinstance(row.day, date)
            self._run(row.n)
            return row.n * factor

        @app.task(**options)
        def load(numbers: Sequence[int | None], *, label: str = "") -> str:
            self._run("load")
            return f"{label}{numbers}"

        @app.task(**options)
        async def step(name: str) -> str:
            self._run(name)
            return name

        self.extract, self.transform, self.load, self.step = extract, transform, load, step

    def _run(self, what: Any) -> None:
        self.ran.append(what)
        if what in self.broken:
            raise tenure.PermanentError(f"{what} is broken")


def nightly(app: App, tasks: Tasks, **options: Any) -> tuple[FlowGraph, Node[list[int]], Node[str]]:
    """Extract, transform each row, load all of them."""
    flow = app.flow("nightly", **options)
    rows = flow.node(tasks.extract.call(date(2030, 1, 2)))
    parts = flow.map(tasks.transform.call(rows.each, factor=2))
    return flow, parts, flow.node(tasks.load.call(parts.result, label="sums: "))


async def states(app: App, flow: Any) -> dict[str, str]:
    """The state of each node."""
    return {node.name: node.state for node in await app.flows.nodes(flow)}


async def test_rows_are_extracted_transformed_each_and_loaded_by_a_worker(app: App) -> None:
    tasks = Tasks(app)
    flow, parts, loaded = nightly(app, tasks)
    made = await flow.start()
    assert made.made
    assert set(made.jobs) == {"extract", "transform", "load"}
    async with working(app):
        assert await app.flows.result(made, timeout=60) == {"load": "sums: [0, 2, 4]"}
    assert tasks.ran[0] == "extract"
    assert sorted(tasks.ran[1:4]) == [0, 1, 2]
    assert tasks.ran[4:] == ["load"]
    assert await app.flows.result(made, parts) == [0, 2, 4]
    assert await app.flows.result(made.id, loaded) == "sums: [0, 2, 4]"
    assert await app.flows.result(made, "extract") == [Row(date(2030, 1, 2), n) for n in range(3)]
    assert await app.result(made.jobs["load"]) == "sums: [0, 2, 4]"
    shown = await app.flows.show(made)
    assert (shown.name, shown.state, shown.nodes, shown.open, shown.failed) == ("nightly", "succeeded", 6, 0, 0)
    assert set((await states(app, made)).values()) == {"succeeded"}
    assert [one.id for one in await app.flows.list(name="nightly", state="succeeded")] == [made.id]


def test_synchronous_code_starts_a_flow_and_waits_for_it(dsn: str) -> None:
    app = steady(dsn)
    tasks = Tasks(app)
    flow, parts, _ = nightly(app, tasks)
    made = flow.start_sync()
    app.run_worker(until_idle=True)
    assert app.flows.result_sync(made, timeout=60) == {"load": "sums: [0, 2, 4]"}
    assert app.flows.result_sync(made, parts) == [0, 2, 4]
    asyncio.run(app.close())


async def test_chains_groups_and_chords_run_to_their_end_in_a_test(app: App) -> None:
    tasks = Tasks(app)

    @app.task
    async def double(text: str) -> str:
        return text * 2

    @app.task
    async def join(texts: list[str]) -> str:
        return "+".join(texts)

    @app.task
    async def join_all(*texts: str, by: str = "+") -> str:
        return by.join(texts)

    flow = app.flow("forms")
    chained = flow.chain(tasks.step.call("a"), double, double, double)
    joined = flow.chord([tasks.step.call("b"), double.call("c")], join)
    flow.node(join_all.call(chained.result, joined.result, by="-"), name="last")
    made = await flow.start()
    await testing.drain(app)
    assert await app.flows.result(made) == {"last": "aaaaaaaa-b+cc"}


@pytest.mark.parametrize("contract", [name for name in BUILT_IN if name != "dispatcher"])
async def test_a_flow_runs_under_each_contract(app: App, contract: str) -> None:
    tasks = Tasks(app, contract=contract)
    made = await nightly(app, tasks)[0].start()
    async with working(app):
        assert await app.flows.result(made, timeout=60) == {"load": "sums: [0, 2, 4]"}
    assert {node.contract for node in await app.flows.nodes(made)} == {contract}


async def test_each_node_has_its_own_contract_queue_and_budget(app: App) -> None:
    tasks = Tasks(app)
    flow = app.flow("mixed")
    calls = []
    for n, contract in enumerate(name for name in BUILT_IN if name != "dispatcher"):
        calls.append(tasks.step.options(contract=contract, queue=f"q{n}", priority=n).call(contract))
    flow.chain(calls[0], *calls[1:])
    made = await flow.start()
    async with working(app, queues=[f"q{n}" for n in range(len(calls))]):
        await app.flows.result(made, timeout=60)
    assert tasks.ran == [call.job.contract for call in calls]
    for n, node in enumerate(await app.flows.nodes(made)):
        job = await app.job(node.job_id or 0)
        assert (job.contract, job.queue, job.priority) == (calls[n].job.contract, f"q{n}", n)


#: The policies of the flow and of the node that fails, what runs beside `bad` and `good`, and the state of the flow.
POLICIES: list[tuple[Any, Any, set[str], str]] = [
    ("stop", None, {"tidy"}, "failed"),
    ("continue", "stop", {"tidy"}, "failed"),
    ("skip", None, {"beside", "tidy"}, "failed"),
    ("stop", "skip", {"beside", "tidy"}, "failed"),
    ("continue", None, {"beside", "after", "last"}, "succeeded"),
    ("stop", "continue", {"beside", "after", "last"}, "succeeded"),
]


@pytest.mark.parametrize(("policy", "own", "runs", "state"), POLICIES, ids=[f"{one[:2]}" for one in POLICIES])
async def test_the_policy_decides_what_runs_after_a_failure(
    app: App, policy: Any, own: Any, runs: set[str], state: str
) -> None:
    tasks = Tasks(app)
    tasks.broken = {"bad"}
    step = tasks.step
    flow = app.flow("failing", on_failure=policy)
    bad = flow.node(step.call("bad"), name="bad", on_failure=own)
    after = flow.node(step.call("after"), name="after", after=[bad])
    flow.node(step.call("last"), name="last", after=[after])
    good = flow.node(step.options(delay=60).call("good"), name="good")
    flow.node(step.call("beside"), name="beside", after=[good])
    flow.cleanup(step.call("tidy"), name="tidy")
    made = await flow.start()
    await testing.drain(app)  # `bad` has failed before `good` begins
    await testing.advance(app, minutes=1)
    await testing.drain(app)
    assert set(tasks.ran) == {"bad", "good", *runs}
    assert ("tidy" not in runs) or tasks.ran[-1] == "tidy"
    shown = await app.flows.show(made)
    assert (shown.state, shown.open, shown.failed) == (state, 0, 1)


async def test_a_failed_flow_says_which_nodes_and_still_gives_the_results_of_the_others(app: App) -> None:
    tasks = Tasks(app)
    tasks.broken = {1}
    flow, parts, loaded = nightly(app, tasks)
    made = await flow.start()
    await testing.drain(app)
    with pytest.raises(FlowFailed, match=rf"flow {made.id} \(nightly\) ended failed \(") as failed:
        await app.flows.result(made)
    assert failed.value.nodes["transform[1]"] == "dead"
    assert len(await app.flows.result(made, "extract")) == 3
    for node in (parts, loaded, "load"):
        with pytest.raises(FlowFailed):
            await app.flows.result(made, node)
    with pytest.raises(BadInput, match="has no node 'nothing'"):
        await app.flows.result(made, "nothing")


async def test_a_tolerated_failure_is_none_in_the_list_of_results(app: App) -> None:
    tasks = Tasks(app)
    tasks.broken = {1}
    flow, parts, loaded = nightly(app, tasks, on_failure="continue")
    made = await flow.start()
    await testing.drain(app)
    assert await app.flows.result(made, loaded) == "sums: [0, None, 4]"
    assert await app.flows.result(made, parts) == [0, None, 4]


async def test_a_node_over_what_is_no_list_fails_with_the_reason(app: App) -> None:
    tasks = Tasks(app)

    @app.task
    async def wrong() -> Any:
        return {"no": "list"}

    flow = app.flow("wrong")
    flow.map(tasks.step.call(flow.node(wrong.call()).each), name="parts")
    made = await flow.start()
    await testing.drain(app)
    with pytest.raises(FlowFailed, match=r"parts: .*no list"):
        await app.flows.result(made)


async def test_a_key_makes_the_flow_once_and_belongs_to_it_alone(app: App, db: Harness) -> None:
    tasks = Tasks(app)
    first = await nightly(app, tasks, key="2030-01-02")[0].start()
    again = await nightly(app, tasks, key="2030-01-02")[0].start()
    assert (again.id, again.jobs, first.made, again.made) == (first.id, first.jobs, True, False)
    other, _, _ = nightly(app, tasks, key="2030-01-02")
    other.node(tasks.step.call("more"))
    with pytest.raises(FlowConflict, match="used before for another flow"):
        await other.start()
    assert db.value("select count(*) from tenure.flow") == 1
    elsewhere = await nightly(app, tasks, key="2030-01-02", tenant="acme")[0].start()
    assert elsewhere.made
    assert (await app.job(elsewhere.jobs["extract"])).tenant_id == "acme"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"key": "k"}, "cannot have key"),
        ({"unique": "waiting"}, "cannot have unique"),
        ({"contract": "gate_b3"}, "gate_b3"),
    ],
)
async def test_a_flow_with_a_wrong_node_writes_nothing(
    app: App, db: Harness, change: dict[str, Any], said: str
) -> None:
    tasks = Tasks(app)
    flow = app.flow("wrong")
    flow.node(tasks.step.call("a"), name="right")
    flow.node(tasks.step.options(**change).call("b"))
    with pytest.raises(BadInput, match=said):
        await flow.start()
    for wrong in (app.flow("empty"), app.flow("")):
        with pytest.raises(BadInput):
            await wrong.start()
    assert db.one("select (select count(*) from tenure.flow) as f, (select count(*) from tenure.job) as j") == {
        "f": 0,
        "j": 0,
    }


async def test_a_flow_that_does_not_exist_is_not_found(app: App) -> None:
    calls: list[Awaitable[Any]] = [
        app.flows.show(7), app.flows.nodes(7), app.flows.result(7),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(FlowNotFound):
            await call
    for wrong in (0, "7", None):
        with pytest.raises(BadInput, match="flow"):
            await app.flows.show(wrong)  # type: ignore[arg-type]


async def test_the_job_of_a_node_that_waits_is_not_there_yet(app: App) -> None:
    tasks = Tasks(app)
    tasks.broken = {"extract"}
    made = await nightly(app, tasks)[0].start()
    with pytest.raises(WaitingForParents, match=f"node 'load' of flow {made.id}: it waits for its parents"):
        await app.result(made.jobs["load"])
    await testing.drain(app)
    with pytest.raises(WaitingForParents, match="it is skipped, and has not run"):
        await app.job(made.jobs["load"])
    with pytest.raises(JobNotFound):
        await app.job(1_000)


async def test_a_wait_ends_after_its_timeout(app: App) -> None:
    made = await nightly(app, Tasks(app))[0].start()
    with pytest.raises(TimeoutError):
        await app.flows.result(made, timeout=0.01)


class Stamping(tenure.Middleware):
    """Changes the job of each node, and refuses some."""

    def __init__(self) -> None:
        self.ids: dict[str, int] = {}
        self.refused: set[str] = set()
        self.swallowed: set[str] = set()

    async def enqueue(self, job: NewJob, call_next: Callable[[NewJob], Awaitable[int]]) -> int:
        await asyncio.sleep(0)
        if job.type in self.refused:
            raise PermissionError(job.type)
        if job.type in self.swallowed:
            return 7
        job.correlation_id = "stamped"
        self.ids[job.type] = await call_next(job)
        return self.ids[job.type]


async def test_middleware_sees_the_job_of_each_node_and_may_refuse_the_flow(dsn: str, db: Harness) -> None:
    stamping = Stamping()
    async with steady(dsn, middleware=[stamping]) as app:
        tasks = Tasks(app)
        made = await nightly(app, tasks)[0].start()
        assert stamping.ids == made.jobs
        assert (await app.job(made.jobs["extract"])).correlation_id == "stamped"
        await testing.drain(app)
        assert {job.correlation_id for job in await testing.enqueued(app)} == {"stamped"}
        stamping.refused = {"transform"}
        with pytest.raises(PermissionError, match="transform"):
            await nightly(app, tasks)[0].start()
        stamping.refused, stamping.swallowed = set(), {"load"}
        with pytest.raises(BadInput, match="enqueued no job for node 'load' of flow 'nightly'"):
            await nightly(app, tasks)[0].start()
        stamping.swallowed = set()
        with pytest.raises(BadInput, match="0 nodes"):
            await app.flow("empty").start()
    assert db.value("select count(*) from tenure.flow") == 1


async def test_a_flow_goes_on_when_the_worker_of_a_node_is_killed(
    dsn: str, app: App, db: Harness, tmp_path: Any
) -> None:

    flow = app.flow("killed")
    gate = str(tmp_path / "gate")
    held = flow.node(program.hold.call(gate))
    flow.node(program.doze.call(0.0), after=[held])
    made = await flow.start()
    with steady_worker(dsn) as process:
        await until(lambda: (tmp_path / "gate.began").exists())
        process.kill()
        process.wait()
    job_id = made.jobs["hold"]
    db.expire(job_id)
    (tmp_path / "gate").touch()
    with steady_worker(dsn):
        results = await app.flows.result(made, timeout=100)
    assert results == {"doze": "rested"}
    assert db.row(job_id)["claims"] == 2
