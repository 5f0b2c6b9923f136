"""Fires: the jobs of schedules, made exactly once for each fire time by any number of processes.

    find due ─▶ lock the schedule ─▶ decide ─▶ enqueue ─▶ record the fires, and which time is next ─▶ commit
                (skipped if another process has it)

One transaction has the job, its fire and the next fire time, so a crash leaves all of them or none. The database's
clock decides what is due. A job that cannot be enqueued is recorded as a failed fire and stops no other schedule.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import NamedTuple

import psycopg

from tenure.errors import UNREACHABLE, BadInput, ContractError, Refused, ScheduleConflict, ScheduleNotFound, TenureError
from tenure.jobs import validation
from tenure.jobs.formats import code_and_message, format_iso, to_one_line
from tenure.jobs.job import NewJob
from tenure.jobs.outcome import Enqueued
from tenure.postgres.engine import EngineUser
from tenure.postgres.enqueue import JobGroup, enqueue_plan
from tenure.postgres.locked_schedule import LockedSchedule, atomically, lock
from tenure.postgres.notify import queues_to_wake
from tenure.postgres.statement import Atomic, Plan, Row, Statement, statement
from tenure.schedules.decision import MAX_MADE_UP, MissedTimes, decide
from tenure.schedules.status import Fire

_log = logging.getLogger("tenure.upkeep")

#: How many due schedules are read at once.
_PAGE = 1_000
#: A schedule waits at most this long for a lock; the next look tries it again.
_LOCK_WAIT_MS = 200
_LONGEST_REASON = 1_000


@dataclass(slots=True)
class FireReport:
    """A round of firing: how many jobs were made, and the errors of schedules that could not be decided."""

    jobs: int = 0
    troubles: list[str] = field(default_factory=list)


class _Fired(NamedTuple):
    """What was recorded of a schedule, and the jobs that were made."""

    key: str
    fires: Sequence[Fire]
    jobs: Sequence[NewJob]


class ScheduleFireVerbs(EngineUser):
    """The verbs that make the jobs of schedules; part of `store.schedules`."""

    async def fire_due(self) -> FireReport:
        """Fire every schedule that is due; one that another process fires is left to it."""
        report = FireReport()
        after: tuple[datetime | str, int] = ("-infinity", 0)
        while True:
            page = await self._engine.ask("find_due_schedules", after_at=after[0], after_id=after[1], limit=_PAGE)
            for schedule_id, _ in page:
                try:
                    fired = await self._run(partial(self._fire_due, schedule_id))
                except UNREACHABLE:
                    raise
                except Exception as error:  # the error of one schedule does not stop the others
                    report.troubles.append(f"schedule {schedule_id}: {to_one_line(repr(error))}")
                    continue
                report.jobs += len(fired.jobs)
                _log_failures(fired)
            if len(page) < _PAGE:
                return report
            after = (page[-1][1], page[-1][0])

    async def run_now(self, name: str, *, application: str, actor: str, tenant: str | None = None) -> Fire:
        """Make a job of a schedule at once, also while it is paused; its next fire time stays.

        With overlap="skip" it is refused while the job of the last fire waits or runs.
        """
        validation.check_name("actor", actor)
        fired = await self._run(lambda: self._fire_by_hand(application, name, tenant, actor))
        return fired.fires[0]

    async def _run(self, plan: Callable[[], Plan[_Fired]]) -> _Fired:
        """Run a plan in one transaction, then wake the workers of its jobs."""
        fired = await self._engine.run_and_extend_ranges(lambda: atomically(plan()))
        self._engine.wakeups.request(queues_to_wake(fired.jobs))
        return fired

    def _fire_due(self, schedule_id: int) -> Plan[_Fired]:
        """Decide about the due fire times of a schedule, unless another process does."""
        # A caller's open transaction may hold a key or scope of the job: the other schedules do not wait for it.
        yield statement("limit_lock_wait", {"ms": _LOCK_WAIT_MS})
        rows: list[Row] = yield statement("lock_due_schedule", {"id": schedule_id})
        if not rows:
            return _Fired("", (), ())
        locked = LockedSchedule._make(rows[0])
        assert locked.fire_at is not None  # as next_at is not NULL
        schedule, now = locked.schedule, locked.now
        decision = decide(schedule.timing, locked.key, schedule.missed, locked.fire_at, now)
        first = [decision.missed.first] if decision.missed else []
        is_live, done = yield from _read_state(locked, [*first, *decision.fires])
        times = [at for at in decision.fires if at not in done]
        jobs = [schedule.job_at(at) for at in times]
        if is_live and schedule.overlap == "skip":
            reason = f"job {locked.last_job_id} of the fire before still waits or runs"
            fires = [Fire(at, at, now, 1, None, False, "skipped", reason) for at in times]
        else:
            outcomes = yield from self._enqueue(locked, jobs)
            fires = [_fire(at, now, outcome) for at, outcome in zip(times, outcomes, strict=True)]
        made = [job for job, fire in zip(jobs, fires, strict=True) if fire.job_id is not None]
        if decision.missed is not None and decision.missed.first not in done:
            fires.append(_missed(decision.missed, schedule.missed, now))
        yield _record(locked, fires, decision.fire_at, decision.next_at)
        return _Fired(locked.key, fires, made)

    def _fire_by_hand(self, application: str, name: str, tenant: str | None, actor: str) -> Plan[_Fired]:
        """Make a job for a person."""
        locked = yield from lock(application, name)
        if locked is None or tenant not in (None, locked.tenant_id):
            raise ScheduleNotFound(name, application)
        if locked.withdrawn_at is not None:
            raise ScheduleConflict(
                f"schedule {locked.key} is withdrawn: no live worker's code declares it. Next: start a worker that does"
            )
        is_live, _ = yield from _read_state(locked, [])
        schedule = locked.schedule
        if is_live and schedule.overlap == "skip":
            raise ScheduleConflict(
                f"job {locked.last_job_id} of schedule {locked.key} still waits or runs, and its overlap is skip; "
                f"nothing was made. Next: wait for it, or tenure jobs cancel {locked.last_job_id}"
            )
        # Never on a whole second, where a fire time of the schedule may be.
        at = locked.now if locked.now.microsecond else locked.now + timedelta(microseconds=1)
        job = schedule.job_at(at)
        (outcome,) = yield from self._enqueue(locked, [job])
        if isinstance(outcome, str):
            raise BadInput(f"schedule {locked.key}: {outcome}; nothing was made")
        fire = Fire(at, at, locked.now, 1, outcome.job_id, True, "enqueued", f"run by {actor}"[:_LONGEST_REASON])
        yield _record(locked, [fire], locked.fire_at, locked.next_at)
        return _Fired(locked.key, [fire], [job])

    def _enqueue(self, locked: LockedSchedule, jobs: Sequence[NewJob]) -> Plan[Sequence[Enqueued | str]]:
        """Enqueue the jobs of a schedule, which differ in their fire times only; returns the job or refusal of each."""
        if not jobs:
            return []
        job = jobs[0]
        try:
            bound = yield from self._engine.registry.bound_contract(job.contract, job.version)
            payloads = [validation.check_new_job(bound.contract, one, self._max_bytes) for one in jobs]
            group = JobGroup(bound, jobs, payloads)
            # A savepoint: what PostgreSQL refuses here leaves the transaction usable.
            answers: Sequence[Enqueued | TenureError] = yield Atomic(_try_enqueue(group, f"schedule:{locked.name}"))
        except (BadInput, ContractError) as error:
            answers = [error] * len(jobs)
        except (psycopg.errors.SequenceGeneratorLimitExceeded, psycopg.errors.UniqueViolation):
            raise  # more ranges are needed, or another call with the same key came first: run again
        except (psycopg.errors.DataError, psycopg.errors.IntegrityError) as error:
            answers = [BadInput(f"PostgreSQL refused the job: {to_one_line(str(error))}")] * len(jobs)
        return [one if isinstance(one, Enqueued) else _reason(one) for one in answers]


def _try_enqueue(group: JobGroup, created_by: str) -> Plan[Sequence[Enqueued | TenureError]]:
    try:
        (answers,) = yield from enqueue_plan([group], created_by)
    except (BadInput, Refused) as error:
        return [error] * len(group.jobs)
    return answers


def _read_state(locked: LockedSchedule, fire_ats: Sequence[datetime]) -> Plan[tuple[bool, frozenset[datetime]]]:
    """Whether the job of the last fire waits or runs, and which of these times have been fired."""
    values = {"schedule_id": locked.id, "last_job_id": locked.last_job_id, "fire_ats": fire_ats}
    ((is_live, done),) = yield statement("read_fire_state", values)
    return is_live, frozenset(done)


def _record(
    locked: LockedSchedule, fires: Sequence[Fire], fire_at: datetime | None, next_at: datetime | None
) -> Statement:
    made = [fire.job_id for fire in fires if fire.job_id is not None]
    return statement("record_fires", {
        "schedule_id": locked.id, "now": locked.now, "fire_at": fire_at, "next_at": next_at,
        "last_job_id": made[-1] if made else None, "by_hand": any(fire.by_hand for fire in fires),
        "fire_ats": [fire.fire_at for fire in fires], "last_ats": [fire.last_at for fire in fires],
        "times": [fire.times for fire in fires], "job_ids": [fire.job_id for fire in fires],
        "results": [fire.result for fire in fires], "reasons": [fire.reason for fire in fires],
    })  # fmt: skip


def _fire(at: datetime, now: datetime, outcome: Enqueued | str) -> Fire:
    if isinstance(outcome, str):
        return Fire(at, at, now, 1, None, False, "failed", outcome)
    return Fire(at, at, now, 1, outcome.job_id, False, "enqueued", None)


def _missed(missed: MissedTimes, policy: str, now: datetime) -> Fire:
    """The fire times that get no job, as one row."""
    reason = {
        "skip": "missed: decided too late, and missed is skip",
        "once": "missed: one job makes up for all of them, and missed is once",
        "all": f"missed: more than the {MAX_MADE_UP} fire times that are made up for",
    }[policy]
    return Fire(missed.first, missed.last, now, missed.times, None, False, "skipped", reason)


def _reason(error: TenureError) -> str:
    code, message = code_and_message(error)
    return f"{code}: {message}"[:_LONGEST_REASON]


def _log_failures(fired: _Fired) -> None:
    for fire in fired.fires:
        if fire.result == "failed":
            _log.warning(
                "schedule %s: no job for its fire time %s: %s. Next: tenure schedules show %s",
                fired.key, format_iso(fire.fire_at), fire.reason, fired.key,
            )  # fmt: skip
