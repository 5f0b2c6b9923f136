"""Calls that a type checker must accept."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
from psycopg import AsyncConnection, Connection
from sqlalchemy import Connection as SqlConnection
from sqlalchemy.ext.asyncio import AsyncConnection as AsyncSqlConnection
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

import tenure
from tenure.app_datasets import StoredGeneration
from tenure.dataset import Event
from tenure.flow import Group, Node
from tenure.jobs.flow import FlowMade

app = tenure.App()


@app.task
async def send(to: str, *, subject: str) -> int:
    """An asynchronous task."""
    return len(to) + len(subject)


@app.task(queue="sums", max_attempts=3, timeout=30)
def add(left: int, right: int = 1) -> int:
    """A plain task."""
    return left + right


@app.task(contract="reliability", isolation="process", lease=60, heartbeat=10, on_exhausted="failed")
async def report(ctx: tenure.Context, month: str) -> tenure.Snooze | str:
    """A task that takes a context, which nobody passes."""
    if ctx.cancelled:
        return tenure.Snooze(60)
    total: int = await ctx.effect("total", total_of, month)
    return f"{month}: {total}"


async def total_of(month: str) -> int:
    """What is done once."""
    return len(month)


@report.compensate("total")
async def forget(result: int) -> None:
    """What undoes it."""


@app.task
async def rows_of(day: str) -> list[int]:
    """A list that a flow maps."""
    return [len(day)]


@app.task
def total(numbers: Sequence[int], *, factor: int = 1) -> float:
    """What a flow ends with."""
    return sum(numbers) * factor


@app.task(contract="reliability")
async def publish(total: float) -> None:
    """A step that returns nothing."""


async def in_a_flow() -> None:
    """Results of nodes as arguments: their types are those of the annotations."""
    flow = app.flow("nightly", on_failure="skip", key="2030-01-02", tenant="acme")
    rows = flow.node(rows_of.call("2030-01-02"))
    sums: Node[list[int]] = flow.map(add.call(rows.each, right=2), name="sums", after=[rows], on_failure="continue")
    whole: Node[float] = flow.node(total.call(sums.result, factor=3))
    both: Group[int] = flow.group(add.call(1), add.options(priority=1).call(2))
    flow.node(total.call(both.result), name="of a group", after=[whole, both])
    flow.node(total.call([add_one.result for add_one in both.nodes]), name="of a list")
    chord: Node[float] = flow.chord([add.call(1), add.call(2)], total)
    nothing: Node[None] = flow.chain(rows_of.call("x"), total, publish)
    flow.chain(send.call("a", subject="b"), rows_of.call("y"), total, publish, add.call(1))
    flow.cleanup(publish.call(0.0), name="sweep")
    made = await flow.start()
    one: float = await app.flows.result(made, whole, timeout=60)
    last: dict[str, Any] = await app.flows.result(made.id)
    await app.flows.resume(flow.start_sync(), nodes=["total"])
    same: list[int] = app.flows.result_sync(made, sums)
    print(chord, nothing, one, last, same)


async def in_transactions(
    session: Session,
    scoped: scoped_session[Session],
    plain: SqlConnection,
    async_session: AsyncSession,
    async_scoped: async_scoped_session[AsyncSession],
    async_plain: AsyncSqlConnection,
    own: asyncpg.Connection[Any],
    pooled: asyncpg.pool.PoolConnectionProxy[Any],
) -> None:
    """Each library's connection; the asynchronous ones are awaited."""
    tickets: list[tenure.Ticket[int]] = [add.enqueue_in(one, 1) for one in (session, scoped, plain)]
    tickets.append(await add.enqueue_in(async_session, 1))
    tickets.append(await add.enqueue_in(async_scoped, 1))
    tickets.append(await add.enqueue_in(async_plain, 1))
    tickets.append(await add.enqueue_in(own, 1))
    tickets.append(await add.enqueue_in(pooled, 1))
    flow = app.flow("in a transaction")
    started: list[FlowMade] = [flow.start_in(session), await flow.start_in(own)]
    ids: list[int] = app.enqueue_many_in(session, [add.call(1), send.call("a", subject="b")])
    ids += await app.enqueue_many_in(own, (add.call(n) for n in range(2)))
    print(tickets, ids, started)


@app.every("0 3 * * *", tz="Europe/Berlin", missed="skip")
@app.every(minutes=5, jitter=30, name="often")
@app.task(queue="sums")
async def clean_up(days: int = 30) -> int:
    """A task with two schedules, which can be called without arguments."""
    return days


@app.every(hours=1, args=["a@b.c"], kwargs={"subject": "hi"}, overlap="allow")
@app.task
async def remind(to: str, *, subject: str) -> None:
    """A task with arguments."""


@app.task(unique="active", unique_by=("customer",), on_conflict="replace", expires=timedelta(hours=1))
async def sync(customer: int, *, full: bool = False) -> None:
    """A task of which one waits or runs."""


prices = app.dataset("prices", shape={"sku": "text"}, keep=3)


@app.task(reads=["currencies"], writes=[prices, "totals"])
async def load_prices(ctx: tenure.Context, day: str) -> int:
    """A task that reads and writes datasets."""
    rows = [row async for row in ctx.input("currencies").rows()]
    ctx.output(prices).append(rows, key=("sku", "day"))
    ctx.output("totals").replace(({"n": n} for n in range(3)), scope=day)
    ctx.output("totals").pointer("s3://totals", cursor="7", row_count=3)
    ctx.emit(prices, partition_key=day)
    return await ctx.input("currencies").generation()


@app.on(prices)
@app.task
def index(ctx: tenure.Context, event: Event) -> str:
    """A task that is subscribed."""
    return f"{event.dataset}: {len(list(ctx.input(prices).rows_sync()))}"


@app.on("totals", argument="change", kwargs={"factor": 2})
@app.task
async def report_totals(factor: int, change: dict[str, Any]) -> None:
    """One with arguments of its own."""


async def with_datasets() -> None:
    """Read, switch and roll back."""
    await load_prices.options(reads={"currencies": 2}, writes=[prices]).enqueue("may")
    current: StoredGeneration = await prices.current()
    async for row in current.rows("may"):
        print(row)
    both: dict[str, StoredGeneration] = await app.datasets.current([prices, "totals"])
    await app.datasets.cutover(both.values(), actor="ann")
    await app.datasets.cutover({"prices": 2, "totals": 3}, reason="may")
    print((await prices.rollback(actor="ann")).left, app.dataset("totals", tenant="acme").current_sync().number)


async def main(connection: Connection, asynchronous: AsyncConnection) -> None:
    """Each way to make a job."""
    ticket: tenure.Ticket[int] = await send.enqueue("a@b.c", subject="hi")
    length: int = await app.result(ticket)
    add.enqueue_sync(1)
    add.enqueue_sync(1, right=length)
    made: tenure.Ticket[int] = add.enqueue_in(connection, 1, 2)
    later: tenure.Ticket[int] = await add.enqueue_in(asynchronous, 1, 2)
    await report.options(delay=60, key="may").enqueue("May")
    await report.enqueue(month="May")
    await app.enqueue_many(send.call(to, subject="hi") for to in ("a", "b"))
    await app.cancel(made, mode="hard")
    await sync.options(unique=timedelta(minutes=5), on_conflict="refuse", expires=60).enqueue(7)
    await sync.options(unique="waiting", expires=datetime.now(UTC)).enqueue(7, full=True)
    print((await app.job(later)).state)
    days: int = await app.result(await clean_up.enqueue(days=3))
    schedule = await app.schedule("may", report.call("May"), "@monthly", tz="Asia/Tokyo")
    await app.schedule("sum", add.call(1, right=days), minutes=5)
    print(schedule.next_at, [one.name for one in await app.schedules.list()], await app.unschedule("sum"))
    flow = app.flow("wrong")
    rows = flow.node(rows_of.call("x"))
    whole = flow.node(total.call(rows.result))
    flow.node(publish.call(whole.result))
