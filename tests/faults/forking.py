"""Handlers that fork, as `tenure worker tests.faults.forking:app` runs them."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from pathlib import Path

import tenure

app = tenure.App(os.environ.get("DATABASE_URL", "postgresql://nowhere"))


def _square(n: int) -> int:
    return n * n


def _busy(began: str) -> None:
    Path(began).touch()
    time.sleep(600)


def _pooled(n: int) -> int:
    """Use a pool of forked processes and terminate it while one of them is busy."""
    pool = multiprocessing.get_context("fork").Pool(2)
    squares = sum(pool.map(_square, range(n)))
    with tempfile.TemporaryDirectory() as directory:
        began = Path(directory, "began")
        pool.apply_async(_busy, (str(began),))
        while not began.exists():
            time.sleep(0.01)
        pool.terminate()
        pool.join()
    return squares


@app.task
async def pool_on_the_loop(n: int) -> int:
    """Use a pool on the loop."""
    return _pooled(n)


@app.task
def pool_in_a_thread(n: int) -> int:
    """Use a pool in a thread."""
    return _pooled(n)


@app.task(isolation="process")
def pool_in_a_process(n: int) -> int:
    """Use a pool in a process."""
    return _pooled(n)


def _forked(pid: int) -> str:
    """In the parent: wait for the child that went on with the handler."""
    if pid == 0:
        return "the child has gone on as if it were the handler"
    _, status = os.waitpid(pid, 0)
    return f"the child ended with {os.waitstatus_to_exitcode(status)}"


@app.task
async def fork_on_the_loop() -> str:
    """Fork, and let the child return too."""
    return _forked(os.fork())


@app.task
def fork_in_a_thread() -> str:
    """The same in a thread."""
    return _forked(os.fork())


@app.task
async def end_the_process() -> None:
    """End the worker as if it had been told to, without an error."""
    os._exit(0)
