"""`tenure outbox`: wake-ups that wait to be published to message queues."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tenure.cli.command import Output, Store, command
from tenure.cli.output import table, timestamp
from tenure.jobs.formats import format_duration, to_one_line
from tenure.jobs.why import resume_command

if TYPE_CHECKING:
    from tenure.postgres.outbox import PendingWakeup, PublishedQueue

_QUEUES = ("queue", "due", "oldest", "publisher seen", "address")
_WAKEUPS = ("wake-up", "job", "queue", "publish at (UTC)", "tries", "last error")
#: A publisher refreshes its queues every minute.
_UNSEEN_S = 180.0


@command
async def list_(
    store: Store,
    limit: Annotated[int, typer.Option("--limit", min=1, max=10_000, help="How many wake-ups to show.")] = 100,
) -> Output:
    """List the published queues, and the wake-ups that are not published."""
    queues, wakeups = await store.outbox.queues(), await store.outbox.list(limit)
    data = {"queues": [one._asdict() for one in queues], "wakeups": [one._asdict() for one in wakeups]}
    if not queues:
        return Output(data, notes=["no queue is published. Next: set TENURE_SQS_QUEUES=QUEUE=ADDRESS for upkeep"])
    lines = list(table(_QUEUES, map(_queue_row, queues)))
    if wakeups:
        lines += ["", *table(_WAKEUPS, map(_wakeup_row, wakeups))]
    return Output(data, lines, [*_warnings(queues), *([] if wakeups else ["every wake-up is published"])])


@command
async def retry(
    store: Store,
    ids: Annotated[list[int] | None, typer.Argument(metavar="[WAKE-UP]...", help="Only these wake-ups.")] = None,
    queue: Annotated[str | None, typer.Option("--queue", help="Only wake-ups of this queue.")] = None,
) -> Output:
    """Publish wake-ups now that could not be published, instead of after their wait."""
    retried = await store.outbox.retry(ids or None, queue)
    text = f"{retried:,} wake-ups are due now" if retried else "no wake-up waits because publishing it failed"
    return Output({"retried": retried}, text)


def _warnings(queues: Sequence[PublishedQueue]) -> Iterator[str]:
    for queue in queues:
        if queue.is_paused:
            yield f"queue {queue.queue} is paused. Next: {resume_command(queue.queue)}"
        if queue.unseen_s > _UNSEEN_S:
            yield (
                f"queue {queue.queue}: no publisher for {format_duration(queue.unseen_s * 1000)}. "
                "Next: run tenure serve or tenure upkeep with TENURE_SQS_QUEUES"
            )
        if queue.last_error:
            yield f"queue {queue.queue}: {to_one_line(queue.last_error)}. Next: mend it, then tenure outbox retry"


def _queue_row(queue: PublishedQueue) -> tuple[Any, ...]:
    from tenure.postgres.outbox import MANY_WAKEUPS

    oldest = None if queue.oldest_s is None else format_duration(queue.oldest_s * 1000)
    due = f"{queue.due:,}{'+' if queue.due >= MANY_WAKEUPS else ''}"
    return (
        queue.queue,
        due,
        "paused" if queue.is_paused else oldest,
        f"{format_duration(queue.unseen_s * 1000)} ago",
        queue.url,
    )


def _wakeup_row(wakeup: PendingWakeup) -> tuple[Any, ...]:
    error = wakeup.last_error and to_one_line(wakeup.last_error)
    return wakeup.id, wakeup.job_id, wakeup.queue, timestamp(wakeup.publish_at), wakeup.tries, error
