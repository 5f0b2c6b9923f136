"""`tenure jobs list`: jobs that match, live and finished, newest first, a page at a time."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from tenure.cli.database import with_store
from tenure.cli.given import number
from tenure.cli.shown import as_json, ids_as_text, table
from tenure.errors import BadInput
from tenure.search import Search, parse

if TYPE_CHECKING:
    from tenure.postgres.listing import Listed

_Query = typer.Argument("", metavar="[QUERY]", help="A search, like 'state:dead type:mail.send age:>1h'.")
_State = typer.Option(None, "--state", help="Only those in this state, in their contract's own word.")
_Type = typer.Option(None, "--type", help="Only those of this type.")
_Queue = typer.Option(None, "--queue", help="Only those of this queue.")
_Tenant = typer.Option(None, "--tenant", help="Only those of this tenant.")
_Contract = typer.Option(None, "--contract", help="Only those of this contract.")
_Limit = typer.Option(50, "--limit", min=1, max=1000, help="How many.")
_After = typer.Option(None, "--after", metavar="ID", help="Go on after this one: the older ones.")
_Database = typer.Option(None, "--database-url", help="Which database; default DATABASE_URL, else the embedded one.")
_Json = typer.Option(False, "--json", help="The same, as JSON.")


def list_(
    query: str = _Query,
    state: str | None = _State,
    type_: str | None = _Type,
    queue: str | None = _Queue,
    tenant: str | None = _Tenant,
    contract: str | None = _Contract,
    limit: int = _Limit,
    after: str | None = _After,
    database_url: str | None = _Database,
    in_json: bool = _Json,
) -> None:
    """List jobs, live and finished, newest first, a page at a time."""
    search = parse(query)
    options = {"state": state, "type": type_, "queue": queue, "tenant": tenant, "contract": contract}
    given = {name: value for name, value in options.items() if value is not None}
    wanted = _both(search, given)
    seen = None if after is None else number("after", after)
    page = with_store(database_url, lambda store: store.find(**wanted, limit=limit, after=seen))
    if in_json:
        following = None if page.next is None else str(page.next)
        print(as_json({"jobs": list(map(_fields, page.jobs)), "next": following, "stopped": page.stopped}))
        return
    if page.jobs:
        head = (
            "id",
            "state",
            "type",
            "queue",
            "tenant",
            "contract",
            "claims",
            "changed (UTC)",
            "held by",
            "last error",
        )
        print("\n".join(table(head, [_row(job) for job in page.jobs])))
    elif page.next is None:
        print("no job matches", file=sys.stderr)
    if page.next is not None:
        asked = [str(search)] if str(search) else []
        for name, value in given.items():
            asked += [f"--{name}", value]
        why = "many jobs were looked at, and older ones were not" if page.stopped else "there are more"
        again = shlex.join([*asked, "--limit", str(limit), "--after", str(page.next)])
        print(f"{why}. Next: tenure jobs list {again}", file=sys.stderr)


def _both(search: Search, given: Mapping[str, str]) -> dict[str, Any]:
    """What the query and the options ask for together; refuses when they differ about a field."""
    wanted = asdict(search)
    for name, value in given.items():
        field = "tenant_id" if name == "tenant" else name
        if wanted[field] not in (None, value):
            raise BadInput(f"--{name} is {value!r}, and the query has {wanted[field]!r}; give one of them")
        wanted[field] = value
    return wanted


def _fields(job: Listed) -> dict[str, Any]:
    """A job as JSON shows it in a list."""
    fields = ids_as_text(job._asdict(), "id")
    del fields["last_error_json"]
    return {**fields, "last_error": job.last_error}


def _row(job: Listed) -> tuple[str, ...]:
    from tenure.wording import failure

    return (
        str(job.id), job.state, job.type, job.queue, job.tenant_id, job.contract, str(job.claims),
        f"{job.updated_at:%Y-%m-%d %H:%M:%S}", job.lease_owner or "", failure(job.last_error) if job.last_error else "",
    )  # fmt: skip
