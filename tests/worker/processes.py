"""Workers as processes of their own, which tests stop, freeze and kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
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


def begin(
    dsn: str, *arguments: str, app: str = "tests.worker.program:app", stderr: IO[str] | int = subprocess.PIPE
) -> subprocess.Popen[str]:
    """Start a worker on this database; one that has much to say says it to a file, since nobody empties a pipe."""
    return subprocess.Popen(
        [sys.executable, "-m", "tenure", "worker", app, "--poll", "0.05", *arguments],
        cwd=ROOT, env={**os.environ, **QUICK, "DATABASE_URL": dsn}, stderr=stderr, text=True,
    )  # fmt: skip


@contextmanager
def worker(dsn: str, *arguments: str, app: str = "tests.worker.program:app") -> Iterator[subprocess.Popen[str]]:
    """A worker for as long as a block lasts; it is killed if it did not end."""
    process = begin(dsn, *arguments, app=app)
    try:
        yield process
    finally:
        end(process)


def end(process: subprocess.Popen[str]) -> None:
    """Kill it, frozen or not, and wait for it."""
    if process.poll() is None:
        process.send_signal(signal.SIGKILL)
    process.communicate()
