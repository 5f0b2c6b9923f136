"""What the tests of contract `phase27` share: tasks and events in the document's own words, and workers."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from tenure.jobs.job import Failure, Held, Job, NewJob
from tenure.jobs.outcome import Moved
from tenure.model.backoff import fraction
from tenure.postgres.store import Store
from tests.harness import Harness, at_once

RUN = {"ts", "task_id", "run_id", "actor", "attempt"}
BOOM = Failure("boom", type="ValueError")


class Boom(Exception):
    """What a handler of these tests raises."""


def task(db: Harness, task_id: int) -> dict[str, Any]:
    """The task as the document shows it."""
    return db.one("select * from tenure_phase27.tasks where task_id = %s", task_id)


def events(db: Harness, task_id: int) -> list[dict[str, Any]]:
    """The task's events as the document shows them, in their order."""
    return db.sql("select * from tenure_phase27.task_events where task_id = %s order by ts, id", task_id)


def payloads(db: Harness, task_id: int, kind: str) -> list[dict[str, Any]]:
    """The payloads of the task's events of one kind."""
    return [event["payload"] for event in events(db, task_id) if event["kind"] == kind]


def pattern(db: Harness, task_id: int) -> list[tuple[str, int]]:
    """The task's events as (kind without its prefix, attempt)."""
    return [(event["kind"].removeprefix("task."), event["payload"]["attempt"]) for event in events(db, task_id)]


async def made(store: Store, **options: Any) -> int:
    """A new task."""
    return (await store.enqueue(NewJob("t", contract="phase27", **options))).job_id


async def take(store: Store, worker: str = "w1", limit: int = 1) -> Job:
    """Claim exactly one task; fails where there is none."""
    (job,) = await store.claim("phase27", worker=worker, limit=limit)
    return job


async def claimed(store: Store, worker: str = "w1") -> list[int]:
    """The ids of every task that can be claimed now."""
    return sorted(job.id for job in await store.claim("phase27", worker=worker, limit=1000))


async def fail_once(store: Store, failure: Failure = BOOM, worker: str = "w1") -> Moved:
    """Claim a task and report its failure."""
    return await store.fail((await take(store, worker)).held, failure)


async def fail_times(store: Store, db: Harness, task_id: int, times: int, worker: str = "w1") -> None:
    """Fail a task so often; it is due again afterwards, unless it ended."""
    for _ in range(times):
        await fail_once(store, worker=worker)
        db.due(task_id)


async def work(store: Store, db: Harness, handler: Callable[[Job], Any], turns: int = 20) -> None:
    """A worker's loop: run what can be claimed, report what became of it, and let retries be due at once."""
    for _ in range(turns):
        jobs = await store.claim("phase27", worker="w1")
        if not jobs:
            return
        try:
            result = handler(jobs[0])
        except Exception as error:
            await store.fail(jobs[0].held, Failure(str(error), type=type(error).__name__))
            db.due(jobs[0].id)
        else:
            await store.succeed(jobs[0].held, result)
    raise AssertionError(f"still something to claim after {turns} turns")


@contextmanager
def no_event_can_be_written(db: Harness) -> Iterator[None]:
    """Let every insert into the log raise RaiseException, as a crash in the middle of a statement would."""
    db.sql(
        "create function public.refuse() returns trigger language plpgsql as "
        "$$ begin raise exception 'no event today'; end $$"
    )
    db.sql("create trigger refuse before insert on tenure.event for each row execute function public.refuse()")
    yield
    db.sql("drop trigger refuse on tenure.event")


def centre_of(task_id: int, attempt: int, backoff_ms: int) -> float:
    """A delay without its jitter, which the task's id and attempt determine."""
    return backoff_ms / (0.7 + 0.6 * fraction(task_id, attempt))


def forged(task_id: int, claims: int, token: UUID | None = None) -> Held:
    """What somebody shows who does not hold the task."""
    return Held(task_id, claims, token or uuid4(), "phase27", "1")


def claim_at_once(dsn: str, count: int, until_empty: bool = False) -> list[int]:
    """Let so many workers claim at the same moment, once or until nothing is left; the ids that they won."""
    ready = threading.Barrier(count, timeout=60)

    async def claim(n: int) -> list[int]:
        won: list[int] = []
        async with Store.open(dsn, connections=1) as store:
            await store.claim("phase27", ["nothing here"], worker=f"w{n}")  # connected, and knows the contract
            ready.wait()
            while jobs := await store.claim("phase27", worker=f"w{n}"):
                won.extend(job.id for job in jobs)
                if not until_empty:
                    break
        return won

    return sorted(task_id for won in at_once(count, lambda n: asyncio.run(claim(n))) for task_id in won)


_CHILD = """
import asyncio, json, os, signal, sys, time
from datetime import datetime
from tenure.model.backoff import fraction
from tenure.jobs.job import Failure
from tenure.postgres.store import Store

async def main(dsn, queue, end):
    async with Store.open(dsn, connections=1) as store:
        jobs = await store.claim("phase27", [queue], worker="child", limit=100)
        clocks = [time.time(), datetime.now().timestamp()]
        print(json.dumps({"claimed": sorted(job.payload["row"] for job in jobs), "clocks": clocks}), flush=True)
        if end == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        for job in jobs:
            await store.fail(job.held, Failure("boom"))

asyncio.run(main(*sys.argv[1:]))
"""

_SHIFTED_CLOCK = """
import datetime, os, time
shift, real, seconds, nanoseconds = float(os.environ["CLOCK_SHIFT"]), datetime.datetime, time.time, time.time_ns
time.time = lambda: seconds() + shift
time.time_ns = lambda: nanoseconds() + int(shift * 1e9)
class Shifted(real):
    now = classmethod(lambda cls, tz=None: real.fromtimestamp(time.time(), tz))
    utcnow = classmethod(lambda cls: real.fromtimestamp(time.time(), datetime.timezone.utc).replace(tzinfo=None))
datetime.datetime = Shifted
"""


def child(dsn: str, queue: str, place: Path, *, clock_shift: int = 0, end: str = "fail") -> subprocess.Popen[str]:
    """A worker process, its clock shifted by seconds: it claims, says what it won, then fails it all or is killed."""
    (place / "sitecustomize.py").write_text(_SHIFTED_CLOCK)
    path = os.pathsep.join(filter(None, [str(place), os.environ.get("PYTHONPATH")]))
    return subprocess.Popen(
        [sys.executable, "-c", _CHILD, dsn, queue, end],
        env={**os.environ, "PYTHONPATH": path, "CLOCK_SHIFT": str(clock_shift)},
        stdout=subprocess.PIPE,
        text=True,
    )


def said(process: subprocess.Popen[str]) -> dict[str, Any]:
    """What a child said before it ended."""
    output, _ = process.communicate(timeout=60)
    return json.loads(output)  # type: ignore[no-any-return]
