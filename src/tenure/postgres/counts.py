"""Counts of moves: fold what the moving statements counted, and read it. No read of counts reads jobs.

    move ─▶ tenure.tally (a row per statement, type, tenant, queue and path)
                 │ fold: delete and add in one statement, one process at a time
                 ▼
            tenure.rollup by minute, by hour and for ever

Reads take both, so they are exact at any time, also when no upkeep runs.
"""

from __future__ import annotations

from typing import Final

from tenure.postgres.engine import EngineUser
from tenure.postgres.statement import Atomic, Plan, statement

#: Rows of `tenure.tally` that one statement folds.
FOLD: Final = 10_000
#: Combinations of contract, type, tenant and queue that are counted apart; further ones count as `(other)`.
MOST_GROUPS: Final = 5_000
_PAGE = 10_000
_DAY = 86_400.0


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
        return total + await self._pages("delete_old_refusals", keep_sec=refusals_s)

    async def _pages(self, query: str, **values: object) -> int:
        total = 0
        while True:
            done = len(await self._engine.ask(query, **values, limit=_PAGE))
            total += done
            if done < _PAGE:
                return total


def _recount() -> Plan[int]:
    def plan() -> Plan[int]:
        ((is_mine,),) = yield statement("try_lock_counts", {})
        if not is_mine:
            return 0
        ((wrong,),) = yield statement("recount_jobs", {})
        return int(wrong)

    wrong: int = yield Atomic(plan())
    return wrong
