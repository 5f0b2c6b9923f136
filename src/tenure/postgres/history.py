"""History: what leaves the database, and when. Payloads fade, keys lapse, and old ranges go whole, never row by row.

Each verb is safe in any number of processes and after a crash at any point, and says what it did.
"""

from __future__ import annotations

from typing import Any, Literal

import psycopg

from tenure.errors import BadInput, Unavailable
from tenure.postgres.engine import Engine, ask
from tenure.postgres.statement import Atomic, Plan, Query, Row, Statement, statement

_DAY = 86_400.0
_RANGE = 1_048_576  # as `tenure.extend_ranges` makes them
_PAGE = 10_000
_PATIENCE = 20


class History:
    """The verbs on what is past; `store.history`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def forget_payloads(self, keep_sec: float = 7 * _DAY) -> int:
        """Empty the verbose payloads (heartbeats, renewals) that are older than this; how many."""
        _at_least("keep_sec", keep_sec, 0)
        await self._engine.run(self._engine.registry.load)
        forgotten = 0
        for contract in self._engine.registry.contracts():
            facts = [on for event in contract.events if event.fades for on in event.on]
            if facts:
                values = {"contract": contract.name, "facts": facts, "keep_sec": keep_sec}
                forgotten += await self._pages("forget_payloads", values)
        return forgotten

    async def forget_keys(self, keep_sec: float = 30 * _DAY) -> int:
        """Delete idempotency keys that are older than this and whose jobs have left; how many."""
        _at_least("keep_sec", keep_sec, 0)
        return await self._pages("forget_keys", {"keep_sec": keep_sec})

    async def forget_claims(self, keep_sec: float = 3_600.0) -> int:
        """Delete claim keys that are older than this and hold nothing any more; how many."""
        _at_least("keep_sec", keep_sec, 60)
        return await self._pages("forget_claims", {"keep_sec": keep_sec})

    async def retire_ranges(self, keep_sec: float = 90 * _DAY) -> int:
        """Drop the id ranges whose jobs all ended longer ago than this; how many. Needs the owner's rights."""
        _at_least("keep_sec", keep_sec, 60)
        self._engine.refuse_if_lent("drop ranges")
        return await self._engine.run(lambda: _retire(keep_sec))

    async def vacuum(self) -> bool:
        """Vacuum the tables that change all the time; False where this connection may not."""
        self._engine.refuse_if_lent("vacuum")
        return await self._engine.run(_vacuum)

    async def _pages(self, name: str, values: dict[str, Any]) -> int:
        """So many rows a transaction, until a page is not full."""
        total = 0
        while True:
            done = len(await self._engine.run(lambda: ask(name, {**values, "limit": _PAGE})))
            total += done
            if done < _PAGE:
                return total


def _retire(keep_sec: float) -> Plan[int]:
    ((owned,),) = yield statement("owned", {})
    if not owned:
        raise Unavailable(
            "only the owner of the tables can drop ranges of them. Next: run upkeep as the role that migrated"
        )
    yield from _go_on()
    retired = 0
    while rows := (yield Atomic(_freely("leaving", {"keep_sec": keep_sec}))):
        ((low, high, _),) = rows
        if not (yield statement("leave", {"low": low})):
            break  # another process has it
        for _ in range(_PATIENCE):  # short transactions end while we look
            ((quiet, lives),) = yield Atomic(_freely("may_leave", {"low": low, "keep_sec": keep_sec}))
            if lives or quiet:
                break
            yield statement("wait", {})
        if lives or not quiet:
            yield statement("stay", {"low": low, "lives": lives})
            break  # somebody's open transaction may still bring a job there: next round
        try:
            yield from _drop(low, high)
        except psycopg.Error:
            yield statement("stay", {"low": low, "lives": False})
            raise
        retired += 1
    return retired


def _freely(name: str, values: dict[str, Any]) -> Plan[list[Row]]:
    """A statement that reads as much as a range has."""
    yield statement("plan_freely", {})
    return (yield from ask(name, values))


def _go_on() -> Plan[None]:
    """Finish what a reader's long transaction or a crash left half detached: no other can begin before."""
    for parent, child in (yield statement("detaching", {})):
        yield _command(f"alter table tenure.{parent} detach partition tenure.{child} finalize")


def _drop(low: int, high: int) -> Plan[None]:
    """Detach a range's tables without stopping readers and writers, then drop them; goes on where a crash left off."""
    for parent in ("job_done", "event"):
        child = f"tenure.{parent}_{low // _RANGE}"
        rows: list[Row] = yield statement("partition", {"name": child})
        if rows and rows[0][0]:
            yield _command(f"alter table tenure.{parent} detach partition {child} concurrently")
        yield _command(f"drop table if exists {child}")
    span = {"low": low, "high": high}
    for forget in ("forget_effects", "forget_emitted"):
        while len((yield statement(forget, {**span, "limit": _PAGE}))) == _PAGE:
            pass
    yield statement("left", span)


def _vacuum() -> Plan[bool]:
    ((owned,),) = yield statement("owned", {})
    if owned:
        # Locked means that somebody else is at it. Truncating would lock everybody out. Dead entries of the ready index
        # are what a claim stumbles over, so they go even where PostgreSQL would find them too few.
        vacuum = "vacuum (index_cleanup on, skip_locked, truncate false) tenure.job, tenure.claim"
        yield _command(vacuum, "statement_timeout")
    return bool(owned)


def _command(text: str, bound: Literal["lock_timeout", "statement_timeout"] = "lock_timeout") -> Statement:
    """A command that takes no parameters and no transaction; most of them only ever wait for locks."""
    return Statement(Query(text.split()[0], f"/* tenure */ {text}", ()), (), alone=bound)


def _at_least(name: str, value: object, low: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= 1e10:
        raise BadInput(f"{name} is {value!r}; it must be at least {low:g} seconds")
