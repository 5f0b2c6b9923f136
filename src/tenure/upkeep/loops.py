"""Upkeep as loops that run until they are cancelled, in any number of processes at once.

    look ─┬─▶ settle, reap, promote     one question for all contracts, a little more than once a second; only what it
          │                             found is moved, a thousand jobs at a time, each contract for itself
          └─▶ vacuum                    while the hot tables move, at most a tenth of the time
    extend, forget, retire              every half minute, every minute, every ten minutes

Nobody leads, so nobody must be found dead: every process does everything, at times of its own, and skips what another
is at. No part stops another. While the database is away each part tries again at least every two seconds; what stands
in the way is said once. A clock that jumps is not believed: see `clock.py`.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from tenure.errors import AWAY
from tenure.outcome import Outcome
from tenure.postgres.store import Store
from tenure.postgres.watch import Pressing
from tenure.upkeep.clock import Clock, Jump
from tenure.upkeep.rounds import Keep, Report, moved
from tenure.upkeep.telling import Telling, named

BATCH = 1_000
_LONGEST_REST = 2.0
_BUSY = 1_000  # dead rows from which on a claim begins to stumble
_VACUUM_SHARE = 0.1
_DOUBT_SEC = 3_600.0
_NO_VACUUM = (
    "only the owner of the tables can vacuum them; autovacuum does it later. Next: run upkeep as the role that migrated"
)
_log = logging.getLogger("tenure.upkeep")

#: One round of a part: what it did, or None when it was not its turn.
Work = Callable[[], Awaitable[Report | None]]


@dataclass(frozen=True, slots=True)
class Pace:
    """The longest that each part waits between two rounds, in seconds; the shortest is half of it."""

    look: float = 0.8
    extend: float = 30.0
    forget: float = 60.0
    retire: float = 600.0
    vacuum: float = 2.0
    #: How long dead rows may lie that are too few to hinder anybody.
    tidy: float = 60.0


class Upkeep:
    """All loops of upkeep on one store, which needs four connections that nobody else keeps busy."""

    def __init__(
        self,
        store: Store,
        keep: Keep | None = None,
        *,
        pace: Pace | None = None,
        on_jump: Callable[[Jump], None] | None = None,
        clock: Callable[[], Awaitable[datetime]] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`on_jump` is told when the database's clock jumps; `clock` and `monotonic` replace the two compared."""
        self._store, self._keep, self._pace = store, keep or Keep(), pace or Pace()
        self._on_jump, self._asked = on_jump, clock
        self._clock = Clock(monotonic)
        self._telling = Telling()
        self._failures: Counter[str] = Counter()
        self._resting: dict[str, float] = {}
        self._moving: set[str] = set()
        self._pressing: Pressing | None = None
        self._jumped: datetime | None = None
        self._vacuumed_at = (-1, 0.0)  # what had changed by the last vacuum, and before when there is no other
        self._may_vacuum = True
        self._group: asyncio.TaskGroup

    @property
    def counts(self) -> Mapping[str, int]:
        """How much each part did since the start: jobs settled, reaped, promoted, ranges made, rows forgotten…"""
        return dict(self._telling.counts)

    @property
    def troubles(self) -> Mapping[str, str]:
        """What stands in the way of which part right now."""
        return self._telling.troubles

    @property
    def jumps(self) -> int:
        """How often the database's clock jumped by more than a lease, or back, since the start."""
        return self._clock.jumps

    async def run(self) -> None:
        """Do everything that time asks for, until cancelled."""
        history, keep, pace = self._store.history, self._keep, self._pace
        self._moving.clear()
        async with asyncio.TaskGroup() as self._group:
            for name, period, work in (
                ("look", pace.look, self._look),
                ("extend", pace.extend, self._counted("extend", self._store.extend_ranges)),
                ("vacuum", pace.vacuum, self._vacuum),
                ("forget payloads", pace.forget, self._past("forget payloads", history.forget_payloads, keep.payloads)),
                ("forget keys", pace.forget, self._past("forget keys", history.forget_keys, keep.keys)),
                ("forget claims", pace.forget, self._past("forget claims", history.forget_claims, keep.claims)),
                ("retire", pace.retire, self._past("retire", history.retire_ranges, keep.jobs)),
            ):
                at_once = name in ("look", "extend")
                self._group.create_task(self._every(name, period, work, 0.0 if at_once else random.uniform(0, period)))

    async def _every(self, name: str, period: float, work: Work, first: float) -> None:
        """Do the work again and again; sooner when the database was away, since it may be back any moment."""
        await asyncio.sleep(first)
        while True:
            rest = await self._tried(name, period, work)
            # Between half of the period and all of it, so that processes do not go in step.
            await asyncio.sleep(period * random.uniform(0.5, 1.0) if rest is None else rest)

    async def _tried(self, name: str, period: float, work: Work) -> float | None:
        """Do the work once, and say what came of it; after a failure, how long to let it rest."""
        try:
            report = await work()
        except Exception as error:
            self._telling.failed(name, error)
            longest = _LONGEST_REST if isinstance(error, AWAY) else max(_LONGEST_REST, period)
            rest = min(longest, 0.1 * 2.0 ** min(self._failures[name], 20))
            self._failures[name] += 1
            return rest * random.uniform(0.5, 1.0)
        self._failures.pop(name, None)
        if report is not None:
            self._telling.reported(report)
        return None

    async def _look(self) -> Report:
        """Ask what is pressing, hold the clock against ours, and set to work whatever is not at it already."""
        asked = self._clock.monotonic()
        pressing = self._pressing = await self._store.watch.pressing()
        shown = pressing.at if self._asked is None else await self._asked()
        if jump := self._clock.read(shown, asked, pressing.lease_sec):
            self._jumped = pressing.at
            self._alarm(jump)
        for part, contracts in (("settle", pressing.settle), ("reap", pressing.reap), ("promote", pressing.promote)):
            for contract in contracts:
                self._set_to_work(part, contract, pressing)
        return Report("look", 0)

    def _alarm(self, jump: Jump) -> None:
        if jump.seconds > 0:
            _log.warning(
                "the database's clock jumped ahead by %.1f s: nobody is reaped before holders had the time of a "
                "lease to beat again, and nothing is forgotten or retired for an hour. Next: look after that clock",
                jump.seconds,
            )
        else:
            _log.warning(
                "the database's clock jumped back by %.1f s: leases last that much longer. Next: look after that clock",
                -jump.seconds,
            )
        if self._on_jump:
            self._on_jump(jump)

    def _set_to_work(self, part: str, contract: str, seen: Pressing) -> None:
        name = named(part, contract)
        if name in self._moving or asyncio.get_running_loop().time() < self._resting.get(name, 0.0):
            return
        self._moving.add(name)
        self._group.create_task(self._move(part, contract, seen))

    async def _move(self, part: str, contract: str, seen: Pressing) -> None:
        """Move all jobs of a contract that a part has to move; a full batch goes on at once."""
        name = named(part, contract)
        last = Report(part, BATCH)

        async def work() -> Report:
            nonlocal last
            last = moved(part, contract, await self._verb(part, contract, seen))
            return last

        try:
            rest: float | None = None
            while last.did >= BATCH and rest is None:
                rest = await self._tried(name, self._pace.look, work)
            if last.trouble:  # what was refused will be found again by the next look
                rest = _LONGEST_REST
            self._resting[name] = asyncio.get_running_loop().time() + (rest or 0.0)
        finally:
            self._moving.discard(name)

    def _verb(self, part: str, contract: str, seen: Pressing) -> Awaitable[list[Outcome]]:
        if part == "settle":
            return self._store.settle(contract, BATCH)
        if part == "promote":
            return self._store.promote(contract, BATCH)
        # Should the clock jump between the look and the reaping, this reaps nobody, and the next look finds out.
        return self._store.reap(contract, BATCH, until=seen.at + timedelta(seconds=seen.lease_sec), jumped=self._jumped)

    async def _vacuum(self) -> Report | None:
        """Vacuum the hot tables when dead rows lie there that were not there last time."""
        pressing, now = self._pressing, time.monotonic()
        changed, not_before = self._vacuumed_at
        if pressing is None or now < not_before:
            return None
        # Whoever vacuumed last, of all processes, it was done.
        patience = self._pace.vacuum / 2 if pressing.dead >= _BUSY else self._pace.tidy
        lately = pressing.vacuumed_ago is not None and pressing.vacuumed_ago < patience
        if lately or not pressing.dead or pressing.changed == changed:
            return Report("vacuum", 0) if self._may_vacuum else None
        self._may_vacuum = await self._store.history.vacuum()
        rest = (time.monotonic() - now) / _VACUUM_SHARE if self._may_vacuum else self._pace.retire
        self._vacuumed_at = (pressing.changed, now + rest)
        return Report("vacuum", int(self._may_vacuum), trouble=None if self._may_vacuum else _NO_VACUUM)

    def _past(self, part: str, forget: Callable[[float], Awaitable[int]], keep: float) -> Work:
        """A part that ends what is past; not while it is in doubt what is past."""
        counted = self._counted(part, lambda: forget(keep))

        async def work() -> Report | None:
            return None if self._clock.jumped_within(_DOUBT_SEC) else await counted()

        return work

    @staticmethod
    def _counted(part: str, work: Callable[[], Awaitable[int]]) -> Work:
        async def counted() -> Report:
            return Report(part, await work())

        return counted
