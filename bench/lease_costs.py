"""The cost per job of heartbeats, failures and reaping, and of many claimers beside one shared claimer.

Part of `./dev bench kernel`; `./dev bench beside` runs it on two revisions in turn.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any

import psycopg

from tenure.jobs.job import Failure, Job, NewJob
from tenure.postgres.store import Store
from tests.holder_calls import calls

_LONG_AGO = "update tenure.job set lease_expires_at = now() - interval '1 minute' where role in ('leased', 'active')"


async def held(store: Store, contract: str, count: int) -> list[Job]:
    """So many jobs of a contract, claimed and started."""
    await store.enqueue_many([NewJob("noop", {"n": 7}, contract=contract) for _ in range(count)])
    jobs = await store.claim(contract, worker="bench", limit=count)
    assert len(jobs) == count
    await store.report("start", calls([job.held for job in jobs]))
    return jobs


async def beats(store: Store, contract: str) -> float:
    """Microseconds a job of a heartbeat for 1,000 jobs in one statement."""
    jobs = [job.held for job in await held(store, contract, 1_000)]
    seconds = await _timed(lambda: store.report("heartbeat", calls(jobs)), 8)
    await store.report("succeed", calls(jobs))
    return seconds * 1e6 / 1_000


async def failures(store: Store, contract: str) -> float:
    """Microseconds a job of 500 failures that will be tried again."""
    failure = Failure("the other side said no", type="TransientError", code="NO", retryable=True)
    times = []
    for _ in range(6):
        jobs = [job.held for job in await held(store, contract, 500)]
        times.append(await _timed(lambda jobs=jobs: store.report("fail", calls(jobs, failures=[failure] * 500)), 1))  # type: ignore[misc]
        await store.cancel_many([job.id for job in jobs], actor="bench")
    return statistics.median(times) * 1e6 / 500


async def reaps(store: Store, dsn: str) -> float:
    """Microseconds a job of closing 500 leases that ran out, under `standard`."""
    times = []
    with psycopg.connect(dsn, autocommit=True) as connection:
        for _ in range(6):
            jobs = await held(store, "standard", 500)
            connection.execute(_LONG_AGO)
            times.append(await _timed(lambda: store.reap("standard"), 1))
            await store.cancel_many([job.id for job in jobs], actor="bench")
    return statistics.median(times) * 1e6 / 500


async def claimers(dsn: str, jobs: int) -> tuple[float, float]:
    """Jobs claimed a second: by 64 claimers, one job and one connection each, and by one that claims for 64."""
    async with Store.open(dsn, connections=64) as store:
        await asyncio.gather(*(store.jobs([1]) for _ in range(64)))  # everybody is connected

        async def alone(worker: int) -> int:
            count = 0
            while await store.claim(worker=f"w{worker}", limit=1):
                count += 1
            return count

        await _fill(store, jobs)
        begun = time.perf_counter()
        counts = await asyncio.gather(*(alone(n) for n in range(64)))
        one_by_one = time.perf_counter() - begun
        assert sum(counts) == jobs, f"{sum(counts)} of {jobs} claimed"
        await _fill(store, jobs)
        begun = time.perf_counter()
        left = jobs
        while left:
            left -= len(await store.claim(worker="shared", limit=64))
        shared = time.perf_counter() - begun
    return jobs / one_by_one, jobs / shared


async def all_of(make: Callable[[str], str], quick: bool) -> dict[str, Any]:
    """Every figure, each in a database of its own."""
    beating = make("beating")
    async with Store.open(beating, connections=1) as store:
        report: dict[str, Any] = {
            "heartbeat_us": {name: round(await beats(store, name), 1) for name in ("standard", "reliability")},
            "fail_us": {name: round(await failures(store, name), 1) for name in ("standard", "reliability")},
            "reap_us": {"standard": round(await reaps(store, beating), 1)},
        }
    one_by_one, shared = await claimers(make("claiming"), 1_000 if quick else 5_000)
    report["claimers_per_s"] = {"64, one by one": round(one_by_one), "one for 64": round(shared)}
    return report


def show(report: dict[str, Any]) -> None:
    """Print the tables."""
    print("\nHeld jobs, microseconds a job")
    print("| verb | contract | microseconds |")
    print("|---|---|---|")
    for verb, label in (
        ("heartbeat_us", "heartbeat, 1,000 a statement"),
        ("fail_us", "fail (retried), 500 a statement"),
        ("reap_us", "reap, 500 a statement"),
    ):
        for contract, value in report[verb].items():
            print(f"| {label} | {contract} | {value} |")
    print("\nClaimed a second")
    print("| claimers | jobs/s |")
    print("|---|---|")
    for who, value in report["claimers_per_s"].items():
        print(f"| {who} | {value:,} |")


async def _fill(store: Store, jobs: int) -> None:
    for _ in range(0, jobs, 1_000):
        await store.enqueue_many([NewJob("noop", {"n": 7}) for _ in range(1_000)])


async def _timed(call: Callable[[], Awaitable[Any]], times: int) -> float:
    """The median seconds of a call; the first of several is not counted."""
    spent = []
    for _ in range(times):
        begun = time.perf_counter()
        await call()
        spent.append(time.perf_counter() - begun)
    return statistics.median(spent[1:] or spent)
