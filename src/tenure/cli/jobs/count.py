"""`tenure jobs count`: count jobs that match a search, by tenant, type, queue, state, contract or worker."""

from __future__ import annotations

import shlex
from enum import StrEnum
from typing import Annotated

import typer

from tenure.cli.command import Output, Store, command
from tenure.cli.output import table
from tenure.jobs.search import filters_of, parse

_HEAD = ("jobs", "first made (UTC)", "last made (UTC)")
_Query = Annotated[str, typer.Argument(metavar="[QUERY]", help="A search, like 'state:dead age:<1h'; default: all.")]
_After = Annotated[
    str | None, typer.Option("--after", metavar="PLACE", help="Go on after a count that stopped: its `next`.")
]


class Axis(StrEnum):
    """What jobs are counted by."""

    tenant = "tenant"
    type = "type"
    queue = "queue"
    state = "state"
    contract = "contract"
    worker = "worker"


@command
async def count(
    store: Store,
    query: _Query = "",
    by: Annotated[Axis, typer.Option("--by", help="Count apart by this.")] = Axis.state,
    after: _After = None,
) -> Output:
    """Count the jobs that match, up to a limit, with when the first and the last of them were made."""
    search = parse(query)
    found = await store.count(**filters_of(search), by=by.value, after=after)
    rows = [(one.value, f"{one.jobs:,}", one.first, one.last) for one in found.groups]
    notes = [f"{found.total:,}{'' if found.next is None else ' or more'} jobs match"]
    if found.next is not None:
        words = [*filter(None, [str(search)]), "--by", by.value, "--after", found.next]
        notes.append(
            f"the count stopped at its limit; older jobs were not counted. Next: tenure jobs count {shlex.join(words)}"
        )
    return Output(found.to_json(), list(table((by.value, *_HEAD), rows)) if rows else (), notes)
