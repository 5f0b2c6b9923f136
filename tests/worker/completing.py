"""An application whose handlers end their jobs in transactions of their own; tests run it as a program too."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import psycopg

import tenure

app = tenure.App(os.environ.get("DATABASE_URL", "postgresql://nowhere"))


def wait_for(path: Path) -> None:
    """Wait until a file is there; the limit only ends a process that a failed test has left."""
    limit = time.monotonic() + 100
    while not path.exists():
        assert time.monotonic() < limit, "it did not come true in time"
        time.sleep(0.01)


def complete(ctx: tenure.Context, dsn: str, place: str, gates: list[str], *, commits: bool = True) -> str:
    """Write a row, end the job and commit; at each gate say so with a file and wait for another."""

    def pass_gate(name: str) -> None:
        if name in gates and ctx.attempt == 1:
            Path(place, f"{name}.began").touch()
            wait_for(Path(place, name))

    with psycopg.connect(dsn) as connection:
        connection.execute("insert into done (job, attempt) values (%s, %s)", [ctx.job.id, ctx.attempt])
        pass_gate("before")
        ctx.complete_in(connection, {"attempt": ctx.attempt})
        pass_gate("open")
        if not commits and ctx.attempt == 1:
            connection.rollback()
    pass_gate("after")
    return "this is not stored"


@app.task
def in_thread(ctx: tenure.Context, dsn: str, place: str, gates: list[str], commits: bool = True) -> Any:
    """In a thread."""
    return complete(ctx, dsn, place, gates, commits=commits)


@app.task(isolation="process")
def in_process(ctx: tenure.Context, dsn: str, place: str, gates: list[str], commits: bool = True) -> Any:
    """In a process of its own."""
    return complete(ctx, dsn, place, gates, commits=commits)


@app.task(isolation="process")
async def in_process_async(ctx: tenure.Context, dsn: str) -> None:
    """In a process of its own, on its event loop."""
    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        await connection.execute("insert into done (job, attempt) values (%s, %s)", [ctx.job.id, ctx.attempt])
        await ctx.complete_in(connection, {"attempt": ctx.attempt})
