"""`tenure demo`: real workers on an embedded PostgreSQL for a minute; one is killed, then every log is verified.

PostgreSQL ─▶ jobs under six contracts ─▶ two workers, one is killed ─▶ every job ends ─▶ every log is checked
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from tenure.cli.command import Store
from tenure.cli.output import note
from tenure.contracts import BUILT_IN
from tenure.errors import StaleLease
from tenure.jobs.job import NewJob

#: Jobs of each contract that succeed, that fail at random, and that always fail.
GOOD, FLAKY, HOPELESS = 120, 25, 5
_SHORT_LEASE_MS = 5_000
_COLUMNS = {"ready": "waiting", "waiting": "waiting", "leased": "running", "active": "running", "settling": "running"}


def demo() -> None:
    """Run jobs under all six contracts with real workers, kill one, and check every log against its row."""
    from tenure.embedded import Cluster
    from tenure.postgres.migrate import migrate

    with tempfile.TemporaryDirectory(prefix="tenure-demo-") as directory:
        begun = time.perf_counter()
        with Cluster(Path(directory)) as cluster:
            migrate(cluster.dsn)
            note(f"PostgreSQL is up after {time.perf_counter() - begun:.1f} s, in a directory that will be removed")
            is_sound = asyncio.run(_run(cluster.dsn))
    if not is_sound:
        raise typer.Exit(1)


async def _run(dsn: str) -> bool:
    from tenure.postgres.store import Store

    async with Store.open(dsn) as store:
        total = await _enqueue(store)
        with _run_workers(dsn) as workers:
            await _watch(store, workers, total)
        await _print_states(store)
        await _refuse_late_worker(store)
        is_sound = _explore()
        return await _verify(store) and is_sound


async def _enqueue(store: Store) -> int:
    from tenure import samples

    jobs = [samples.order.call(7, in_stock=False).job]
    for name in BUILT_IN:
        work, flaky = samples.work.options(contract=name), samples.flaky.options(contract=name)
        jobs += [work.call(random.uniform(0.05, 0.4)).job for _ in range(GOOD)]
        jobs += [flaky.call(0.6).job for _ in range(FLAKY)] + [flaky.call(0.0).job for _ in range(HOPELESS)]
    random.shuffle(jobs)
    begun = time.perf_counter()
    await store.enqueue_many(jobs)
    ms = (time.perf_counter() - begun) * 1_000
    _title(f"{len(jobs)} jobs under six contracts, enqueued in {ms:.0f} ms; some will fail, a few always do")
    return len(jobs)


def _fast_settings() -> dict[str, str]:
    """The shortest leases that each contract allows, and short backoffs, so that a minute is enough."""
    settings: dict[str, str] = {}
    for name, contract in BUILT_IN.items():
        numbers = {"lease_ms": contract.lease.minimum_ms, "backoff_base_ms": 50, "backoff_cap_ms": 400}
        if contract.lease.heartbeat:
            numbers["heartbeat_ms"] = contract.lease.heartbeat.minimum_ms
        settings |= {f"TENURE_{name}_{number}".upper(): str(value) for number, value in numbers.items()}
    return settings


@contextmanager
def _run_workers(dsn: str) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Run two worker processes until the block ends."""
    environment = {**os.environ, **_fast_settings(), "DATABASE_URL": dsn}
    # No error logs: many jobs of the demo are made to fail.
    options = ["--concurrency", "20", "--poll", "0.2", "--log-level", "critical"]
    command = [sys.executable, "-m", "tenure", "worker", "tenure.samples:app", *options]
    # The worker that will be killed skips contracts whose shortest lease is long: their jobs would come back late.
    short = ",".join(name for name, contract in BUILT_IN.items() if contract.lease.minimum_ms <= _SHORT_LEASE_MS)
    workers = [
        subprocess.Popen([*command, "--name", "worker-1", "--contracts", short], env=environment),
        subprocess.Popen([*command, "--name", "worker-2"], env=environment),
    ]
    try:
        yield workers
    finally:
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.wait()


async def _watch(store: Store, workers: list[subprocess.Popen[bytes]], total: int) -> None:
    """Show the jobs until every one has ended; kill the first worker when a quarter has."""
    killed_at: float | None = None
    drawn = 0
    while True:
        tally = await store.tally()
        done = sum(count for _, _, role, count in tally if role == "done")
        if killed_at is None and done > total // 4:
            running = await store.find(state="running", limit=1_000)
            held = sum(job.lease_owner == "worker-1" for job in running.jobs)
            workers[0].kill()
            killed_at = time.perf_counter()
            clear = f"\x1b[{drawn}A\x1b[0J" if drawn else ""
            note(f"{clear}  worker-1 (pid {workers[0].pid}) is killed with kill -9; it held at least {held} jobs")
            drawn = 0
        drawn = _draw(tally, drawn)
        if done == total:
            break
        await asyncio.sleep(0.25)
    since = time.perf_counter() - (killed_at or time.perf_counter())
    note(f"  everything has ended, {since:.0f} s after the kill: what the dead worker held came back, and counted")


def _draw(tally: list[tuple[str, str, str, int]], drawn: int) -> int:
    """Draw the job counts over the last drawing, on a terminal only; returns the number of lines."""
    if not sys.stderr.isatty():
        return 0
    counts: Counter[tuple[str, str]] = Counter()
    for name, state, role, count in tally:
        ended = "ended well" if state in BUILT_IN[name].successes() else "ended badly"
        counts[name, _COLUMNS.get(role, ended)] += count
    heads = ("waiting", "running", "ended well", "ended badly")
    lines = [f"  {'':<12}" + "".join(f"{head:>13}" for head in heads)]
    lines += [f"  {name:<12}" + "".join(f"{counts[name, head]:>13}" for head in heads) for name in BUILT_IN]
    note((f"\x1b[{drawn}A" if drawn else "") + "\n".join(f"\x1b[2K{line}" for line in lines))
    return len(lines)


async def _print_states(store: Store) -> None:
    _title("How they ended: each contract in its own words")
    states: dict[str, list[str]] = {}
    for name, state, _, count in await store.tally():
        states.setdefault(name, []).append(f"{count} {state}")
    for name, counts in states.items():
        print(f"  {name:<12}{', '.join(counts)}")


async def _refuse_late_worker(store: Store) -> None:
    _title("A worker freezes, its lease runs out, and it comes back too late")
    await store.enqueue(NewJob("report", {"month": "May"}, queue="slow"))
    (frozen,) = await store.claim(queues=["slow"], worker="frozen", lease_ms=2_000)
    print(f"  worker 'frozen' holds job {frozen.id} for 2 s, and sends no heartbeat", flush=True)
    while not await store.reap("standard"):  # noqa: ASYNC110 (waits for the database's clock)
        await asyncio.sleep(0.1)
    (rescued,) = await store.claim(queues=["slow"], worker="rescuer")
    print(f"  the claim is spent, worker 'rescuer' takes attempt {rescued.counter}")
    try:
        await store.succeed(frozen.held, {"sent": "twice?"})
    except StaleLease as refusal:
        print(f"  'frozen' wakes up and tries to finish: {refusal.code}: {refusal}")
    await store.succeed(rescued.held, {"sent": "once"})


def _explore() -> bool:
    from tenure.model.explore import explore

    _title("Every history that a contract allows, explored without a database")
    reports = {name: explore(contract) for name, contract in BUILT_IN.items()}
    for name, report in reports.items():
        print(f"  {name:<12}{report.states:>6,} worlds, {len(report.held)} of 9 promises held in all of them")
    return not any(report.broken for report in reports.values())


async def _verify(store: Store) -> bool:
    from tenure.proof import audit

    _title("Verified: every log folded through its contract, and compared with the row")
    report = await audit(store)
    print(f"  {report.jobs:,} jobs and {report.events:,} log rows read, {len(report.violations)} violations")
    for violation in report.violations[:10]:
        print(f"  {violation.promise}: job {violation.job_id}: {violation.what}")
    is_sound = not report.violations
    print("  every job is where its log says it is" if is_sound else "  SOMETHING IS WRONG: please report this")
    print("\nNext: docs/guide.md for your own tasks; tenure dev for a place to try them")
    return is_sound


def _title(text: str) -> None:
    print(f"\n{text}", flush=True)
