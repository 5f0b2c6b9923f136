"""Law 13: when the database's clock jumps by more than a lease, no lease is reaped before holders could beat again."""

from __future__ import annotations

import asyncio
import logging
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest

from tenure.jobs.job import NewJob
from tenure.postgres.store import Store
from tenure.upkeep import Jump, KeepTimes
from tenure.upkeep.clock_jump import ClockWatch
from tests.harness import Harness
from tests.upkeep.running import QUICK, Observed, expired, ready, running, until

_HOUR_MS = 3_600_000
START = datetime(2026, 5, 1, 12, tzinfo=UTC)


@dataclass
class Clocks:
    """The database's clock and ours, moved by hand; each question takes `slow` seconds."""

    ours: float = 1_000.0
    theirs: datetime = START
    slow: float = 0.0
    jumps: list[Jump] = field(default_factory=list)

    def monotonic(self) -> float:
        return self.ours

    async def database(self) -> datetime:
        return self.theirs

    def passes(self, seconds: float, jump: float = 0.0) -> None:
        """Time goes on, and the database's clock by so much more."""
        self.ours += seconds
        self.theirs += timedelta(seconds=seconds + jump)

    def read(self, clock: ClockWatch) -> float | None:
        """Read the database's clock as the loops do, under leases of 30 s; how far it jumped."""
        asked, shown = self.ours, self.theirs
        self.passes(self.slow)
        found = clock.read(shown, asked, 30.0)
        return None if found is None else found.seconds


async def set_lease(db: Harness, ids: list[int], lease_ms: int) -> None:
    """Give jobs another lease; the loops may have their rows, and must go on to let go of them."""
    await asyncio.to_thread(db.sql, "update tenure.job set lease_ms = %s where id = any(%s)", lease_ms, ids)


def test_a_clock_that_goes_on_does_not_jump() -> None:
    clocks = Clocks()
    clock = ClockWatch(clocks.monotonic)
    assert clocks.read(clock) is None
    for seconds in (0.5, 1.0, 7_200.0, 0.0):  # two hours without the database, too
        clocks.passes(seconds, jump=0.9)
        assert clocks.read(clock) is None
    assert (clock.jumps, clock.jumped_within(1e9)) == (0, False)


@pytest.mark.parametrize(("jump", "found"), [(29.0, False), (31.0, True), (-0.5, False), (-2.0, True)])
def test_more_than_a_lease_ahead_or_a_second_back_is_a_jump(jump: float, found: bool) -> None:
    clocks = Clocks()
    clock = ClockWatch(clocks.monotonic)
    clocks.read(clock)
    clocks.passes(1, jump)
    assert clocks.read(clock) == (jump if found else None)
    assert clock.jumped_within(10) is found
    clocks.passes(10)
    assert clocks.read(clock) is None, "it is one jump, not one a round"
    assert (clock.jumps, clock.jumped_within(10)) == (int(found), False)


def test_an_answer_that_took_long_is_no_jump() -> None:
    clocks = Clocks()
    clock = ClockWatch(clocks.monotonic)
    clocks.read(clock)
    for slow in (40.0, 0.0, 40.0, 40.0, 0.0):
        clocks.slow = slow
        clocks.passes(1)
        assert clocks.read(clock) is None


async def test_after_a_jump_nobody_is_reaped_before_the_time_of_a_lease(
    store: Store, db: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    clocks = Clocks()
    loops = Observed(
        store, periods=QUICK, clock=clocks.database, monotonic=clocks.monotonic, on_jump=clocks.jumps.append
    )
    async with running(loops):
        await until(lambda: loops.ended["look"] >= 1)
        clocks.passes(1, jump=3_600)
        await until(lambda: loops.jumps == 1)
        ids = await expired(store, db, 3, lease_ms=_HOUR_MS)
        await loops.another("look", "reap standard")
        assert not ready(db, ids[:1])
        assert loops.counts.get("reap", 0) == 0
        await set_lease(db, ids, 100)  # the time of such a lease is over
        await until(lambda: ready(db, ids))
    assert [jump.seconds for jump in clocks.jumps] == [3_600.0]
    said = [record for record in caplog.records if record.name == "tenure.upkeep"]
    (record,) = [record for record in said if record.levelno == logging.WARNING]
    assert record.getMessage().startswith("the database's clock jumped ahead by 3600.0 s: no lease is reaped before")


async def test_a_holder_that_beats_after_a_jump_keeps_its_job(store: Store, db: Harness) -> None:
    clocks = Clocks()
    loops = Observed(store, periods=QUICK, clock=clocks.database, monotonic=clocks.monotonic)
    await store.enqueue(NewJob("t"))
    (job,) = await store.claim(worker="w")
    async with running(loops):
        await until(lambda: loops.ended["look"] >= 1)
        clocks.passes(1, jump=60)
        await until(lambda: loops.jumps == 1)
        await set_lease(db, [job.id], _HOUR_MS)
        db.expire(job.id)  # as the jump has done to every lease
        await loops.another("reap standard")
        await store.heartbeat(job.held)
        await set_lease(db, [job.id], 100)
        await loops.another("look", times=2)
    assert (await store.succeed(job.held)).state == "succeeded"
    assert db.hops(job.id) == ["queued->running", "running->succeeded"]


async def test_a_jump_back_is_said_and_reaping_goes_on_after_a_lease(
    store: Store, db: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    clocks = Clocks()
    loops = Observed(store, periods=QUICK, clock=clocks.database, monotonic=clocks.monotonic)
    async with running(loops):
        await until(lambda: loops.ended["look"] >= 1)
        clocks.passes(1, jump=-90)
        await until(lambda: loops.jumps == 1)
        ids = await expired(store, db)
        await set_lease(db, ids, 100)
        await until(lambda: ready(db, ids))
    jumped = re.search(r"the database's clock jumped back by ([\d.]+) s: leases last that much longer", caplog.text)
    assert jumped is not None
    assert 85 < float(jumped[1]) <= 90


async def test_nothing_is_forgotten_in_the_hour_after_a_jump(store: Store, db: Harness) -> None:
    clocks = Clocks()
    keep = KeepTimes(claim_keys_s=60)
    loops = Observed(store, keep, periods=QUICK, clock=clocks.database, monotonic=clocks.monotonic)
    async with running(loops):
        await until(lambda: loops.ended["look"] >= 1)
        clocks.passes(1, jump=86_400)
        await until(lambda: loops.jumps == 1)
        await loops.another("forget claims")  # a round that began before the jump has ended
        db.sql("insert into tenure.claim (key, at) values (gen_random_uuid(), now() - interval '2 hours')")
        await loops.another("forget claims")
        assert "forget claims" not in loops.counts
        clocks.passes(3_601)
        await until(lambda: loops.counts.get("forget claims") == 1)


async def test_reaping_stops_where_its_reader_trusts_the_clock_no_longer(store: Store, db: Harness) -> None:
    ids = await expired(store, db, lease_ms=_HOUR_MS)
    now, lease = db.value("select clock_timestamp()"), timedelta(hours=1)
    assert await store.reap("standard", until=now) == [], "the clock went past it between the look and the reaping"
    assert await store.reap("standard", jumped=now - 0.8 * lease) == []
    assert len(await store.reap("standard", until=now + lease, jumped=now - 1.2 * lease)) == 1
    assert ready(db, ids)
