"""Calls that a type checker must accept."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from psycopg import AsyncConnection, Connection

import tenure

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


@app.task(unique="active", unique_by=("customer",), on_conflict="replace", expires=timedelta(hours=1))
async def sync(customer: int, *, full: bool = False) -> None:
    """A task of which one waits or runs."""


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
