"""`tenure keys`: create, list and revoke API keys for the dispatcher."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from tenure.cli.command import Output, Store, call_store, command, table_output
from tenure.cli.options import Actor, DatabaseUrl, id_parser
from tenure.cli.output import timestamp
from tenure.errors import BadInput
from tenure.jobs.api_key import SCOPES, ApiKey, FoundApiKey, check_new_key
from tenure.jobs.formats import ids_to_text, to_one_line
from tenure.jobs.validation import parse_duration

_HEAD = ("id", "name", "key", "scopes", "tenant", "person", "made (UTC)", "by", "status")
_Scope = Annotated[list[str], typer.Option("--scope", help=f"A scope; repeat for several: {', '.join(SCOPES)}.")]
_Tenant = Annotated[str | None, typer.Option("--tenant", help="Limit the key to this tenant; default: all tenants.")]
_Person = Annotated[str | None, typer.Option("--person", help="The key's holder; required by --scope approve.")]
_Expires = Annotated[str | None, typer.Option("--expires", help="Valid for 90d, 12h, 30m …; default: until revoked.")]


@command
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name for the key.")],
    scope: _Scope,
    actor: Actor,
    tenant: _Tenant = None,
    person: _Person = None,
    expires: _Expires = None,
    database_url: DatabaseUrl = None,
) -> Output:
    """Create a key and print it, alone, on stdout; it is shown once, because only its hash is stored."""
    seconds = None if expires is None else parse_duration(expires)
    if expires is not None and seconds is None:
        raise BadInput(f"--expires is a span of time like 90d, 12h, 30m or 45s, not {expires!r}")
    request = (name, scope, tenant, person, actor, seconds)
    check_new_key(*request)  # refuse a wrong request before a database is started for it
    key, text = call_store(database_url, lambda store: store.keys.create(*request))
    return Output({**_fields(key, True), "key": text}, text, _explain(key))


@command
async def list_(store: Store) -> Output:
    """List all keys: name, scopes, and whether each is live, expired or revoked."""
    keys = await store.keys.list()
    data = {"keys": [_fields(*found) for found in keys]}
    return table_output(
        data, _HEAD, map(_row, keys), "no key was ever made. Next: tenure keys create NAME --scope work"
    )


@command
async def revoke(
    store: Store,
    key_id: Annotated[int, typer.Argument(metavar="ID", help="The key's id, from the list.", parser=id_parser("key"))],
    actor: Actor,
) -> Output:
    """Revoke a key for ever; a second revocation keeps the time and actor of the first."""
    key, new = await store.keys.revoke(key_id, actor)
    name = f"key {key.id} ({to_one_line(key.name)}, {key.hint}…)"
    text = f"{name} is revoked" if new else f"{name} was revoked already, by {_revocation(key)}"
    return Output({**_fields(key, False), "new": new}, text)


def _explain(key: ApiKey) -> Iterator[str]:
    """The lines that follow a new key."""
    yield f"key {key.id} ({to_one_line(key.name)}) is shown this once: only its hash is kept"
    holder = f", held by {to_one_line(key.person)}" if key.person else ""
    yield f"scope{'s' * (len(key.scopes) > 1)} {', '.join(key.scopes)}{holder}"
    if key.tenant_id is None:
        yield "bound to no tenant: it is for the jobs of all. To bind one, make it with --tenant NAME"
    else:
        yield f"bound to tenant {to_one_line(key.tenant_id)}: it is for the jobs of no other"
    until = f"{timestamp(key.expires_at)} UTC" if key.expires_at else "it is revoked"
    yield f"valid until {until}: tenure keys revoke {key.id}"
    yield "Next: send it to the dispatcher with each request, as the header Authorization: Bearer KEY"


def _row(found: FoundApiKey) -> tuple[Any, ...]:
    key = found.key
    return (
        key.id, key.name, f"{key.hint}…", ",".join(key.scopes), key.tenant_id or "(all)", key.person, key.created_at,
        key.created_by, _status(*found),
    )  # fmt: skip


def _status(key: ApiKey, live: bool) -> str:
    if key.revoked_at is not None:
        return f"revoked by {_revocation(key)}"
    if key.expires_at is None:
        return "live"
    return f"{'live until' if live else 'expired at'} {timestamp(key.expires_at)} UTC"


def _revocation(key: ApiKey) -> str:
    assert key.revoked_at is not None
    return f"{to_one_line(key.revoked_by or '')} at {timestamp(key.revoked_at)} UTC"


def _fields(key: ApiKey, live: bool) -> dict[str, Any]:
    """A key as JSON shows it."""
    return {**ids_to_text(key._asdict(), "id"), "live": live}
