"""Retention: delete old payloads, keys and claims, and drop whole id ranges, never single rows of history.

Each operation is safe in any number of processes and after a crash at any point, and returns what it did.
"""

from __future__ import annotations

from typing import Any, Literal

import psycopg

from tenure.errors import BadInput, Unavailable
from tenure.jobs.validation import ID_UNIT
from tenure.postgres.engine import EngineUser, ask
from tenure.postgres.statement import Atomic, Plan, Query, Row, Statement, statement

_DAY = 86_400.0
_PAGE = 10_000
_UNIQUE_PAGE = 1_000
_FLOWS_PAGE = 1_000
_MAX_CHECKS = 20


class Retention(EngineUser):
    """Operations on old data; `store.history`."""

    async def forget_payloads(self, keep_sec: float = 7 * _DAY) -> int:
        """Empty verbose payloads (heartbeats, renewals) older than this; returns how many."""
        _at_least("keep_sec", keep_sec, 0)
        await self._engine.run(self._engine.registry.load)
        fading = [
            (contract.name, on)
            for contract in self._engine.registry.contracts()
            for event in contract.events
            if event.fades
            for on in event.on
        ]
        if not fading:
            return 0
        which = {"contracts": [name for name, _ in fading], "facts": [fact for _, fact in fading]}
        forgotten = 0
        for low, high in await self._engine.ask("list_ranges_with_payloads"):
            values = {**which, "low": low, "high": high}
            forgotten += await self._pages("clear_payloads", {**values, "keep_sec": keep_sec})
            await self._engine.ask("mark_payloads_cleared", **values)
        return forgotten

    async def forget_keys(self, keep_sec: float = 30 * _DAY) -> int:
        """Delete idempotency keys older than this whose jobs were dropped; returns how many."""
        _at_least("keep_sec", keep_sec, 0)
        return await self._pages("delete_old_keys", {"keep_sec": keep_sec})

    async def forget_claims(self, keep_sec: float = 3_600.0) -> int:
        """Delete claim keys older than this that hold no job; returns how many."""
        _at_least("keep_sec", keep_sec, 60)
        return await self._pages("delete_old_claim_keys", {"keep_sec": keep_sec})

    async def forget_fires(self, keep_sec: float = 30 * _DAY) -> int:
        """Delete fires of schedules older than this, except the last one of each schedule; returns how many."""
        _at_least("keep_sec", keep_sec, 60)
        return await self._pages("delete_old_fires", {"keep_sec": keep_sec})

    async def forget_flows(self, keep_sec: float = 90 * _DAY) -> int:
        """Delete flows that ended longer ago than this, with their nodes and keys; returns how many flows."""
        _at_least("keep_sec", keep_sec, 60)
        total = 0
        while rows := await self._engine.ask("delete_flows", keep_sec=keep_sec, limit=_FLOWS_PAGE, most_nodes=_PAGE):
            total += len(rows)
        return total

    async def forget_unique(self) -> int:
        """Delete the rows of unique scopes whose jobs have ended and whose period is over; returns how many."""
        total = 0
        while True:
            rows = await self._engine.ask("delete_unique_jobs", limit=_UNIQUE_PAGE)
            total += [deleted for (deleted,) in rows].count(True)
            if len(rows) < _UNIQUE_PAGE:
                return total

    async def retire_ranges(self, keep_sec: float = 90 * _DAY) -> int:
        """Drop the id ranges whose jobs all ended longer ago than this; returns how many. Needs the owner's rights."""
        _at_least("keep_sec", keep_sec, 60)
        self._engine.require_own_pool("drop ranges")
        return await self._engine.run(lambda: _retire(keep_sec))

    async def vacuum(self) -> bool:
        """Vacuum the tables that change all the time; returns False if this role may not."""
        self._engine.require_own_pool("vacuum")
        return await self._engine.run(_vacuum)

    async def _pages(self, name: str, values: dict[str, Any]) -> int:
        """Run a statement page by page, each in its own transaction, until a page is not full; returns all rows."""
        total = 0
        while True:
            done = len(await self._engine.ask(name, **values, limit=_PAGE))
            total += done
            if done < _PAGE:
                return total


def _retire(keep_sec: float) -> Plan[int]:
    ((owned,),) = yield statement("check_ownership", {})
    if not owned:
        raise Unavailable(
            "only the owner of the tables can drop ranges of them. Next: run upkeep as the role that migrated"
        )
    yield from _finish_detach()
    retired = 0
    for low, high, begun in (yield statement("list_droppable_ranges", {"keep_sec": keep_sec})):
        ended = {"low": low, "high": high, "keep_sec": keep_sec}
        if not begun and (yield Atomic(_read_whole_range("range_ended_since", ended))) == [(True,)]:
            continue
        if not (yield statement("begin_range_drop", {"low": low})):
            break  # another process drops it
        for _ in range(_MAX_CHECKS):  # short transactions end meanwhile
            ((quiet, lives),) = yield statement("check_range_droppable", {"low": low})
            if not lives:
                ((lives,),) = yield Atomic(_read_whole_range("range_ended_since", ended))
            if lives or quiet:
                break
            yield statement("sleep", {})
        if lives or not quiet:
            yield statement("cancel_range_drop", {"low": low, "lives": lives})
            break  # an open transaction may still write a job there: the next round tries again
        try:
            yield from _drop(low, high)
        except psycopg.Error:
            yield statement("cancel_range_drop", {"low": low, "lives": False})
            raise
        retired += 1
    return retired


def _read_whole_range(name: str, values: dict[str, Any]) -> Plan[list[Row]]:
    """Run a statement that may read a whole range."""
    yield statement("reset_planner_settings", {})
    return (yield from ask(name, values))


def _finish_detach() -> Plan[None]:
    """Finish a detach that a reader's long transaction or a crash interrupted; no other detach can begin before."""
    for parent, child in (yield statement("list_half_detached_partitions", {})):
        yield _command(f"alter table tenure.{parent} detach partition tenure.{child} finalize")


def _drop(low: int, high: int) -> Plan[None]:
    """Detach a range's tables without blocking readers and writers, then drop them; continues after a crash."""
    for parent in ("job_done", "event"):
        child = f"tenure.{parent}_{low // ID_UNIT}"
        rows: list[Row] = yield statement("read_partition", {"name": child})
        if rows and rows[0][0]:
            yield _command(f"alter table tenure.{parent} detach partition {child} concurrently")
        yield _command(f"drop table if exists {child}")
    span = {"low": low, "high": high}
    for forget in ("delete_effects", "delete_emitted_events", "delete_pins", "delete_outputs"):
        while len((yield statement(forget, {**span, "limit": _PAGE}))) == _PAGE:
            pass
    yield statement("delete_range", span)


def _vacuum() -> Plan[bool]:
    ((owned,),) = yield statement("check_ownership", {})
    if owned:
        # Another process vacuums a locked table. Truncate would take an exclusive lock. Dead entries of the ready
        # index slow down every claim, so indexes are cleaned even if PostgreSQL finds the entries too few.
        vacuum = "vacuum (index_cleanup on, skip_locked, truncate false) tenure.job, tenure.claim, tenure.tally"
        yield _command(vacuum, "statement_timeout")
    return bool(owned)


def _command(text: str, bound: Literal["lock_timeout", "statement_timeout"] = "lock_timeout") -> Statement:
    """A command without parameters, outside a transaction; most of them only wait for locks."""
    return Statement(Query(text.split()[0], f"/* tenure */ {text}", ()), (), alone=bound)


def _at_least(name: str, value: object, low: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= 1e10:
        raise BadInput(f"{name} is {value!r}; it must be at least {low:g} seconds")
