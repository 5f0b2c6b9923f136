"""Operations on many jobs or dead letters: preview, start, abort and resume.

    preview ─▶ collect (page by page) ─▶ start ─▶ batches (`operation_batches.py`) ─▶ done
                                                   ◀── abort, resume

The preview stores the ids that the search found and how each item was. Only these items are worked on, and one that is
no longer as it was is skipped. Upkeep runs the batches; the process that started the operation may run them too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import psycopg

from tenure.errors import UNREACHABLE, BadInput, Refused, TenureError
from tenure.jobs import validation
from tenure.jobs.operation import MadeJobs, Operation, OperationItem, check_operation, check_speed
from tenure.jobs.operation_summary import Found, RunAgain, add_found, add_run_again
from tenure.jobs.search import LetterSearch, Search, filters_of, parse, parse_letters
from tenure.postgres.connect import first_line
from tenure.postgres.dead_letters import DeadLetter, DeadLetters
from tenure.postgres.engine import EngineUser
from tenure.postgres.operation_batches import run_batch
from tenure.postgres.operation_outcome import count_made, list_items
from tenure.postgres.search import JobSearch, JobSummary

#: Items that one page of a preview adds, and the most that an operation has.
_PAGE: Final = 1_000
MAX_ITEMS: Final = 1_000_000
#: Pages that one call of `collect` reads.
_PAGES: Final = 50
#: Items of one transaction.
BATCH: Final = 500

#: Verb → whether a job can be changed by it at all; the others are no matches.
_JOBS: Final[dict[str, Callable[[JobSummary], bool]]] = {
    "cancel": lambda job: job.role not in ("done", "settling"),
    "requeue": lambda job: job.role == "done",
    "move": lambda job: job.role in ("ready", "waiting"),
    "retry_now": lambda job: job.role in ("ready", "waiting") and job.claims > 0 and job.due_at is not None,
}
_LETTERS: Final[dict[str, Callable[[DeadLetter], bool]]] = {
    "requeue": lambda letter: letter.status != "discarded",
    "discard": lambda letter: letter.status == "open" and letter.discard_asked_by is None,
    "approve": lambda letter: letter.status == "open" and letter.discard_asked_by is not None,
}


class WorkedOn(NamedTuple):
    """What a call of `work` did: how many items, and whether items were left because others have locked them."""

    items: int
    troubles: Sequence[str]


class _Page(NamedTuple):
    """What a page of a search has found, how each item was, and where it goes on (None: it has seen all)."""

    found: Sequence[Found]
    seen: Sequence[str]
    cursor: str | None
    #: The jobs that are left out because they were run again already.
    run_again: Sequence[RunAgain] = ()


class Operations(EngineUser):
    """Operations on many jobs or dead letters; `store.operations`."""

    async def preview(
        self,
        kind: str,
        verb: str,
        query: str,
        *,
        actor: str,
        tenant_id: str | None = None,
        per_second: float | None = None,
        **options: Any,
    ) -> Operation:
        """Store what is to be done to all that a search finds, and collect its first items; changes no job.

        With `tenant_id` only those of that tenant. A search of many rows is `collected` by further calls of `collect`.
        """
        validation.check_name("actor", actor)
        values = check_operation(kind, verb, options, self._max_bytes)
        search = _parse(kind, query)
        if tenant_id is not None and search.tenant_id not in (None, tenant_id):
            raise BadInput(f"the search is about tenant {search.tenant_id!r}, and the caller is bound to {tenant_id!r}")
        search = replace(search, tenant_id=tenant_id or search.tenant_id)
        speed = check_speed(per_second)
        # First: a search that is refused leaves no operation behind.
        page = await self._find(search, verb, values, None)
        ((made,),) = await self._engine.ask(
            "insert_operation", of_letters=kind == "dead_letters", verb=verb, query=str(search), actor=actor,
            options=json.dumps(values), tenant=tenant_id, per_second=speed,
        )  # fmt: skip
        await self._add(await self.show(made), page)
        return await self._collect(made, _PAGES - 1)

    async def collect(self, operation_id: int) -> Operation:
        """Go on with a preview whose search has not seen all, for a bounded number of rows; returns how far it is."""
        return await self._collect(operation_id, _PAGES)

    async def _collect(self, operation_id: int, pages: int) -> Operation:
        operation = await self.show(operation_id)
        for _ in range(pages):
            if operation.state != "preview" or operation.collected:
                break
            search = _parse(operation.kind, operation.query)
            page = await self._find(search, operation.verb, operation.options, operation.cursor)
            await self._add(operation, page)
            operation = await self.show(operation_id)
            if operation.total > MAX_ITEMS:
                await self._delete_preview(operation_id, operation.created_by)
                raise BadInput(f"the search finds more than {MAX_ITEMS:,} items. Next: narrow it, for example by age")
        if operation.state == "preview" and operation.collected and not operation.total:
            await self._delete_preview(operation_id, operation.created_by)
            return operation._replace(state="done")
        return operation

    async def _add(self, operation: Operation, page: _Page) -> None:
        """Add a page to a preview, unless another process has done it meanwhile."""
        summary = add_run_again(add_found(operation.summary, page.found), page.run_again)
        if page.run_again and not operation.run_again:
            first = page.run_again[0]
            by = await self._engine.ask(
                "find_operation_of_rerun", job=first.id, letter=first.letter_id, made=first.requeued_as
            )
            summary["run_again"]["operation"] = str(by[0][0]) if by else None
        await self._engine.ask(
            "add_operation_items", id=operation.id, before=operation.cursor, ids=[one.id for one in page.found],
            seen=page.seen, cursor=page.cursor, summary=json.dumps(summary),
        )  # fmt: skip

    async def _delete_preview(self, operation_id: int, actor: str) -> bool:
        """Delete a preview and its items; False if it is none. What a crash leaves of it, upkeep deletes."""
        if not await self._engine.ask("close_preview", id=operation_id, actor=actor):
            return False
        while await self._forget(0, operation_id):
            pass
        return True

    async def show(self, operation_id: int, *, tenant_id: str | None = None) -> Operation:
        """Return an operation as it is now; refuses an unknown id, or with `tenant_id` one of another tenant."""
        validation.check_integer("operation", operation_id, 1, validation.MAX_ID)
        for operation in await self._read(operation_id, tenant_id, 1, validation.MAX_ID):
            return operation
        raise Refused(None, f"there is no operation {operation_id}. Next: tenure operations list", code=_UNKNOWN)

    async def list(
        self, *, tenant_id: str | None = None, limit: int = 50, after: int | None = None
    ) -> Sequence[Operation]:
        """Return operations, newest first; `after` is the id of the last one of the page before."""
        validation.check_integer("limit", limit, 1, 1_000)
        begin = validation.MAX_ID if after is None else validation.check_integer("after", after, 1, validation.MAX_ID)
        return await self._read(None, tenant_id, limit, begin)

    async def items(
        self, operation_id: int, *, state: str | None = None, limit: int = 100, after: int = 0
    ) -> Sequence[OperationItem]:
        """Return items of an operation by their ids, behind the id `after`, with the state of each one's new job."""
        if state not in (None, "waiting", "done", "skipped"):
            raise BadInput(f"an item is waiting, done or skipped, not {state!r}")
        validation.check_integer("operation", operation_id, 1, validation.MAX_ID)
        validation.check_integer("limit", limit, 1, 1_000)
        return await self._engine.run(lambda: list_items(operation_id, state, limit, after))

    async def made(self, operation_id: int) -> MadeJobs | None:
        """Return how the jobs are now that an operation has made; None of one that makes none, or has not begun."""
        operation = await self.show(operation_id)
        if operation.verb != "requeue" or operation.started_at is None:
            return None
        return await self._engine.run(lambda: count_made(self._engine.registry, operation_id))

    async def start(self, operation_id: int, *, actor: str, per_second: float | None = None) -> Operation:
        """Let a preview run, in the name of this person; refuses one that is not complete, or was started."""
        return await self._set_running(operation_id, "preview", actor, per_second)

    async def resume(self, operation_id: int, *, actor: str, per_second: float | None = None) -> Operation:
        """Let an aborted operation run on, in the name of this person."""
        return await self._set_running(operation_id, "aborted", actor, per_second)

    async def abort(self, operation_id: int, *, actor: str) -> Operation:
        """Stop an operation. When this returns, no item is worked on any more; those that are done stay so.

        A preview is deleted.
        """
        validation.check_name("actor", actor)
        operation = await self.show(operation_id)
        if operation.state == "preview" and await self._delete_preview(operation_id, actor):
            return operation._replace(state="aborted", aborted_by=actor)
        if not await self._engine.ask("abort_operation", id=operation_id, actor=actor):
            raise Refused(None, f"operation {operation_id} is {operation.state}, and does not run", code=_CONFLICT)
        await self._engine.ask("await_operation_batches", id=operation_id)
        return await self.show(operation_id)

    async def work(self, operation_id: int | None = None, *, batches: int = 20, size: int = BATCH) -> WorkedOn:
        """Work on operations that run, all or this one, at most `batches` batches of each. Any process may."""
        await self._engine.run(self._engine.registry.load)
        found = (
            [operation_id] if operation_id else [one for (one,) in await self._engine.ask("find_running_operations")]
        )
        items, troubles = 0, list[str]()
        for one in found:
            try:
                done = await self._work_on(one, batches, size)
            except UNREACHABLE:
                raise
            except (TenureError, psycopg.Error) as error:
                if operation_id:
                    raise
                # The others go on.
                done = WorkedOn(0, [f"operation {one}: {first_line(error)}"])
            items += done.items
            troubles += done.troubles
        return WorkedOn(items, troubles)

    async def _work_on(self, operation_id: int, batches: int, size: int) -> WorkedOn:
        items, troubles, after = 0, list[str](), 0
        for _ in range(batches):
            batch = await run_batch(self._engine, operation_id, after, size, self._max_bytes)
            items += batch.items
            troubles += batch.troubles
            if batch.last is None:
                break
            after = batch.last
        return WorkedOn(items, troubles)

    async def forget(self, keep_s: float) -> int:
        """Delete operations that ended longer ago than this, and previews of yesterday; returns how many rows."""
        return await self._forget(keep_s, None)

    async def _forget(self, keep_s: float, operation_id: int | None) -> int:
        values = {"keep_sec": keep_s, "id": operation_id, "limit": 10_000}
        ((count,),) = await self._engine.ask("delete_old_operations", **values)
        return int(count)

    async def _read(self, operation_id: int | None, tenant: str | None, limit: int, after: int) -> Sequence[Operation]:
        rows = await self._engine.ask("read_operations", id=operation_id, tenant=tenant, limit=limit, after=after)
        return [Operation._make(row) for row in rows]

    async def _set_running(self, operation_id: int, before: str, actor: str, per_second: float | None) -> Operation:
        validation.check_name("actor", actor)
        speed = check_speed(per_second)
        operation = await self.show(operation_id)
        values = {"id": operation_id, "from": before, "actor": actor, "per_second": speed}
        if not await self._engine.ask("start_operation", **values):
            if operation.state == "preview":
                why = "its preview is not complete. Next: collect the rest"
            else:
                why = f"it is {operation.state}" + (", and was started before" if before == "preview" else "")
            raise Refused(None, f"operation {operation_id} cannot be started: {why}", code=_CONFLICT)
        return await self.show(operation_id)

    async def _find(
        self, search: Search | LetterSearch, verb: str, options: Mapping[str, Any], cursor: str | None
    ) -> _Page:
        """Read what a page of a search finds that this verb can change."""
        if isinstance(search, LetterSearch):
            return await self._find_letters(search, verb, cursor, again="again" in options)
        return await self._find_jobs(search, verb, options, cursor)

    async def _find_jobs(self, search: Search, verb: str, options: Mapping[str, Any], cursor: str | None) -> _Page:
        jobs = JobSearch(self._engine, self._max_bytes)
        after = cursor
        if after is None and verb == "requeue":
            after = _FINISHED  # live jobs are no matches
        page = await jobs.find(**filters_of(search), limit=_PAGE, after=after)
        fits = [job for job in page.jobs if _JOBS[verb](job) and (verb != "move" or job.queue != options["queue"])]
        following = page.next
        if verb != "requeue" and following is not None and following.startswith("finished"):
            following = None
        seen = {job.id: f"{job.state}:{job.claims}:{job.queue}" for job in fits}
        run_again: list[RunAgain] = []
        if verb == "requeue" and "again" in options:
            seen = await self._newest_runs({job.id: job.id for job in fits})
        elif verb == "requeue" and fits:
            run_again = [RunAgain._make(row) for row in await self._engine.ask("find_reruns", ids=list(seen))]
        left_out = {one.id for one in run_again}
        found = [
            Found(job.id, job.state, job.tenant_id, job.type, job.finished_at or job.created_at, job.last_error)
            for job in fits
            if job.id not in left_out
        ]
        return _Page(found, [seen[one.id] for one in found], following, run_again)

    async def _find_letters(self, search: LetterSearch, verb: str, cursor: str | None, *, again: bool) -> _Page:
        if search.status not in ((None, "open", "requeued") if again else (None, "open")):
            raise BadInput(f"only open dead letters can be changed, and the search has status:{search.status}")
        letters = DeadLetters(self._engine, self._max_bytes)
        after = None if cursor is None else int(cursor)
        filters = filters_of(search if again else replace(search, status="open"))
        page = await letters.search(**filters, limit=_PAGE, after=after, documents=False)
        fits = [letter for letter in page.letters if _LETTERS[verb](letter)]
        if again:
            seen = await self._newest_runs({letter.id: letter.job_id for letter in fits})
        else:
            seen = {one.id: ":".join(filter(None, (one.status, one.discard_asked_by))) for one in fits}
        found = [Found(one.id, one.status, one.tenant_id, one.type, one.created_at, one.last_error) for one in fits]
        return _Page(found, [seen[one.id] for one in found], None if page.next is None else str(page.next))

    async def _newest_runs(self, jobs: Mapping[int, int]) -> dict[int, str]:
        """Return for each item which job runs its job again last: it may be another one when the item is worked on."""
        rows = await self._engine.ask("find_newest_runs", ids=list(jobs.values())) if jobs else []
        newest: dict[int, int] = dict(rows)
        return {item: str(newest[job_id]) for item, job_id in jobs.items()}


#: The cursor of the first finished job.
_FINISHED: Final = f"finished-{validation.MAX_ID}"
_UNKNOWN: Final = "OPERATION_NOT_FOUND"
_CONFLICT: Final = "OPERATION_CONFLICT"


def _parse(kind: str, query: str) -> Search | LetterSearch:
    return parse_letters(query) if kind == "dead_letters" else parse(query)
