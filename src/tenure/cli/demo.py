"""`tenure demo`: a minute's tour of the kernel on an embedded PostgreSQL of its own, verified at the end."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from tenure.postgres.store import Store

JOBS = 2_000


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("demo")(demo)


def demo() -> None:
    """Start a PostgreSQL, run jobs through all six contracts, lose a worker, and check the log against the rows."""
    from tenure.embedded import Cluster
    from tenure.postgres.migrate import migrate

    with tempfile.TemporaryDirectory(prefix="tenure-demo-") as directory:
        begun = time.perf_counter()
        with Cluster(Path(directory)) as cluster:
            _say(f"PostgreSQL is up after {time.perf_counter() - begun:.1f} s, in a directory that will be removed")
            migrate(cluster.dsn)
            agreed = asyncio.run(_tour(cluster.dsn))
    if not agreed:
        raise typer.Exit(1)


async def _tour(dsn: str) -> bool:
    from tenure.postgres.store import Store

    async with Store.open(dsn) as store:
        await _throughput(store)
        await _lost_worker(store)
        await _lifecycles(dsn)
        await _undone(store)
        explored = _explored()
        return await _verified(store) and explored


async def _throughput(store: Store) -> None:
    from tenure.job import NewJob

    _title(f"{JOBS:,} jobs, each one fenced and logged at every step")
    begun = time.perf_counter()
    await store.enqueue_many([NewJob("greet", {"n": n}) for n in range(JOBS)])
    enqueued = time.perf_counter()
    done = 0
    while held := await store.claim(worker="demo-1", limit=500):
        await store.succeed_many([job.held for job in held], [{"hello": job.payload["n"]} for job in held])
        done += len(held)
    drained = time.perf_counter()
    print(
        f"  enqueued at {JOBS / (enqueued - begun):,.0f} jobs/s, "
        f"claimed and finished at {done / (drained - enqueued):,.0f} jobs/s"
    )


async def _lost_worker(store: Store) -> None:
    from tenure.errors import StaleLease
    from tenure.job import NewJob

    _title("A worker freezes, its lease runs out, and it comes back too late")
    await store.enqueue(NewJob("report", {"month": "May"}, queue="slow"))
    (frozen,) = await store.claim(queues=["slow"], worker="frozen", lease_ms=2_000)
    print(f"  worker 'frozen' holds job {frozen.id} for 2 s … and says nothing")
    while not await store.reap("standard"):  # noqa: ASYNC110 (the database's clock is what we wait for)
        await asyncio.sleep(0.1)
    (rescued,) = await store.claim(queues=["slow"], worker="rescuer")
    print(f"  the claim is spent, worker 'rescuer' takes attempt {rescued.counter}")
    try:
        await store.succeed(frozen.held, {"sent": "twice?"})
    except StaleLease as refusal:
        print(f"  'frozen' wakes up and tries to finish: {refusal.code}: {refusal}")
    await store.succeed(rescued.held, {"sent": "once"})


async def _lifecycles(dsn: str) -> None:
    from tenure.contracts import BUILT_IN
    from tenure.job import NewJob
    from tenure.postgres.store import Store

    _title("One engine, six contracts: the same job that always fails (waits shortened for the demo)")
    short = {name: {"backoff_base_ms": 20, "backoff_cap_ms": 60} for name in BUILT_IN}
    async with Store.open(dsn, numbers=short) as store:
        for name, contract in BUILT_IN.items():
            made = await store.enqueue(NewJob("flaky", contract=name))
            while await _fails_once(store, name, made.job_id):
                pass
            states = [contract.initial, *(event.to_state for event in await store.events(made.job_id))]
            print(f"  {name:<12}{_path(states)}")


async def _fails_once(store: Store, contract: str, job_id: int) -> bool:
    """Take the job as soon as it is due, and fail it; whether it will run again."""
    from tenure.job import Failure, Job

    while True:
        await store.promote(contract)
        (job,) = await store.claim_by_id([job_id], worker="unlucky", contract=contract)
        if isinstance(job, Job):
            await store.start(job.held)
            moved = await store.fail(job.held, Failure("no luck", code="LUCK", retryable=True))
            return moved.will_retry
        await asyncio.sleep(0.02)


def _path(states: list[str]) -> str:
    """The way a job went, with rounds that repeat written once: (queued → running)×5 → dead."""
    shown, at = [], 0
    while at < len(states):
        lengths = range(1, (len(states) - at) // 2 + 1)
        length = max(lengths, key=lambda size: size * (_rounds(states, at, size) - 1), default=1)
        rounds = _rounds(states, at, length)
        if rounds > 1:
            shown.append(f"({' → '.join(states[at : at + length])})×{rounds}")
            at += rounds * length
        else:
            shown.append(states[at])
            at += 1
    return " → ".join(shown)


def _rounds(states: list[str], at: int, length: int) -> int:
    """How often the states from `at` on, so many of them, come one after the other."""
    count = 1
    while states[at : at + length] == states[at + count * length : at + (count + 1) * length]:
        count += 1
    return count


async def _undone(store: Store) -> None:
    from tenure.job import Failure, NewJob

    _title("A job charges a card, then fails for good: what it did is undone before it ends")
    made = await store.enqueue(NewJob("order", {"n": 7}, contract="reliability", queue="orders"))
    (job,) = await store.claim("reliability", ["orders"], worker="shop")
    await store.start(job.held)
    for node in ("charge the card", "reserve the goods"):
        await store.effect(job.held, node, compensable=True)
    told = await store.fail(job.held, Failure("the address does not exist", type="PermanentError"))
    print(f"  fail answers, with the lease kept: undo {', then '.join(told.compensate)}")
    moved = await store.compensated(job.held, key="undone")
    again = await store.compensated(job.held, key="undone")
    print(f"  compensated: the job is {moved.state}; said twice with one key, the answer is the same: {moved == again}")
    names = [event.trigger for event in await store.events(made.job_id)]
    print(f"  its log: {', '.join(names)}")


def _explored() -> bool:
    from tenure.contracts import BUILT_IN
    from tenure.explore import explore

    _title("Every history that a contract allows, explored without a database")
    sound = True
    for contract in BUILT_IN.values():
        report = explore(contract)
        sound = sound and not report.broken
        print(f"  {contract.name:<12}{report.states:>6,} worlds, {len(report.held)} of 9 promises held in all of them")
    return sound


async def _verified(store: Store) -> bool:
    from tenure.proof import audit

    _title("Verified: every log folded through its contract, and compared with the row")
    report = await audit(store)
    print(f"  {report.jobs:,} jobs and {report.events:,} log rows read, {len(report.violations)} violations")
    for violation in report.violations[:10]:
        print(f"  {violation.promise}: job {violation.job_id}: {violation.what}")
    sound = not report.violations
    print("  every job is where its log says it is" if sound else "  SOMETHING IS WRONG: please report this")
    print("\nNext: docs/tutorial.md, the same by hand")
    return sound


def _title(text: str) -> None:
    print(f"\n{text}")


def _say(text: str) -> None:
    print(text, file=sys.stderr)
