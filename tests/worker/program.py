"""An application that tests run as a program: `tenure worker tests.worker.program:app`."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import tenure

app = tenure.App(os.environ.get("DATABASE_URL", "postgresql://nowhere"))


def _wait_for(true: Callable[[], bool]) -> None:
    """Wait until this is true; the limit only ends a process that a failed test has left."""
    limit = time.monotonic() + 100
    while not true():
        assert time.monotonic() < limit, "it did not come true in time"
        time.sleep(0.01)


@app.task
async def nap(seconds: float) -> str:
    """Sleep on the loop."""
    await asyncio.sleep(seconds)
    return "rested"


@app.task
def doze(seconds: float) -> str:
    """Sleep in a thread."""
    time.sleep(seconds)
    return "rested"


@app.task
def hold(gate: str) -> str:
    """Wait until a file is there, and say with another that the wait has begun."""
    Path(f"{gate}.began").touch()
    _wait_for(Path(gate).exists)
    return "let go"


@app.task
def meet(ctx: tenure.Context, room: str, jobs: int) -> None:
    """Wait until so many jobs have come into a directory."""
    Path(room, str(ctx.job.id)).touch()
    _wait_for(lambda: len(list(Path(room).iterdir())) >= jobs)


@app.task(max_attempts=3)
async def poison() -> None:
    """Take the whole process down."""
    os._exit(9)


@app.task
async def neighbour(n: int) -> int:
    """Work beside others."""
    await asyncio.sleep(0.02)
    return n


@app.task
async def stand_still(seconds: float) -> int:
    """Freeze the whole worker, until somebody lets it go on."""
    os.kill(os.getpid(), signal.SIGSTOP)
    await asyncio.sleep(seconds)
    return os.getpid()


@app.task
async def swallow_cancels(began: str) -> None:
    """Write a file, and go on for ever, whoever cancels it."""
    await asyncio.to_thread(Path(began).touch)
    while True:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            continue


@app.task
async def sleep_in_a_thread(began: str) -> None:
    """Write a file, and wait for a thread that cannot be ended."""

    def sleep() -> None:
        Path(began).touch()
        time.sleep(600)

    await asyncio.to_thread(sleep)


@app.task
async def block(gate: str) -> str:
    """Stop the whole event loop until a file is there."""
    _wait_for(Path(gate).exists)
    return "let go"
