"""Worker presence: the dispatcher registers the workers behind it in the table of live workers.

A claim shows that its worker lives, and a worker reports every few seconds that it lives, also while it is idle. The
dispatcher remembers both, and writes all of them every few seconds with one statement, plus a second one when workers
are new or changed. No request waits for the write. While the write fails, the workers are not listed. A worker that
stops is removed at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from dataclasses import replace

from tenure.errors import BadInput
from tenure.jobs.live_worker import LiveWorker, process_name
from tenure.postgres.store import Store

_log = logging.getLogger("tenure.http")

#: Seconds between two writes, seconds that a write may take, and the number of writes between two withdrawals.
EVERY_S = 5.0
_PATIENCE_S = 5.0
_WITHDRAW_EVERY = 12
#: A worker is forgotten after this many seconds without a sign of life; the largest number of workers.
_FORGET_S, _MAX_WORKERS = 120.0, 10_000


class WorkerPresence:
    """The workers behind this dispatcher."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._through = process_name()
        self._known: dict[str, LiveWorker] = {}
        self._seen_at: dict[str, float] = {}
        #: Names to write, and those of them that are new or changed.
        self._seen: set[str] = set()
        self._changed: set[str] = set()
        #: Names whose row has gone. They are written again after the next sign of life: they may have left elsewhere.
        self._missing: set[str] = set()
        #: Applications whose workers may declare types and schedules for all tenants.
        self._applications: set[str] = set()
        self._writer: asyncio.Task[None] | None = None
        #: Held during a write, so that a worker that leaves meanwhile is not written after that.
        self._lock = asyncio.Lock()
        self._next_write, self._writes, self._failing = 0.0, 0, False

    def record(self, worker: LiveWorker, *, unbound: bool, complete: bool = False) -> None:
        """Record a sign of life. `complete`: the worker claims only this; else it adds to what is known."""
        name, before = worker.name, self._known.get(worker.name)
        if before is None and len(self._known) >= _MAX_WORKERS:
            return
        now = replace(worker, through=self._through) if before is None or complete else _merge(before, worker)
        if (
            before is None
            or name in self._missing
            or replace(now, busy=before.busy, loop_lag_s=before.loop_lag_s) != before
        ):
            self._changed.add(name)
            self._missing.discard(name)
        self._known[name] = now
        self._seen_at[name] = time.monotonic()
        self._seen.add(name)
        if unbound and worker.application is not None:
            self._applications.add(worker.application)
        if self._writer is None:
            self._writer = asyncio.create_task(self._write_regularly())

    async def leave(self, worker: LiveWorker) -> None:
        """Remove a worker that stops, unless another process has taken its name."""
        async with self._lock:
            known = self._known.get(worker.name)
            if known is not None and (known.host, known.pid) == (worker.host, worker.pid):
                self._forget(worker.name)
            await self._store.workers.leave(replace(worker, through=self._through))

    async def stop(self) -> None:
        """Stop writing."""
        if self._writer is not None:
            self._writer.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._writer

    async def _write_regularly(self) -> None:
        """Write every few seconds, until no worker gives a sign of life."""
        try:
            while self._seen:
                await asyncio.sleep(max(0.0, self._next_write - time.monotonic()))
                self._next_write = time.monotonic() + EVERY_S
                async with self._lock:
                    await self._try_write()
                old = time.monotonic() - _FORGET_S
                for name in [name for name, at in self._seen_at.items() if at < old and name not in self._seen]:
                    self._forget(name)
                await asyncio.sleep(EVERY_S)
        finally:
            self._writer = None

    async def _try_write(self) -> None:
        seen, changed = self._seen, self._changed
        self._seen, self._changed = set(), set()
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await self._write(seen, changed)
            self._failing = False
        except Exception as error:
            self._changed |= changed & self._known.keys()
            if not self._failing:
                _log.warning("cannot register remote workers as live: %s", error)
            self._failing = True

    async def _write(self, seen: set[str], changed: set[str]) -> None:
        if changed:
            await self._enter(sorted(changed))
        if unchanged := sorted(seen - changed):
            gone = await self._store.workers.see([self._known[name] for name in unchanged])
            self._missing |= {worker.name for worker in gone}
        self._writes += 1
        if self._writes % _WITHDRAW_EVERY == 0:
            for application in self._applications:
                await self._store.types.withdraw(application)
                await self._store.schedules.withdraw(application)
            self._applications.clear()

    async def _enter(self, names: list[str]) -> None:
        """Write these workers; one whose texts cannot be stored does not keep the others out."""
        try:
            await self._store.workers.enter([self._known[name] for name in names])
        except BadInput as error:
            if len(names) > 1:
                for name in names:
                    await self._enter([name])
                return
            _log.warning("cannot register worker %r as live: %s", names[0], error)
            self._forget(names[0])

    def _forget(self, name: str) -> None:
        del self._known[name], self._seen_at[name]
        for names in (self._seen, self._changed, self._missing):
            names.discard(name)


def _merge(before: LiveWorker, now: LiveWorker) -> LiveWorker:
    """What a worker claims by all of its claims, and its newest facts. Another process under its name begins anew."""
    if (now.host, now.pid) not in ((None, None), (before.host, before.pid)):
        return replace(now, through=before.through)
    types = None if before.types is None or now.types is None else _union(before.types, now.types)
    declares = {(one.contract, one.type): one for one in (*before.declares, *now.declares)}
    return replace(
        before, queues=_union(before.queues, now.queues), contracts=_union(before.contracts, now.contracts),
        types=types, declares=tuple(declares.values()), application=now.application or before.application,
        version=now.version or before.version, release=now.release or before.release,
        slots=before.slots if now.slots is None else now.slots,
        busy=before.busy if now.busy is None else now.busy,
        loop_lag_s=before.loop_lag_s if now.loop_lag_s is None else now.loop_lag_s,
    )  # fmt: skip


def _union(before: tuple[str, ...], now: tuple[str, ...]) -> tuple[str, ...]:
    return before if before == now else tuple(dict.fromkeys((*before, *now)))
