"""`tenure keys`: make a key for the dispatcher, see which there are, revoke one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

import typer

from tenure import intake
from tenure.cli.database import with_store
from tenure.cli.given import number, user
from tenure.cli.shown import as_json, ids_as_text, table
from tenure.errors import BadInput
from tenure.key import SCOPES, Key, checked
from tenure.wording import plain

if TYPE_CHECKING:
    from tenure.key import Found

_Name = typer.Argument(metavar="NAME", help="What people call the key.")
_Key = typer.Argument(metavar="ID", help="The key's id, as the list has it.")
_Scope = typer.Option(..., "--scope", help=f"What it is for, once for each: {', '.join(SCOPES)}.")
_Tenant = typer.Option(None, "--tenant", help="The only tenant that it is for; default all tenants.")
_Person = typer.Option(None, "--person", help="Who will hold it; needed with --scope approve.")
_Expires = typer.Option(
    None, "--expires", help="For how long it is valid, like 90d, 12h or 30m; default until revoked."
)
_Actor = typer.Option(None, "--actor", help="Who asks; default the operating system's user name.")
_Database = typer.Option(None, "--database-url", help="Which database; default DATABASE_URL, else the embedded one.")
_Json = typer.Option(False, "--json", help="The same, as JSON.")


def add_to(app: typer.Typer) -> None:
    """Add the group of commands."""
    group = typer.Typer(no_args_is_help=True, help="Keys for the dispatcher: make, list, revoke.")
    group.command("create")(create)
    group.command("list")(list_)
    group.command("revoke")(revoke)
    app.add_typer(group, name="keys")


def create(
    name: str = _Name,
    scope: list[str] = _Scope,
    tenant: str | None = _Tenant,
    person: str | None = _Person,
    expires: str | None = _Expires,
    actor: str | None = _Actor,
    database_url: str | None = _Database,
    in_json: bool = _Json,
) -> None:
    """Make a key and print it, alone, on stdout: this once, because only its hash is kept."""
    wanted = (name, scope, tenant, person, actor or user(), None if expires is None else _seconds(expires))
    checked(*wanted)  # what is wrong with the call is said before a database is started for it
    key, text = with_store(database_url, lambda store: store.keys.create(*wanted))
    if in_json:
        print(as_json({**_fields(key, True), "key": text}))
        return
    print(text, flush=True)
    print("\n".join(_about(key)), file=sys.stderr)


def list_(database_url: str | None = _Database, in_json: bool = _Json) -> None:
    """List the keys that were ever made: what each is for, and whether it is live, expired or revoked."""
    keys = with_store(database_url, lambda store: store.keys.list())
    if in_json:
        print(as_json({"keys": [_fields(*found) for found in keys]}))
        return
    if not keys:
        print("no key was ever made. Next: tenure keys create NAME --scope work", file=sys.stderr)
        return
    head = ("id", "name", "key", "scopes", "tenant", "person", "made (UTC)", "by", "status")
    print("\n".join(table(head, list(map(_row, keys)))))


def revoke(
    key_id: str = _Key, actor: str | None = _Actor, database_url: str | None = _Database, in_json: bool = _Json
) -> None:
    """Let a key open nothing any more, for ever; one that is revoked stays as it was revoked first."""
    wanted = number("key", key_id)
    key, new = with_store(database_url, lambda store: store.keys.revoke(wanted, actor or user()))
    if in_json:
        print(as_json({**_fields(key, False), "new": new}))
        return
    named = f"key {key.id} ({plain(key.name)}, {key.hint}…)"
    print(f"{named} is revoked" if new else f"{named} was revoked already, by {_revoked(key)}")


def _seconds(text: str) -> int:
    seconds = intake.span(text)
    if seconds is None:
        raise BadInput(f"--expires is a span of time like 90d, 12h, 30m or 45s, not {text!r}")
    return seconds


def _about(key: Key) -> Iterator[str]:
    """What whoever made a key should know of it."""
    yield f"key {key.id} ({plain(key.name)}) is shown this once: only its hash is kept"
    holder = f", held by {plain(key.person)}" if key.person else ""
    yield f"scope{'s' * (len(key.scopes) > 1)} {', '.join(key.scopes)}{holder}"
    if key.tenant_id is None:
        yield "bound to no tenant: it is for the jobs of all. To bind one, make it with --tenant NAME"
    else:
        yield f"bound to tenant {plain(key.tenant_id)}: it is for the jobs of no other"
    yield f"valid until {_at(key.expires_at) if key.expires_at else 'it is revoked'}: tenure keys revoke {key.id}"
    yield "Next: send it to the dispatcher with each request, as the header Authorization: Bearer KEY"


def _row(found: Found) -> tuple[str, ...]:
    key = found.key
    return (
        str(key.id), key.name, f"{key.hint}…", ",".join(key.scopes), key.tenant_id or "(all)", key.person or "",
        f"{key.created_at:%Y-%m-%d %H:%M:%S}", key.created_by, _status(*found),
    )  # fmt: skip


def _status(key: Key, live: bool) -> str:
    if key.revoked_at is not None:
        return f"revoked by {_revoked(key)}"
    if key.expires_at is None:
        return "live"
    return f"{'live until' if live else 'expired at'} {_at(key.expires_at)}"


def _revoked(key: Key) -> str:
    assert key.revoked_at is not None
    return f"{plain(key.revoked_by or '')} at {_at(key.revoked_at)}"


def _at(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def _fields(key: Key, live: bool) -> dict[str, Any]:
    """A key as JSON shows it."""
    return {**ids_as_text(key._asdict(), "id"), "live": live}
