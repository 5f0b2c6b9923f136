"""`tenure workers`: list the live workers, busy or idle, and those that are gone; show one."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Annotated, Any

import typer

from tenure.cli.command import Output, Store, command, table_output
from tenure.cli.output import card, timestamp
from tenure.errors import BadInput
from tenure.jobs.formats import count_of, format_duration
from tenure.jobs.live_worker import PastWorker, WorkerStatus

_HEAD = (
    "worker", "state", "up since (UTC)", "busy", "holds", "lag", "release", "queues", "where", "application", "types",
)  # fmt: skip
#: What `show` tells about workers that are gone: of the last day.
_DAY_S = 86_400.0
_Name = Annotated[str, typer.Argument(metavar="NAME", help="The worker's name, as the list shows it.")]


@command
async def list_(store: Store) -> Output:
    """List the live workers, busy or idle, every other holder of jobs, and those that went in the last hour."""
    workers, gone = await store.workers.list(), await store.workers.past()
    data = {"workers": [worker.to_json() for worker in workers], "gone": [worker._asdict() for worker in gone]}
    notes = [f"gone in the last hour: {_ending(one)}" for one in gone]
    silent = [worker.worker_id for worker in workers if worker.is_silent]
    if step := next(iter((*silent, *(one.worker_id for one in gone), *(one.worker_id for one in workers))), None):
        notes.append(f"Next: tenure workers show {shlex.quote(step)}")
    if_empty = "no worker is live, and nobody holds a job. Next: tenure worker APP"
    return table_output(data, _HEAD, map(_row, workers), if_empty, notes)


@command
async def show(store: Store, name: _Name) -> Output:
    """Show a worker: whether it lives, what it takes and holds, and when workers of its name stopped or were lost."""
    found = [worker for worker in await store.workers.list() if worker.worker_id == name]
    gone = await store.workers.past(_DAY_S, name=name)
    if not found and not gone:
        raise BadInput(f"there is no worker {name!r}, and none of the last day. Next: tenure workers list")
    data = {"worker": found[0].to_json() if found else None, "gone": [one._asdict() for one in gone]}
    rows = [*(row for worker in found for row in _card_rows(worker)), *(("gone", _ending(one)) for one in gone)]
    return Output(data, card(f"worker {name}", rows, [f"tenure jobs list {shlex.quote(_search(name))}"]))


def _search(name: str) -> str:
    from tenure.jobs.search import Search

    return str(Search(worker=name))


def _row(worker: WorkerStatus) -> tuple[Any, ...]:
    return (
        worker.worker_id, _state(worker), worker.started_at, _busy(worker), worker.held, _lag(worker), worker.release,
        _first(worker.queues), _where(worker), worker.application, _types(worker),
    )  # fmt: skip


def _card_rows(worker: WorkerStatus) -> Iterator[tuple[str, str | None]]:
    yield "state", _state(worker)
    yield "up since", _time(worker.started_at)
    yield "last seen", _time(worker.last_seen_at)
    yield "busy", _busy(worker)
    held = f", the oldest since {_time(worker.since)}" if worker.since else ""
    yield "holds", f"{count_of(worker.held, 'job')}{held}"
    yield "heartbeat", _time(worker.last_heartbeat_at)
    yield "event loop", (lag := _lag(worker)) and f"late by {lag}"
    yield "oldest jobs", ", ".join(map(str, worker.jobs))
    yield "release", worker.release or "unknown: set TENURE_RELEASE, or App(release=…)"
    yield "version", worker.version and f"tenure {worker.version}"
    yield "application", worker.application
    yield "queues", _first(worker.queues)
    yield "types", _types(worker)
    yield "where", _where(worker)


def _state(worker: WorkerStatus) -> str:
    if worker.silent_s is None:
        return "not listed"  # it only holds jobs
    return f"silent {format_duration(worker.silent_s * 1_000)}" if worker.is_silent else "live"


def _ending(one: PastWorker) -> str:
    """What is known of a worker that is gone, in one line."""
    where = f" on {one.host} pid {one.pid}" if one.host else ""
    release = f", release {one.release}" if one.release else ""
    named = f"{one.worker_id} ({_first(one.queues)}{release}){where}"
    if one.ending == "stopped":
        return f"{named} stopped at {_time(one.gone_at)}"
    ran = f", and ran {count_of(one.busy, 'job')} then" if one.busy else ""
    return f"{named} did not stop: last seen at {_time(one.last_seen_at)}{ran}"


def _time(moment: datetime | None) -> str | None:
    return None if moment is None else f"{timestamp(moment)} UTC"


def _busy(worker: WorkerStatus) -> str | None:
    return None if worker.slots is None else f"{worker.busy}/{worker.slots}"


def _lag(worker: WorkerStatus) -> str | None:
    return None if worker.loop_lag_s is None else f"{1_000 * worker.loop_lag_s:.0f} ms"


def _where(worker: WorkerStatus) -> str:
    host = [] if worker.host is None else [f"{worker.host} pid {worker.pid}"]
    return " ".join([*host, *([f"through {worker.through}"] if worker.through else [])])


def _types(worker: WorkerStatus) -> str:
    return "any" if worker.types is None and worker.queues is not None else _first(worker.types)


def _first(names: Sequence[str] | None) -> str:
    """The first four names, and the number of the others."""
    names = names or ()
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return ", ".join(names[:4]) + more
