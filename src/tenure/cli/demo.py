"""`tenure demo`: a minute with real workers on an embedded PostgreSQL of its own, one of them killed, then verified.

PostgreSQL ─▶ jobs under six contracts ─▶ two workers, one is killed ─▶ everything ends ─▶ every log is checked
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from tenure.postgres.store import Store
    from tenure.task import Call

#: Of each contract so many jobs that work, that fail now and then, and that always fail.
GOOD, FLAKY, HOPELESS = 120, 25, 5
_SOON_MS = 5_000
_COLUMNS = {"ready": "waiting", "waiting": "waiting", "leased": "running", "active": "running", "settling": "running"}


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("demo")(demo)


def demo() -> None:
    """Run jobs under all six contracts with real workers, kill one, and check every log against its row."""
    from tenure.embedded import Cluster
    from tenure.postgres.migrate import migrate

    with tempfile.TemporaryDirectory(prefix="tenure-demo-") as directory:
        begun = time.perf_counter()
        with Cluster(Path(directory)) as cluster:
            migrate(cluster.dsn)
            _say(f"PostgreSQL is up after {time.perf_counter() - begun:.1f} s, in a directory that will be removed")
            agreed = asyncio.run(_tour(cluster.dsn))
    if not agreed:
        raise typer.Exit(1)


async def _tour(dsn: str) -> bool:
    from tenure.postgres.store import Store

    async with Store.open(dsn) as store:
        total = await _enqueued(store)
        with _workers(dsn) as workers:
            await _worked(store, workers, total)
        await _summary(store)
        await _late_worker(store)
        explored = _explored()
        return await _verified(store) and explored


async def _enqueued(store: Store) -> int:
    from tenure import samples
    from tenure.contracts import BUILT_IN

    calls: list[Call[object]] = []
    for name in BUILT_IN:
        calls += [samples.work.options(contract=name).call(random.uniform(0.05, 0.4)) for _ in range(GOOD)]
        calls += [samples.flaky.options(contract=name).call(0.6) for _ in range(FLAKY)]
        calls += [samples.flaky.options(contract=name).call(0.0) for _ in range(HOPELESS)]
    calls += [samples.order.call(7, in_stock=False)]
    random.shuffle(calls)
    begun = time.perf_counter()
    await store.enqueue_many([call.job for call in calls])
    spent = time.perf_counter() - begun
    _title(
        f"{len(calls)} jobs under six contracts, enqueued in {spent * 1_000:.0f} ms; some will fail, a few always do"
    )
    return len(calls)


def _in_a_hurry() -> dict[str, str]:
    """The shortest leases that each contract allows, and hardly any waiting, so that a minute is enough."""
    from tenure.contracts import BUILT_IN

    return {
        f"TENURE_{contract.name.upper()}_{number.upper()}": str(value)
        for contract in BUILT_IN.values()
        for number, value in (
            ("lease_ms", contract.lease.minimum_ms),
            ("heartbeat_ms", contract.lease.heartbeat and contract.lease.heartbeat.minimum_ms),
            ("backoff_base_ms", 50),
            ("backoff_cap_ms", 400),
        )
        if value is not None
    }


@contextmanager
def _workers(dsn: str) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Two worker processes, of which none is left."""
    from tenure.contracts import BUILT_IN

    environment = {**os.environ, **_in_a_hurry(), "DATABASE_URL": dsn}
    command = [sys.executable, "-m", "tenure", "worker", "tenure.samples:app", "--concurrency", "20", "--poll", "0.2"]
    # The one that will be killed leaves alone what could not come back soon: contracts whose shortest lease is long.
    quick = ",".join(name for name, contract in BUILT_IN.items() if contract.lease.minimum_ms <= _SOON_MS)
    arguments = {"worker-1": ["--contracts", quick], "worker-2": []}
    workers = [
        # Not even errors: many jobs of the demo are made to fail.
        subprocess.Popen([*command, "--name", name, "--log-level", "critical", *more], env=environment)
        for name, more in arguments.items()
    ]
    try:
        yield workers
    finally:
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.wait()


async def _worked(store: Store, workers: list[subprocess.Popen[bytes]], total: int) -> None:
    """Watch until everything has ended; in between, kill the first worker."""
    killed_at: float | None = None
    shown = 0
    while True:
        tally = await store.tally()
        done = sum(count for _, _, role, count in tally if role == "done")
        if killed_at is None and done > total // 4:
            held = await store.find(state="running", limit=1_000)
            mine = sum(job.lease_owner == "worker-1" for job in held.jobs)
            workers[0].kill()
            killed_at = time.perf_counter()
            _say(f"  worker-1 (pid {workers[0].pid}) is killed with kill -9; it held at least {mine} jobs", over=shown)
            shown = 0
        shown = _live(tally, over=shown)
        if done == total:
            break
        await asyncio.sleep(0.25)
    since = time.perf_counter() - (killed_at or time.perf_counter())
    _say(f"  everything has ended, {since:.0f} s after the kill: what the dead worker held came back, and counted")


def _live(tally: list[tuple[str, str, str, int]], over: int) -> int:
    """Draw where the jobs are, over the table that was drawn before; how many lines it has. Only for a terminal."""
    from tenure.contracts import BUILT_IN

    if not sys.stderr.isatty():
        return 0
    rows = [f"  {'':<12}{'waiting':>9}{'running':>9}{'ended well':>12}{'ended badly':>13}"]
    for name, contract in BUILT_IN.items():
        seen = dict.fromkeys(("waiting", "running", "well", "badly"), 0)
        for counted, state, role, count in tally:
            if counted == name:
                seen[_COLUMNS.get(role) or ("well" if state in contract.successes() else "badly")] += count
        rows.append(f"  {name:<12}{seen['waiting']:>9}{seen['running']:>9}{seen['well']:>12}{seen['badly']:>13}")
    sys.stderr.write((f"\x1b[{over}A" if over else "") + "".join(f"\x1b[2K{row}\n" for row in rows))
    sys.stderr.flush()
    return len(rows)


async def _summary(store: Store) -> None:
    _title("How they ended: each contract in its own words")
    ended: dict[str, list[str]] = {}
    for name, state, _, count in await store.tally():
        ended.setdefault(name, []).append(f"{count} {state}")
    for name, counts in ended.items():
        print(f"  {name:<12}{', '.join(counts)}")


async def _late_worker(store: Store) -> None:
    from tenure.errors import StaleLease
    from tenure.job import NewJob

    _title("A worker freezes, its lease runs out, and it comes back too late")
    await store.enqueue(NewJob("report", {"month": "May"}, queue="slow"))
    (frozen,) = await store.claim(queues=["slow"], worker="frozen", lease_ms=2_000)
    print(f"  worker 'frozen' holds job {frozen.id} for 2 s … and says nothing", flush=True)
    while not await store.reap("standard"):  # noqa: ASYNC110 (the database's clock is what we wait for)
        await asyncio.sleep(0.1)
    (rescued,) = await store.claim(queues=["slow"], worker="rescuer")
    print(f"  the claim is spent, worker 'rescuer' takes attempt {rescued.counter}")
    try:
        await store.succeed(frozen.held, {"sent": "twice?"})
    except StaleLease as refusal:
        print(f"  'frozen' wakes up and tries to finish: {refusal.code}: {refusal}")
    await store.succeed(rescued.held, {"sent": "once"})


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
    print("\nNext: docs/guide.md for your own tasks; tenure dev for a place to try them")
    return sound


def _title(text: str) -> None:
    print(f"\n{text}", flush=True)


def _say(text: str, over: int = 0) -> None:
    up = f"\x1b[{over}A\x1b[0J" if over else ""
    print(f"{up}{text}", file=sys.stderr, flush=True)
