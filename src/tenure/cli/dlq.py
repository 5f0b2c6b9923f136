"""`tenure dlq`: list dead letters, look at one, run it again, or discard it; by two people where that is the rule."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import typer

from tenure.cli.database import with_store
from tenure.cli.given import number, user
from tenure.cli.shown import as_json, as_text, card, ids_as_text, table

if TYPE_CHECKING:
    from tenure.postgres.letters import Letter


class Status(StrEnum):
    """What was decided about a dead letter."""

    open = "open"
    requeued = "requeued"
    discarded = "discarded"


_Letter = typer.Argument(metavar="LETTER", help="The dead letter's id.")
_Contract = typer.Option(None, "--contract", help="Only those of this contract.")
_Tenant = typer.Option(None, "--tenant", help="Only those of this tenant.")
_Status = typer.Option(None, "--status", help="Only those of which this was decided.")
_Limit = typer.Option(50, "--limit", min=1, max=1000, help="How many.")
_After = typer.Option(None, "--after", metavar="ID", help="Go on after this one: the older ones.")
_Actor = typer.Option(None, "--actor", help="Who asks; default the operating system's user name.")
_Reason = typer.Option(..., "--reason", help="Why it can be thrown away.")
_Person = typer.Option(..., "--person", help="Who decides; never the same person twice.")
_Database = typer.Option(None, "--database-url", help="Which database; default DATABASE_URL, else the embedded one.")
_Json = typer.Option(False, "--json", help="The same, as JSON.")


def add_to(app: typer.Typer) -> None:
    """Add the group of commands."""
    group = typer.Typer(no_args_is_help=True, help="Dead letters: jobs that were set aside with their reason.")
    group.command("list")(list_)
    for command in (show, requeue, discard, approve):
        group.command(command.__name__)(command)
    app.add_typer(group, name="dlq")


def list_(
    contract: str | None = _Contract,
    tenant: str | None = _Tenant,
    status: Status | None = _Status,
    limit: int = _Limit,
    after: str | None = _After,
    database_url: str | None = _Database,
    in_json: bool = _Json,
) -> None:
    """List dead letters, newest first, a page at a time."""
    wanted = {"contract": contract, "tenant_id": tenant, "status": status.value if status else None}
    seen = None if after is None else number("after", after)
    # One more than is shown, which tells whether there is another page.
    found = with_store(database_url, lambda store: store.letters.list(**wanted, limit=limit + 1, after=seen))
    page, more = found[:limit], len(found) > limit
    if in_json:
        print(as_json({"dead_letters": list(map(_fields, page)), "next": str(page[-1].id) if more else None}))
        return
    if not page:
        print("no dead letters", file=sys.stderr)
        return
    head = ("id", "job", "contract", "tenant", "type", "reason", "status", "set aside (UTC)", "error")
    print("\n".join(table(head, [_row(letter) for letter in page])))
    if more:
        print(f"there are more. Next: tenure dlq list --after {page[-1].id}, with the same options", file=sys.stderr)


def show(letter_id: str = _Letter, database_url: str | None = _Database, in_json: bool = _Json) -> None:
    """Show a dead letter: what was set aside, why, and what was decided about it."""
    wanted = number("dead letter", letter_id)
    letter = with_store(database_url, lambda store: store.letters.show(wanted))
    print(as_json(_fields(letter)) if in_json else "\n".join(_card(letter)))


def requeue(
    letter_id: str = _Letter, actor: str | None = _Actor, database_url: str | None = _Database, in_json: bool = _Json
) -> None:
    """Run a dead letter's job again, as a new job that points back to it; once."""
    wanted = number("dead letter", letter_id)
    made = with_store(database_url, lambda store: store.letters.requeue(wanted, actor=actor or user()))
    if in_json:
        print(as_json({"id": str(wanted), "requeued_as": str(made)}))
    else:
        print(f"dead letter {wanted} runs again as job {made}\nNext: tenure jobs show {made}")


def discard(
    letter_id: str = _Letter,
    reason: str = _Reason,
    person: str = _Person,
    database_url: str | None = _Database,
    in_json: bool = _Json,
) -> None:
    """Ask to throw a dead letter away; done at once where its contract wants no second person."""
    wanted = number("dead letter", letter_id)
    asked = with_store(database_url, lambda store: store.letters.request_discard(wanted, person=person, reason=reason))
    _decided(asked, in_json)


def approve(
    letter_id: str = _Letter, person: str = _Person, database_url: str | None = _Database, in_json: bool = _Json
) -> None:
    """Agree that a dead letter be thrown away; never the person who asked."""
    wanted = number("dead letter", letter_id)
    _decided(with_store(database_url, lambda store: store.letters.approve_discard(wanted, person=person)), in_json)


def _decided(letter: Letter, in_json: bool) -> None:
    if in_json:
        print(as_json(_fields(letter)))
    elif letter.status == "discarded":
        print(f"dead letter {letter.id} is discarded")
    else:
        print(f"dead letter {letter.id} stays open until another person than {letter.discard_asked_by} agrees")
        print(f"Next: tenure dlq approve {letter.id} --person NAME")


def _fields(letter: Letter) -> dict[str, Any]:
    """A dead letter as JSON shows it."""
    fields = ids_as_text(letter._asdict(), "id", "job_id", "requeued_as")
    for name in ("payload", "last_error"):
        del fields[f"{name}_json"]
        fields[name] = getattr(letter, name)
    return fields


def _row(letter: Letter) -> tuple[str, ...]:
    from tenure.wording import failure

    return (
        str(letter.id), str(letter.job_id), letter.contract, letter.tenant_id, letter.type, letter.reason_code,
        letter.status, f"{letter.created_at:%Y-%m-%d %H:%M:%S}", failure(letter.last_error),
    )  # fmt: skip


def _card(letter: Letter) -> Iterator[str]:
    from tenure.why import letter_steps
    from tenure.wording import failure

    rows: list[tuple[str, str | None]] = [
        ("status", f"{letter.status} since {_at(letter.updated_at)}"),
        ("job", f"{letter.job_id} (contract {letter.contract}, tenant {letter.tenant_id})"),
        ("reason", f"{letter.reason_code}, at stage {letter.stage}" if letter.stage else letter.reason_code),
        ("last error", failure(letter.last_error)),
        ("claims", f"{letter.claims}, the last by {letter.last_owner}" if letter.last_owner else f"{letter.claims}"),
        ("first failed", _at(letter.failed_at)),
        ("set aside", _at(letter.created_at)),
        ("payload", as_text(letter.payload)),
        ("run again", f"as job {letter.requeued_as} by {letter.requeued_by}" if letter.requeued_as else None),
        ("discard", _discard(letter)),
        ("trace", f"{letter.trace_id}, correlation {letter.correlation_id}"),
    ]
    steps = [*letter_steps(letter.in_short()), f"tenure jobs why {letter.job_id}"]
    return card(f"dead letter {letter.id}: {letter.type}", rows, steps)


def _at(moment: Any) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def _discard(letter: Letter) -> str | None:
    if letter.discard_asked_by is None:
        return None
    asked = f"asked for by {letter.discard_asked_by} at {_at(letter.discard_asked_at)}"
    if letter.discard_approved_by:
        # Without a time of its own it was approved before there was one; the row has not changed since.
        asked += f", approved by {letter.discard_approved_by} at {_at(letter.discard_approved_at or letter.updated_at)}"
    return f"{asked}: {letter.discard_reason}"
