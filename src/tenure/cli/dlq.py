"""`tenure dlq`: list and show dead letters and their causes, rerun or discard them; some discards need two people."""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable, Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tenure.cli.bulk import AgainOption, Bulk, EditOption, PayloadEdit, PayloadOption, SetOption, Targets, bulk_command
from tenure.cli.command import Output, Store, call_store, command, table_output
from tenure.cli.options import (
    Actor,
    Limit,
    OnlyContract,
    OnlyTenant,
    OnlyType,
    id_parser,
    merge_filters,
    os_user,
)
from tenure.cli.output import card, document, timestamp
from tenure.jobs.formats import describe_failure
from tenure.jobs.search import parse_letters
from tenure.jobs.why import dead_letter_commands

if TYPE_CHECKING:
    from tenure.postgres.dead_letters import DeadLetter
    from tenure.postgres.letter_groups import LetterGroup


class Status(StrEnum):
    """The decision about a dead letter."""

    open = "open"
    requeued = "requeued"
    discarded = "discarded"


_HEAD = ("id", "job", "contract", "tenant", "type", "reason", "status", "set aside (UTC)", "error")
_GROUP_HEAD = ("group", "open", "all", "first (UTC)", "last (UTC)", "types", "tenants", "releases", "error")
_Group = Annotated[str | None, typer.Argument(metavar="[GROUP]", help="Show this group in full.")]
_AllLetters = Annotated[bool, typer.Option("--all", help="Also requeued and discarded ones.")]
_AllGroups = Annotated[bool, typer.Option("--all", help="Also groups without an open dead letter.")]
_Letter = Annotated[
    int, typer.Argument(metavar="LETTER", help="The dead letter's id.", parser=id_parser("dead letter"))
]
_Query = Annotated[str, typer.Argument(metavar="[QUERY]", help="A search, like 'type:mail.send error:timeout'.")]
_Status = Annotated[Status | None, typer.Option("--status", help="Only this status.")]
_After = Annotated[
    int | None,
    typer.Option("--after", metavar="ID", help="Continue after this id: the older ones.", parser=id_parser("after")),
]
_Requester = Annotated[str, typer.Option("--person", default_factory=os_user, help="Who asks; default: the OS user.")]
_Approver = Annotated[str, typer.Option("--person", help="The person who agrees; never the one who asked.")]


@command
async def list_(
    store: Store,
    query: _Query = "",
    contract: OnlyContract = None,
    tenant: OnlyTenant = None,
    status: _Status = None,
    all_: _AllLetters = False,
    limit: Limit = 50,
    after: _After = None,
) -> Output:
    """List open dead letters, newest first, a page at a time; others with --all, or if the search says so."""
    search = parse_letters(query)
    options = {"contract": contract, "tenant": tenant, "status": status and status.value}
    used = {name: value for name, value in options.items() if value is not None}
    filters = merge_filters(search, used)
    if filters["status"] is None and not all_:
        filters["status"] = "open"
    page = await store.letters.search(**filters, limit=limit, after=after)
    reason = "many dead letters were looked at, and older ones were not" if page.stopped else "there are more"
    repeated = [*filter(None, [str(search)]), *(word for name in used for word in (f"--{name}", used[name]))]
    arguments = shlex.join([*repeated, *["--all"] * all_, "--limit", str(limit), "--after", str(page.next)])
    notes = [f"{reason}. Next: tenure dlq list {arguments}"] if page.next else []
    last = None if page.next is None else str(page.next)
    data = {"dead_letters": [letter.fields() for letter in page.letters], "next": last, "stopped": page.stopped}
    none = f"no {filters['status']} dead letters" if filters["status"] else "no dead letters"
    if_empty = "" if page.next else f"{none}{'' if all_ or status else '. Next: tenure dlq list --all'}"
    return table_output(data, _HEAD, map(_row, page.letters), if_empty, notes)


@command
async def show(store: Store, letter_id: _Letter) -> Output:
    """Show a dead letter: the job, the reason, and the decision about it."""
    letter = await store.letters.show(letter_id)
    return Output(letter.fields(), _card(letter))


@command
async def groups(
    store: Store,
    group: _Group = None,
    contract: OnlyContract = None,
    tenant: OnlyTenant = None,
    type_: OnlyType = None,
    all_: _AllGroups = False,
    limit: Limit = 50,
) -> Output:
    """List the causes of dead letters, or show one: counts, first and last, an example, by release and tenant."""
    if group is not None:
        found = await store.groups.show(group, tenant_id=tenant)
        return Output(found.fields(), _group_card(found))
    causes = await store.groups.list(contract=contract, tenant_id=tenant, type=type_, closed=all_, limit=limit)
    uncounted = await store.groups.uncounted()
    notes = [f"{uncounted:,} changes of dead letters are not counted yet: upkeep does that"] if uncounted else []
    if causes:
        notes.append(f"Next: tenure dlq groups {causes[0].fingerprint}")
    data = {"groups": [one.fields() for one in causes], "uncounted": uncounted}
    return table_output(data, _GROUP_HEAD, map(_group_row, causes), "no open dead letters", notes)


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
    """Run the jobs of dead letters again, as new jobs that point back to them; each once."""

    async def read(store: Store, letter_id: int) -> Any:
        return (await store.letters.show(letter_id)).payload

    async def call(store: Store, letter_id: int, **options: Any) -> int:
        return await store.letters.requeue(letter_id, **options)

    return bulk.requeue("dead_letters", targets, actor, PayloadEdit(payload, set_, edit), again, read, call)


@bulk_command
def discard(
    bulk: Bulk,
    targets: Targets,
    reason: Annotated[str, typer.Option("--reason", help="Why it can be discarded.")],
    person: _Requester,
) -> Output | None:
    """Ask to discard dead letters; done at once where their contract needs no second person."""
    if (ids := bulk.ids_of(targets, "dead letter")) is None:
        return bulk.operate("dead_letters", "discard", targets, person, reason=reason)

    async def call(store: Store, letter_id: int) -> DeadLetter:
        return await store.letters.request_discard(letter_id, person=person, reason=reason)

    return _decide(bulk, ids, call)


@bulk_command
def approve(bulk: Bulk, targets: Targets, person: _Approver) -> Output | None:
    """Agree to discard dead letters; refused for the person who asked."""
    if (ids := bulk.ids_of(targets, "dead letter")) is None:
        return bulk.operate("dead_letters", "approve", targets, person)

    async def call(store: Store, letter_id: int) -> DeadLetter:
        return await store.letters.approve_discard(letter_id, person=person)

    return _decide(bulk, ids, call)


def _decide(bulk: Bulk, ids: list[int], call: Callable[[Store, int], Awaitable[DeadLetter]]) -> Output | None:
    """Decide about dead letters; one alone is answered in full, and its refusal raised."""
    if len(ids) == 1:
        return _discarded(call_store(bulk.database_url, lambda store: call(store, ids[0])))

    async def fields(store: Store, letter_id: int) -> dict[str, Any]:
        return {**(await call(store, letter_id)).fields(), "id": str(letter_id)}

    bulk.each(ids, fields, lambda result: f"dead letter {result['id']} is {result['status']}")
    return None


def _discarded(letter: DeadLetter) -> Output:
    if letter.status == "discarded":
        text = f"dead letter {letter.id} is discarded"
    else:
        text = (
            f"dead letter {letter.id} stays open until another person than {letter.discard_asked_by} agrees\n"
            f"Next: tenure dlq approve {letter.id} --person NAME"
        )
    return Output(letter.fields(), text)


def _row(letter: DeadLetter) -> tuple[Any, ...]:
    return (
        letter.id, letter.job_id, letter.contract, letter.tenant_id, letter.type, letter.reason_code, letter.status,
        letter.created_at, describe_failure(letter.last_error),
    )  # fmt: skip


def _card(letter: DeadLetter) -> Iterator[str]:
    rows: list[tuple[str, str | None]] = [
        ("status", f"{letter.status} since {timestamp(letter.updated_at)} UTC"),
        ("job", f"{letter.job_id} (contract {letter.contract}, tenant {letter.tenant_id})"),
        ("reason", f"{letter.reason_code}, at stage {letter.stage}" if letter.stage else letter.reason_code),
        ("last error", describe_failure(letter.last_error)),
        ("claims", f"{letter.claims}, the last by {letter.last_owner}" if letter.last_owner else f"{letter.claims}"),
        ("first failed", f"{timestamp(letter.failed_at)} UTC"),
        ("set aside", f"{timestamp(letter.created_at)} UTC"),
        ("payload", document(letter.payload)),
        ("run again", f"as job {letter.requeued_as} by {letter.requeued_by}" if letter.requeued_as else None),
        ("discard", _discard(letter)),
        ("trace", f"{letter.trace_id}, correlation {letter.correlation_id}"),
    ]
    steps = [*dead_letter_commands(letter.summary()), f"tenure jobs why {letter.job_id}"]
    return card(f"dead letter {letter.id}: {letter.type}", rows, steps, letter.last_error)


def _discard(letter: DeadLetter) -> str | None:
    if letter.discard_asked_by is None or letter.discard_asked_at is None:
        return None
    text = f"asked for by {letter.discard_asked_by} at {timestamp(letter.discard_asked_at)} UTC"
    if letter.discard_approved_by:
        # Approved before the column for the time existed: the row has not changed since then.
        at = letter.discard_approved_at or letter.updated_at
        text += f", approved by {letter.discard_approved_by} at {timestamp(at)} UTC"
    return f"{text}: {letter.discard_reason}"


def _group_row(group: LetterGroup) -> tuple[Any, ...]:
    return (
        group.fingerprint, f"{group.open:,}", f"{group.letters:,}", group.first_seen, group.last_seen,
        *(_named_parts(group, axis, 2) for axis in ("type", "tenant", "release")),
        group.title,
    )  # fmt: skip


def _named_parts(group: LetterGroup, axis: str, at_most: int) -> str:
    """The first types, tenants or releases of a group, and how many more there are."""
    parts = group.parts(axis)
    more = len(parts) + group.others(axis) - at_most
    named = ", ".join(part.value or "unknown" for part in parts[:at_most])
    return f"{named} and {more} more" if more > 0 else named


def _group_card(group: LetterGroup) -> Iterator[str]:
    from tenure.postgres.letter_groups import MANY_LETTERS

    workers = group.workers or ()
    of_newest = f", of the newest {MANY_LETTERS:,}" if group.letters > MANY_LETTERS else ""
    unnamed = [part.value for part in group.parts("release")] == [None]
    rows: list[tuple[str, str | None]] = [
        ("dead letters", f"{group.open:,} open of {group.letters:,}"),
        ("seen", f"first {timestamp(group.first_seen)}, last {timestamp(group.last_seen)} UTC"),
        ("reason", group.reason_code),
        *(
            (f"{axis}s" if n == 0 else " ", f"{part.value or 'unknown'}: {part.open:,} open of {part.letters:,}")
            for axis in ("contract", "type", "tenant", "release")
            for n, part in enumerate(group.parts(axis)[:20])
        ),
        ("", "no failure names a release: set TENURE_RELEASE, or App(release=…)" if unnamed else None),
        *(
            (
                f"workers{of_newest}" if n == 0 else " ",
                f"{one.worker or 'nobody'}: {one.open:,} open of {one.letters:,}",
            )
            for n, one in enumerate(workers[:20])
        ),
        ("example", f"dead letter {group.letter_id}: {describe_failure(group.last_error)}"),
    ]
    steps = [f"tenure dlq show {group.letter_id}"]
    if group.open:
        steps.append(f"tenure dlq requeue group:{group.fingerprint} --dry-run")
    return card(f"group {group.fingerprint}: {group.title}", rows, steps, group.last_error)
