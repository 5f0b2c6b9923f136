"""An application whose handlers write datasets, each way of running them; tests run it as a program too."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import psycopg

import tenure

app = tenure.App(os.environ.get("DATABASE_URL", "postgresql://nowhere"))
prices = app.dataset("prices", shape={"id": "text"})


def price(n: int, v: int = 0) -> dict[str, Any]:
    """A row."""
    return {"id": f"{n:05d}", "v": v}


def write(ctx: tenure.Context, count: int) -> int:
    """Add rows that every attempt adds too, and replace a scope by what this attempt has."""
    output = ctx.output(prices)
    output.append([price(n) for n in range(count)], key="id")
    output.replace([ctx.attempt], scope="attempt")
    output.pointer("s3://prices", "7", count)
    ctx.emit(prices, cursor=count)
    return sum(1 for _ in ctx.input("currencies").rows_sync())


@app.task(reads=["currencies"], writes=[prices])
def in_thread(ctx: tenure.Context, count: int) -> int:
    """In a thread."""
    return write(ctx, count)


@app.task(reads=["currencies"], writes=[prices], isolation="process")
def in_process(ctx: tenure.Context, count: int) -> int:
    """In a process of its own."""
    return write(ctx, count)


@app.task(reads=["currencies"], writes=[prices], isolation="process")
def in_process_and_transaction(ctx: tenure.Context, count: int, dsn: str) -> None:
    """In a process of its own, which ends the job in a transaction of its own."""
    with psycopg.connect(dsn) as connection:
        ctx.complete_in(connection, write(ctx, count))


@app.task(writes=[prices])
def half(ctx: tenure.Context, gate: str) -> str:
    """Send half of the rows of a scope; the first attempt then waits to be killed."""
    output = ctx.output(prices)
    output.replace([f"{ctx.attempt}:{n}" for n in range(10)], scope="may")
    output.send_sync()
    if ctx.attempt == 1:
        Path(gate).touch()
        time.sleep(600)
    output.append([price(1, ctx.attempt)], key="id")
    return "whole"
