"""Counts of moves: fold what the moving statements counted, and read it. No read of counts reads jobs.

    move ─▶ tenure.tally (a row per statement, type, tenant, queue and path)
                 │ fold: delete and add in one statement, one process at a time
                 ▼
            tenure.rollup by minute, by hour and for ever

Reads take both, so they are exact at any time, also when no upkeep runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

from tenure.jobs.stats import (
    MOST_LABELLED,
    ContractMove,
    Count,
    Durations,
    Figures,
    Level,
    PathHops,
    Slice,
    Snapshot,
    Stats,
    by_type,
)
from tenure.postgres.engine import EngineUser
from tenure.postgres.queues import Queues
from tenure.postgres.statement import Atomic, Plan, statement

#: Rows of `tenure.tally` that one statement folds.
FOLD: Final = 10_000
#: Combinations of contract, type, tenant and queue that are counted apart; further ones count as `(other)`.
MOST_GROUPS: Final = 5_000
#: Refusals that stay with their times, whatever their age: a flood of refused calls fills no disk.
MOST_REFUSALS: Final = 100_000
_PAGE = 10_000
_HOUR, _DAY = 3_600.0, 86_400.0


class Counts(EngineUser):
    """Counts of moves; `store.counts`."""

    async def fold(self, limit: int = FOLD) -> int:
        """Fold counts into the roll-ups, `limit` at a time, unless another process does; returns how many."""
        total = 0
        while True:
            ((is_mine, folded),) = await self._engine.ask("fold_counts", limit=limit, groups=MOST_GROUPS)
            total += int(folded)
            if not is_mine or folded < limit:
                return total

    async def recount(self) -> int:
        """Correct the counts of live jobs by the jobs that are there; returns how many were wrong. Reads all live jobs.

        None where another process folds at this moment.
        """
        return await self._engine.run(_recount)

    async def forget(self, minutes_s: float = 2 * _DAY, hours_s: float = 400 * _DAY, refusals_s: float = _DAY) -> int:
        """Delete old roll-ups and refusals; the counts for ever stay. Returns how many rows."""
        total = 0
        for unit, keep_sec in (("minute", minutes_s), ("hour", hours_s)):
            total += await self._pages("delete_old_counts", unit=unit, keep_sec=keep_sec)
        return total + await self._pages("delete_old_refusals", keep_sec=refusals_s, most=MOST_REFUSALS)

    async def stats(self, since_s: float = _HOUR, *, tenant: str | None = None) -> Stats:
        """The figures of the last `since_s` seconds, by minute up to six hours, else by hour; `tenant` None: of all."""
        unit, tenants = _unit(since_s), tenant is not None
        await self._engine.refresh()  # the contracts tell which moves lead to dead letters
        hops = self._hops()
        counts = await self._read(unit, since_s, tenant, by_tenant=tenants)
        later = [">".join(hop) for hop in hops.later]
        slices = await self._engine.ask("read_count_slices", unit=unit, since_s=since_s, tenant=tenant, later=later)
        figures = None if tenants else (await self._figures())[0]
        return Stats(
            since_s, by_type(counts, hops, tenants=tenants), [_slice(*row) for row in slices],
            await self._levels(tenant), figures,
        )  # fmt: skip

    async def activity(
        self, contract: str, since_s: float = _HOUR, *, tenant: str | None = None
    ) -> tuple[Counter[str], list[ContractMove]]:
        """The live jobs of a contract by state, and the moves of its jobs in the last `since_s` seconds."""
        live: Counter[str] = Counter()
        for level in await self._levels(tenant):
            if level.contract == contract:
                live[level.state] += level.jobs
        values = {"contract": contract, "unit": _unit(since_s), "since_s": since_s, "tenant": tenant}
        return live, [ContractMove._make(row) for row in await self._engine.ask("read_contract_moves", **values)]

    async def snapshot(self, *, tenant: str | None = None, loop_lag_s: float | None = None) -> Snapshot:
        """What `/metrics` shows; of one tenant, without what is about all of them.

        It folds first: a group that is not folded has no label of its own yet, and no counter may change its label.
        """
        await self._engine.refresh()
        await self.fold()
        figures, labelled = await self._figures()
        counts = await self._read("ever", None, tenant)
        recent = await self._read("minute", _HOUR, tenant, by_tenant=False)
        oldest = await Queues(self._engine).oldest() if tenant is None else {}
        own = [key for key in labelled if tenant in (None, key[2])]
        return Snapshot(
            counts, recent, self._hops(), await self._levels(tenant), oldest, None if tenant else figures,
            dict.fromkeys(own), self._engine.refusals.counts if tenant is None else {}, loop_lag_s,
        )  # fmt: skip

    async def _read(
        self, unit: str, since_s: float | None, tenant: str | None, *, by_tenant: bool = True
    ) -> list[Count]:
        rows = await self._engine.ask("read_counts", unit=unit, since_s=since_s, tenant=tenant, by_tenant=by_tenant)
        return [Count._make(row) for row in rows]

    async def _levels(self, tenant: str | None) -> list[Level]:
        return [Level._make(row) for row in await self._engine.ask("read_levels", tenant=tenant)]

    async def _figures(self) -> tuple[Figures, list[tuple[str, str, str]]]:
        ((*figures, groups),) = await self._engine.ask("read_operation_figures", groups=MOST_LABELLED)
        return Figures._make(figures), [tuple(group.split(chr(31))) for group in groups]

    def _hops(self) -> PathHops:
        """The first hops of the paths that lead to dead letters, and the later hops of all paths, of all contracts."""
        letters: set[tuple[str, str, str, str]] = set()
        later: set[tuple[str, str, str, str]] = set()
        for contract in self._engine.registry.all().values():
            for path in contract.paths:
                later |= {(contract.name, path.trigger, a.state, b.state) for a, b in pairwise(path.hops)}
                if path.letter:
                    letters |= {(contract.name, path.trigger, one, path.hops[0].state) for one in path.sources}
        return PathHops(letters - later, later)

    async def _pages(self, query: str, **values: object) -> int:
        total = 0
        while True:
            done = len(await self._engine.ask(query, **values, limit=_PAGE))
            total += done
            if done < _PAGE:
                return total


def _slice(*row: Any) -> Slice:
    *figures, waits, wait_numbers, runs, run_numbers = row
    found = Slice(*figures)
    found.wait, found.run = _durations(waits, wait_numbers), _durations(runs, run_numbers)
    return found


def _durations(buckets: Sequence[int] | None, numbers: Sequence[int] | None) -> Durations:
    """A histogram of pairs; a bucket may stand there more than once."""
    found = Durations()
    for bucket, number in zip(buckets or (), numbers or (), strict=True):
        found.numbers[bucket] += number
    return found


def _unit(since_s: float) -> str:
    """The roll-ups that have this time: those by minute are kept for two days."""
    return "minute" if since_s <= 6 * _HOUR else "hour"


def _recount() -> Plan[int]:
    def plan() -> Plan[int]:
        ((is_mine,),) = yield statement("try_lock_counts", {})
        if not is_mine:
            return 0
        ((wrong,),) = yield statement("recount_jobs", {})
        return int(wrong)

    wrong: int = yield Atomic(plan())
    return wrong
