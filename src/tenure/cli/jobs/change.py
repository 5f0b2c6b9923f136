"""`tenure jobs cancel`, `transition`, `requeue`, `move` and `retry-now`: an operator changes jobs, one or many."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tenure.cli.bulk import AgainOption, Bulk, EditOption, PayloadEdit, PayloadOption, SetOption, Targets, bulk_command
from tenure.cli.command import Output, Store, call_store, command
from tenure.cli.options import Actor, JobId, OnlyContract, OnlyTenant, OnlyType, Reason
from tenure.cli.output import dump_json, note, refusal_fields
from tenure.errors import BadInput, JobNotFound, Refused
from tenure.jobs.job import Job
from tenure.jobs.outcome import Moved, Noted

if TYPE_CHECKING:
    from tenure.postgres.search import JobSummary

#: Jobs that one statement moves to another queue.
_MOVED_AT_ONCE = 1_000


class Mode(StrEnum):
    """How a held job is cancelled."""

    soft = "soft"
    hard = "hard"


_Mode = Annotated[Mode, typer.Option("--mode", help="soft asks the holder to stop; hard ends its lease at once.")]


@bulk_command
def cancel(
    bulk: Bulk,
    targets: Targets,
    actor: Actor,
    mode: _Mode = Mode.soft,
    reason: Reason = None,
) -> Output | None:
    """Cancel jobs: these, or after a preview all that a search finds; exits 1 when one is refused."""
    if (ids := bulk.ids_of(targets)) is None:
        return bulk.operate("jobs", "cancel", targets, actor, mode=mode.value, reason=reason)

    async def call(store: Store, job_id: int) -> dict[str, Any]:
        return _fields(await store.cancel(job_id, mode=mode.value, reason=reason, actor=actor))

    bulk.each(ids, call, _text)
    return None


@bulk_command
def retry_now(
    bulk: Bulk,
    targets: Targets,
    actor: Actor,
    reason: Reason = None,
) -> Output | None:
    """Let jobs that wait for their retry run now; refused where their contract forbids it."""
    if (ids := bulk.ids_of(targets)) is None:
        return bulk.operate("jobs", "retry_now", targets, actor, reason=reason)

    async def call(store: Store, job_id: int) -> dict[str, Any]:
        (answer,) = await store.retry_now([job_id], actor=actor, reason=reason)
        if isinstance(answer, Refused):
            raise answer
        return {"id": str(job_id), "due": True}

    bulk.each(ids, call, lambda result: f"job {result['id']} is due now")
    return None


def _fields(outcome: Moved | Noted) -> dict[str, Any]:
    """The outcome of a cancel: the job ended, or its holder was asked to stop."""
    if isinstance(outcome, Moved):
        return {"id": str(outcome.job_id), "cancelled": True, "state": outcome.state, "from_state": outcome.from_state}
    lease = {"asked_to_stop": True, "lease_expires_at": outcome.lease_expires_at}
    return {"id": str(outcome.job_id), "cancelled": False, **lease}


def _text(result: dict[str, Any]) -> str:
    if result["cancelled"]:
        return f"job {result['id']}: {result['from_state']} → {result['state']}"
    return f"job {result['id']}: its holder is asked to stop. Next: tenure jobs why {result['id']}"


@command
async def transition(
    store: Store,
    job_id: JobId,
    state: Annotated[str, typer.Argument(metavar="STATE", help="The new state, by its contract's name for it.")],
    actor: Actor,
    reason: Reason = None,
) -> Output:
    """Move a job to a state, if its contract has a path there; ends the lease of a holder."""
    outcome = await store.transition(job_id, state, reason=reason, actor=actor)
    return Output({"id": str(job_id), "state": outcome.state}, f"job {job_id} is {outcome.state}")


@bulk_command
def requeue(
    bulk: Bulk,
    targets: Targets,
    actor: Actor,
    payload: PayloadOption = None,
    set_: SetOption = None,
    edit: EditOption = False,
    again: AgainOption = False,
) -> Output | None:
    """Run finished jobs again, as new jobs that point back to them; with another payload if you like."""

    async def read(store: Store, job_id: int) -> Any:
        for job in await store.jobs([job_id]):
            return job.payload
        raise JobNotFound(job_id)

    async def call(store: Store, job_id: int, **options: Any) -> int:
        return await store.requeue(job_id, **options)

    return bulk.requeue("jobs", targets, actor, PayloadEdit(payload, set_, edit), again, read, call)


@bulk_command
def move(
    bulk: Bulk,
    queue: Annotated[str, typer.Option("--queue", help="The queue to put them into.")],
    actor: Actor,
    targets: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ID...|QUERY]", help="Ids, or a search; none with a filter."),
    ] = None,
    from_: Annotated[str | None, typer.Option("--from", help="Only jobs of this queue.")] = None,
    type_: OnlyType = None,
    contract: OnlyContract = None,
    tenant: OnlyTenant = None,
    reason: Reason = None,
) -> Output | None:
    """Put jobs without a holder into another queue; exits 1 when a job named by its id is refused."""
    job_ids = bulk.ids_of(targets or ())
    if job_ids is None:
        if from_ or type_ or contract or tenant:
            raise BadInput("a search and a filter both choose jobs. Next: put all into the search")
        return bulk.operate("jobs", "move", targets or (), actor, queue=queue, reason=reason)
    filters = {"queue": from_, "type": type_, "contract": contract, "tenant_id": tenant}
    ids = job_ids
    if bool(ids) == any(filters.values()):
        raise BadInput("name jobs by their ids, or choose them by --from, --type, --contract, --tenant; not both")
    moved = 0
    refused: list[dict[str, Any]] = []
    types: set[tuple[str, str]] = set()

    async def run(store: Store) -> list[str | None]:
        nonlocal moved, types
        async for page, jobs in _pages_to_move(store, ids, filters, queue):
            types |= {(job.contract, job.type) for job in jobs}
            for outcome in await store.change_queue(page, queue, reason=reason, actor=actor):
                if isinstance(outcome, Refused):
                    refused.append(refusal_fields(outcome.job_id, outcome))
                else:
                    moved += outcome.changed
        return [await store.workers.why_unserved(name, queue, type_) for name, type_ in sorted(types)[:10] if moved]

    try:
        unserved = call_store(bulk.database_url, run)
    finally:  # when the connection is lost half-way, print the results so far
        if bulk.in_json:
            print(dump_json({"queue": queue, "moved": moved, "refused": refused}))
    if not bulk.in_json:
        for each in refused:
            note(f"{each['code']}: {each['message']}")
        print(f"jobs moved to queue {queue}: {moved:,}")
    for sentence in filter(None, unserved):
        note(f"notice: {sentence}")
    if ids and refused:
        raise typer.Exit(1)
    return None


async def _pages_to_move(
    store: Store, ids: list[int], filters: Mapping[str, Any], queue: str
) -> AsyncIterator[tuple[list[int], Sequence[Job | JobSummary]]]:
    """The ids, and those of them that are jobs; with a filter, the matching jobs that nobody holds, page by page."""
    if ids:
        yield ids, await store.jobs(ids)
        return
    after: str | None = ""
    while after is not None and not after.startswith("finished"):
        page = await store.find(**filters, limit=_MOVED_AT_ONCE, after=after or None)
        live = [job for job in page.jobs if job.role in ("ready", "waiting") and job.queue != queue]
        yield [job.id for job in live], live
        after = page.next
