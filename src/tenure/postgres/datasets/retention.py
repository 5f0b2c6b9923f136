"""What leaves: rows that were replaced or never committed, old generations, routed events."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from tenure.errors import BadInput
from tenure.postgres.engine import EngineUser
from tenure.postgres.statement import Atomic, Plan, statement

_PAGE: Final = 10_000
#: How many generations one transaction locks.
_GENERATIONS: Final = 100


class DatasetRetention(EngineUser):
    """Operations on old data of datasets; part of `store.datasets`."""

    async def retire_generations(self) -> int:
        """Mark the generations beyond what their datasets keep as dropped; never one that a live job has pinned.

        Returns how many. Leaves out those that an open transaction uses; the next round finds them.
        """
        dropped, after = 0, 0
        while True:
            count, last = await self._engine.run(partial(_retire, after))
            dropped += count
            if last is None:
                return dropped
            after = last

    async def forget_rows(self, after_s: float = 3_600.0) -> int:
        """Delete rows that nobody reads: replaced this long ago, of attempts that ended, of dropped generations."""
        _check_seconds(after_s)
        deleted = 0
        for (generation_id,) in await self._all("find_leaving_generations", after_s=after_s):
            deleted += await self._pages("delete_rows", id=generation_id)
            await self._engine.ask("empty_generation", id=generation_id)
        await self._pages("abandon_batches")
        for (batch_id,) in await self._all("find_unread_batches", after_s=after_s):
            deleted += await self._pages("delete_rows", id=batch_id)
            await self._engine.ask("delete_batch", id=batch_id)
        return deleted

    async def forget_events(self, after_s: float = 86_400.0) -> int:
        """Delete events that were routed this long ago; returns how many.

        Events that nobody waits for any more count as routed: their subscriptions ended, or their generations were
        rolled back or dropped.
        """
        _check_seconds(after_s)
        for subscription_id, generation_id in await self._engine.ask("list_void_deliveries", limit=_PAGE):
            while await self._engine.run(partial(_drop_deliveries, subscription_id, generation_id)) == _PAGE:
                pass
        return await self._pages("delete_routed_events", after_s=after_s)

    async def _all(self, name: str, **values: Any) -> list[tuple[Any, ...]]:
        return await self._engine.ask(name, **values, limit=_PAGE)

    async def _pages(self, name: str, **values: Any) -> int:
        """Run a statement page by page, each in its own transaction, until a page is not full; returns all rows."""
        total = 0
        while True:
            done = len(await self._engine.ask(name, **values, limit=_PAGE))
            total += done
            if done < _PAGE:
                return total


def _check_seconds(after_s: Any) -> None:
    if isinstance(after_s, bool) or not isinstance(after_s, int | float) or not 0 <= after_s <= 1e10:
        raise BadInput(f"after_s is {after_s!r}; it must be a number of seconds, 0 or more")


def _retire(after: int) -> Plan[tuple[int, int | None]]:
    done: tuple[int, int | None] = yield Atomic(_retire_in_one(after))
    return done


def _retire_in_one(after: int) -> Plan[tuple[int, int | None]]:
    """Drop some generations behind this one; returns how many, and the last one that was looked at.

    The pins are read after the locks: a job that is made meanwhile waits for them, or is seen.
    """
    ids = [row[0] for row in (yield statement("lock_old_generations", {"after": after, "limit": _GENERATIONS}))]
    if not ids:
        return 0, None
    dropped = yield statement("drop_generations", {"ids": ids})
    return len(dropped), ids[-1]


def _drop_deliveries(subscription_id: int, generation_id: int) -> Plan[int]:
    count: int = yield Atomic(_drop_deliveries_in_one(subscription_id, generation_id))
    return count


def _drop_deliveries_in_one(subscription_id: int, generation_id: int) -> Plan[int]:
    values = {"id": subscription_id, "generation_id": generation_id, "limit": _PAGE}
    events = [row[0] for row in (yield statement("delete_deliveries", values))]
    if events:
        yield statement("close_deliveries", {"ids": events})
    return len(events)
