"""Commands on many jobs or dead letters: several ids at once, or all that a search finds, with preview and progress."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from inspect import Parameter
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from tenure.cli.command import Output, Store, call_store, command, requeued
from tenure.cli.options import DatabaseUrl, Json, parse_id
from tenure.cli.output import columns, dump_json, note, progress, refusal_fields, table, timestamp
from tenure.errors import BadInput, Refused
from tenure.jobs.formats import format_duration, to_one_line
from tenure.jobs.operation import check_speed, parse_change
from tenure.jobs.operation_summary import top

if TYPE_CHECKING:
    from tenure.jobs.operation import Operation

#: How the reason of a skip is called, where its code does not say it.
_SKIPS = {"REQUEUE_CONFLICT": "run again already"}
#: Seconds between two looks at an operation on which other processes work.
_WAIT_S = 0.2

Targets = Annotated[
    list[str], typer.Argument(metavar="ID...|QUERY", help="Ids, or a search like 'type:mail.send error:timeout'.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="With a search: store and show the preview, change nothing.")]
Yes = Annotated[bool, typer.Option("--yes", help="With a search: start without asking.")]
Rate = Annotated[float | None, typer.Option("--rate", metavar="N", help="With a search: at most N each second.")]
Detach = Annotated[bool, typer.Option("--detach", help="With a search: start, and let upkeep do it.")]
PayloadOption = Annotated[str | None, typer.Option("--payload", metavar="JSON", help="Run with this payload instead.")]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help="Another value there: user.id=7. Repeatable.")
]
AgainOption = Annotated[
    bool, typer.Option("--again", help="Also what was run again already: run the newest run of it again.")
]
EditOption = Annotated[bool, typer.Option("--edit", help="Change the payload in $EDITOR; one id only.")]


@dataclass(frozen=True, slots=True)
class Bulk:
    """The options that all commands on many jobs or dead letters share, and what these commands do with them."""

    dry_run: DryRun = False
    yes: Yes = False
    rate: Rate = None
    detach: Detach = False
    database_url: DatabaseUrl = None
    in_json: Json = False

    def ids_of(self, targets: Sequence[str], name: str = "id") -> list[int] | None:
        """The ids that were given; None when it is a search. Refuses an id that cannot be, and a preview of ids."""
        if any(":" in target or not target.strip() for target in targets):
            return None
        for option, is_given in (("--dry-run", self.dry_run), ("--rate", self.rate is not None)):
            if is_given:
                raise BadInput(f"{option} is for a search, and no search is given. Next: give one, or leave it out")
        return list(dict.fromkeys(parse_id(name, target) for target in targets))

    def operate(self, kind: str, verb: str, targets: Sequence[str], actor: str, **options: Any) -> Output:
        """Preview what is done to all that a search finds; after a yes, do it with a progress line."""
        check_speed(self.rate, "--rate")
        if not " ".join(targets).strip() and (self.yes or self.detach):
            # An empty variable of a script would change every job.
            raise BadInput("an empty search finds everything, and nobody is asked. Next: leave out --yes and --detach")
        return call_store(
            self.database_url, lambda store: _operate(store, self, kind, verb, " ".join(targets), actor, options)
        )

    def each(
        self,
        ids: Sequence[int],
        call: Callable[[Store, int], Awaitable[dict[str, Any]]],
        text: Callable[[dict[str, Any]], str],
    ) -> None:
        """Call something for each id and print the outcome of each; exits 1 when one is refused."""
        results: list[dict[str, Any]] = []

        async def run(store: Store) -> None:
            for one in ids:
                try:
                    result = await call(store, one)
                except (Refused, BadInput) as error:  # concerns this one alone
                    refused = refusal_fields(one, error)
                    result = {"id": refused.pop("id"), "refused": refused}
                results.append(result)
                if self.in_json:
                    continue
                if refusal := result.get("refused"):
                    note(f"{refusal['code']}: {refusal['message']}")
                else:
                    print(text(result))

        try:
            call_store(self.database_url, run)
        finally:  # when the connection is lost half-way, print the results so far
            if self.in_json:
                print(dump_json(results))
        if any("refused" in result for result in results):
            raise typer.Exit(1)

    def requeue(
        self,
        kind: str,
        targets: Sequence[str],
        actor: str,
        edit: PayloadEdit,
        again: bool,
        read: Callable[[Store, int], Awaitable[Any]],
        call: Callable[..., Awaitable[int]],
    ) -> Output | None:
        """Run jobs or dead letters again; the payload of one alone may be `read` into an editor."""
        name = kind.replace("_", " ").removesuffix("s")
        options, ids = {**edit.options(), "again": again}, self.ids_of(targets, "id" if kind == "jobs" else name)
        if edit.in_editor and (ids is None or len(ids) != 1):
            raise BadInput("--edit changes the payload of one; for many give --payload or --set")
        if ids is None:
            return self.operate(kind, "requeue", targets, actor, **options)
        if edit.in_editor:
            options["payload"] = edit_payload(call_store(self.database_url, lambda store: read(store, ids[0])))

        async def requeue(store: Store, one: int) -> dict[str, Any]:
            return {"id": str(one), "requeued_as": str(await call(store, one, actor=actor, **options))}

        if len(ids) == 1:
            data = call_store(self.database_url, lambda store: requeue(store, ids[0]))
            return requeued(name, ids[0], int(data["requeued_as"]))
        self.each(ids, requeue, lambda result: f"{name} {result['id']} runs again as job {result['requeued_as']}")
        return None


@dataclass(frozen=True, slots=True)
class PayloadEdit:
    """With which payload something runs again: another one, one with other values at some paths, or an edited one."""

    payload: str | None
    changes: Sequence[str] | None
    in_editor: bool

    def options(self) -> dict[str, Any]:
        """The payload or the changes that were given; refuses both, and what is no JSON."""
        found: Any = None
        if self.payload is not None:
            try:
                found = json.loads(self.payload)
            except ValueError as error:
                raise BadInput(f"--payload is not JSON: {error}") from None
            if self.changes:
                raise BadInput("--payload and --set both change the payload. Next: give one of them")
        return {"payload": found, "changes": [parse_change(text) for text in self.changes] if self.changes else None}


def bulk_command(function: Callable[..., Output | None]) -> Callable[..., None]:
    """Make a command of a function whose first argument is a `Bulk`; the command gets the options of `Bulk`."""
    hints = {**get_type_hints(function, include_extras=True), **get_type_hints(Bulk, include_extras=True)}
    own = [one for name, one in inspect.signature(function).parameters.items() if name != "bulk"]
    shared = inspect.signature(Bulk).parameters
    parameters = [
        one.replace(kind=Parameter.KEYWORD_ONLY, annotation=hints[one.name]) for one in (*own, *shared.values())
    ]

    @functools.wraps(function)
    def run(**options: Any) -> Output | None:
        return function(Bulk(**{name: options.pop(name) for name in shared}), **options)

    vars(run)["__signature__"] = inspect.Signature(parameters)
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    return command(run)


def edit_payload(payload: Any) -> Any:
    """The payload as a person has changed it in $EDITOR; refuses an editor that is left without saving."""
    import click

    text = json.dumps(payload, indent=2, ensure_ascii=False) + "\n"
    edited = click.edit(text, extension=".json")
    if edited is None:
        raise BadInput("the payload was not saved; nothing is done")
    try:
        return json.loads(edited)
    except ValueError as error:
        raise BadInput(f"the payload is not JSON: {error}; nothing is done") from None


async def _operate(
    store: Store, bulk: Bulk, kind: str, verb: str, query: str, actor: str, options: dict[str, Any]
) -> Output:
    operation = await store.operations.preview(kind, verb, query, actor=actor, per_second=bulk.rate, **options)
    while not operation.collected:
        progress(f"preview: {operation.total:,} found")
        operation = await store.operations.collect(operation.id)
    progress()
    data = operation.fields()
    left_out = list(_run_again_lines(operation))
    if not operation.total:
        return Output(data, left_out, [f"{_named(operation)}: nothing matches, and nothing is stored"])
    start = f"tenure operations run {operation.id}"
    lines = [*preview_lines(operation), *left_out]
    if bulk.dry_run or not (bulk.yes or bulk.detach or _is_asked(operation, lines)):
        return Output(data, lines, [f"nothing is changed. Next: {start}"])
    operation = await store.operations.start(operation.id, actor=actor)
    if bulk.detach:
        return Output(operation.fields(), [f"{_named(operation)} runs in upkeep"], [_abort(operation)])
    return await finish(store, operation)


async def finish(store: Store, operation: Operation) -> Output:
    """Work on an operation beside upkeep until it ends, with a progress line."""
    begun, before = time.monotonic(), operation.left
    try:
        while operation.state == "running":
            worked = await store.operations.work(operation.id, batches=1)
            operation = await store.operations.show(operation.id)
            progress(_progress_line(operation, before - operation.left, time.monotonic() - begun))
            if not worked.items and operation.state == "running":
                await asyncio.sleep(_WAIT_S)
    except asyncio.CancelledError:
        progress()
        note(f"{_named(operation)} goes on in upkeep. {_abort(operation)}")
        raise
    progress()
    return Output(operation.fields(), [describe(operation)], failed=operation.state != "done")


def describe(operation: Operation) -> str:
    """How far an operation is, in one line."""
    skipped = ", ".join(f"{_SKIPS.get(code, code)} {count:,}" for code, count in sorted(operation.skipped.items()))
    skips = f", {sum(operation.skipped.values()):,} skipped ({skipped})" if skipped else ""
    left = f", {operation.left:,} left" if operation.left else ""
    return f"{_named(operation)} is {operation.state}: {operation.done:,} of {operation.total:,} done{skips}{left}"


def _named(operation: Operation) -> str:
    return f"operation {operation.id} ({operation.verb.replace('_', '-')} {operation.kind.replace('_', ' ')})"


def _abort(operation: Operation) -> str:
    return f"Next: tenure operations show {operation.id}, or tenure operations abort {operation.id}"


def _is_asked(operation: Operation, lines: list[str]) -> bool:
    """Ask on a terminal; without one nobody is asked, and nothing starts."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    note("\n".join(lines))
    lines.clear()
    return typer.confirm(f"{operation.verb.replace('_', '-')} these {operation.total:,}?", err=True)


def _progress_line(operation: Operation, did: int, seconds: float) -> str:
    handled = operation.total - operation.left
    speed = did / seconds if seconds > 0 else 0.0
    remaining = f", {format_duration(operation.left / speed * 1_000)} left" if speed and operation.left else ""
    share = 100 * handled // operation.total if operation.total else 100
    return (
        f"{operation.verb.replace('_', '-')}: {handled:,} of {operation.total:,} ({share}%), {speed:,.0f}/s{remaining}"
    )


def preview_lines(operation: Operation) -> Iterator[str]:
    """What a preview has found: how many, counts by tenant, type and error, first and last, three examples."""
    yield f"{_named(operation)}: {operation.total:,} match {operation.query or 'everything'}"
    yield from columns([(name, text) for name, text in summary_rows(operation) if text is not None])
    examples = operation.summary["samples"]
    head = ("example", "state", "type", "tenant", "last error")
    yield from table(head, [(one["id"], one["state"], one["type"], one["tenant_id"], one["error"]) for one in examples])


def summary_rows(operation: Operation) -> Iterator[tuple[str, str | None]]:
    """Names and texts of the summary of a preview."""
    summary = operation.summary
    for name in ("tenants", "types", "errors"):
        counts = top(summary[name], operation.total)
        yield name, ", ".join(f"{to_one_line(one, 100)} {count:,}" for one, count in counts) or None
    if summary["first_at"] is not None:
        first, last = (timestamp(datetime.fromisoformat(summary[name])) for name in ("first_at", "last_at"))
        yield "from", f"{first} to {last} UTC"


def _run_again_lines(operation: Operation) -> Iterator[str]:
    """What the preview has left out because it was run again already."""
    if left_out := operation.summary["run_again"]["count"]:
        by = operation.summary["run_again"]["operation"]
        jobs = ", ".join(f"{one['id']} as {one['requeued_as']}" for one in operation.summary["run_again"]["samples"])
        more = ", …" if left_out > len(operation.summary["run_again"]["samples"]) else ""
        how = f"by operation {by}: " if by else ""
        yield f"{left_out:,} left out: run again already ({how}job {jobs}{more}); --again repeats them"
