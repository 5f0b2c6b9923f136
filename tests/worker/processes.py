"""Workers as processes of their own, which tests stop, freeze and kill."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parents[2]
#: No waiting between tries, and the shortest leases.
QUICK = {
    f"TENURE_{contract}_{number}": value
    for contract in ("STANDARD", "PHASE27", "DISPATCHER", "SIMPLE", "GATE_B2", "RELIABILITY")
    for number, value in (("LEASE_MS", "2000"), ("BACKOFF_BASE_MS", "1"), ("BACKOFF_CAP_MS", "1"))
    if (contract, number) != ("RELIABILITY", "LEASE_MS")
}
#: The same with leases that no test outlives: only `Harness.expire` ends them.
STEADY = {name: "600000" if name.endswith("_LEASE_MS") else value for name, value in QUICK.items()}


def begin(
    dsn: str,
    *arguments: str,
    app: str = "tests.worker.program:app",
    stderr: IO[str] | int = subprocess.PIPE,
    numbers: Mapping[str, str] = QUICK,
) -> subprocess.Popen[str]:
    """Start a worker on this database; one that has much to say says it to a file, since nobody empties a pipe."""
    return subprocess.Popen(
        [sys.executable, "-m", "tenure", "worker", app, "--poll", "0.05", *arguments],
        cwd=ROOT, env={**os.environ, **numbers, "DATABASE_URL": dsn}, stderr=stderr, text=True,
        start_new_session=True,
    )  # fmt: skip


@contextmanager
def worker(dsn: str, *arguments: str, app: str = "tests.worker.program:app") -> Iterator[subprocess.Popen[str]]:
    """A worker for as long as a block lasts; it is killed if it did not end."""
    process = begin(dsn, *arguments, app=app)
    try:
        yield process
    finally:
        end(process)


@contextmanager
def steady_worker(dsn: str, *arguments: str, app: str = "tests.worker.program:app") -> Iterator[subprocess.Popen[str]]:
    """The same with leases that run out only when a test says so."""
    process = begin(dsn, *arguments, app=app, numbers=STEADY)
    try:
        yield process
    finally:
        end(process)


async def says(process: subprocess.Popen[str], part: str) -> None:
    """Read what a worker logs until a line has this in it."""
    await line(process, part)


async def line(process: subprocess.Popen[str], part: str) -> str:
    """The first line that a worker logs with this in it; the limit only keeps a test from hanging."""
    assert process.stderr is not None
    try:
        async with asyncio.timeout(100):
            while part not in (found := await asyncio.to_thread(process.stderr.readline)):
                assert found, f"the worker ended before it said {part!r}"
    except TimeoutError:
        raise AssertionError(f"the worker never said {part!r}") from None
    return found


def is_frozen(process: subprocess.Popen[str]) -> bool:
    """Whether every thread of a process is stopped."""
    return Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"


def end(process: subprocess.Popen[str]) -> None:
    """Kill a process, frozen or not, and what it forked where it has a session of its own; then wait for it."""
    if process.poll() is None:
        process.send_signal(signal.SIGKILL)
    with suppress(ProcessLookupError):  # a forked process that goes on keeps the pipe open
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
