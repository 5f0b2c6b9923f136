"""What the log of a job tells its holder: whether a call whose answer was lost was done, and who took the job."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import takewhile

from tenure.jobs.event import LogEntry
from tenure.jobs.job import Job
from tenure.jobs.outcome import Moved

#: The triggers of a holder's last hop.
_FINAL_TRIGGERS = ("succeed", "retry", "exhaust", "fatal", "snooze", "cancel", "dead_letter", "compensation_failed")


def is_started(log: Sequence[LogEntry], job: Job) -> bool:
    """Whether the last hop is the start that the holder of this claim has reported."""
    last = [entry for entry in log if entry.hop][-1:]
    return [(one.trigger, one.claims, one.actor) for one in last] == [("start", job.claims, job.lease_owner)]


def find_own_end(log: Sequence[LogEntry], job: Job) -> Moved | None:
    """The move by which the holder of this claim has ended it; None where the log has none."""
    own = [entry for entry in log if entry.claims == job.claims and entry.hop and entry.actor == job.lease_owner]
    last = [entry for entry in own if entry.trigger in _FINAL_TRIGGERS]
    return move_of(last) if last else None


def find_taker(log: Sequence[LogEntry], job: Job) -> LogEntry | None:
    """The last hop of the path that took a job from its holder; None where the log has none."""
    hops = [entry for entry in log if entry.hop and entry.claims >= job.claims]
    taken = [entry for entry in hops if entry.actor != job.lease_owner or entry.claims > job.claims]
    path = takewhile(lambda entry: (entry.trigger, entry.claims) == (taken[0].trigger, taken[0].claims), taken)
    return list(path)[-1] if taken else None


def move_of(hops: Sequence[LogEntry]) -> Moved:
    """The move that these log entries record; the due time of a job that runs again is in their facts."""
    last = hops[-1]
    due = next((entry.facts["due_at"] for entry in hops if entry.facts and entry.facts.get("due_at")), None)
    return Moved(
        last.job_id, last.trigger, hops[0].from_state, last.to_state, "done" if due is None else "ready", last.claims,
        last.counter, last.ts, None if due is None else datetime.fromisoformat(due),
    )  # fmt: skip
