"""Enqueue unique jobs: lock the scope of each, judge its first job under that lock, and insert the jobs that are new.

    lock_unique_jobs    waits for other enqueues of the same scopes
    judge_unique_jobs   a second statement, because the first one's snapshot is from before the wait
    insert              of the jobs that nothing is in the way of, under the ids that the judgement gave them

All of it is in one transaction. Scopes are locked in one order by all callers, after idempotency keys and before jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from tenure.errors import BadInput, DuplicateJob, Refused
from tenure.jobs import validation
from tenure.jobs.job import TIMEOUT, NewJob
from tenure.jobs.outcome import Enqueued
from tenure.jobs.unique import Unique, unique_scope
from tenure.postgres.statement import Plan, carried, statement

#: The most scopes of one statement, whose work grows with the square of their number.
_PART = 500
#: Inserts the jobs at these places under these ids.
Insert = Callable[[Sequence[int], Sequence[int]], Plan[None]]


class _Scope(NamedTuple):
    """What unique jobs of one contract are compared by; also the order in which scopes are locked."""

    tenant: str
    type: str
    hash: str


class UniqueJobs(NamedTuple):
    """Unique jobs of one contract to enqueue."""

    contract: str
    #: The state in which jobs of this contract begin; only there is a job replaced.
    initial: str
    jobs: Sequence[NewJob]
    payloads: Sequence[str]
    created_by: str | None
    #: The ids that new jobs must get, by place: those that idempotency keys were given.
    ids: Mapping[int, int]
    #: Whether the caller's transaction goes on: then a job that waits is not claimed before it ends.
    holds: bool


def insert_unique(new: UniqueJobs, places: Sequence[int], insert: Insert) -> Plan[dict[int, Enqueued | Refused]]:
    """Insert the unique jobs at these places that nothing is in the way of; one answer per place.

    Equal jobs of one batch are judged in their order: the second one meets the first.
    """
    answers: dict[int, Enqueued | Refused] = {}
    scopes = {n: _scope(new.jobs[n]) for n in places}
    waiting = sorted(places, key=lambda n: (scopes[n], n))
    while waiting:
        first: dict[_Scope, int] = {}
        for n in waiting:
            first.setdefault(scopes[n], n)
        leaders = list(first.values())
        for start in range(0, len(leaders), _PART):
            for part in carried(leaders[start : start + _PART], new.payloads):
                answers |= yield from _insert_part(new, part, scopes, insert)
        # What the first one of a scope met is in the way of equal ones too. Only the last replacement counts.
        replacing = {scopes[n]: n for n in waiting if _rule(new.jobs[n]).on_conflict == "replace"}
        later = []
        for n in waiting:
            leader = first[scopes[n]]
            if n == leader:
                continue
            if not _meets_the_same(new, answers[leader], leader, n) or replacing.get(scopes[n]) == n:
                later.append(n)
            else:
                answers[n] = _in_the_way(new.jobs[n], answers[leader].job_id)
        waiting = later
    return answers


def check_isolation() -> Plan[None]:
    """Refuse unique jobs in a caller's transaction that does not see what others committed since it began.

    It would judge by old rows: a job that has ended since would be in the way, and nothing would be made.
    """
    ((level,),) = yield statement("read_isolation", {})
    if level != "read committed":
        raise BadInput(
            f"a unique job cannot be enqueued in a transaction with the isolation level {level}: it does not see what "
            "others committed since it began. Next: use READ COMMITTED here, or enqueue after your commit"
        )


def _insert_part(
    new: UniqueJobs, places: Sequence[int], scopes: Mapping[int, _Scope], insert: Insert
) -> Plan[dict[int, Enqueued | Refused]]:
    jobs = [new.jobs[n] for n in places]
    rules = [_rule(job) for job in jobs]
    replaces = [rule.on_conflict == "replace" for rule in rules]
    locked = {
        "contract": new.contract, "tenants": [scopes[n].tenant for n in places],
        "types": [scopes[n].type for n in places], "scopes": [scopes[n].hash for n in places],
    }  # fmt: skip
    yield statement("lock_unique_jobs", locked)
    values = {
        **locked, "modes": [rule.mode for rule in rules], "periods": [rule.period_ms for rule in rules],
        "replaces": replaces, "holds": new.holds, "initial": new.initial, "created_by": new.created_by,
        "payloads": [new.payloads[n] if each else None for n, each in zip(places, replaces, strict=True)],
        "dues": [job.run_at and validation.to_utc("run_at", job.run_at) for job in jobs],
        "delays": [job.delay_ms for job in jobs], "ids": [new.ids.get(n) for n in places],
        "expiries": [job.expires_at and validation.to_utc("expires", job.expires_at) for job in jobs],
        "expires_ms": [job.expires_ms for job in jobs],
    }  # fmt: skip
    rows = yield statement("judge_unique_jobs", values)
    answers: dict[int, Enqueued | Refused] = {}
    made: dict[int, int] = {}
    for place, job_id, is_new in rows:
        n = places[place - 1]
        answers[n] = Enqueued(job_id, made=True) if is_new else _in_the_way(new.jobs[n], job_id)
        if is_new:
            made[n] = job_id
    if made:
        yield from insert(list(made), list(made.values()))
    return answers


def _in_the_way(job: NewJob, job_id: int | None) -> Enqueued | Refused:
    """The answer to a job that this job is in the way of."""
    if job_id is None:
        raise AssertionError("a judged job has an id")
    return DuplicateJob(job_id, job.type) if _rule(job).on_conflict == "refuse" else Enqueued(job_id, made=False)


def _meets_the_same(new: UniqueJobs, answer: Enqueued | Refused, leader: int, n: int) -> bool:
    """Whether what the first job of a scope met, or the job that it made, is in the way of this one too."""
    rules = _rule(new.jobs[leader]), _rule(new.jobs[n])
    same = (rules[0].mode, rules[0].period_ms) == (rules[1].mode, rules[1].period_ms)
    return same or (isinstance(answer, Enqueued) and answer.made)


def _rule(job: NewJob) -> Unique:
    if job.unique is None:
        raise AssertionError("only unique jobs have a scope")
    return job.unique


def _scope(job: NewJob) -> _Scope:
    return _Scope(job.tenant_id, job.type, unique_scope(_rule(job), job.payload, TIMEOUT))
