"""`tenure alarms`: list alarms, test their sinks, mute and unmute them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tenure.cli.command import Output, Store, command
from tenure.cli.options import Actor, OnlyTenant, Reason
from tenure.cli.output import table, timestamp
from tenure.errors import BadInput
from tenure.jobs import validation

if TYPE_CHECKING:
    from tenure.jobs.alarm import Alarm

_HEAD = ("alarm", "severity", "kind", "tenant", "since (UTC)", "state", "what")
_Kind = Annotated[str | None, typer.Argument(metavar="[KIND]", help="Only this kind of alarm; default: all.")]
_About = Annotated[str | None, typer.Option("--about", help="Only alarms about this, as the list shows it.")]


@command
async def list_(
    store: Store,
    history: Annotated[bool, typer.Option("--all", help="Also alarms that are over.")] = False,
    kind: Annotated[str | None, typer.Option("--kind", help="Only this kind.")] = None,
    tenant: OnlyTenant = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=10_000, help="Rows.")] = 100,
) -> Output:
    """List the alarms that hold, with the next command for each."""
    found = await store.alarms.list(history=history, tenant=tenant, kind=kind, limit=limit)
    data = {"alarms": [one.to_json() for one in found]}
    if not found:
        return Output(data, notes=["no alarm holds" if not history else "no alarm has fired"])
    steps = [f"{one.id}: Next: {one.next}" for one in found if one.cleared_at is None]
    return Output(data, [*table(_HEAD, map(_row, found)), *steps])


@command
async def test(store: Store, actor: Actor) -> Output:
    """Fire an alarm of the kind test, which upkeep sends to every sink; it clears by itself."""
    fired = await store.alarms.test(actor)
    text = (
        "a test alarm has fired: upkeep sends it to its sinks within seconds" if fired else "a test alarm holds already"
    )
    return Output({"fired": bool(fired)}, f"{text}\nNext: tenure alarms list --all --kind test")


@command
async def mute(
    store: Store,
    actor: Actor,
    kind: _Kind = None,
    span: Annotated[str, typer.Option("--for", help="How long: 30m, 2h, 7d.")] = "1h",
    tenant: OnlyTenant = None,
    about: _About = None,
    reason: Reason = None,
) -> Output:
    """Send nothing about these alarms for some time. They still fire, and are sent afterwards if they still hold."""
    seconds = validation.parse_duration(span)
    if seconds is None:
        raise BadInput(f"--for is a span of time like 30m, 2h or 7d, not {span!r}")
    muted = await store.alarms.mute(kind, seconds=seconds, actor=actor, tenant=tenant, subject=about, reason=reason)
    text = f"{_which(kind, tenant, about)} muted by {actor} until {timestamp(muted.until)} UTC"
    data = {"id": str(muted.id), "until": muted.until, "muted_by": actor}
    return Output(data, f"{text}\nNext: tenure alarms unmute{f' {kind}' if kind else ''}")


@command
async def unmute(
    store: Store, actor: Actor, kind: _Kind = None, tenant: OnlyTenant = None, about: _About = None
) -> Output:
    """End mutes before their time: those of exactly this kind, tenant and subject."""
    ended = await store.alarms.unmute(kind, actor=actor, tenant=tenant, subject=about)
    return Output({"ended": ended}, f"{ended} mutes ended" if ended else f"{_which(kind, tenant, about)} not muted")


def _which(kind: str | None, tenant: str | None, about: str | None) -> str:
    parts: Sequence[str | None] = (
        f"alarms of the kind {kind}" if kind else "all alarms",
        f"of tenant {tenant}" if tenant else None,
        f"about {about}" if about else None,
    )
    return f"{' '.join(filter(None, parts))} are"


def _row(alarm: Alarm) -> tuple[Any, ...]:
    state = "holds" if alarm.cleared_at is None else f"over {timestamp(alarm.cleared_at)}"
    if alarm.muted_by and alarm.cleared_at is None:
        state = f"muted by {alarm.muted_by}"
    return alarm.id, alarm.severity, alarm.kind, alarm.tenant_id, alarm.since, state, alarm.summary
