"""What handlers read and write of datasets: pinned, and stored with the completion or not at all."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

import tenure
from tenure import testing
from tenure.app import App
from tenure.contracts import BUILT_IN
from tenure.dataset import Event
from tenure.errors import BadInput, JobFailed
from tenure.jobs.dataset import NewDataset
from tenure.postgres.store import Store
from tests.harness import Harness
from tests.worker import tables
from tests.worker.processes import steady_worker
from tests.worker.woken import dispatcher, through
from tests.worker.working import until, working

__all__ = ["dispatcher"]


@pytest.fixture
def program(dsn: str, app: App, db: Harness) -> App:
    """The tasks of the program, in an application on this test's database."""
    app.tasks.update(tables.app.tasks)
    app._used_datasets.update(tables.app._used_datasets)
    app._dataset_declarations.update(tables.app._dataset_declarations)
    for task in app.tasks.values():
        object.__setattr__(task, "app", app)
    return app


async def values(app: App, scope: str | None = None, dataset: str = "prices") -> list[Any]:
    """The rows of the current generation."""
    return [row async for row in (await app.dataset(dataset).current()).rows(scope)]


def stored(db: Harness) -> list[int]:
    """How many rows can be read, and how many rows the other tables have that a completion writes."""
    readable = "select count(*) from tenure.dataset_current_row"
    return [db.value(readable), *(db.value(f"select count(*) from tenure.dataset_{name}") for name in _WRITTEN)]


_WRITTEN = ("scope", "output", "event")


@pytest.mark.parametrize(
    ("task", "count"),
    [("in_thread", 2), ("in_thread", 20_000), ("in_process", 20_000), ("in_process_and_transaction", 20_000)],
)
async def test_outputs_of_plain_handlers_are_stored_with_their_completion(
    program: App, store: Store, db: Harness, dsn: str, task: str, count: int
) -> None:
    await store.datasets.declare(NewDataset("currencies"))
    ticket = await program.tasks[task].enqueue(count, *([dsn] if task == "in_process_and_transaction" else []))
    async with working(program):
        assert await program.result(ticket, timeout=60) == 0
    assert len(await values(program, "")) == count
    assert await values(program, "attempt") == [1]
    pointer = await (await program.dataset("prices").current()).pointer()
    assert pointer is not None
    assert (pointer.location, pointer.cursor, pointer.row_count, pointer.job_id) == (
        "s3://prices", "7", count, ticket.id,
    )  # fmt: skip
    assert db.value("select input from tenure.dataset_event") == {"cursor": count}
    staged = db.value("select count(*) from tenure.dataset_batch where state <> 'read'")
    assert staged == (1 if count > 2 and task != "in_process_and_transaction" else 0)  # large ones are sent before


@pytest.mark.req("S1-09")
@pytest.mark.parametrize("contract", ["standard", "dispatcher"])
async def test_rows_that_a_second_run_appends_again_are_there_once(app: App, db: Harness, contract: str) -> None:
    @app.task(writes=["prices"], contract=contract)
    async def extract(ctx: tenure.Context, day: str) -> None:
        ctx.output("prices").append([{"day": day, "n": n, "by": ctx.job.id} for n in range(3)], key=("day", "n"))

    first = await extract.enqueue("may")
    async with working(app):
        await app.result(first, timeout=60)
        before = await values(app)
        second = await extract.enqueue("may")
        await app.result(second, timeout=60)
    assert await values(app) == before
    assert {row["by"] for row in before} == {first.id}
    (output,) = await app.datasets.outputs(second)
    assert (output.given, output.row_count) == (3, 0)


@pytest.mark.req("S1-10")
async def test_an_attempt_that_is_killed_half_way_leaves_the_old_content_and_the_next_one_its_own(
    program: App, dsn: str, db: Harness, tmp_path: Path
) -> None:
    @program.task(writes=["prices"])
    async def old(ctx: tenure.Context) -> None:
        ctx.output("prices").replace(["old"], scope="may")

    done = await old.enqueue()
    async with working(program):
        await program.result(done, timeout=60)
    gate = tmp_path / "gate"
    ticket = await program.tasks["half"].enqueue(str(gate))
    with steady_worker(dsn, app="tests.worker.tables:app") as process:
        await until(gate.exists)
        process.kill()
        process.wait()
    assert await values(program) == ["old"]
    db.expire(ticket.id)
    async with working(program):
        assert await program.result(ticket, timeout=60) == "whole"
    assert await values(program, "may") == [f"2:{n}" for n in range(10)]
    assert await values(program, "") == [tables.price(1, 2)]


@pytest.mark.req("S1-11")
@pytest.mark.parametrize("contract", BUILT_IN)
async def test_a_handler_that_has_lost_its_lease_adds_nothing(app: App, db: Harness, contract: str) -> None:
    @app.task(writes=["prices"], contract=contract)
    async def work(ctx: tenure.Context) -> None:
        ctx.output("prices").append([{"id": ctx.attempt}], key="id")
        ctx.output("prices").replace([ctx.attempt], scope="may")
        ctx.output("prices").pointer(f"s3://{ctx.attempt}")
        ctx.emit("prices", cursor=ctx.attempt)
        # Another worker takes it over.
        db.sql("update tenure.job set lease_token = gen_random_uuid() where id = %s", ctx.job.id)

    await work.enqueue()
    async with working(app) as worker:
        await until(lambda: worker.counts["refused"] + worker.counts["lost"] == 1)
    assert stored(db) == [0, 0, 0, 0]


@pytest.mark.parametrize("ending", ["raises", "snoozes", "cancels"])
async def test_only_a_success_stores_outputs(app: App, db: Harness, ending: str) -> None:
    @app.task(writes=["prices"], max_attempts=1)
    async def work(ctx: tenure.Context) -> Any:
        ctx.output("prices").replace(["x" * 1_000] * 500, scope="may")
        ctx.emit("prices", cursor=1)
        if ending == "raises":
            raise RuntimeError("no")
        return tenure.Snooze(600) if ending == "snoozes" else tenure.Cancel()

    await work.enqueue()
    async with working(app) as worker:
        await until(lambda: sum(worker.counts[one] for one in ("failed", "snoozed", "cancelled")) == 1)
    assert stored(db) == [0, 0, 0, 0]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda ctx: ctx.output("totals").append([{"id": 1}], key="id"),
        lambda ctx: ctx.output("totals").replace(["x" * 1_000] * 500, scope="may"),
        lambda ctx: ctx.emit("nowhere", cursor=1),
    ],
    ids=["of-another-dataset", "large-of-another-dataset", "event-of-no-dataset"],
)
async def test_an_output_that_can_never_be_stored_fails_the_job_for_good(
    app: App, db: Harness, wrong: Callable[[tenure.Context], None]
) -> None:
    app.dataset("totals", keep=1)

    @app.task(writes=["prices"])
    async def work(ctx: tenure.Context) -> None:
        ctx.output("prices").replace([1], scope="may")
        wrong(ctx)

    ticket = await work.enqueue()
    async with working(app):
        await until(lambda: db.row(ticket.id)["role"] == "done")
        with pytest.raises(JobFailed, match="dataset"):
            await app.result(ticket)
    assert db.row(ticket.id)["claims"] == 1
    assert db.row(ticket.id)["last_error"]["stage"] == "output"
    assert stored(db) == [0, 0, 0, 0]


async def test_wrong_rows_are_refused_where_they_are_given(app: App) -> None:
    found: list[str] = []

    @app.task(writes=["prices"])
    async def work(ctx: tenure.Context) -> None:
        output = ctx.output("prices")
        output.replace([1], scope="may")
        for wrong in (
            partial(output.append, [{"id": 1}]),
            partial(output.append, [{"n": 1}], key="id"),
            partial(output.append, [{"id": 1}, {"id": 1}], key="id"),
            partial(output.append, [{"id": object()}], key="id"),
            partial(output.append, {"id": 1}, key="id"),
            partial(output.append, [1], keys="a"),
            partial(output.replace, [2], scope="may"),
            partial(output.replace, [2], scope=""),
            partial(output.pointer, ""),
            partial(ctx.emit, "prices"),
            partial(ctx.emit, "prices", cursor=1, partition_key="a"),
        ):
            with pytest.raises(BadInput) as refused:
                wrong()
            found.append(str(refused.value))
        with pytest.raises(BadInput, match="does not read dataset 'other'"):
            await ctx.input("other").generation()

    ticket = await work.enqueue()
    async with working(app):
        await app.result(ticket, timeout=60)
    assert len(found) == 11
    assert "needs the key of each row" in found[0]
    assert "rows[0]['id']" in found[3] or "rows[0].id" in found[3]
    assert "has replaced scope 'may'" in found[6]


async def test_rows_are_stored_as_json_has_them_and_those_of_several_calls_go_together(app: App, db: Harness) -> None:
    @app.task(writes=["prices"])
    async def work(ctx: tenure.Context) -> None:
        output = ctx.output("prices")
        output.append(({"id": n, "day": date(2030, 1, n)} for n in (1, 2)), key="id")
        await output.send()
        output.append([{"id": 2}, {"id": 3}], key="id")  # the first one stays
        output.replace([3, 1, 2], scope="order")
        output.replace([], scope="none")

    ticket = await work.enqueue()
    async with working(app):
        await app.result(ticket, timeout=60)
    assert await values(app) == [{"id": 1, "day": "2030-01-01"}, {"id": 2, "day": "2030-01-02"}, {"id": 3}, 3, 1, 2]
    current = await app.dataset("prices").current()
    assert [(row.scope, row.key) async for row in current.keyed_rows("order")] == [
        ("order", "000000000"), ("order", "000000001"), ("order", "000000002"),
    ]  # fmt: skip
    outputs = await app.datasets.outputs(ticket)
    assert [(one.kind, one.scope, one.given) for one in outputs] == [
        ("append", None, 3), ("replace", "order", 3), ("replace", "none", 0),
    ]  # fmt: skip


async def test_outputs_of_a_handlers_own_transaction_end_with_it(app: App, dsn: str, db: Harness) -> None:
    @app.task(writes=["prices"], max_attempts=2)
    async def work(ctx: tenure.Context) -> None:
        async with await psycopg.AsyncConnection.connect(dsn) as connection:
            ctx.output("prices").replace([ctx.attempt], scope="may")
            ctx.output("prices").pointer(f"s3://{ctx.attempt}")
            if ctx.attempt == 2:
                await ctx.output("prices").send()
            await ctx.complete_in(connection)
            if ctx.attempt == 1:
                await connection.rollback()

    ticket = await work.enqueue()
    async with working(app) as worker:
        await until(lambda: worker.counts["succeeded"] == 1)
    assert (db.row(ticket.id)["claims"], await values(app)) == (2, [2])
    assert [one.location for one in await (await app.dataset("prices").current()).pointers()] == ["s3://2"]
    assert db.value("select count(*) from tenure.dataset_output") == 2


@pytest.mark.req("S1-78")
@pytest.mark.parametrize("contract", ["standard", "dispatcher"])
async def test_a_queued_job_reads_what_was_current_when_it_was_made(app: App, contract: str) -> None:
    read: list[Any] = []

    @app.task(writes=["prices"], queue="writers")
    async def fill(ctx: tenure.Context, value: int) -> None:
        ctx.output("prices").replace([value], scope="all")
        ctx.output("prices").pointer(f"s3://{value}", scope="file")

    @app.task(reads=["prices"], contract=contract)
    async def use(ctx: tenure.Context) -> None:
        prices = ctx.input("prices")
        pointer = await prices.pointer("file")
        assert pointer is not None
        read.append((await prices.generation(), [row async for row in prices.rows()], pointer.location))

    async with working(app, queues=["writers"]):
        await app.result(await fill.enqueue(1), timeout=60)
        queued = await use.enqueue()
        many = await app.enqueue_many([use.call()])
        new = await app.dataset("prices").new_generation()
        await app.result(await fill.options(writes={"prices": new.number}).enqueue(2), timeout=60)
    await app.dataset("prices").cutover(new.number)
    later = await use.enqueue()
    async with working(app):
        for job in (queued.id, *many, later.id):
            await app.result(job, timeout=60)
    assert sorted(read) == [(1, [1], "s3://1"), (1, [1], "s3://1"), (2, [2], "s3://2")]
    assert [pin.generation for pin in await app.datasets.pins(queued)] == [1]


@pytest.mark.req("S1-52")
async def test_events_run_the_subscribed_tasks_once_for_each_input(app: App, store: Store, db: Harness) -> None:
    testing.mark_database(app)
    ran: list[Any] = []

    @app.task(writes=["prices"])
    async def extract(ctx: tenure.Context, cursors: list[int]) -> None:
        ctx.output("prices").replace(cursors, scope="last")
        for cursor in cursors:
            ctx.emit("prices", cursor=cursor)

    @app.on("prices")
    @app.task
    async def index(ctx: tenure.Context, event: Event) -> None:
        assert await ctx.input("prices").generation() == event.dataset_version
        ran.append(("index", event.dataset, event.cursor))

    @app.on("prices", argument="change", kwargs={"factor": 2})
    @app.task(queue="reports")
    def report(factor: int, change: dict[str, Any], more: int = 0) -> None:
        ran.append(("report", factor, change["cursor"]))

    await extract.enqueue([1, 2])
    await extract.enqueue([2])
    await testing.drain(app)
    await extract.enqueue([2, 3])
    counts = await testing.drain(app)
    assert counts["succeeded"] == 3  # the extract, and the two tasks for 3
    assert sorted(ran) == [*(("index", "prices", n) for n in (1, 2, 3)), *(("report", 2, n) for n in (1, 2, 3))]
    (first, second) = await app.datasets.subscriptions("prices")
    assert (first.type, first.argument, first.waiting, second.type, second.argument) == (
        "index", "event", 0, "report", "change",
    )  # fmt: skip
    assert await app.datasets.unsubscribe("prices", index)
    assert not await app.datasets.unsubscribe("prices", index)


async def test_upkeep_of_a_worker_routes_events(app: App) -> None:
    ran: list[Any] = []

    @app.task(writes=["prices"])
    async def extract(ctx: tenure.Context) -> None:
        ctx.emit("prices", partition_key="may", start=1, end=2)

    @app.on("prices")
    @app.task
    async def index(event: Event) -> None:
        ran.append(event)

    await extract.enqueue()
    async with working(app):
        await until(lambda: bool(ran))
    (event,) = ran
    assert (event.partition_key, event.start, event.end, event.cursor) == ("may", 1, 2, None)


async def test_a_subscription_that_the_code_no_longer_has_is_named(
    app: App, db: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    @app.on("prices")
    @app.task
    async def index(event: Event) -> None: ...

    async with working(app):
        await until(lambda: db.value("select count(*) from tenure.dataset_subscription") == 1)
    app._subscriptions.clear()
    async with working(app):
        await until(lambda: "task index is subscribed to dataset prices" in caplog.text)


async def test_a_completion_that_waits_for_another_one_is_sent_again(app: App, dsn: str, db: Harness) -> None:
    @app.task(writes=["prices"])
    async def work(ctx: tenure.Context) -> None:
        ctx.output("prices").replace([ctx.job.id], scope="may")

    first = await work.enqueue()
    async with working(app):
        await app.result(first, timeout=60)
        with psycopg.connect(dsn) as connection:
            connection.execute("update tenure.dataset_scope set cursor = cursor")
            second = await work.enqueue()
            await until(lambda: bool(db.sql("select pid from pg_stat_activity where wait_event_type = 'Lock'")))
        await app.result(second, timeout=60)
    assert await values(app) == [second.id]


async def test_a_worker_of_a_dispatcher_reads_and_writes_datasets(dispatcher: str, store: Store, db: Harness) -> None:
    ran: list[Any] = []
    async with through(dispatcher) as app:
        prices = app.dataset("prices", shape=["n"], keep=2)

        @app.task(writes=[prices], reads=[prices])
        async def fill(ctx: tenure.Context, count: int) -> int:
            ctx.output(prices).append([{"n": n, "text": "x" * 100} for n in range(count)], key="n")
            ctx.output(prices).replace([count], scope="count")
            ctx.output(prices).pointer("s3://prices", row_count=count)
            ctx.emit(prices, cursor=count)
            return len([row async for row in ctx.input(prices).rows("")])

        @app.on(prices)
        @app.task
        def index(ctx: tenure.Context, event: Event) -> None:
            pointer = ctx.input(prices).pointer_sync()
            ran.append((event.cursor, pointer and pointer.row_count, list(ctx.input(prices).rows_sync("count"))))

        async with working(app):
            few = await fill.enqueue(2)
            assert await app.result(few, timeout=60) == 0
            assert (await store.datasets.route()).jobs == 1  # the upkeep of a dispatcher does so
            await until(lambda: len(ran) == 1)
            many = await fill.enqueue(6_000)
            assert await app.result(many, timeout=60) == 2
            assert (await store.datasets.route()).jobs == 1
            await until(lambda: len(ran) == 2)
        assert ran == [(2, 2, [2]), (6_000, 6_000, [6_000])]
        assert (len(await values(app, "")), await values(app, "count")) == (6_000, [6_000])
        (append, *_) = await app.datasets.outputs(many)
        assert (append.given, append.row_count) == (6_000, 5_998)
        new = await prices.new_generation()
        await app.datasets.cutover([new], reason="empty")
        assert await values(app) == []
        await prices.rollback()
        assert len(await values(app, "")) == 6_000
    assert db.value("select keep from tenure.dataset") == 2
