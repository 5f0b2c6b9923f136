"""`tenure datasets`: list and show datasets, read their rows, cut over and roll back sets of them, with the people."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Annotated, Any

import typer

from tenure.cli.command import Output, Store, command, table_output
from tenure.cli.options import Actor, Limit, OnlyTenant, Reason, id_parser
from tenure.cli.output import card, document, table, timestamp
from tenure.errors import BadInput
from tenure.jobs import dataset_json as as_json
from tenure.jobs import validation
from tenure.jobs.dataset import Dataset, Generation, StoredPointer, Subscription, Switch

_HEAD = ("dataset", "current", "newest", "keep", "tenant", "created (UTC)", "by")
_GENERATION_HEAD = ("generation", "state", "current since (UTC)", "created (UTC)", "by", "flow", "shape")
_SUBSCRIPTION_HEAD = ("task", "contract", "waiting", "application", "last error")
_SWITCH_HEAD = ("switch", "kind", "at (UTC)", "by", "reason", "undoes", "datasets")
_ROW_HEAD = ("scope", "key", "row")
_POINTER_HEAD = ("scope", "location", "cursor", "rows", "job", "at (UTC)")
#: How many generations `show` shows.
_SHOWN = 20

_Name = Annotated[str, typer.Argument(metavar="NAME", help="The dataset's name.")]
_Names = Annotated[list[str], typer.Argument(metavar="NAME...", help="The datasets' names.")]
_Targets = Annotated[
    list[str], typer.Argument(metavar="NAME[=GENERATION]...", help="Without a number, the newest generation.")
]
_Tenant = Annotated[str, typer.Option("--tenant", help="The datasets' tenant.")]
_Number = Annotated[
    int | None,
    typer.Option("--generation", metavar="N", help="Default the current one.", parser=id_parser("generation")),
]
_Scope = Annotated[str | None, typer.Option("--scope", help='Only this scope; "" for the appended rows.')]
_OneName = Annotated[str | None, typer.Argument(metavar="[NAME]", help="Only this dataset's.")]
_After = Annotated[
    int | None, typer.Option("--after", metavar="ID", help="Go on after a page: its `next`.", parser=id_parser("after"))
]
_RowsAfter = Annotated[str | None, typer.Option("--after", help="Go on after a page: its `next`.")]


@command
async def list_(store: Store, tenant: OnlyTenant = None, limit: Limit = 100, after: _After = None) -> Output:
    """List datasets with their current and newest generations, by tenant and name, a page at a time."""
    found = await store.datasets.list(tenant_id=tenant, limit=limit, after=after)
    following = str(found[-1].id) if len(found) == limit else None
    data = {"datasets": list(map(as_json.dataset_to_json, found)), "next": following}
    notes = _more("list", following, {"--tenant": tenant, "--limit": limit})
    return table_output(data, _HEAD, map(_row, found), "there is no dataset", notes)


@command
async def show(store: Store, name: _Name, tenant: _Tenant = "default") -> Output:
    """Show a dataset: its newest generations, where its data is kept, and the tasks that run for its events."""
    datasets = store.datasets
    found = await datasets.find(name, tenant_id=tenant)
    generations = await datasets.generations(name, tenant_id=tenant, limit=_SHOWN)
    subscriptions = await datasets.subscriptions(dataset=name, tenant_id=tenant)
    current = await datasets.generation(name, found.current, tenant_id=tenant)
    pointers = await datasets.pointers(current.id)
    data = {
        **as_json.dataset_to_json(found),
        "generations": list(map(as_json.generation_to_json, generations)),
        "pointers": list(map(as_json.pointer_to_json, pointers)),
        "subscriptions": list(map(as_json.subscription_to_json, subscriptions)),
    }
    lines = list(card(f"dataset {name}, generation {found.current} is current", _facts(found), []))
    lines += ["", *table(_GENERATION_HEAD, map(_generation_row, generations))]
    if pointers:
        lines += ["", *table(_POINTER_HEAD, map(_pointer_row, pointers))]
    if subscriptions:
        lines += ["", *table(_SUBSCRIPTION_HEAD, map(_subscription_row, subscriptions))]
    return Output(data, lines)


@command
async def rows(
    store: Store, name: _Name, generation: _Number = None, scope: _Scope = None, tenant: _Tenant = "default",
    limit: Limit = 100, after: _RowsAfter = None,
) -> Output:  # fmt: skip
    """Show rows of a generation, by scope and key, a page at a time."""
    number = generation or (await store.datasets.find(name, tenant_id=tenant)).current
    one = await store.datasets.generation(name, number, tenant_id=tenant)
    page = await store.datasets.page(one.id, scope, limit=limit, after=after)
    values = [{"scope": row.scope, "key": row.key, "value": row.value} for row in page.rows]
    data = {"dataset": name, "generation": number, "rows": values, "next": page.next}
    shown = ((row.scope, row.key, document(row.value)) for row in page.rows)
    options = {"--generation": number, "--scope": scope, "--tenant": tenant, "--limit": limit}
    notes = _more(f"rows {shlex.quote(name)}", page.next, options)
    return table_output(data, _ROW_HEAD, shown, f"generation {number} has no rows here", notes)


@command
async def cutover(
    store: Store, targets: _Targets, actor: Actor, reason: Reason = None, tenant: _Tenant = "default"
) -> Output:  # fmt: skip
    """Make generations current, all in one transaction or none: `tenure datasets cutover prices=4 rates`."""
    generations: dict[str, int] = {}
    for target in targets:
        name, number = _target(target)
        if name in generations:
            raise BadInput(f"{name} is named twice. Next: name it once")
        generations[name] = number or (await store.datasets.find(name, tenant_id=tenant)).newest
    done = await store.datasets.cutover(generations, actor=actor, reason=reason, tenant_id=tenant)
    names = " ".join(shlex.quote(one.dataset) for one in done.datasets)
    return Output(
        as_json.switch_to_json(done), [*_switched(done), f"Next: tenure datasets rollback {names}, to undo it"]
    )


@command
async def rollback(
    store: Store, names: _Names, actor: Actor, reason: Reason = None, tenant: _Tenant = "default"
) -> Output:  # fmt: skip
    """Undo the last cutover of these datasets, and cancel the jobs that wait to write to what it leaves.

    Undoes it for all datasets of that cutover. Jobs that run go on, and what they complete never becomes current.
    """
    done = await store.datasets.rollback(names, actor=actor, reason=reason, tenant_id=tenant)
    lines = [*_switched(done.switch), f"jobs that waited to write, now cancelled: {len(done.cancelled):,}"]
    notes = [f"job {job_id} goes on: {why}" for job_id, why in islice(done.left.items(), _SHOWN)]
    if len(done.left) > _SHOWN:
        notes.append(f"and {len(done.left) - _SHOWN:,} more; --json names all of them")
    return Output(as_json.rolled_back_to_json(done), lines, notes)


@command
async def history(
    store: Store, name: _OneName = None, tenant: _Tenant = "default", limit: Limit = 50, after: _After = None
) -> Output:  # fmt: skip
    """List cutovers and rollbacks with the people who made them, the newest first."""
    found = await store.datasets.switches(dataset=name, tenant_id=tenant, limit=limit, before=after)
    following = str(found[-1].id) if len(found) == limit else None
    data = {"switches": list(map(as_json.switch_to_json, found)), "next": following}
    which = "history" if name is None else f"history {shlex.quote(name)}"
    notes = _more(which, following, {"--tenant": tenant, "--limit": limit})
    return table_output(data, _SWITCH_HEAD, map(_switch_row, found), "there was no cutover", notes)


def _target(text: str) -> tuple[str, int | None]:
    """The name and the number of NAME or NAME=GENERATION."""
    match = re.fullmatch(r"(.+)=([0-9]{1,18})", text)
    if match is None:
        return text, None
    return match[1], validation.check_integer("generation", int(match[2]), 1, validation.MAX_ID)


def _more(command_text: str, following: str | None, options: Mapping[str, Any]) -> list[str]:
    """The note that there may be another page."""
    if following is None:
        return []
    given = {**options, "--after": following}
    again = [part for option, value in given.items() if value is not None for part in (option, str(value))]
    return [f"there may be more. Next: tenure datasets {command_text} {shlex.join(again)}"]


def _switched(switch: Switch) -> Iterator[str]:
    for one in switch.datasets:
        yield f"dataset {one.dataset}: generation {one.after} is current, before it was {one.before}"


def _row(one: Dataset) -> tuple[Any, ...]:
    keep = "all" if one.keep is None else one.keep
    return one.name, one.current, one.newest, keep, one.tenant_id, one.created_at, one.created_by


def _facts(one: Dataset) -> list[tuple[str, str | None]]:
    keep = "all former generations" if one.keep is None else f"{one.keep} former generations"
    return [
        ("UUID", str(one.uuid)),
        ("tenant", one.tenant_id),
        ("keeps", keep),
        ("created", f"{timestamp(one.created_at)} UTC{f' by {one.created_by}' if one.created_by else ''}"),
    ]


def _state(one: Generation) -> str:
    if one.is_current:
        return "current"
    if one.dropped_at is not None:
        return "dropped"
    if one.rolled_back_at is not None:
        return "rolled back"
    return "never current" if one.current_since is None else "former"


def _generation_row(one: Generation) -> tuple[Any, ...]:
    return (
        one.number, _state(one), one.current_since, one.created_at, one.created_by, one.flow_id, document(one.shape),
    )  # fmt: skip


def _pointer_row(one: StoredPointer) -> tuple[Any, ...]:
    return one.scope, one.location, one.cursor, one.row_count, one.job_id, one.at


def _subscription_row(one: Subscription) -> tuple[Any, ...]:
    return one.type, one.contract, one.waiting, one.application, one.last_error


def _switch_row(one: Switch) -> tuple[Any, ...]:
    datasets = ", ".join(f"{each.dataset} {each.before}->{each.after}" for each in one.datasets)
    return one.id, one.kind, one.at, one.actor, one.reason, one.undoes, datasets
