"""How soon a task starts after it was enqueued, by what wakes the worker: SQS, long polling, NOTIFY, or nothing.

    ./dev bench wakeup [--quick] [--tasks N] [--json]

One task at a time, and the worker has nothing else to do. PostgreSQL (embedded), a dispatcher (with upkeep, which
publishes) and moto's server of message queues are processes of their own; the worker and the caller that enqueues
share this one, so both times are of one clock. docs/reference/bench.md describes the rows.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.depth_sections.section import Table
from tenure.app import App
from tenure.embedded import Cluster
from tenure.errors import TenureError
from tenure.postgres.migrate import migrate
from tenure.settings import Settings

_CREDENTIALS = {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench", "AWS_DEFAULT_REGION": "us-east-1"}
#: How long anything may take, in seconds.
_PATIENCE_S = 60.0
#: Without wake-ups a task waits half a poll on average, so fewer of them are measured.
_POLL_S, _FEWER = 1.0, 5
#: Tasks before the first that counts: connections open, and plans are made.
_WARM = 3


@dataclass(frozen=True)
class Way:
    """One way in which a worker learns of a task."""

    name: str
    options: Mapping[str, Any]
    through_dispatcher: bool
    tasks: int


class Starts:
    """A worker's application whose task tells when it starts."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.started: asyncio.Queue[float] = asyncio.Queue()

        @app.task(contract="dispatcher")
        async def start() -> None:
            self.started.put_nowait(time.monotonic())

        self.task = start


async def measure(dsn: str, dispatcher: str, way: Way) -> list[float]:
    """The milliseconds from each enqueue to its start."""
    settings = Settings()
    worker_app = App(dispatcher_url=dispatcher, settings=settings) if way.through_dispatcher else App(dsn)
    found: list[float] = []
    async with worker_app, App(dsn, settings=settings) as caller:
        worker_side, caller_side = Starts(worker_app), Starts(caller)
        async with _working(worker_side.app, way):
            for n in range(way.tasks + _WARM):
                begun = time.monotonic()
                await caller_side.task.enqueue()
                async with asyncio.timeout(_PATIENCE_S):
                    started = await worker_side.started.get()
                if n >= _WARM:
                    found.append(1_000 * (started - begun))
                # The worker reports the end and waits again; polls do not fall in step with the tasks.
                await asyncio.sleep(0.05 + n % 7 / 50)
    return found


@asynccontextmanager
async def _working(app: App, way: Way) -> AsyncIterator[None]:
    worker = app.worker(poll=_POLL_S, upkeep=False, **way.options)
    running = asyncio.create_task(worker.run(handle_signals=False))
    try:
        yield
    finally:
        worker.stop()
        await running


@contextmanager
def _process(*arguments: str, **environment: str) -> Iterator[None]:
    running = subprocess.Popen(
        [sys.executable, "-m", *arguments],
        env={**os.environ, **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        running.terminate()
        try:
            running.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            running.kill()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for(port: int) -> None:
    end = time.monotonic() + _PATIENCE_S
    while True:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        if time.monotonic() > end:
            raise TenureError(f"nothing listens on port {port} after {_PATIENCE_S:g} s")
        time.sleep(0.05)


def _make_queue(address: str) -> str:
    import boto3

    client = boto3.client("sqs", endpoint_url=address)
    url: str = client.create_queue(QueueName="bench", Attributes={"VisibilityTimeout": "120"})["QueueUrl"]
    return f"{address}/{url.split('/', 3)[3]}"


def run(tasks: int) -> list[dict[str, Any]]:
    """A row for each way."""
    os.environ.update(_CREDENTIALS)
    queues_port, port = _free_port(), _free_port()
    address = f"http://127.0.0.1:{queues_port}"
    rows = []
    with tempfile.TemporaryDirectory() as directory, Cluster(Path(directory)) as cluster:
        migrate(cluster.dsn)
        with _process("moto.server", "-H", "127.0.0.1", "-p", str(queues_port)):
            _wait_for(queues_port)
            queue = _make_queue(address)
            serve = {"DATABASE_URL": cluster.dsn, "TENURE_SQS_QUEUES": f"default={queue}"}
            with _process("tenure", "serve", "--port", str(port), **serve):
                _wait_for(port)
                for way in (
                    Way("SQS (moto)", {"sqs": queue, "wakeups": False}, True, tasks),
                    Way("long polling", {}, True, tasks),
                    Way("NOTIFY", {}, False, tasks),
                    Way(f"polling, {_POLL_S:g} s", {"wakeups": False}, False, max(1, tasks // _FEWER)),
                ):
                    print(f"  {way.name} …", file=sys.stderr)
                    found = sorted(asyncio.run(measure(cluster.dsn, f"http://127.0.0.1:{port}", way)))
                    p50, p99 = statistics.median(found), found[min(len(found) - 1, round(0.99 * len(found)))]
                    rows.append(
                        {"name": way.name, "tasks": way.tasks, "p50_ms": round(p50, 2), "p99_ms": round(p99, 2)}
                    )
    return rows


def main() -> None:
    """Measure, and print a table or JSON."""
    asked = argparse.ArgumentParser(prog="./dev bench wakeup", description=str(__doc__).split("\n")[0])
    asked.add_argument("--quick", action="store_true", help="20 tasks for each way")
    asked.add_argument("--tasks", type=int, default=200, help="how many tasks for each way (200)")
    asked.add_argument("--json", action="store_true", help="print the rows as JSON")
    given = asked.parse_args()
    rows = run(20 if given.quick else given.tasks)
    if given.json:
        print(json.dumps(rows))
        return
    values = [[str(row[column]) for column in ("name", "tasks", "p50_ms", "p99_ms")] for row in rows]
    Table("From the enqueue to the handler's first line:", ["", "tasks", "p50 ms", "p99"], values).show()


if __name__ == "__main__":
    main()
