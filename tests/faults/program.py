"""What the fleet runs: `tenure worker tests.faults.program:app`. Each handler is witnessed while it runs.

A witness is a row of the test's own table, and the advisory lock of the job for as long as the handler runs: whoever
begins while another is still at it does not get the lock, and a process that is killed lets go of it.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import psycopg

import tenure
from tests.faults import clock


class HoldBeforeStart(tenure.Middleware):
    """Keeps jobs of one type, once they are claimed, from starting for as long as their worker has them."""

    async def claim(self, jobs: Sequence[tenure.Job]) -> None:
        if any(job.type == os.environ["TENURE_TEST_HOLD"] and job.claims == 1 for job in jobs):
            await asyncio.sleep(3_600)


_middleware = [HoldBeforeStart()] if "TENURE_TEST_HOLD" in os.environ else []
app = tenure.App(os.environ.get("DATABASE_URL", "postgresql://nowhere"), middleware=_middleware)

_BEGUN = """
insert into public.run (job_id, claims, pid, worker_clock, alone)
select %s, %s, %s, to_timestamp(%s), pg_try_advisory_lock(%s) returning n, alone
"""
_ENDED = "update public.run set ended_at = clock_timestamp() where n = %s"

if "TENURE_TEST_CLOCK" in os.environ:
    clock.follow(Path(os.environ["TENURE_TEST_CLOCK"]))


@cache
def _connection(_: int) -> psycopg.Connection[Any]:
    # Where faults are on the worker's way to the database, witnesses have a way of their own.
    address = os.environ.get("TENURE_TEST_WITNESSES", os.environ["DATABASE_URL"])
    return psycopg.connect(address, autocommit=True, application_name="witness")


@contextmanager
def witnessed(ctx: tenure.Context) -> Iterator[None]:
    """Tell that this handler runs, for as long as it does."""
    connection = _connection(os.getpid())
    values = (ctx.job.id, ctx.attempt, os.getpid(), time.time(), ctx.job.id)
    begun = connection.execute(_BEGUN, values).fetchone()
    assert begun is not None
    number, alone = begun
    try:
        yield
    finally:
        connection.execute(_ENDED, (number,))
        if alone:
            connection.execute("select pg_advisory_unlock(%s)", (ctx.job.id,))


def told(ctx: tenure.Context) -> dict[str, int]:
    """A result that says whose it is."""
    return {"attempt": ctx.attempt, "pid": os.getpid()}


@app.task
async def on_the_loop(ctx: tenure.Context, seconds: float) -> dict[str, int]:
    """Takes its time on the loop."""
    with witnessed(ctx):
        await asyncio.sleep(seconds)
    return told(ctx)


@app.task
def in_a_thread(ctx: tenure.Context, seconds: float) -> dict[str, int]:
    """Takes its time in a thread."""
    with witnessed(ctx):
        threading.Event().wait(seconds)  # under libfaketime, time.sleep() raises an OSError
    return told(ctx)


@app.task
async def unlucky_at_first(ctx: tenure.Context, seconds: float) -> dict[str, int]:
    """Fails the first time."""
    with witnessed(ctx):
        await asyncio.sleep(seconds)
    if ctx.attempt == 1:
        raise tenure.TransientError("no luck")
    return told(ctx)


@app.task
async def hopeless(ctx: tenure.Context, seconds: float) -> None:
    """Fails every time."""
    with witnessed(ctx):
        await asyncio.sleep(seconds)
    raise tenure.TransientError("no luck")


@app.task
async def invalid(ctx: tenure.Context, seconds: float) -> None:
    """Finds its arguments wrong."""
    with witnessed(ctx):
        await asyncio.sleep(seconds)
    raise tenure.ValidationError("no good")


@app.task
async def with_an_effect(ctx: tenure.Context, seconds: float) -> dict[str, int]:
    """Has an effect when its time is over."""
    with witnessed(ctx):
        await asyncio.sleep(seconds)
        await ctx.effect("charge", lambda: ctx.attempt)
    return told(ctx)


def is_open(ctx: tenure.Context, gate: str) -> bool:
    """Whether the test lets handlers of this attempt pass that wait at this gate."""
    return Path(os.environ["TENURE_TEST_GATES"], f"{gate}-{ctx.attempt}").exists()


@app.task
async def gated(ctx: tenure.Context, gate: str) -> dict[str, int]:
    """Waits on the loop until the test opens a gate."""
    with witnessed(ctx):
        while not is_open(ctx, gate):  # noqa: ASYNC110 (the gate is a file)
            await asyncio.sleep(0.1)
    return told(ctx)


@app.task
def gated_in_a_thread(ctx: tenure.Context, gate: str) -> dict[str, int]:
    """Waits in a thread until the test opens a gate."""
    with witnessed(ctx):
        while not is_open(ctx, gate):
            time.sleep(0.1)
    return told(ctx)


@app.task
async def gated_with_an_effect(ctx: tenure.Context, gate: str) -> dict[str, int]:
    """Has an effect when the test has opened a gate."""
    with witnessed(ctx):
        while not is_open(ctx, gate):  # noqa: ASYNC110 (the gate is a file)
            await asyncio.sleep(0.1)
        await ctx.effect("charge", lambda: ctx.attempt)
    return told(ctx)


@app.task
async def unseen(ctx: tenure.Context, seconds: float) -> dict[str, int]:
    """Takes its time on the loop, without a connection that a fault could take from it."""
    await asyncio.sleep(seconds)
    return told(ctx)


@app.task
def unseen_in_a_thread(ctx: tenure.Context, seconds: float) -> dict[str, int]:
    """The same in a thread."""
    time.sleep(seconds)
    return told(ctx)


@app.task
async def unseen_with_an_effect(ctx: tenure.Context, seconds: float) -> dict[str, int]:
    """The same with an effect."""
    await asyncio.sleep(seconds)
    await ctx.effect("charge", lambda: ctx.attempt)
    return told(ctx)


@app.task
async def block(ctx: tenure.Context, gate: str) -> dict[str, int]:
    """Stops the whole event loop until the test opens a gate."""
    while not is_open(ctx, gate):
        time.sleep(0.05)  # noqa: ASYNC251 (that is the fault)
    return told(ctx)


async def _nothing(n: int) -> int:
    return n


#: Waits for nothing. No process of its own finds it by its name: hundreds that lost their worker would each begin one.
at_once = app.task(name="at_once")(_nothing)


@app.task
async def block_and_fail(ctx: tenure.Context, room: str) -> None:
    """Say where each attempt runs and fail; the first one stops the whole event loop until the test opens a gate."""
    Path(room, f"attempt-{ctx.attempt}").write_text(str(os.getpid()))  # noqa: ASYNC240
    while ctx.attempt == 1 and not Path(room, "go").exists():  # noqa: ASYNC240
        time.sleep(0.05)  # noqa: ASYNC251 (that is the fault)
    raise ValueError("again")


@app.task(name="listing")
async def listing(count: int) -> list[int]:
    """Returns so many items."""
    return list(range(count))


@app.task(name="adding")
async def adding(seconds: list[float]) -> float:
    """Adds what the members of a mapped node returned."""
    return sum(seconds)


async def _slept(seconds: float, n: int) -> int:
    await asyncio.sleep(seconds)
    return n


#: Takes its time, without a connection that a fault could take from it; like `at_once`, never in a process of its own.
asleep = app.task(name="asleep")(_slept)
