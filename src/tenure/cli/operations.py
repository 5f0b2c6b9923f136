"""`tenure operations`: list and show operations on many jobs or dead letters, run, abort and resume them."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tenure.cli.bulk import Rate, describe, finish, summary_rows
from tenure.cli.command import Output, Store, command, table_output
from tenure.cli.options import Actor, Limit, id_parser
from tenure.cli.output import card, document, timestamp
from tenure.jobs.operation import check_speed

if TYPE_CHECKING:
    from tenure.jobs.operation import MadeJobs, Operation, OperationItem

_HEAD = ("id", "what", "state", "done", "skipped", "of", "made (UTC)", "by", "search")
_Operation = Annotated[
    int, typer.Argument(metavar="OPERATION", help="The operation's id.", parser=id_parser("operation"))
]
_After = Annotated[
    int | None,
    typer.Option("--after", metavar="ID", help="Continue after this id: the older ones.", parser=id_parser("after")),
]
_AfterItem = Annotated[
    int | None, typer.Option("--after", metavar="ID", help="Continue after this item.", parser=id_parser("after"))
]
_Now = Annotated[str | None, typer.Option("--now", metavar="STATE", help="Only those whose new job is in this state.")]
_PAGE = 1_000


class ItemState(StrEnum):
    """What became of an item."""

    waiting = "waiting"
    done = "done"
    skipped = "skipped"


_ItemState = Annotated[ItemState | None, typer.Option("--state", help="Only items in this state.")]
_Detach = Annotated[bool, typer.Option("--detach", help="Let upkeep do it, and return at once.")]


@command
async def list_(store: Store, limit: Limit = 50, after: _After = None) -> Output:
    """List operations on many jobs or dead letters, newest first."""
    found = await store.operations.list(limit=limit, after=after)
    data = {"operations": [one.fields() for one in found]}
    return table_output(data, _HEAD, map(_row, found), "no operations")


@command
async def show(store: Store, operation_id: _Operation) -> Output:
    """Show an operation: what is done, how far it is, and what was skipped and why."""
    operation = await store.operations.show(operation_id)
    skipped = await store.operations.items(operation_id, state="skipped", limit=10)
    made = await store.operations.made(operation_id)
    data = {
        **operation.fields(), "first_skipped": [item.fields() for item in skipped], "now": made and made.fields(),
    }  # fmt: skip
    rows: list[tuple[str, str | None]] = [
        ("now", None if made is None else _now(made)),
        ("search", operation.query or "everything"),
        ("options", document(operation.options) if operation.options else None),
        *summary_rows(operation),
        ("left out", f"{operation.run_again:,} run again already" if operation.run_again else None),
        ("speed", f"at most {operation.per_second:g} per second" if operation.per_second else None),
        ("previewed", f"{operation.total:,} at {timestamp(operation.created_at)} UTC by {operation.created_by}"),
        ("started", _at(operation.started_at, operation.started_by)),
        ("ended", _at(operation.ended_at, operation.aborted_by)),
        *(("skipped", f"{item.item_id}: {item.code}: {item.why}") for item in skipped),
    ]
    return Output(data, card(describe(operation), rows, list(_steps(operation, made))))


@command
async def items(
    store: Store,
    operation_id: _Operation,
    state: _ItemState = None,
    now: _Now = None,
    limit: Limit = 50,
    after: _AfterItem = None,
) -> Output:
    """List the items of an operation by their ids: what became of each, and how the job is now that was made of it."""
    await store.operations.show(operation_id)
    found: list[OperationItem] = []
    last: int | None = after or 0
    while last is not None and len(found) < limit:
        most = limit if now is None else _PAGE
        page = await store.operations.items(operation_id, state=state and state.value, limit=most, after=last)
        found += [item for item in page if now is None or item.made_state == now][: limit - len(found)]
        last = page[-1].item_id if len(page) == most else None
    last = found[-1].item_id if len(found) == limit else None
    notes = [f"there may be more. Next: the same with --after {last}"] if last else []
    data = {"items": [item.fields() for item in found], "next": last and str(last)}
    rows = ((one.item_id, one.state, one.made, one.made_state, one.why) for one in found)
    return table_output(data, ("id", "state", "made", "now", "why"), rows, "no items", notes)


@command
async def run(
    store: Store, operation_id: _Operation, actor: Actor, rate: Rate = None, detach: _Detach = False
) -> Output:
    """Start a previewed operation, and work on it until it ends."""
    check_speed(rate, "--rate")
    operation = await store.operations.show(operation_id)
    while operation.state == "preview" and not operation.collected:
        operation = await store.operations.collect(operation_id)
    return await _go_on(store, await store.operations.start(operation_id, actor=actor, per_second=rate), detach)


@command
async def resume(
    store: Store, operation_id: _Operation, actor: Actor, rate: Rate = None, detach: _Detach = False
) -> Output:
    """Go on with an aborted operation; what is done is not done again."""
    check_speed(rate, "--rate")
    return await _go_on(store, await store.operations.resume(operation_id, actor=actor, per_second=rate), detach)


@command
async def abort(store: Store, operation_id: _Operation, actor: Actor) -> Output:
    """Stop an operation. Nothing of it is done any more when the command returns; what is done stays.

    A preview is deleted.
    """
    operation = await store.operations.abort(operation_id, actor=actor)
    if operation.started_at is None:
        return Output(operation.fields(), [f"the preview of operation {operation_id} is deleted"])
    return Output(operation.fields(), [describe(operation), f"Next: tenure operations resume {operation_id}"])


async def _go_on(store: Store, operation: Operation, detach: bool) -> Output:
    return Output(operation.fields(), [describe(operation)]) if detach else await finish(store, operation)


def _row(operation: Operation) -> tuple[Any, ...]:
    return (
        operation.id, f"{operation.verb.replace('_', '-')} {operation.kind.replace('_', ' ')}", operation.state,
        f"{operation.done:,}", f"{sum(operation.skipped.values()):,}", f"{operation.total:,}", operation.created_at,
        operation.started_by or operation.created_by, operation.query,
    )  # fmt: skip


def _at(moment: Any, person: str | None) -> str | None:
    by = f" by {person}" if person else ""
    return None if moment is None else f"{timestamp(moment)} UTC{by}"


def _now(made: MadeJobs) -> str:
    """How the jobs are now that an operation has made."""
    counts = [f"{count:,} {state}" for state, count in made.states.items()]
    counts += [f"{made.gone:,} no longer stored"] if made.gone else []
    return (", ".join(counts) or "no job was made") + ("" if made.complete else ", of the first 10,000 items")


def _steps(operation: Operation, made: MadeJobs | None) -> Iterator[str]:
    for state in made.failed_states if made else ():
        yield f"tenure operations items {operation.id} --now {shlex.quote(state)}"
    if made and made.unfinished and operation.state == "done":
        yield f"tenure operations show {operation.id}"
    step = {"preview": "run", "running": "abort", "aborted": "resume"}.get(operation.state)
    if step is not None:
        yield f"tenure operations {step} {operation.id}"
