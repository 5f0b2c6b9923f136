"""`tenure queues`: list queues with their job counts; pause and resume one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tenure.cli.command import Output, Store, command
from tenure.cli.options import Actor, Reason
from tenure.cli.output import table, timestamp
from tenure.jobs.formats import format_duration, to_one_line
from tenure.jobs.unserved import unserved_to_json
from tenure.jobs.why import QueuePause, resume_command, worker_command

if TYPE_CHECKING:
    from tenure.postgres.queues import Queue

_Queue = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue's name.")]
_COUNTS = ("ready", "delayed", "waiting", "held", "quarantined")


@command
async def list_(store: Store) -> Output:
    """List the queues that have live jobs or are paused: job counts, and the age of the oldest ready job."""
    queues = await store.queues.list()
    rows, data = list(map(_row, queues)), {"queues": list(map(_fields, queues))}
    if not rows:
        return Output(data, notes=["no queue has a live job, and none is paused"])
    unserved = [
        to_one_line(f"queue {queue.name}: {each.sentence()}. Next: {worker_command(queue.name)}", 500)
        for queue in queues
        for each in queue.unserved
    ]
    return Output(data, [*table(("queue", *_COUNTS, "oldest ready", "paused"), rows), *unserved], _warnings(queues))


@command
async def pause(store: Store, queue: _Queue, actor: Actor, reason: Reason = None) -> Output:
    """Stop claims from a queue. Held jobs go on; a second pause keeps the time and reason of the first."""
    paused, new = await store.queues.pause(queue, actor=actor, reason=reason)
    found = next((found for found in await store.queues.list() if found.name == queue), None)
    state = f"is paused; {_effect(found)}" if new else f"was paused already: {_pause_text(paused)}"
    data = {"queue": queue, "new": new, "paused": asdict(paused)}
    return Output(data, f"queue {queue} {state}\nNext: {resume_command(queue)}")


@command
async def resume(store: Store, queue: _Queue, actor: Actor) -> Output:
    """Allow claims from a queue again; does nothing when it is not paused."""
    resumed = await store.queues.resume(queue, actor=actor)
    text = f"queue {queue} is {'resumed' if resumed else 'not paused'}"
    return Output({"queue": queue, "resumed": resumed}, text)


def _warnings(queues: Sequence[Queue]) -> Iterator[str]:
    from tenure.postgres.live_workers import MANY_QUEUES

    for queue in queues:
        if queue.paused and (queue.ready or queue.delayed):
            yield f"queue {queue.name} is paused. Next: {resume_command(queue.name)}"
        if queue.quarantined:
            yield f"queue {queue.name}: {_count(queue, 'quarantined')} jobs cannot be logged. Next: tenure verify"
    if len(queues) == MANY_QUEUES:
        yield f"only the first {MANY_QUEUES:,} queues are shown"


def _effect(queue: Queue | None) -> str:
    """The effect of the pause on the jobs in the queue; a misspelt name has none."""
    if queue is None or not any(getattr(queue, kind) for kind in _COUNTS):
        return "no live job is in it now: check the name if that surprises you"
    return f"jobs that stay unclaimed: {_count(queue, 'ready')}, jobs that are held and go on: {_count(queue, 'held')}"


def _count(queue: Queue, kind: str) -> str:
    return f"{getattr(queue, kind):,}{'+' if kind in queue.at_least else ''}"


def _age(queue: Queue) -> float | None:
    """Seconds since the oldest ready job became ready."""
    return None if queue.oldest is None else max(0.0, (queue.now - queue.oldest).total_seconds())


def _row(queue: Queue) -> tuple[Any, ...]:
    age = None if (seconds := _age(queue)) is None else format_duration(seconds * 1000)
    return queue.name, *(_count(queue, kind) for kind in _COUNTS), age, queue.paused and _pause_text(queue.paused)


def _pause_text(paused: QueuePause) -> str:
    reason = f": {paused.reason}" if paused.reason else ""
    return f"by {paused.by} since {timestamp(paused.at)} UTC{reason}"


def _fields(queue: Queue) -> dict[str, Any]:
    """A queue as JSON shows it."""
    fields = queue._asdict() | {
        "oldest_ready_seconds": _age(queue),
        "unserved_types": [unserved_to_json(unserved) for unserved in queue.unserved],
        "paused": queue.paused and asdict(queue.paused),
    }
    del fields["oldest"], fields["now"], fields["unserved"]
    return fields
