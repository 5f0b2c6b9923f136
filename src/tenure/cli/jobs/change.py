"""`tenure jobs cancel`, `transition`, `requeue` and `move`: an operator changes jobs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tenure.cli.command import Output, Store, call_store, command, requeued
from tenure.cli.options import Actor, DatabaseUrl, JobId, Json, OnlyContract, OnlyTenant, OnlyType, Reason, id_parser
from tenure.cli.output import dump_json, note, refusal_fields
from tenure.errors import BadInput, Refused
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


@command
async def cancel(
    store: Store,
    job_ids: Annotated[list[int], typer.Argument(metavar="ID...", help="The jobs' ids.", parser=id_parser("id"))],
    actor: Actor,
    mode: _Mode = Mode.soft,
    reason: Reason = None,
    in_json: Json = False,
) -> None:
    """Cancel jobs and print the outcome of each; exits 1 when one is refused."""
    results: list[dict[str, Any]] = []
    try:
        for job_id in dict.fromkeys(job_ids):
            try:
                result = _fields(await store.cancel(job_id, mode=mode.value, reason=reason, actor=actor))
            except (Refused, BadInput) as error:  # concerns this job alone: its contract does not allow this cancel
                refused = refusal_fields(job_id, error)
                result = {"id": refused.pop("id"), "refused": refused}
            results.append(result)
            if not in_json:
                _print(result)
    finally:  # when the connection is lost half-way, print the results so far
        if in_json:
            print(dump_json(results))
    if any("refused" in result for result in results):
        raise typer.Exit(1)


def _fields(outcome: Moved | Noted) -> dict[str, Any]:
    """The outcome of a cancel: the job ended, or its holder was asked to stop."""
    if isinstance(outcome, Moved):
        return {"id": str(outcome.job_id), "cancelled": True, "state": outcome.state, "from_state": outcome.from_state}
    lease = {"asked_to_stop": True, "lease_expires_at": outcome.lease_expires_at}
    return {"id": str(outcome.job_id), "cancelled": False, **lease}


def _print(result: dict[str, Any]) -> None:
    if refused := result.get("refused"):
        note(f"{refused['code']}: {refused['message']}")
    elif result["cancelled"]:
        print(f"job {result['id']}: {result['from_state']} → {result['state']}")
    else:
        print(f"job {result['id']}: its holder is asked to stop. Next: tenure jobs why {result['id']}")


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


@command
async def requeue(store: Store, job_id: JobId, actor: Actor) -> Output:
    """Run a finished job again, as a new job that points back to it."""
    return requeued("job", job_id, await store.requeue(job_id, actor=actor))


@command
def move(
    queue: Annotated[str, typer.Option("--queue", help="The queue to put them into.")],
    actor: Actor,
    job_ids: Annotated[
        list[int] | None,
        typer.Argument(metavar="[ID]...", help="The jobs' ids; none with a filter.", parser=id_parser("id")),
    ] = None,
    from_: Annotated[str | None, typer.Option("--from", help="Only jobs of this queue.")] = None,
    type_: OnlyType = None,
    contract: OnlyContract = None,
    tenant: OnlyTenant = None,
    reason: Reason = None,
    database_url: DatabaseUrl = None,
    in_json: Json = False,
) -> None:
    """Put jobs without a holder into another queue; exits 1 when a job named by its id is refused."""
    filters = {"queue": from_, "type": type_, "contract": contract, "tenant_id": tenant}
    ids = list(dict.fromkeys(job_ids or ()))
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
        unserved = call_store(database_url, run)
    finally:  # when the connection is lost half-way, print the results so far
        if in_json:
            print(dump_json({"queue": queue, "moved": moved, "refused": refused}))
    if not in_json:
        for each in refused:
            note(f"{each['code']}: {each['message']}")
        print(f"jobs moved to queue {queue}: {moved:,}")
    for sentence in filter(None, unserved):
        note(f"notice: {sentence}")
    if ids and refused:
        raise typer.Exit(1)


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
