"""Upkeep as loops that run until they are cancelled, in any number of processes at once.

    look ─┬─▶ settle, reap, promote     one statement for all contracts every 0.4 to 0.8 s; starts only the moves that
          │                             it found, 1,000 jobs at a time, each contract in its own task
          ├─▶ fire                      makes the jobs of schedules that are due, in its own task
          ├─▶ advance flows             goes on with flows that a process left between two transactions, in its own task
          ├─▶ route events              makes the jobs of events of datasets, in its own task
          ├─▶ finish rollbacks          cancels jobs where a process died within a rollback, in its own task
          ├─▶ fold counts               adds counts of moves to the roll-ups, in its own task
          └─▶ vacuum                    while the hot tables change, at most a tenth of the time
    cancel expired                      jobs that did not begin in time, every 2.5 to 5 s
    alarms, send alarms                 conditions that people shall know of, every 7.5 to 15 s (`alarm_watch.py`)
    recount                             the counts of live jobs, checked against the jobs once a day
    extend, workers, forget, retire     every half minute, every minute, every ten minutes
    register, publish, renew wake-ups   only where message queues are set (`publisher.py`)

Every process does every part, at random times, and skips rows that another process has locked. No part stops another.
While the database is away each part tries again at least every two seconds, and logs the trouble once.
`clock_jump.py` detects a clock that jumps.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from tenure.errors import UNREACHABLE
from tenure.jobs.outcome import Outcome
from tenure.postgres.store import Store
from tenure.postgres.upkeep_work import PendingWork
from tenure.settings import Settings
from tenure.upkeep.alarm_watch import AlarmWatch
from tenure.upkeep.clock_jump import ClockWatch, Jump
from tenure.upkeep.publisher import Publisher
from tenure.upkeep.rounds import (
    RELEASE_AFTER_S,
    KeepTimes,
    Report,
    advance_flows,
    deletions,
    finish_rollbacks,
    fire_due,
    fold_counts,
    group_letters,
    operate,
    report_moves,
    route_events,
)
from tenure.upkeep.status_log import StatusLog, part_name
from tenure.upkeep.unknown_types import UnknownTypes

BATCH = 1_000
_MAX_RETRY_S = 2.0
#: Dead rows from which on claims get slower.
_MANY_DEAD_ROWS = 1_000
#: The share of the time that vacuum may take.
_VACUUM_SHARE = 0.1
#: Seconds after a clock jump in which nothing is deleted for its age.
_AFTER_JUMP_S = 3_600.0
#: Seconds that jobs of a type wait before a warning: workers may be restarting.
_UNSERVED_S = 30.0
_NO_VACUUM = (
    "only the owner of the tables can vacuum them; autovacuum does it later. Next: run upkeep as the role that migrated"
)
_log = logging.getLogger("tenure.upkeep")

#: One round of a part: its report, or None when it had nothing to decide.
Round = Callable[[], Awaitable[Report | None]]


@dataclass(frozen=True, slots=True)
class Periods:
    """The longest wait of each part between two rounds, in seconds; the shortest is half of it."""

    look: float = 0.8
    extend: float = 30.0
    forget: float = 60.0
    retire: float = 600.0
    #: With many dead rows in the hot tables.
    vacuum: float = 2.0
    #: Delete the rows of dead workers, and look for jobs that no live worker takes.
    workers: float = 30.0
    #: Repeat the warning about a type that no live worker takes.
    warn_again: float = 300.0
    #: With few dead rows in the hot tables.
    vacuum_few: float = 60.0
    #: Publish wake-ups, where no NOTIFY of a new job comes before.
    publish: float = 1.0
    #: Look for jobs that still wait long after their wake-up.
    renew: float = 2.0
    #: Cancel jobs that did not begin in time. No claim takes them meanwhile.
    expired: float = 5.0
    #: Correct the counts of live jobs by the jobs themselves.
    recount: float = 86_400.0
    #: Look for alarms, and send their notices.
    alarms: float = 15.0
    notices: float = 5.0


class Upkeep:
    """All loops of upkeep on one store, which needs four connections of its own."""

    def __init__(
        self,
        store: Store,
        keep: KeepTimes | None = None,
        *,
        publisher: Publisher | None = None,
        alarms: AlarmWatch | None = None,
        periods: Periods | None = None,
        on_jump: Callable[[Jump], None] | None = None,
        clock: Callable[[], Awaitable[datetime]] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`on_jump` is called when the database's clock jumps; `clock` and `monotonic` replace the compared clocks."""
        self._store, self._keep, self._periods = store, keep or KeepTimes(), periods or Periods()
        self._publisher, self._alarms = publisher, alarms
        self._on_jump, self._read_clock = on_jump, clock
        self._clock = ClockWatch(monotonic)
        self._status = StatusLog()
        self._failures: Counter[str] = Counter()
        self._runs: Counter[str] = Counter()
        self._looked_at = time.monotonic()
        self._not_before: dict[str, float] = {}
        self._moving: set[str] = set()
        self._pending: PendingWork | None = None
        self._jumped_at: datetime | None = None
        self._vacuumed = (-1, 0.0)  # the change counter at the last vacuum, and the earliest time of the next one
        self._may_vacuum = True
        self._warned_at: dict[tuple[str, str, str], float] = {}
        self._group: asyncio.TaskGroup

    @classmethod
    def configured(cls, store: Store, settings: Settings, listen: str) -> Upkeep:
        """Upkeep as the settings want it; `listen` is the database's address, for wake-ups."""
        publisher = None
        if settings.sqs_queues:
            address = settings.direct_url or listen if settings.wakeups else None
            publisher = Publisher(store, settings.sqs_queues, rewake_ms=settings.rewake_ms, listen=address)
        alarms = AlarmWatch.configured(settings)
        return cls(store, KeepTimes(**settings.keep), publisher=publisher, alarms=alarms)

    @property
    def counts(self) -> Mapping[str, int]:
        """The work of each part since the start: jobs settled, reaped, promoted, ranges made, rows deleted…"""
        return dict(self._status.counts)

    @property
    def runs(self) -> Mapping[str, int]:
        """The rounds of each part that went well, since the start."""
        return dict(self._runs)

    @property
    def lag_s(self) -> float:
        """Seconds since it last looked for work; about half a second while all is well."""
        return time.monotonic() - self._looked_at

    @property
    def troubles(self) -> Mapping[str, str]:
        """The current troubles by part."""
        return self._status.troubles

    @property
    def jumps(self) -> int:
        """How often the database's clock jumped ahead by more than a lease, or back, since the start."""
        return self._clock.jumps

    async def run(self) -> None:
        """Run all parts until cancelled."""
        store, keep, periods = self._store, self._keep, self._periods
        release = partial(store.watch.release, RELEASE_AFTER_S)
        parts: list[tuple[str, float, Round]] = [
            ("look", periods.look, self._look),
            ("cancel expired", periods.expired, self._counting("cancel expired", self._cancel_expired)),
            ("recount", periods.recount, self._counting("recount", store.counts.recount)),
            ("extend", periods.extend, self._counting("extend", store.extend_ranges)),
            ("vacuum", periods.vacuum, self._vacuum),
            ("release", periods.forget, self._counting("release", release)),
            ("workers", periods.workers, self._counting("workers", self._check_workers, by_age=True)),
        ]
        for part, delete in deletions(store, keep).items():
            period = periods.retire if part == "retire" else periods.forget
            parts.append((part, period, self._counting(part, delete, by_age=True)))
        if keep.unknown_types_s is not None:
            end = UnknownTypes(store, keep.unknown_types_s, self._clock.monotonic).end_expired
            parts.append(("end unknown", periods.extend, self._counting("end unknown", end, by_age=True)))
        if (alarms := self._alarms) is not None:
            parts += [
                ("alarms", periods.alarms, self._counting("alarms", partial(alarms.evaluate, store))),
                ("send alarms", periods.notices, self._counting("send alarms", partial(alarms.send, store))),
            ]
        self._moving.clear()
        async with AsyncExitStack() as stack:
            if (publisher := self._publisher) is not None:
                await stack.enter_async_context(publisher.connected())
                parts += [
                    ("register", periods.forget, publisher.register),
                    ("renew wake-ups", periods.renew, publisher.renew),
                ]
            self._group = await stack.enter_async_context(asyncio.TaskGroup())
            for name, period, work in parts:
                at_once = name in ("look", "extend", "register", "cancel expired")
                first = 0.0 if at_once else random.uniform(0, period)
                self._group.create_task(self._repeat(name, period, work, first))
            if publisher is not None:
                self._group.create_task(
                    self._repeat("publish", periods.publish, publisher.publish, 0.0, publisher.wait)
                )

    async def _repeat(
        self,
        name: str,
        period: float,
        work: Round,
        first: float,
        wait: Callable[[float], Awaitable[None]] | None = None,
    ) -> None:
        """Run a part again and again; after a failure sooner, because the database may be back any moment."""
        await asyncio.sleep(first)
        while True:
            retry = await self._try(name, period, work)
            # Between half of the period and all of it, so that processes do not run in step.
            rest = period * random.uniform(0.5, 1.0) if retry is None else retry
            await (asyncio.sleep(rest) if wait is None or retry is not None else wait(rest))

    async def _try(self, name: str, period: float, work: Round) -> float | None:
        """Run a part once and log the result; after a failure, returns the seconds before the next attempt."""
        try:
            report = await work()
        except Exception as error:
            self._status.log_failure(name, error)
            longest = _MAX_RETRY_S if isinstance(error, UNREACHABLE) else max(_MAX_RETRY_S, period)
            retry = min(longest, 0.1 * 2.0 ** min(self._failures[name], 20))
            self._failures[name] += 1
            return retry * random.uniform(0.5, 1.0)
        self._failures.pop(name, None)
        self._runs[name] += 1
        if name == "look":
            self._looked_at = time.monotonic()
        if report is not None:
            self._status.log_report(report)
        return None

    async def _look(self) -> Report:
        """Read the pending work, compare the clocks, and start every move that is not running already."""
        before = self._clock.monotonic()
        pending = self._pending = await self._store.watch.find_pending()
        now = pending.at if self._read_clock is None else await self._read_clock()
        if jump := self._clock.read(now, before, pending.lease_sec):
            self._jumped_at = pending.at
            self._report_jump(jump)
        for part, contracts in (("settle", pending.settle), ("reap", pending.reap), ("promote", pending.promote)):
            for contract in contracts:
                self._start_move(part, contract, pending)
        if pending.next_fire_at is not None and pending.next_fire_at <= pending.at and self._begin("fire"):
            self._group.create_task(self._run_alone("fire", partial(fire_due, self._store)))
        if pending.flows_ended and self._begin("advance flows"):
            self._group.create_task(self._run_alone("advance flows", partial(advance_flows, self._store)))
        if pending.events_wait and self._begin("route events"):
            self._group.create_task(self._run_alone("route events", partial(route_events, self._store)))
        if pending.operations_wait and self._begin("operate"):
            self._group.create_task(self._run_alone("operate", partial(operate, self._store)))
        if pending.letters_changed and self._begin("group letters"):
            self._group.create_task(self._run_alone("group letters", partial(group_letters, self._store)))
        if pending.counts_wait and self._begin("fold counts"):
            self._group.create_task(self._run_alone("fold counts", partial(fold_counts, self._store)))
        if pending.rolling_back and self._begin("finish rollbacks"):
            self._group.create_task(self._run_alone("finish rollbacks", partial(finish_rollbacks, self._store)))
        return Report("look", 0)

    async def _cancel_expired(self) -> int:
        """Cancel all jobs that expired before they began, batch after batch."""
        done = last = await self._store.cancel_expired(BATCH)
        while last:
            last = await self._store.cancel_expired(BATCH)
            done += last
        return done

    def _report_jump(self, jump: Jump) -> None:
        if jump.seconds > 0:
            _log.warning(
                "the database's clock jumped ahead by %.1f s: no lease is reaped before its holder had the time of a "
                "lease to send a heartbeat, and nothing is forgotten or retired for an hour. Next: check that clock",
                jump.seconds,
            )
        else:
            _log.warning(
                "the database's clock jumped back by %.1f s: leases last that much longer. Next: check that clock",
                -jump.seconds,
            )
        if self._on_jump:
            self._on_jump(jump)

    def _start_move(self, part: str, contract: str, pending: PendingWork) -> None:
        if self._begin(name := part_name(part, contract)):
            self._group.create_task(self._move(name, part, contract, pending))

    def _begin(self, name: str) -> bool:
        """Whether work of this name may start now: it is not running, and did not fail just before."""
        if name in self._moving or asyncio.get_running_loop().time() < self._not_before.get(name, 0.0):
            return False
        self._moving.add(name)
        return True

    async def _run_alone(self, name: str, work: Round) -> None:
        """Run a part that the look started, and wait after a failure."""
        try:
            retry = await self._try(name, self._periods.look, work)
            self._not_before[name] = asyncio.get_running_loop().time() + (retry or 0.0)
        finally:
            self._moving.discard(name)

    async def _move(self, name: str, part: str, contract: str, pending: PendingWork) -> None:
        """Move all pending jobs of one part and contract, batch after batch."""
        last, outcomes = Report(part, BATCH), list[Outcome]()

        async def work() -> Report:
            nonlocal last, outcomes
            outcomes = await self._move_batch(part, contract, pending)
            last = report_moves(part, contract, outcomes)
            return last

        try:
            retry: float | None = None
            while last.did >= BATCH and retry is None:
                retry = await self._try(name, self._periods.look, work)
                if part == "reap" and retry is None:
                    # After the count: a process that is stopped while it reads the jobs has counted them.
                    await self._store.warn_of_closed(contract, outcomes)
            if last.trouble:  # the next look finds the refused jobs again
                retry = _MAX_RETRY_S
            self._not_before[name] = asyncio.get_running_loop().time() + (retry or 0.0)
        finally:
            self._moving.discard(name)

    def _move_batch(self, part: str, contract: str, pending: PendingWork) -> Awaitable[list[Outcome]]:
        if part == "settle":
            return self._store.settle(contract, BATCH)
        if part == "promote":
            return self._store.promote(contract, BATCH)
        # If the clock jumps between the look and this statement, it reaps nothing, and the next look finds the jump.
        until = pending.at + timedelta(seconds=pending.lease_sec)
        return self._store.reap(contract, BATCH, until=until, jumped=self._jumped_at)

    async def _check_workers(self) -> int:
        """Delete the rows of dead workers and warn about unserved types."""
        forgotten = await self._store.workers.forget()
        await self._warn_unserved()
        return forgotten

    async def _warn_unserved(self) -> None:
        """Warn once about each type that no live worker takes, and again after `warn_again` seconds."""
        now = time.monotonic()
        found = {
            (unserved.contract, unserved.queue, unserved.type): unserved
            for unserved in await self._store.workers.unserved()
            if unserved.waited_s >= _UNSERVED_S
        }
        self._warned_at = {key: at for key, at in self._warned_at.items() if key in found}
        for key, unserved in found.items():
            if key not in self._warned_at or now >= self._warned_at[key] + self._periods.warn_again:
                self._warned_at[key] = now
                _log.warning(
                    "%s: %d or more jobs wait in queue %s, the oldest for %.0f s. Next: start a worker that takes "
                    "them, or tenure jobs move --queue; for a job that a dead worker left, tenure jobs why",
                    unserved.sentence(), unserved.jobs, unserved.queue, unserved.waited_s,
                )  # fmt: skip

    async def _vacuum(self) -> Report | None:
        """Vacuum the hot tables when they have dead rows and changed since the last vacuum."""
        pending, now = self._pending, time.monotonic()
        changed, not_before = self._vacuumed
        if pending is None or now < not_before:
            return None
        # A vacuum by another process counts too.
        period = self._periods.vacuum / 2 if pending.dead >= _MANY_DEAD_ROWS else self._periods.vacuum_few
        is_recent = pending.vacuumed_ago is not None and pending.vacuumed_ago < period
        if is_recent or not pending.dead or pending.changed == changed:
            return Report("vacuum", 0) if self._may_vacuum else None
        self._may_vacuum = await self._store.history.vacuum()
        pause_s = (time.monotonic() - now) / _VACUUM_SHARE if self._may_vacuum else self._periods.retire
        self._vacuumed = (pending.changed, now + pause_s)
        return Report("vacuum", int(self._may_vacuum), trouble=None if self._may_vacuum else _NO_VACUUM)

    def _counting(self, part: str, work: Callable[[], Awaitable[int]], *, by_age: bool = False) -> Round:
        """A part that reports a number; `by_age`: skipped for an hour after a clock jump, when ages are in doubt."""

        async def run() -> Report | None:
            if by_age and self._clock.jumped_within(_AFTER_JUMP_S):
                return None
            return Report(part, await work())

        return run
