"""What an application does as an operator: look at alarms and dead letters, and repair many jobs.

app.operations      preview what is done to all that a search finds, then run, abort and resume it
app.dead_letters    search dead letters, list their causes, run one again
app.alarms          list alarms, mute and unmute them, test their sinks
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tenure.client.direct import DirectClient
from tenure.errors import BadInput
from tenure.jobs.operation import Kind, MadeJobs, Operation, OperationItem, PayloadChanges
from tenure.jobs.search import filters_of, parse_letters

if TYPE_CHECKING:
    from tenure.app import App
    from tenure.jobs.alarm import Alarm
    from tenure.postgres.alarms import Mute
    from tenure.postgres.dead_letters import LetterPage
    from tenure.postgres.letter_groups import LetterGroup
    from tenure.postgres.store import Store

#: Seconds between two looks at an operation on which other processes work.
_WAIT_S = 0.2


@dataclass(frozen=True, slots=True)
class AppOperations:
    """Operations on many jobs or dead letters: `app.operations`. An operation is what `preview` returned, or its id."""

    app: App

    async def preview(
        self,
        kind: Kind,
        verb: str,
        query: str,
        *,
        actor: str = "app",
        tenant: str | None = None,
        per_second: float | None = None,
        **options: Any,
    ) -> Operation:
        """Store what is to be done to all that a search finds, with their ids; changes nothing.

        kind        "jobs" (verbs cancel, requeue, move, retry_now) or "dead_letters" (requeue, discard, approve)
        options     mode, reason (cancel); queue, reason (move); payload or changes, again (requeue); reason (discard)

        When nothing matches, nothing is stored: the operation is `done`, with no items.
        """
        operations = (await self._store()).operations
        operation = await operations.preview(
            kind, verb, query, actor=actor, tenant_id=tenant, per_second=per_second, **options
        )
        while not operation.collected:
            operation = await operations.collect(operation.id)
        return operation

    async def run(self, operation: Operation | int, *, actor: str = "app") -> Operation:
        """Start a preview, or go on with what was aborted, and work on it beside upkeep until it ends."""
        if isinstance(operation, Operation) and operation.state == "done":  # also of nothing, which is not stored
            return operation
        operations = (await self._store()).operations
        found = await operations.show(_id(operation))
        if found.state != "running":
            found = await (operations.resume if found.state == "aborted" else operations.start)(found.id, actor=actor)
        while found.state == "running":
            worked = await operations.work(found.id, batches=1)
            found = await operations.show(found.id)
            if not worked.items and found.state == "running":
                await asyncio.sleep(_WAIT_S)
        return found

    async def start(
        self, operation: Operation | int, *, actor: str = "app", per_second: float | None = None
    ) -> Operation:
        """Start a preview, and leave it to upkeep."""
        return await (await self._store()).operations.start(_id(operation), actor=actor, per_second=per_second)

    async def resume(
        self, operation: Operation | int, *, actor: str = "app", per_second: float | None = None
    ) -> Operation:
        """Go on with an aborted operation, in upkeep."""
        return await (await self._store()).operations.resume(_id(operation), actor=actor, per_second=per_second)

    async def abort(self, operation: Operation | int, *, actor: str = "app") -> Operation:
        """Stop an operation: when this returns, nothing of it is done any more. A preview is deleted."""
        return await (await self._store()).operations.abort(_id(operation), actor=actor)

    async def show(self, operation: Operation | int) -> Operation:
        """Return an operation as it is now."""
        return await (await self._store()).operations.show(_id(operation))

    async def list(self, *, limit: int = 50, after: int | None = None) -> Sequence[Operation]:
        """Return operations, newest first; `after` is the id of the last one of the page before."""
        return await (await self._store()).operations.list(limit=limit, after=after)

    async def items(
        self, operation: Operation | int, *, state: str | None = None, limit: int = 100, after: int = 0
    ) -> Sequence[OperationItem]:
        """Return items of an operation by their ids, and what became of each."""
        return await (await self._store()).operations.items(_id(operation), state=state, limit=limit, after=after)

    async def made(self, operation: Operation | int) -> MadeJobs | None:
        """Return how the jobs are now that a requeue has made: states, succeeded, failed, unfinished."""
        return await (await self._store()).operations.made(_id(operation))

    async def _store(self) -> Store:
        return await store_of(self.app)


@dataclass(frozen=True, slots=True)
class AppDeadLetters:
    """Dead letters and their causes: `app.dead_letters`."""

    app: App

    async def search(self, query: str = "", *, limit: int = 50, after: int | None = None) -> LetterPage:
        """Return the dead letters that a search finds, newest first; `after` is the `next` of the page before."""
        letters = (await store_of(self.app)).letters
        return await letters.search(**filters_of(parse_letters(query)), limit=limit, after=after)

    async def groups(
        self, *, tenant: str | None = None, type: str | None = None, closed: bool = False, limit: int = 50
    ) -> Sequence[LetterGroup]:
        """Return the causes of dead letters, those with the most open ones first."""
        groups = (await store_of(self.app)).groups
        return await groups.list(tenant_id=tenant, type=type, closed=closed, limit=limit)

    async def requeue(
        self,
        letter: int,
        *,
        actor: str = "app",
        payload: Any = None,
        changes: PayloadChanges | None = None,
        again: bool = False,
    ) -> int:
        """Run the job of a dead letter again, once; returns the id of the new job. With `again` its newest run."""
        letters = (await store_of(self.app)).letters
        return await letters.requeue(letter, actor=actor, payload=payload, changes=changes, again=again)


@dataclass(frozen=True, slots=True)
class AppAlarms:
    """Alarms, which upkeep finds and sends: `app.alarms`."""

    app: App

    async def list(
        self, *, history: bool = False, kind: str | None = None, tenant: str | None = None, limit: int = 100
    ) -> Sequence[Alarm]:
        """Return the alarms that hold, the latest first; with `history` also those that are over."""
        return await (await self._store()).alarms.list(history=history, kind=kind, tenant=tenant, limit=limit)

    async def mute(
        self,
        kind: str | None = None,
        *,
        seconds: float = 3_600,
        tenant: str | None = None,
        subject: str | None = None,
        reason: str | None = None,
        actor: str = "app",
    ) -> Mute:
        """Send nothing about these alarms for some time; those that still hold afterwards are sent then."""
        alarms = (await self._store()).alarms
        return await alarms.mute(kind, seconds=seconds, actor=actor, tenant=tenant, subject=subject, reason=reason)

    async def unmute(
        self, kind: str | None = None, *, tenant: str | None = None, subject: str | None = None, actor: str = "app"
    ) -> int:
        """End the mutes of exactly this kind, tenant and subject before their time; returns how many."""
        return await (await self._store()).alarms.unmute(kind, actor=actor, tenant=tenant, subject=subject)

    async def test(self, *, actor: str = "app") -> bool:
        """Fire an alarm of the kind `test`, which upkeep sends to every sink; False if one holds already."""
        return bool(await (await self._store()).alarms.test(actor))

    async def _store(self) -> Store:
        return await store_of(self.app, "/api/v1/alarms")


class OperationVerbs:
    """The part of `App` that an operator uses."""

    @property
    def operations(self) -> AppOperations:
        """Operations on many jobs or dead letters: preview, run, abort, resume."""
        return AppOperations(self)  # type: ignore[arg-type]

    @property
    def dead_letters(self) -> AppDeadLetters:
        """Dead letters: search them, list their causes, run one again."""
        return AppDeadLetters(self)  # type: ignore[arg-type]

    @property
    def alarms(self) -> AppAlarms:
        """Alarms: list them, mute and unmute them, test their sinks."""
        return AppAlarms(self)  # type: ignore[arg-type]


async def store_of(app: App, route: str = "/api/v1/operations") -> Store:
    """The store of an app; refuses a dispatcher, and names the route that does the same."""
    client = await app._client()
    if not isinstance(client, DirectClient):
        raise BadInput(f"this needs a connection to the database, and this app uses a dispatcher. Next: call {route}")
    return client.store


def _id(operation: Operation | int) -> int:
    return operation.id if isinstance(operation, Operation) else operation
