"""Refusals: calls that the database refused, counted apart from the moves, because a refusal changes nothing.

    a verb is refused ─▶ note(verb, answers) ─▶ at most once a second: one statement ─▶ tenure.refusal and tenure.tally
                         (returns at once)

They are sent from a task of their own, so a refused caller waits for nothing. A process that is killed loses those of
its last second.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NamedTuple

from tenure.errors import Busy, CannotConnect, InvalidTransition, NotDue, Refused, StaleLease
from tenure.postgres.ranges import read_by_range
from tenure.postgres.statement import Plan, statement

_PAUSE_S = 1.0
_CLOSE_TIMEOUT_S = 1.0
#: Refusals of one flush that are stored with their time, all together and of one kind and type; more are only counted.
#: The second bound keeps a flood of one tenant from hiding the others.
_MOST_TIMED = 1_000
_MOST_TIMED_ALIKE = 100
#: Refusals that wait for a flush; while the database is away, more are dropped.
_MOST_WAITING = 100_000
_UNKNOWN = "(unknown)"
_log = logging.getLogger("tenure")


class _Refusal(NamedTuple):
    at: float
    job_id: int
    verb: str
    code: str
    kind: str


def kind_of(verb: str, refused: Refused) -> str:
    """What a refusal is: a lost race for a named job, a lost lease, a move that the contract lacks, or other."""
    if verb == "claim" and isinstance(refused, (InvalidTransition, NotDue, StaleLease, Busy)):
        return "conflict"
    if isinstance(refused, StaleLease):
        return "stale"
    return "state" if isinstance(refused, InvalidTransition) else "other"


class Refusals:
    """Counts the refusals of one store, and stores them from its own task."""

    def __init__(self, run: Callable[[Callable[[], Plan[Any]]], Awaitable[Any]]) -> None:
        self._run = run
        #: Since the start of this process, by (verb, kind).
        self.counts: Counter[tuple[str, str]] = Counter()
        self._waiting: list[_Refusal] = []
        self._sender: asyncio.Task[None] | None = None
        self._now = asyncio.Event()

    def note(self, verb: str, answers: Iterable[Any]) -> None:
        """Count the refusals among these answers; returns at once and cannot fail."""
        for refused in answers:
            if (
                not isinstance(refused, Refused)
                or refused.job_id is None
                or (verb != "claim" and isinstance(refused, Busy))
            ):
                continue  # a busy row is no refusal: the caller tries again
            kind = kind_of(verb, refused)
            self.counts[verb, kind] += 1
            if len(self._waiting) < _MOST_WAITING:
                self._waiting.append(_Refusal(time.monotonic(), refused.job_id, verb, refused.reason_code, kind))
        if self._waiting and (self._sender is None or self._sender.done()):
            self._sender = asyncio.get_running_loop().create_task(self._send())

    async def flush(self) -> None:
        """Store what waits; returns when it is stored."""
        if self._waiting:
            taken, self._waiting = self._waiting, []
            try:
                await self._run(lambda: _store(taken))
            except (CannotConnect, Busy):  # nothing was done, so nothing is counted twice
                self._waiting = [*taken, *self._waiting][:_MOST_WAITING]
                raise

    async def close(self) -> None:
        """Store what waits without a pause, for one second at most."""
        self._now.set()
        if self._sender is not None and not self._sender.done():
            await asyncio.wait({self._sender}, timeout=_CLOSE_TIMEOUT_S)
            self._sender.cancel()

    async def _send(self) -> None:
        while self._waiting:
            try:
                async with asyncio.timeout(_PAUSE_S):
                    await self._now.wait()
            except TimeoutError:
                pass
            try:
                await self.flush()
            except Exception as error:
                _log.debug("refusals were not stored: %s", error)
                if self._now.is_set():
                    return


def _store(refused: list[_Refusal]) -> Plan[None]:
    """Store refusals with their jobs' types and tenants; the time is the database's."""
    now = time.monotonic()
    jobs = {row[0]: row[1:] for row in (yield from read_by_range("read_refused_jobs", [one.job_id for one in refused]))}
    groups: dict[tuple[str, ...], list[_Refusal]] = {}
    for one in refused:
        groups.setdefault((*jobs.get(one.job_id, (_UNKNOWN,) * 4), one.kind, one.verb, one.code), []).append(one)
    timed = [one for of in groups.values() for one in of[-_MOST_TIMED_ALIKE:]][:_MOST_TIMED]
    values: dict[str, Any] = {
        "ids": [one.job_id for one in timed],
        "ages": [now - one.at for one in timed],
        "verbs": [one.verb for one in timed],
        "codes": [one.code for one in timed],
        "kinds": [one.kind for one in timed],
        "counts": [len(of) for of in groups.values()],
        "newest": [now - max(one.at for one in of) for of in groups.values()],
    }  # fmt: skip
    for n, name in enumerate(("contracts", "types", "tenants", "queues")):
        values[name] = [jobs.get(one.job_id, (_UNKNOWN,) * 4)[n] for one in timed]
        values[f"group_{name}"] = [group[n] for group in groups]
    for n, name in enumerate(("kinds", "verbs", "codes"), 4):
        values[f"group_{name}"] = [group[n] for group in groups]
    yield statement("insert_refusals", values)
