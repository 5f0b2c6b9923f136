"""What upkeep has to do: one small statement finds all pending work, so that idle upkeep costs little.

Also: due jobs that no worker takes, and jobs that claims skip.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from tenure.postgres.engine import Engine, EngineUser
from tenure.postgres.live_workers import Workers
from tenure.postgres.statement import Plan, statement

#: The values of each contract that the search for pending work needs.
_COLUMNS = ("contract", "version", "missed", "heartbeat_ms", "reclaims", "extra", "default_lease_ms", "promoted")


class PendingWork(NamedTuple):
    """Pending work at one time of the database's clock: the contracts that have jobs for each part of upkeep."""

    at: datetime
    settle: frozenset[str]
    reap: frozenset[str]
    promote: frozenset[str]
    #: When the next schedule is due; None: there is none.
    next_fire_at: datetime | None
    #: Whether jobs of flows have ended that are not taken into account yet.
    flows_ended: bool
    #: Whether events wait for subscriptions; of generations that are not current too.
    events_wait: bool
    #: Whether dead letters are not counted yet in their groups.
    letters_changed: bool
    #: Whether a batch of an operation on many jobs may run.
    operations_wait: bool
    #: Whether counts of moves are not folded yet.
    counts_wait: bool
    #: Whether a rollback has not cancelled the jobs that wait to write to what it left.
    rolling_back: bool
    #: The shortest lease in use, in seconds.
    lease_sec: float
    #: Dead rows of the hot tables, and a number that differs as soon as they change again.
    dead: int
    changed: int
    #: Seconds since the last vacuum of the table of live jobs, by any process.
    vacuumed_ago: float | None


class UnknownType(NamedTuple):
    """A job type in a queue that no live worker takes."""

    contract: str
    queue: str
    type: str


class UnknownJob(NamedTuple):
    """A due job of such a type."""

    id: int
    contract: str
    type: str


class UpkeepWork(EngineUser):
    """The reads of upkeep; `store.watch`."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._registered = 0

    async def find_pending(self) -> PendingWork:
        """Return the work that is pending now under every registered contract, in one statement."""
        return await self._engine.run(self._pending_work)

    async def unknown_types(self) -> list[UnknownType]:
        """Return the types of due jobs that no live worker takes, by contract and queue, except in paused queues."""
        return [UnknownType(*one[:3]) for one in await Workers(self._engine).unserved(1_000, sample=1)]

    async def unknown_jobs(self, of: Sequence[UnknownType], waited_s: float, limit: int = 100) -> list[UnknownJob]:
        """Return jobs of these types that are due for longer than this, oldest first, of known contract versions."""
        await self._engine.refresh()
        asked = [(one, bound) for one in of for bound in self._engine.registry.versions(one.contract)]
        values = {
            "contracts": [one.contract for one, _ in asked], "queues": [one.queue for one, _ in asked],
            "types": [one.type for one, _ in asked], "waited_s": waited_s, "limit": limit,
            "versions": [bound.contract.version for _, bound in asked],
        }  # fmt: skip
        return [UnknownJob._make(row) for row in await self._engine.ask("find_unknown_jobs", **values)]

    async def release(self, after_s: float) -> int:
        """Let claims retry jobs that could not be logged this long ago; returns how many."""
        return len(await self._engine.ask("release_quarantine", after_s=after_s, limit=1_000))

    def _pending_work(self) -> Plan[PendingWork]:
        registry = self._engine.registry
        while True:
            known = [bound.claim for contract in registry.contracts() for bound in registry.versions(contract.name)]
            values = {name: [claim[name] for claim in known] for name in _COLUMNS}
            (row,) = yield statement("read_upkeep_needs", values)
            at, settle, reap, promote, next_fire_at, *pending, lease, registered, dead, changed, vacuumed_ago = row
            if registered == self._registered:
                sets = (frozenset(settle), frozenset(reap), frozenset(promote))
                return PendingWork._make((at, *sets, next_fire_at, *pending, lease or 0.0, dead, changed, vacuumed_ago))
                # A contract was registered since: look for its jobs too.
            yield from registry.load()
            self._registered = registered
