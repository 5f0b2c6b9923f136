"""`tenure operations`: list and show operations on many jobs or dead letters, run, abort and resume them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tenure.cli.bulk import Rate, describe, finish, summary_rows
from tenure.cli.command import Output, Store, command, table_output
from tenure.cli.options import Actor, Limit, id_parser
from tenure.cli.output import card, document, timestamp
from tenure.jobs.operation import check_speed

if TYPE_CHECKING:
    from tenure.jobs.operation import Operation

_HEAD = ("id", "what", "state", "done", "skipped", "of", "made (UTC)", "by", "search")
_Operation = Annotated[
    int, typer.Argument(metavar="OPERATION", help="The operation's id.", parser=id_parser("operation"))
]
_After = Annotated[
    int | None,
    typer.Option("--after", metavar="ID", help="Continue after this id: the older ones.", parser=id_parser("after")),
]
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
    data = {**operation.fields(), "first_skipped": [item.fields() for item in skipped]}
    rows: list[tuple[str, str | None]] = [
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
    return Output(data, card(describe(operation), rows, list(_steps(operation))))


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


def _steps(operation: Operation) -> Iterator[str]:
    step = {"preview": "run", "running": "abort", "aborted": "resume"}.get(operation.state)
    if step is not None:
        yield f"tenure operations {step} {operation.id}"
