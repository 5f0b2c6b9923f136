"""Datasets of an application: declared in code, written by flows, cut over, rolled back, read as one set."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest
import pytest_asyncio

import tenure
from tenure import testing
from tenure.app import App
from tenure.errors import BadInput, DatasetConflict, DatasetNotFound
from tests.harness import Harness
from tests.worker.working import steady, working


@pytest_asyncio.fixture
async def app(dsn: str) -> AsyncIterator[App]:
    """An application on the test's database."""
    async with steady(dsn) as app:
        testing.mark_database(app)
        yield app


async def rows(app: App, name: str, number: int | None = None) -> list[Any]:
    """The rows of a generation; of the current one, without a number."""
    dataset = app.dataset(name)
    generation = await dataset.current() if number is None else await dataset.generation(number)
    return [row async for row in generation.rows()]


class Nightly:
    """A flow that fills three datasets with one value, and the tasks of it."""

    def __init__(self, app: App) -> None:
        self.app = app

        @app.task(writes=["raw"])
        async def extract(ctx: tenure.Context, value: int) -> list[int]:
            ctx.output("raw").replace([value, value], scope="all")
            return [1, 2]

        @app.task(reads=["raw"], writes=["prices"])
        async def transform(ctx: tenure.Context, part: int) -> None:
            values = [value async for value in ctx.input("raw").rows()]
            ctx.output("prices").replace([values[0]], scope=f"part {part}")

        @app.task(reads=["prices"], writes=["totals"])
        async def load(ctx: tenure.Context) -> None:
            values = [value async for value in ctx.input("prices").rows()]
            ctx.output("totals").replace(sorted(set(values)), scope="all")

        self.extract, self.transform, self.load = extract, transform, load

    async def run(self, value: int) -> dict[str, int]:
        """Run the flow; the generations that it has written, by dataset."""
        flow = self.app.flow("nightly")
        parts = flow.node(self.extract.call(value))
        flow.node(self.load.call(), after=[flow.map(self.transform.call(parts.each))])
        made = await flow.start()
        await testing.drain(self.app)
        await self.app.flows.result(made, timeout=60)
        written = await self.app.datasets.of_flow(made)
        return {one.dataset: one.number for one in written}


@pytest.mark.req("S1-80")
async def test_a_changed_shape_is_a_new_generation_and_the_old_one_reads_as_before(dsn: str) -> None:
    def release(app: App, shape: Any) -> Any:
        testing.mark_database(app)
        app.dataset("prices", shape=shape)

        @app.task(writes=["prices"])
        async def fill(ctx: tenure.Context, row: dict[str, Any]) -> None:
            ctx.output("prices").append([row], key="id")

        return fill

    async with steady(dsn) as old:
        await release(old, {"id": "int"}).enqueue({"id": 1})
        await testing.drain(old)
        before = [(row.key, row.value) async for row in (await old.dataset("prices").generation(1)).keyed_rows()]
    async with steady(dsn) as new:
        await release(new, {"id": "int", "eur": "int"}).enqueue({"id": 1, "eur": 7})
        await testing.drain(new)
        prices = new.dataset("prices")
        second, first = await prices.generations()
        assert (first.number, first.shape, first.info.is_current) == (1, {"id": "int"}, True)
        assert (second.number, second.shape, second.info.is_current) == (2, {"id": "int", "eur": "int"}, False)
        assert [(row.key, row.value) async for row in first.keyed_rows()] == before
        assert await rows(new, "prices") == [{"id": 1}]
        assert await rows(new, "prices", 2) == [{"id": 1, "eur": 7}]
        await prices.cutover(2, actor="ann", reason="the new column")
        assert await rows(new, "prices") == [{"id": 1, "eur": 7}]
        assert [(row.key, row.value) async for row in first.keyed_rows()] == before


@pytest.mark.req("S1-78")
async def test_a_flow_reads_what_it_writes_and_others_what_is_current(app: App) -> None:
    nightly = Nightly(app)
    first = await nightly.run(1)
    assert first == {"prices": 2, "raw": 2, "totals": 2}
    assert await rows(app, "totals") == []
    assert await rows(app, "totals", 2) == [1]
    await app.datasets.cutover(first)
    queued = await nightly.load.enqueue()  # outside of a flow: reads and writes what is current
    second = await nightly.run(2)
    assert await rows(app, "totals", second["totals"]) == [2]
    await app.datasets.cutover(second)
    assert [(pin.mode, pin.dataset, pin.generation) for pin in await app.datasets.pins(queued)] == [
        ("read", "prices", 2), ("write", "totals", 2),
    ]  # fmt: skip


@pytest.mark.req("S1-81")
@pytest.mark.req("S1-52")
async def test_a_set_is_switched_at_once_and_rolled_back_at_once(app: App, db: Harness) -> None:
    nightly = Nightly(app)
    names = ["raw", "prices", "totals"]
    sets = [await nightly.run(1), await nightly.run(2)]
    await app.datasets.cutover(sets[0])
    seen = set[tuple[int, ...]]()
    done = asyncio.Event()

    async def read() -> None:
        while not done.is_set():
            found = await app.datasets.current(names)
            contents = [min([value async for value in found[name].rows()]) for name in names]
            assert len(set(contents)) == 1, contents
            seen.add(tuple(found[name].number for name in names))
            view = db.sql("select distinct value from tenure.dataset_current_row")
            assert len(view) == 1

    async with asyncio.TaskGroup() as readers:
        reading = [readers.create_task(read()) for _ in range(2)]
        for n in range(10):
            switched = await app.datasets.cutover(
                [await app.dataset(name).generation(sets[(n + 1) % 2][name]) for name in names],
                actor="nightly", reason=f"{n}",
            )  # fmt: skip
            assert (switched.kind, switched.actor, len(switched.datasets)) == ("cutover", "nightly", 3)
        back = await app.dataset("raw").rollback(actor="ann", reason="wrong prices")
        done.set()
    assert all(one.done() for one in reading)
    assert seen <= {tuple(one[name] for name in names) for one in sets}
    assert sorted(one.dataset for one in back.switch.datasets) == sorted(names)
    assert {name: found.number for name, found in (await app.datasets.current(names)).items()} == sets[1]
    last, before = await app.datasets.switches("totals", limit=2)
    assert (last.kind, last.actor, last.reason, last.undoes) == ("rollback", "ann", "wrong prices", before.id)
    with pytest.raises(DatasetConflict, match="rolled back"):
        await app.datasets.cutover(sets[0])


@pytest.mark.req("S1-82")
async def test_a_rollback_cancels_what_waits_and_what_runs_never_becomes_current(app: App) -> None:
    began, goes_on = asyncio.Event(), asyncio.Event()
    prices = app.dataset("prices", keep=5)

    @app.task(writes=[prices])
    async def fill(ctx: tenure.Context, value: int, *, waits: bool = False) -> None:
        if waits:
            began.set()
            await goes_on.wait()
        ctx.output(prices).append([value], keys=[str(value)])

    await fill.enqueue(1)
    await testing.drain(app)
    new = await prices.new_generation()
    await prices.cutover(new.number)
    running = await fill.enqueue(2, waits=True)
    async with working(app, concurrency=1):
        await began.wait()
        queued = await fill.enqueue(3)
        by_phase27 = await fill.options(contract="phase27").enqueue(4)  # which has no cancel
        done = await app.datasets.rollback(["prices"], actor="ann")
        goes_on.set()
        await app.result(running, timeout=60)
    assert done.cancelled == [queued.id]
    assert list(done.left) == [by_phase27.id]
    assert (await app.job(queued)).state == "cancelled"
    assert (await prices.current()).number == 1
    assert await rows(app, "prices") == [1]
    assert 2 in await rows(app, "prices", new.number)


async def test_what_code_declares_is_stored_at_the_first_use_for_each_tenant(app: App, db: Harness) -> None:
    prices = app.dataset("prices", shape={"id": "int"}, keep=2)
    assert app.dataset("prices", shape={"id": "int"}, keep=2) == app.dataset("prices") == prices

    @app.task(writes=["prices", "others"])
    async def fill(ctx: tenure.Context) -> None: ...

    await fill.options(tenant="acme").enqueue()
    found = db.sql("select tenant_id, name, keep from tenure.dataset order by tenant_id, name")
    assert [tuple(row.values()) for row in found] == [
        ("acme", "others", None), ("acme", "prices", 2), ("default", "others", None), ("default", "prices", 2),
    ]  # fmt: skip
    assert (await app.dataset("prices", tenant="acme").current()).shape == {"id": "int"}
    db.sql("update tenure.dataset set keep = 7 where name = 'others'")
    async with working(app):  # what others have declared stays
        await app.result(await fill.enqueue(), timeout=60)
    assert (await app.dataset("others").show()).keep == 7
    with pytest.raises(DatasetNotFound):
        await app.dataset("unknown").current()
    assert db.value("select count(*) from tenure.dataset") == 4


async def test_every_way_to_make_a_job_pins_its_datasets(app: App, dsn: str) -> None:
    @app.task(reads=["prices"], writes=["prices"])
    async def use() -> None: ...

    app.every(hours=1)(use)
    app.on("prices")(app.task(name="of an event")(_of_an_event))
    await app.datasets.declare()
    with psycopg.connect(dsn) as connection:
        jobs: list[Any] = [use.enqueue_in(connection), *app.enqueue_many_in(connection, [use.call()])]
    jobs += [await use.enqueue(), *await app.enqueue_many([use.call()]), await asyncio.to_thread(use.enqueue_sync)]
    flow = app.flow("f")
    node = flow.node(use.call())
    jobs.append((await flow.start()).jobs[node.name])
    await testing.drain(app)  # its worker declares the schedule
    jobs.append(await app.schedules.run("use"))
    for job in jobs:
        pins = await app.datasets.pins(job)
        assert [(pin.mode, pin.dataset) for pin in pins] == [("read", "prices"), ("write", "prices")]
    with pytest.raises(DatasetNotFound):
        await use.options(reads=["nowhere"]).enqueue()
    with pytest.raises(DatasetNotFound):
        await use.options(reads={"prices": 9}).enqueue()


async def _of_an_event(event: dict[str, Any]) -> None: ...


def test_synchronous_code_reads_and_switches(dsn: str) -> None:
    app = App(dsn)
    prices = app.dataset("prices", keep=1)
    app.datasets.declare_sync()
    number = app._connections.wait(prices.new_generation()).number
    assert prices.cutover_sync(number, actor="ann").datasets[0].after == number
    current = prices.current_sync()
    assert (list(current.rows_sync()), current.pointers_sync(), current.pointer_sync()) == ([], [], None)
    assert list(current.keyed_rows_sync("x")) == []
    assert prices.rollback_sync(actor="ann").switch.actor == "ann"
    assert app.datasets.current_sync(["prices"])["prices"].number == 1
    assert prices.generation_sync(1).number == 1
    with pytest.raises(DatasetConflict):
        app.datasets.cutover_sync({"prices": 1})
    with pytest.raises(DatasetConflict):
        app.datasets.rollback_sync(["prices"])
    asyncio.run(app.close())


def test_wrong_declarations_are_refused_where_they_stand() -> None:
    app, other = App(), App()
    app.dataset("prices", keep=1)

    @app.task
    async def index(event: dict[str, Any]) -> None: ...

    @app.task
    async def number(n: int) -> None: ...

    for wrong in (
        lambda: app.dataset("prices", keep=2),
        lambda: app.dataset(""),
        lambda: app.dataset("p", keep=-1),
        lambda: app.dataset("p", shape=object()),
        lambda: app.dataset("p", kept=1),  # type: ignore[call-overload]
        lambda: app.task(reads="prices")(lambda: None),
        lambda: app.task(reads=["a", "a"])(lambda: None),
        lambda: app.task(writes={"a": 0})(lambda: None),
        lambda: index.options(reads=7),  # type: ignore[arg-type]
        lambda: app.on("prices")(print),  # type: ignore[type-var]
        lambda: app.on("prices")(number),  # type: ignore[type-var]
        lambda: app.on("prices", argument="x")(index),
        lambda: other.on("prices")(index),
        lambda: (app.on("prices", argument="event")(index), app.on("prices", argument="event")(index)),
    ):
        with pytest.raises(BadInput):
            wrong()
