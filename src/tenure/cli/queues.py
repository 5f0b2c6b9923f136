"""`tenure queues`: what stands in each queue; pause one, so that nobody claims from it, and resume it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import typer

from tenure.cli.database import with_store
from tenure.cli.given import user
from tenure.cli.shown import as_json, table

if TYPE_CHECKING:
    from tenure.around import Paused
    from tenure.postgres.queues import Queue
    from tenure.postgres.store import Store

_Queue = typer.Argument(metavar="QUEUE", help="The queue's name.")
_Actor = typer.Option(None, "--actor", help="Who asks; default the operating system's user name.")
_Reason = typer.Option(None, "--reason", help="Why; shown to whoever wonders.")
_Database = typer.Option(None, "--database-url", help="Which database; default DATABASE_URL, else the embedded one.")
_Json = typer.Option(False, "--json", help="The same, as JSON.")
_COUNTS = ("ready", "delayed", "waiting", "held")


def add_to(app: typer.Typer) -> None:
    """Add the group of commands."""
    group = typer.Typer(no_args_is_help=True, help="Look at queues, pause them, resume them.")
    group.command("list")(list_)
    for command in (pause, resume):
        group.command(command.__name__)(command)
    app.add_typer(group, name="queues")


def list_(database_url: str | None = _Database, in_json: bool = _Json) -> None:
    """List the queues that have live jobs or are paused: what stands in each, how old the oldest ready job is."""
    queues = with_store(database_url, lambda store: store.queues.list())
    if in_json:
        print(as_json({"queues": list(map(_fields, queues))}))
        return
    if not queues:
        print("no queue has a live job, and none is paused", file=sys.stderr)
        return
    from tenure.postgres.queues import MANY_QUEUES

    print("\n".join(table(("queue", *_COUNTS, "oldest ready", "paused"), list(map(_row, queues)))))
    if len(queues) == MANY_QUEUES:
        print(f"only the first {MANY_QUEUES:,} queues are shown", file=sys.stderr)


def pause(
    queue: str = _Queue,
    reason: str | None = _Reason,
    actor: str | None = _Actor,
    database_url: str | None = _Database,
    in_json: bool = _Json,
) -> None:
    """Let nobody claim from a queue. Held jobs go on; a queue that is paused stays as it was paused first."""
    from tenure.why import resuming

    async def ask(store: Store) -> tuple[Paused, bool, Queue | None]:
        paused, new = await store.queues.pause(queue, actor=actor or user(), reason=reason)
        return paused, new, next((one for one in await store.queues.list() if one.name == queue), None)

    paused, new, seen = with_store(database_url, ask)
    if in_json:
        print(as_json({"queue": queue, "new": new, "paused": _paused(paused)}))
        return
    if not new:
        print(f"queue {queue} was paused already: {_by(paused)}")
    else:
        print(f"queue {queue} is paused; {_standing(seen)}")
    print(f"Next: {resuming(queue)}")


def resume(
    queue: str = _Queue, actor: str | None = _Actor, database_url: str | None = _Database, in_json: bool = _Json
) -> None:
    """Let a queue be claimed from again; one that is not paused stays as it is."""
    resumed = with_store(database_url, lambda store: store.queues.resume(queue, actor=actor or user()))
    if in_json:
        print(as_json({"queue": queue, "resumed": resumed}))
    else:
        print(f"queue {queue} is resumed" if resumed else f"queue {queue} is not paused")


def _standing(seen: Queue | None) -> str:
    """What the pause means for what stands in the queue; a misspelt name has nothing in it."""
    if seen is None or not any(getattr(seen, kind) for kind in _COUNTS):
        return "no live job is in it now: check the name if that surprises you"
    return f"jobs that stay unclaimed: {_count(seen, 'ready')}, jobs that are held and go on: {_count(seen, 'held')}"


def _count(queue: Queue, kind: str) -> str:
    return f"{getattr(queue, kind):,}{'+' if kind in queue.at_least else ''}"


def _row(queue: Queue) -> tuple[str, ...]:
    from tenure.wording import span

    age = "" if queue.oldest is None else span(max(0.0, (queue.now - queue.oldest).total_seconds()) * 1000)
    return queue.name, *(_count(queue, kind) for kind in _COUNTS), age, _by(queue.paused) if queue.paused else ""


def _by(paused: Paused) -> str:
    because = f": {paused.reason}" if paused.reason else ""
    return f"by {paused.by} since {paused.at:%Y-%m-%d %H:%M:%S} UTC{because}"


def _paused(paused: Paused | None) -> dict[str, Any] | None:
    return None if paused is None else {"at": paused.at, "by": paused.by, "reason": paused.reason}


def _fields(queue: Queue) -> dict[str, Any]:
    """A queue as JSON shows it."""
    age = None if queue.oldest is None else max(0.0, (queue.now - queue.oldest).total_seconds())
    fields = {**queue._asdict(), "oldest_ready_seconds": age, "at_least": list(queue.at_least)}
    del fields["oldest"], fields["now"]
    return {**fields, "paused": _paused(queue.paused)}
