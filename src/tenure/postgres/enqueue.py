"""Enqueue jobs of any contracts, with idempotency keys or without: one statement, or several in one transaction.

In that transaction come first the generations of datasets (`datasets/pins.py`), then the keys, then the scopes of
unique jobs (`unique_jobs.py`), then the jobs.

`prepare` checks all jobs and converts them to JSON; `insert_prepared` writes them. They are two steps so that one batch
can be prepared while another is written.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import psycopg

from tenure.contracts.declaration import Contract
from tenure.errors import BadInput, IdempotencyConflict, Refused
from tenure.jobs import validation
from tenure.jobs.job import TIMEOUT, NewJob
from tenure.jobs.outcome import Enqueued
from tenure.postgres.bound_contract import BoundContract
from tenure.postgres.datasets.pins import pin_jobs, refusal_of, resolve_uses
from tenure.postgres.engine import EngineUser, only_answer
from tenure.postgres.notify import Overflow, queues_to_wake
from tenure.postgres.statement import Atomic, Plan, Statement, carried, if_any, statement
from tenure.postgres.unique_jobs import UniqueJobs, check_isolation, insert_unique


class JobGroup(NamedTuple):
    """Jobs of one contract and version, with their payloads as JSON; `alike`: they differ in their payloads only."""

    bound: BoundContract
    jobs: Sequence[NewJob]
    payloads: Sequence[str]
    alike: bool = False


def _is_one_statement(groups: Sequence[JobGroup]) -> bool:
    """Whether this is one job that one statement inserts. That statement can also send the wake-up."""
    if len(groups) != 1 or len(groups[0].jobs) != 1:
        return False
    (job,) = groups[0].jobs
    return (
        job.key is None
        and job.unique is None
        and not job.uses_datasets
        and groups[0].bound.contract.wakeup != "pointer"
    )


def enqueue_plan(
    groups: Sequence[JobGroup],
    created_by: str | None,
    notification: str | None = None,
    overflow: Overflow | None = None,
    *,
    in_transaction: bool = False,
) -> Plan[list[list[Enqueued | Refused]]]:
    """Insert jobs, those with a key at most once; one list of answers per group, in order.

    With `notification`, the statement of a single job also sends the NOTIFY: that saves a round trip. When the
    notification queue of PostgreSQL is full, the job is inserted without it, and `overflow` records that.
    `in_transaction`: the caller commits later.
    """
    if notification is not None:
        values = {**_values(groups[0], [0], created_by), "word": notification}
        name = "enqueue_uniform" if groups[0].alike else "enqueue"
        try:
            rows = yield statement(name, values)
        except psycopg.errors.ProgramLimitExceeded:  # nothing was inserted
            rows = yield statement(name, {**values, "word": None})
            if overflow is not None:
                overflow.noted()
        return [[Enqueued(rows[0][0], made=True)]]
    if any(job.reads or job.writes for group in groups if not group.alike for job in group.jobs):
        pinned: list[list[Enqueued | Refused]] = yield Atomic(
            _insert_pinned(groups, created_by, in_transaction=in_transaction)
        )
        return pinned
    plain = [_plain_parts(group) for group in groups]
    wakes = any(group.bound.contract.wakeup == "pointer" for group in groups)
    if not wakes and len(groups) == 1 and len(plain[0]) == 1 and len(plain[0][0]) == len(groups[0].jobs):
        rows = yield _insert_statement(groups[0], plain[0][0], created_by)
        return [[Enqueued(job_id, True) for (job_id,) in rows]]
    answers: list[list[Enqueued | Refused]] = yield Atomic(
        _insert_groups(groups, plain, created_by, in_transaction=in_transaction)
    )
    return answers


def _insert_pinned(
    groups: Sequence[JobGroup], created_by: str | None, *, in_transaction: bool
) -> Plan[list[list[Enqueued | Refused]]]:
    """Insert jobs of which some read or write datasets, and fix the generations of the new ones."""
    resolved = yield from resolve_uses(job for group in groups for job in group.jobs)
    answered: list[dict[int, Enqueued | Refused]] = []
    kept = []
    for group in groups:
        bad: dict[int, Enqueued | Refused] = {}
        for n, job in enumerate(group.jobs):
            if (refusal := refusal_of(job, resolved)) is not None:
                bad[n] = (yield from _find_first(group, job)) or refusal
        answered.append(bad)
        places = [n for n in range(len(group.jobs)) if n not in bad]
        jobs, payloads = [group.jobs[n] for n in places], [group.payloads[n] for n in places]
        kept.append(JobGroup(group.bound, jobs, payloads))
    plain = [_plain_parts(group) for group in kept]
    made = yield from _insert_groups(kept, plain, created_by, in_transaction=in_transaction)
    answers = []
    for group, new, bad in zip(kept, made, answered, strict=True):
        pairs = zip(new, group.jobs, strict=True)
        yield from pin_jobs(
            ((one.job_id, job) for one, job in pairs if isinstance(one, Enqueued) and one.made), resolved
        )
        waiting = iter(new)
        answers.append([bad[n] if n in bad else next(waiting) for n in range(len(group.jobs) + len(bad))])
    return answers


def _find_first(group: JobGroup, job: NewJob) -> Plan[Enqueued | None]:
    """The job that the key of this one stands for: a repeat is answered although its datasets have changed since."""
    if job.key is None:
        return None
    values = {"tenant_id": job.tenant_id, "key": job.key, "hash": _hash(group.bound.contract.name, job)}
    rows = yield statement("find_job_of_key", values)
    return Enqueued(rows[0][0], made=False) if rows else None


def _insert_groups(
    groups: Sequence[JobGroup],
    plain: Sequence[Sequence[Sequence[int]]],
    created_by: str | None,
    *,
    in_transaction: bool,
) -> Plan[list[list[Enqueued | Refused]]]:
    if in_transaction and any(job.unique is not None for group in groups for job in group.jobs):
        yield from check_isolation()
    answers: list[list[Enqueued | Refused]] = [[] for _ in groups]
    # In the order of the contracts, so that two batches lock the scopes of their unique jobs in one order.
    contracts = [(group.bound.contract.name, group.bound.contract.version) for group in groups]
    for g in sorted(range(len(groups)), key=contracts.__getitem__):
        group = groups[g]
        made: dict[int, Enqueued | Refused]
        made, ids = yield from _insert_keyed(group, created_by)
        made |= yield from _insert_unique(group, ids, created_by, in_transaction=in_transaction)
        _answer_repeated_keys(group, made)
        for part in plain[g]:
            rows = yield _insert_statement(group, part, created_by)
            made |= {n: Enqueued(row[0], made=True) for n, row in zip(part, rows, strict=True)}
        if group.bound.contract.wakeup == "pointer":
            new = [
                answer.job_id for n, answer in made.items()
                if isinstance(answer, Enqueued) and (answer.made or may_replace(group.jobs[n]))
            ]  # fmt: skip
            yield statement("insert_wakeups", {"ids": new})
        answers[g] = [made[n] for n in range(len(group.jobs))]
    return answers


def may_replace(job: NewJob) -> bool:
    """Whether this job may have changed the due time of another one."""
    return job.unique is not None and job.unique.on_conflict == "replace"


def _insert_keyed(
    group: JobGroup, created_by: str | None
) -> Plan[tuple[dict[int, Enqueued | Refused], dict[int, int]]]:
    """Insert the keys, and the jobs of new keys; the ids of unique jobs with new keys are the second answer."""
    jobs = group.jobs
    answers: dict[int, Enqueued | Refused] = {}
    unique: dict[int, int] = {}
    # Sorted by key, so that two calls with the same keys cannot deadlock.
    waiting = sorted((n for n, job in enumerate(jobs) if job.key is not None), key=lambda n: _key(jobs[n]))
    hashes = {n: _hash(group.bound.contract.name, jobs[n]) for n in waiting}
    while waiting:
        values = {"keys": [jobs[n].key for n in waiting], "hashes": [hashes[n] for n in waiting]}
        tenants = _column("tenant", [jobs[n].tenant_id for n in waiting])
        rows = yield statement("insert_enqueue_keys", {**values, **tenants})
        uses = {(tenant, key): use for tenant, key, *use in rows}
        new: dict[tuple[str, str], tuple[int, int]] = {}
        for n in waiting:
            verb, first_hash, job_id, made = uses.get(_key(jobs[n]), (None, None, None, None))
            if job_id is None:
                continue  # its first use was committed after this statement began: try again
            if (verb, first_hash) != ("enqueue", hashes[n]):
                answers[n] = IdempotencyConflict(str(jobs[n].key), job_id)
                continue
            first = made and _key(jobs[n]) not in new
            if first:
                new[_key(jobs[n])] = (n, job_id)
            answers[n] = Enqueued(job_id, made=first)
        unique |= {n: job_id for n, job_id in new.values() if jobs[n].unique is not None}
        for part in carried([n for n, _ in new.values() if n not in unique], group.payloads):
            yield insert_with_ids(group, part, [answers[n].job_id for n in part], created_by)
        waiting = [n for n in waiting if n not in answers]
    return answers, unique


def _insert_unique(
    group: JobGroup, ids: dict[int, int], created_by: str | None, *, in_transaction: bool
) -> Plan[dict[int, Enqueued | Refused]]:
    """Insert the unique jobs: those without a key, and those with a new key, whose ids these are."""
    jobs = group.jobs
    places = [n for n, job in enumerate(jobs) if job.unique is not None and (job.key is None or n in ids)]
    if not places:
        return {}

    def insert(part: Sequence[int], new_ids: Sequence[int]) -> Plan[None]:
        yield insert_with_ids(group, part, new_ids, created_by)

    contract = group.bound.contract
    unique = UniqueJobs(contract.name, contract.initial, jobs, group.payloads, created_by, ids, holds=in_transaction)
    answers = yield from insert_unique(unique, places, insert)
    # A key stands for the job in the way from now on. A refused call stores no key.
    moved = [(n, answer.job_id) for n in ids if isinstance(answer := answers[n], Enqueued) and not answer.made]
    if moved:
        keys = {"tenants": [jobs[n].tenant_id for n, _ in moved], "keys": [jobs[n].key for n, _ in moved]}
        yield statement("set_key_jobs", {**keys, "ids": [job_id for _, job_id in moved]})
    for n in ids:
        if isinstance(answers[n], Refused):
            yield statement("delete_key", {"tenant_id": jobs[n].tenant_id, "key": jobs[n].key})
    return answers


def _answer_repeated_keys(group: JobGroup, answers: dict[int, Enqueued | Refused]) -> None:
    """Give a repeat of a key in the same batch the answer of its first use, which a unique job may have changed."""
    jobs = group.jobs
    first: dict[tuple[str, str], int] = {}
    for n in sorted(answers):
        answer = answers[n]
        if jobs[n].unique is None or jobs[n].key is None or isinstance(answer, IdempotencyConflict):
            continue
        leader = first.setdefault(_key(jobs[n]), n)
        if leader != n:
            met = answers[leader]
            answers[n] = Enqueued(met.job_id, made=False) if isinstance(met, Enqueued) else met


def insert_with_ids(
    group: JobGroup,
    part: Sequence[int],
    ids: Sequence[int | None],
    created_by: str | None,
    *,
    nodes: Sequence[int] = (),
) -> Statement:
    """Insert jobs under ids that they were given before, with their keys; `nodes`: of a flow, that they run."""
    given = {"ids": ids, "keys": if_any([group.jobs[n].key for n in part]), "nodes": nodes}
    return statement("enqueue", {**_values(group, part, created_by), **given})


def _key(job: NewJob) -> tuple[str, str]:
    return job.tenant_id, str(job.key)


def _plain_parts(group: JobGroup) -> list[list[int]]:
    """The places of the jobs without a key that are not unique, in parts that fit into one statement each."""
    plain = [n for n, job in enumerate(group.jobs) if job.key is None and job.unique is None]
    return list(carried(plain, group.payloads))


def _insert_statement(group: JobGroup, places: Sequence[int], created_by: str | None) -> Statement:
    return statement("enqueue_uniform" if group.alike else "enqueue", _values(group, places, created_by))


def _values(group: JobGroup, places: Sequence[int], created_by: str | None) -> dict[str, Any]:
    chosen = [group.jobs[places[0]]] if group.alike else [group.jobs[n] for n in places]
    contract = group.bound.contract
    return {
        "contract": contract.name,
        "version": contract.version,
        "state": contract.initial,
        "role": contract.initial_role,
        "counter": contract.counter.initial,
        "created_by": created_by,
        **_column("queue", [job.queue for job in chosen]),
        **_column("type", [job.type for job in chosen]),
        **_column("tenant", [job.tenant_id for job in chosen]),
        **_column("priority", [job.priority for job in chosen]),
        **_column("limit", [job.max_attempts for job in chosen]),
        "default_limit": contract.budget.default,
        "payloads": [group.payloads[n] for n in places],
        "dues": if_any([job.run_at and validation.to_utc("run_at", job.run_at) for job in chosen]),
        "delays": if_any([job.delay_ms for job in chosen]),
        "traces": if_any([job.trace_id for job in chosen]),
        "correlations": if_any([job.correlation_id for job in chosen]),
        "expiries": if_any([job.expires_at and validation.to_utc("expires", job.expires_at) for job in chosen]),
        "expires_ms": if_any([job.expires_ms for job in chosen]),
        "ids": [],
        "keys": [],
        "nodes": [],
    }


def _column(name: str, values: list[Any]) -> dict[str, Any]:
    """The parameters of a column: one value when all values are equal (the usual case), else an array."""
    same = values.count(values[0]) == len(values)
    return {f"every_{name}": values[0] if same else None, f"each_{name}": [] if same else values}


def _hash(contract: str, job: NewJob) -> str:
    """The hash of the work (contract, type, payload without timeout): a repeated key must have the same one."""
    payload = job.payload
    if isinstance(payload, dict):
        payload = {name: value for name, value in payload.items() if name != TIMEOUT}
    return hashlib.sha256(json.dumps([contract, job.type, payload], sort_keys=True).encode()).hexdigest()


class PreparedJobs(NamedTuple):
    """Checked jobs in groups: `places` has the positions in `jobs` of each group's jobs."""

    jobs: Sequence[NewJob]
    places: Sequence[Sequence[int]]
    groups: Sequence[JobGroup]
    created_by: str | None


class EnqueueVerbs(EngineUser):
    """The verbs that enqueue jobs; part of the store."""

    async def enqueue(self, job: NewJob, *, created_by: str | None = None) -> Enqueued:
        """Enqueue a job; with a key, at most once."""
        return only_answer(await self.enqueue_many([job], created_by=created_by))

    async def enqueue_many(self, jobs: Sequence[NewJob], *, created_by: str | None = None) -> list[Enqueued | Refused]:
        """Enqueue jobs, with one statement per contract; one answer per job, in order."""
        return await self.insert_prepared(await self.prepare(jobs, created_by=created_by))

    async def prepare(self, jobs: Sequence[NewJob], *, created_by: str | None = None) -> PreparedJobs:
        """Check jobs and convert them to JSON, in one group per contract and version."""
        if created_by is not None:
            validation.check_name("created_by", created_by)
        alike = validation.differ_only_in_payload(jobs)
        places_by_contract = {(jobs[0].contract, jobs[0].version): range(len(jobs))} if alike else group_places(jobs)
        groups = []
        for (contract, version), places in places_by_contract.items():
            bound = await self._engine.bound_contract(contract, version)
            payloads = check_jobs(bound.contract, jobs, places, self._max_bytes, alike=alike)
            groups.append(JobGroup(bound, jobs if alike else [jobs[n] for n in places], payloads, alike))
        return PreparedJobs(jobs, list(places_by_contract.values()), groups, created_by)

    async def insert_prepared(self, prepared: PreparedJobs) -> list[Enqueued | Refused]:
        """Insert prepared jobs, with one statement per contract; one answer per job, in order."""
        jobs, places_of_groups, groups, created_by = prepared
        notification = self._engine.wakeups.take_immediate(jobs[0]) if _is_one_statement(groups) else None
        overflow = self._engine.wakeups.overflow
        plan = partial(enqueue_plan, groups, created_by, notification, overflow)
        made = await self._engine.run_and_extend_ranges(plan) if groups else []
        answers: list[Any] = [None] * len(jobs)
        for places, part in zip(places_of_groups, made, strict=True):
            if len(part) == len(jobs):
                answers = list(part)
                break
            for n, answer in zip(places, part, strict=True):
                answers[n] = answer
        if (
            notification is None and self._engine.wakeups.on
        ):  # the NOTIFY is sent later, and the call does not wait for it
            some = jobs[:1] if all(group.alike for group in groups) else jobs
            new = (
                job
                for job, answer in zip(some, answers, strict=False)
                if isinstance(answer, Enqueued) and (answer.made or may_replace(job))
            )
            self._engine.wakeups.request(queues_to_wake(new))
        return answers


def group_places(jobs: Sequence[NewJob]) -> dict[tuple[str, str | None], Sequence[int]]:
    """The places of the jobs of each contract and version."""
    groups: dict[tuple[str, str | None], list[int]] = {}
    for n, job in enumerate(jobs):
        if not isinstance(job, NewJob):
            raise BadInput(f"job {n + 1} of {len(jobs)} must be a NewJob; got {job!r}")
        groups.setdefault((job.contract, job.version), []).append(n)
    return dict(groups)


def check_jobs(
    contract: Contract, jobs: Sequence[NewJob], places: Sequence[int], max_bytes: int, *, alike: bool
) -> list[str]:
    """Check jobs; returns their payloads as JSON. Of jobs that are alike, only the first is checked completely."""
    payloads: list[str] = []
    for n in places:
        try:
            if alike and payloads:
                payloads.append(validation.to_json("payload", jobs[n].payload, max_bytes))
            else:
                payloads.append(validation.check_new_job(contract, jobs[n], max_bytes))
        except BadInput as error:
            if len(jobs) == 1:
                raise
            raise type(error)(f"job {n + 1} of {len(jobs)}: {error}") from None
    return payloads
