"""An application's repairs: operations on many jobs or dead letters, and dead letters with their causes.

app.operations      preview what is done to all that a search finds, then run, abort and resume it
app.dead_letters    search dead letters, list their causes, run one again
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tenure.client.direct import DirectClient
from tenure.errors import BadInput
from tenure.jobs.operation import Kind, Operation, OperationItem, PayloadChanges
from tenure.jobs.search import filters_of, parse_letters

if TYPE_CHECKING:
    from tenure.app import App
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
        options     mode, reason (cancel); queue, reason (move); payload or changes (requeue); reason (discard)
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
        """Stop an operation: when this returns, nothing of it is done any more."""
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
        self, letter: int, *, actor: str = "app", payload: Any = None, changes: PayloadChanges | None = None
    ) -> int:
        """Run the job of a dead letter again, once; returns the id of the new job."""
        letters = (await store_of(self.app)).letters
        return await letters.requeue(letter, actor=actor, payload=payload, changes=changes)


class OperationVerbs:
    """The part of `App` that repairs."""

    @property
    def operations(self) -> AppOperations:
        """Operations on many jobs or dead letters: preview, run, abort, resume."""
        return AppOperations(self)  # type: ignore[arg-type]

    @property
    def dead_letters(self) -> AppDeadLetters:
        """Dead letters: search them, list their causes, run one again."""
        return AppDeadLetters(self)  # type: ignore[arg-type]


async def store_of(app: App) -> Store:
    """The store of an app; refuses a dispatcher."""
    client = await app._client()
    if not isinstance(client, DirectClient):
        raise BadInput(
            "repairs need a connection to the database, and this app uses a dispatcher. Next: POST /api/v1/operations"
        )
    return client.store


def _id(operation: Operation | int) -> int:
    return operation.id if isinstance(operation, Operation) else operation
