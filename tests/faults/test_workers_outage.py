"""PostgreSQL goes away under workers, whole or backend by backend, or tells them nothing: they go on by themselves."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

import tenure
from tenure.app import App
from tenure.client.retry import RetryDelay
from tenure.embedded import Cluster
from tenure.settings import Settings
from tenure.task import Call
from tests.faults import program
from tests.faults.fleet import Fleet, ended_well, lost, over
from tests.faults.kills import again
from tests.faults.test_server_killed import cluster, kill, up_again
from tests.harness import Harness
from tests.races.sessions import CONTRACTS
from tests.worker.working import QUICK, quick, until, working

__all__ = ["cluster"]

pytestmark = [pytest.mark.serial, pytest.mark.timeout(600)]

_ENDED = "select count(*) from tenure.job_done"
_BACKENDS = """
select pid, pg_terminate_backend(pid) from (
    select pid from pg_stat_activity
    where application_name like 'tenure%%' and datname = current_database() order by random() limit %s
) as backend
"""
_LISTENERS = """
select count(pg_terminate_backend(pid)) from pg_stat_activity
where application_name = 'tenure listener' and datname = current_database()
"""
#: Leases that run out while the database is away, and else only on a machine that stands still.
_LEASE_S = 5
_LEASES = {f"TENURE_{name.upper()}_LEASE_MS": f"{_LEASE_S}000" for name in CONTRACTS if name != "reliability"}
#: Leases for which no machine is too slow.
_LONG = {name: {**numbers, "lease_ms": 120_000} for name, numbers in QUICK.items()}
#: Nobody finds a job by looking within a test's time.
_NEVER = "3600"


def load(chance: random.Random, jobs: int) -> Iterator[Call[object]]:
    """Jobs under all contracts, each with a key: a call that is cut off is made again."""
    for _ in range(jobs):
        task = chance.choice([program.unseen, program.unseen_in_a_thread, program.unseen_with_an_effect])
        call = task.options(contract=chance.choice(CONTRACTS), key=uuid4().hex).call(chance.uniform(0.05, 0.6))
        yield call


async def made(app: App, chance: random.Random, jobs: int) -> list[int]:
    """Make so many jobs, though the database may be away; their ids."""
    calls = list(load(chance, jobs))
    ids = await again(app.enqueue_many, calls)
    assert isinstance(ids, list)
    return ids


async def fault(cluster: Cluster, how: str, chance: random.Random) -> None:
    """End some of the connections, or the server, and have it back after a moment."""
    if how == "backends":
        with Harness(cluster.dsn) as db:
            assert db.sql(_BACKENDS, chance.randint(3, 10))
        return
    await asyncio.to_thread(kill, cluster, how)
    # Now and then for longer than a lease lasts.
    await asyncio.sleep(_LEASE_S + 0.5 if how == "postmaster" else chance.uniform(0, 0.3))
    await asyncio.to_thread(up_again, cluster)


async def until_more_ended(cluster: Cluster, within: float) -> float:
    """Wait until one more job has come to its end; how long that took."""
    begun = time.monotonic()
    with Harness(cluster.dsn) as db:
        ended = db.value(_ENDED)
        await until(lambda: db.value(_ENDED) > ended, within)
    return time.monotonic() - begun


def hurry(db: Harness) -> None:
    """Let the long leases of `reliability` be over once the others are: of calls that were never answered."""
    if not db.value("select count(*) from tenure.job where contract <> 'reliability'"):
        db.sql("update tenure.job set lease_expires_at = now() - interval '1 second' where lease_expires_at > now()")


@pytest.mark.parametrize("rounds", [3, pytest.param(60, marks=pytest.mark.prove)])
async def test_work_goes_on_by_itself_when_the_database_was_away(cluster: Cluster, tmp_path: Path, rounds: int) -> None:
    chance, ids, resumed = random.Random(rounds), list[int](), dict[str, list[float]]()
    async with quick(cluster.dsn) as app:
        with Fleet(cluster.dsn, tmp_path, "--concurrency", "10", **_LEASES) as fleet:
            fleet.begin()
            fleet.begin()
            await fleet.at_work()
            for n in range(rounds):
                ids += await made(app, chance, 30)
                await until_more_ended(cluster, 60)
                await asyncio.sleep(chance.uniform(0, 0.4))
                how = ("backends", "immediate", "postmaster")[n % 3]
                await fault(cluster, how, chance)
                ids += await made(app, chance, 5)  # the others may all have ended before the fault
                resumed.setdefault(how, []).append(await until_more_ended(cluster, 60))
            with Harness(cluster.dsn) as db:
                took = await over(db, 150, lambda: hurry(db))
            told = fleet.stop_all()
    with Harness(cluster.dsn) as db:
        triggers = await ended_well(db, ids)
    slowest = ", ".join(f"{how} {len(all_)} times, at most {max(all_):.1f} s" for how, all_ in resumed.items())
    print(
        f"{len(ids)} jobs; the next one ended after {slowest}; {lost(triggers)} leases ran out, "
        f"{told['refused'] + told['lost']} late results refused; all over {took:.1f} s after the last fault"
    )
    assert triggers["succeed"] >= 0.9 * len(ids)


@pytest.mark.parametrize("contract", ["gate_b2", *(pytest.param(name, marks=pytest.mark.prove) for name in CONTRACTS)])
async def test_what_a_handler_says_while_the_database_is_away_is_said_again(
    cluster: Cluster, contract: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, is_away, in_vain = asyncio.Event(), asyncio.Event(), asyncio.Event()

    class Seen(RetryDelay):
        """Waits before it is said again."""

        async def wait(self) -> None:
            in_vain.set()
            await super().wait()

    monkeypatch.setattr("tenure.client.retry.RetryDelay", Seen)
    async with App(cluster.dsn, settings=Settings(database_url=cluster.dsn, numbers=_LONG)) as app:

        @app.task(contract=contract)
        async def order(ctx: tenure.Context) -> int:
            began.set()
            await is_away.wait()
            await ctx.checkpoint({"at": 1})
            return await ctx.effect("charge", lambda: 7)

        async with working(app):
            ticket = await order.enqueue()
            await began.wait()
            await asyncio.to_thread(kill, cluster, "immediate")
            is_away.set()
            await in_vain.wait()
            await asyncio.to_thread(up_again, cluster)
            assert await again(lambda: app.result(ticket, timeout=60)) == 7
    with Harness(cluster.dsn) as db:
        assert lost(await ended_well(db, [ticket.id])) == 0
        assert db.row(ticket.id)["claims"] == 1


@pytest.mark.parametrize("kills", [3, pytest.param(50, marks=pytest.mark.prove)])
async def test_listener_that_is_killed_comes_back_and_hears_what_it_missed(
    app: App, dsn: str, db: Harness, tmp_path: Path, kills: int
) -> None:
    chance, ids, slowest = random.Random(kills), list[int](), 0.0
    with Fleet(dsn, tmp_path, "--poll", _NEVER) as fleet:
        fleet.begin()
        await until(lambda: db.value(_LISTENERS) == 1, 60)
        for n in range(kills):
            ids += await app.enqueue_many(program.unseen.options(contract=contract).call(0.0) for contract in CONTRACTS)
            slowest = max(slowest, await over(db, 60))
            await until(lambda: db.value(_LISTENERS) == 1, 60)
            await asyncio.sleep(chance.uniform(0, 0.2) * (n % 2))
        fleet.stop_all()
    await ended_well(db, ids)
    print(f"the listener was killed {kills + 1} times; {len(ids)} jobs were over at most {slowest:.2f} s after")


@pytest.mark.parametrize("jobs", [60, pytest.param(2_000, marks=pytest.mark.prove)])
@pytest.mark.parametrize(("options", "setting"), [(["--no-wakeups"], "on"), ([], "off")], ids=["option", "setting"])
async def test_everything_runs_without_wake_ups(
    dsn: str, db: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], setting: str, jobs: int
) -> None:
    monkeypatch.setenv("TENURE_WAKEUPS", setting)
    with Fleet(dsn, tmp_path, "--poll", "0.2", *options) as fleet:
        fleet.begin()
        async with App(dsn) as app:
            ids = await app.enqueue_many(load(random.Random(jobs), jobs))
        took = await over(db, 90)
        assert db.value(_LISTENERS) == 0, "somebody listens"
        fleet.stop_all()
    await ended_well(db, ids)
    print(f"without wake-ups, TENURE_WAKEUPS={setting} {options}: {jobs} jobs were over after {took:.1f} s")
