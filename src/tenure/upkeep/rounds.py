"""One round of upkeep over all registered contracts, with a report of each part."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from tenure.errors import Refused, TenureError
from tenure.jobs.outcome import Outcome
from tenure.postgres.store import Store

_log = logging.getLogger("tenure.upkeep")
_DAY_S = 86_400.0
#: A queue that no publisher has in its settings is forgotten after this many seconds.
UNPUBLISH_AFTER_S = _DAY_S
#: Operations that ended are kept for this many seconds.
OPERATIONS_S = 30 * _DAY_S
#: Seconds for which claims skip a job that could not be logged.
RELEASE_AFTER_S = 300.0


@dataclass(frozen=True, slots=True)
class KeepTimes:
    """Retention times in seconds."""

    payloads_s: float = 7 * _DAY_S
    idempotency_keys_s: float = 30 * _DAY_S
    claim_keys_s: float = 3_600.0
    finished_jobs_s: float = 90 * _DAY_S
    #: Published wake-ups.
    wakeups_s: float = 3_600.0
    schedule_fires_s: float = 30 * _DAY_S
    #: How long due jobs wait whose type no live worker knows; None: for ever.
    unknown_types_s: float | None = None


class Report(NamedTuple):
    """The result of one part: the number of rows or jobs, the contract, and the error that stopped it."""

    part: str
    did: int
    contract: str | None = None
    trouble: str | None = None


async def once(store: Store, keep: KeepTimes | None = None) -> list[Report]:
    """Run every part once. A part that fails (missing rights, a locked table) reports it and stops no other."""
    return [report async for report in _reports(store, keep or KeepTimes())]


async def _reports(store: Store, keep: KeepTimes) -> AsyncIterator[Report]:
    yield await _report("extend", None, store.extend_ranges())
    for contract in await store.contracts():
        yield await _report("settle", contract, store.settle(contract))
        yield await _report("reap", contract, _reap(store, contract))
        yield await _report("promote", contract, store.promote(contract))
    yield await _report("fire", None, fire_due(store))
    yield await _report("advance flows", None, advance_flows(store))
    yield await _report("route events", None, route_events(store))
    yield await _report("finish rollbacks", None, finish_rollbacks(store))
    yield await _report("operate", None, operate(store))
    yield await _report("group letters", None, group_letters(store))
    yield await _report("cancel expired", None, store.cancel_expired())
    yield await _report("fold counts", None, fold_counts(store))
    for part, delete in deletions(store, keep).items():
        yield await _report(part, None, delete())
    yield await _report("workers", None, store.workers.forget())
    yield await _report("release", None, store.watch.release(RELEASE_AFTER_S))
    yield await _report("vacuum", None, store.history.vacuum())


def deletions(store: Store, keep: KeepTimes) -> dict[str, Callable[[], Awaitable[int]]]:
    """The parts that delete by age; each returns the number of rows or ranges."""
    history = store.history
    return {
        "forget payloads": partial(history.forget_payloads, keep.payloads_s),
        "retire": partial(history.retire_ranges, keep.finished_jobs_s),
        "forget flows": partial(history.forget_flows, keep.finished_jobs_s),
        "forget keys": partial(history.forget_keys, keep.idempotency_keys_s),
        "forget unique": history.forget_unique,
        "forget claims": partial(history.forget_claims, keep.claim_keys_s),
        "forget wake-ups": partial(store.outbox.forget, keep.wakeups_s),
        "unpublish": partial(_unpublish, store),
        "forget operations": partial(store.operations.forget, OPERATIONS_S),
        "forget fires": partial(history.forget_fires, keep.schedule_fires_s),
        "retire generations": store.datasets.retire_generations,
        "forget rows": store.datasets.forget_rows,
        "forget dataset events": store.datasets.forget_events,
        "forget counts": store.counts.forget,
        "forget alarms": store.alarms.forget,
    }


async def _unpublish(store: Store) -> int:
    queues = await store.outbox.unpublish(UNPUBLISH_AFTER_S)
    for queue in queues:
        _log.warning(
            "the wake-ups of queue %s are no longer published: for a day no process had it in TENURE_SQS_QUEUES. "
            "Workers find its jobs by polling. Next: set TENURE_SQS_QUEUES for upkeep, if messages are wanted", queue,
        )  # fmt: skip
    return len(queues)


async def _reap(store: Store, contract: str) -> list[Outcome]:
    outcomes = await store.reap(contract)
    await store.warn_of_closed(contract, outcomes)
    return outcomes


async def fire_due(store: Store) -> Report:
    """Make the jobs of all schedules that are due."""
    done = await store.schedules.fire_due()
    return Report("fire", done.jobs, None, "; ".join(done.troubles) or None)


async def advance_flows(store: Store) -> Report:
    """Start the nodes of flows whose parents have ended: those that a process left when it died in between."""
    done = await store.flows.advance()
    return Report("advance flows", done.ends, None, "; ".join(done.troubles) or None)


async def route_events(store: Store) -> Report:
    """Make the jobs of events of datasets, as many rounds as it takes."""
    events, troubles = 0, dict[int, str]()
    while True:
        done = await store.datasets.route()
        events += done.events
        troubles |= done.troubles
        if not done.events:
            trouble = "; ".join(f"subscription {one}: {why}" for one, why in troubles.items())
            return Report("route events", events, None, trouble or None)


async def group_letters(store: Store) -> Report:
    """Count dead letters that were written or decided in the groups of their causes, batch after batch."""
    done = last = await store.groups.count_changes()
    while last:
        last = await store.groups.count_changes()
        done += last
    return Report("group letters", done)


async def fold_counts(store: Store) -> Report:
    """Fold the counts of moves. How many rows these were says nothing, so the report does not."""
    await store.counts.fold()
    return Report("fold counts", 0)


async def operate(store: Store) -> Report:
    """Run batches of operations on many jobs or dead letters."""
    done = await store.operations.work()
    return Report("operate", done.items, None, "; ".join(done.troubles) or None)


async def finish_rollbacks(store: Store) -> Report:
    """Cancel the jobs that wait to write to what was rolled back, where a process died before it had."""
    return Report("finish rollbacks", await store.datasets.finish_rollbacks())


async def _report(part: str, contract: str | None, work: Awaitable[int | list[Outcome] | Report]) -> Report:
    try:
        done = await work
    except Exception as error:
        return Report(part, 0, contract, describe_error(error))
    if isinstance(done, Report):
        return done
    return report_moves(part, contract, done) if isinstance(done, list) else Report(part, int(done))


def report_moves(part: str, contract: str | None, outcomes: Sequence[Outcome]) -> Report:
    """The report of a part that moved jobs."""
    refused = [str(outcome) for outcome in outcomes if isinstance(outcome, Refused)]
    return Report(part, len(outcomes) - len(refused), contract, "; ".join(refused) or None)


def describe_error(error: Exception) -> str:
    """The code and text of an error."""
    return f"{error.code if isinstance(error, TenureError) else type(error).__name__}: {error}"
