"""Every verb of the kernel as a generator of statements: enqueue, claim, start, succeed, fail, reap, promote, settle.

Each takes one job or many, and the number of its statements does not grow with the batch. What can be refused comes
back as a value per job, so that one stale lease does not spoil its neighbours.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import psycopg

from tenure import intake
from tenure.errors import IdempotencyConflict, Refused, StaleLease
from tenure.job import UPKEEP, Failure, Held, Job, NewJob
from tenure.outcome import Enqueued, Moved, Outcome
from tenure.postgres.gate import Batch, move
from tenure.postgres.machine import Machine
from tenure.postgres.statement import Atomic, Plan, Row, statement


def enqueue(
    machine: Machine, jobs: Sequence[NewJob], checked: Sequence[tuple[str, int]], created_by: str | None
) -> Plan[list[Enqueued | Refused]]:
    """Make checked jobs of one contract; those with a key at most once. Answers in the order asked."""
    answers: dict[int, Enqueued | Refused] = {}
    plain = [n for n, job in enumerate(jobs) if job.key is None]
    if plain:
        rows = yield statement("enqueue", _new_rows(machine, jobs, checked, plain, created_by))
        answers.update((n, Enqueued(row[0], made=True)) for n, row in zip(plain, rows, strict=True))
    # Sorted by key: two callers with the same keys wait for each other in one direction only.
    keyed = sorted(
        (n for n, job in enumerate(jobs) if job.key is not None), key=lambda n: (jobs[n].tenant_id, jobs[n].key)
    )
    hashes = {n: _body_hash(machine, jobs[n]) for n in keyed}
    while keyed:
        values = _new_rows(machine, jobs, checked, keyed, created_by)
        values |= {"keys": [jobs[n].key for n in keyed], "hashes": [hashes[n] for n in keyed]}
        rows = yield statement("enqueue_keyed", values)
        unseen = []
        for n, (_, job_id, body, verb, made) in zip(keyed, rows, strict=True):
            if job_id is None and verb is None:
                unseen.append(n)  # its first use was committed, or made by this very batch, after our snapshot
            elif body != hashes[n] or verb not in (None, "enqueue"):
                answers[n] = IdempotencyConflict(str(jobs[n].key), job_id)
            else:
                answers[n] = Enqueued(job_id, made=made)
        keyed = unseen
    return [answers[n] for n in range(len(jobs))]


@dataclass(frozen=True, slots=True)
class Taking:
    """Who claims, for how long, and under which key; a key that the caller gave can be asked with again."""

    key: UUID
    worker: str
    lease_ms: int
    repeatable: bool

    def values(self) -> dict[str, Any]:
        """The parameters that a claim has in common with a claim by id."""
        return {"claim_key": self.key, "owner": self.worker, "lease_ms": self.lease_ms}


def claim(
    versions: Sequence[Machine], queues: Sequence[str], limit: int, taking: Taking, job: Callable[[Row], Job]
) -> Plan[list[Job]]:
    """Take due jobs under one new lease each. With a repeatable key, a second call gets the same jobs."""
    machine = versions[-1]  # all versions claim in the same way
    yield from _close_expired(versions, limit, queues=queues)
    values = {**machine.claim, **taking.values(), "queues": list(queues), "limit": limit}
    rows = yield statement("claim", values)
    won = [job((*row[1:], taking.key)) for row in rows if row[1] is not None]
    if won:
        return won
    if rows[0][0]:
        yield statement("forget_claim", {"claim_key": taking.key})
    elif taking.repeatable:
        return (yield from _repeat(machine, taking.key, job))
    return []


def claim_by_id(
    versions: Sequence[Machine], ids: Sequence[int], taking: Taking, job: Callable[[Row], Job]
) -> Plan[list[Job | Refused]]:
    """Take these jobs, waiting for their rows; each that cannot be had says why."""
    machine = versions[-1]
    yield from _close_expired(versions, len(ids), ids=ids)
    outcomes = yield from move(machine, "claim", Batch(ids), {**taking.values(), "actor": taking.worker})
    if outcomes is None:
        won = {each.id: each for each in (yield from _repeat(machine, taking.key, job))}
        return [won.get(job_id) or StaleLease(job_id) for job_id in ids]
    rows = yield statement("held", {**machine.claim, "claim_key": taking.key})
    won = {each.id: each for each in map(job, rows)}
    if not won:
        yield statement("forget_claim", {"claim_key": taking.key})
    return [
        outcome if isinstance(outcome, Refused) else won.get(outcome.job_id) or StaleLease(outcome.job_id)
        for outcome in outcomes
    ]


def _close_expired(
    versions: Sequence[Machine], limit: int, *, queues: Sequence[str] | None = None, ids: Sequence[int] | None = None
) -> Plan[None]:
    """Where a contract's claim does so, close what expired among the rows it looks at."""
    for machine in versions:
        if machine.contract.lease.closed_by_claim:
            yield from reap(machine, limit, queues=queues, ids=ids)


def _repeat(machine: Machine, key: UUID, job: Callable[[Row], Job]) -> Plan[list[Job]]:
    """What an earlier call with this key won and still holds; a stale lease when that is nothing."""
    rows = yield statement("held", {**machine.claim, "claim_key": key})
    if rows:
        return [job(row) for row in rows]
    if (yield statement("claim_used", {"claim_key": key})):
        raise StaleLease(None)
    return []


def finish(machine: Machine, verb: str, batch: Batch) -> Plan[list[Outcome]]:
    """Move held jobs; those that stop at a commit point are settled in a transaction of their own."""
    outcomes = yield from move(machine, verb, batch, {"fenced": True})
    assert outcomes is not None  # only a claim can be a repeat
    return (yield from _settle_after(machine, outcomes))


def failures(machine: Machine, held: Sequence[Held], failed: Sequence[Failure], max_bytes: int) -> Batch:
    """Failures as the gate is told of them: the facts, and what the contract makes of such errors."""
    facts = [dict(failure.facts()) for failure in failed]
    verdicts = [machine.contract.retryable.verdict(fact) for fact in facts]
    return Batch(
        [one.id for one in held],
        held,
        verdicts=[verdict.trigger for verdict in verdicts],
        reasons=[verdict.reason for verdict in verdicts],
        errors=[intake.document("error", fact, max_bytes) for fact in facts],
    )


def reap(
    machine: Machine, limit: int, *, queues: Sequence[str] | None = None, ids: Sequence[int] | None = None
) -> Plan[list[Outcome]]:
    """Close leases that ran out: their claim is spent, and the job goes the contract's way."""
    which = {"limit": limit, "queues": queues, "ids": ids}
    outcomes = yield from _upkeep(machine, "expired", "expire", which, machine.lost)
    return (yield from _settle_after(machine, outcomes))


def promote(machine: Machine, limit: int) -> Plan[list[Outcome]]:
    """Make waiting jobs ready whose time has come."""
    return (yield from _upkeep(machine, "waiting", "promote", {"limit": limit}))


def settle(machine: Machine, limit: int, ids: Sequence[int] | None = None) -> Plan[list[Outcome]]:
    """Write the record of jobs that stand at a commit point, then end them: both, or neither."""
    pending = yield statement("settling", {**machine.claim, "limit": limit, "ids": ids})
    outcomes: list[Outcome] = []
    if pending:
        try:
            outcomes = yield Atomic(_record_and_move(machine, [row[0] for row in pending]))
        except psycopg.Error:
            if len(pending) == 1:
                raise
            outcomes = yield from _settle_one_by_one(machine, [row[0] for row in pending])
    return outcomes


def _settle_one_by_one(machine: Machine, ids: Sequence[int]) -> Plan[list[Outcome]]:
    """A record that cannot be written must not hold up its neighbours'."""
    outcomes: list[Outcome] = []
    for n, job_id in enumerate(ids):
        try:
            outcomes += yield Atomic(_record_and_move(machine, [job_id]))
        except psycopg.Error:
            if n == len(ids) - 1 and not outcomes:
                raise
    return outcomes


def _upkeep(
    machine: Machine, picker: str, verb: str, values: Mapping[str, Any], error: str | None = None
) -> Plan[list[Outcome]]:
    """Look first: most rounds find nothing, and need no transaction."""
    if not (yield statement(picker, {**machine.claim, **values})):
        return []
    outcomes: list[Outcome] = yield Atomic(_pick_and_move(machine, picker, verb, values, error))
    return outcomes


def _pick_and_move(
    machine: Machine, picker: str, verb: str, values: Mapping[str, Any], error: str | None
) -> Plan[list[Outcome]]:
    """Pick under the rows' locks, skipping what others have, and move what was picked."""
    rows = yield statement(picker, {**machine.claim, **values})
    if not rows:
        return []
    batch = Batch([row[0] for row in rows], errors=None if error is None else [error] * len(rows))
    outcomes = yield from move(machine, verb, batch, {"actor": UPKEEP})
    return outcomes or []


def _record_and_move(machine: Machine, ids: Sequence[int]) -> Plan[list[Outcome]]:
    rows = yield statement("settling", {**machine.claim, "limit": len(ids), "ids": ids})
    if not rows:
        return []
    path = machine.contract.path("settle")
    picked = [row[0] for row in rows]
    yield statement("record", {"ids": picked, "letter": path.letter if path else None})
    outcomes = yield from move(machine, "settle", Batch(picked), {"actor": UPKEEP})
    return outcomes or []


def _settle_after(machine: Machine, outcomes: list[Outcome]) -> Plan[list[Outcome]]:
    """Settle what just reached a commit point. If that fails the job stays there, seen, and upkeep goes on with it."""
    pending = [outcome.job_id for outcome in outcomes if isinstance(outcome, Moved) and outcome.role == "settling"]
    if not pending:
        return outcomes
    try:
        settled = yield from settle(machine, len(pending), pending)
    except psycopg.Error:
        return outcomes
    ends = {outcome.job_id: outcome for outcome in settled if isinstance(outcome, Moved)}
    return [_settled(outcome, ends) for outcome in outcomes]


def _settled(outcome: Outcome, ends: Mapping[int, Moved]) -> Outcome:
    end = ends.get(outcome.job_id) if isinstance(outcome, Moved) else None
    return outcome._replace(state=end.state, role=end.role) if end and isinstance(outcome, Moved) else outcome


def _new_rows(
    machine: Machine,
    jobs: Sequence[NewJob],
    checked: Sequence[tuple[str, int]],
    which: Sequence[int],
    created_by: str | None,
) -> dict[str, Any]:
    chosen = [jobs[n] for n in which]
    contract = machine.contract
    return {
        "contract": contract.name,
        "version": contract.version,
        "state": contract.initial,
        "counter": contract.counter.initial,
        "created_by": created_by,
        **_column("queue", [job.queue for job in chosen]),
        **_column("type", [job.type for job in chosen]),
        **_column("tenant", [job.tenant_id for job in chosen]),
        **_column("priority", [job.priority for job in chosen]),
        **_column("limit", [checked[n][1] for n in which]),
        "payloads": [checked[n][0] for n in which],
        "dues": _if_any([job.run_at and intake.moment("run_at", job.run_at) for job in chosen]),
        "delays": _if_any([job.delay_ms for job in chosen]),
        "traces": _if_any([job.trace_id for job in chosen]),
        "correlations": _if_any([job.correlation_id for job in chosen]),
    }


def _if_any(values: list[Any]) -> list[Any]:
    """A column that is mostly absent: nothing when nobody gave it."""
    return [] if values.count(None) == len(values) else values


def _column(name: str, values: list[Any]) -> dict[str, Any]:
    """A column of a batch: one value when all are equal, as they mostly are, else an array."""
    same = values.count(values[0]) == len(values)
    return {f"every_{name}": values[0] if same else None, f"each_{name}": [] if same else values}


def _body_hash(machine: Machine, job: NewJob) -> str:
    """What must be equal for a repeated key to be the same request."""
    body = {
        "contract": machine.contract.name, "type": job.type, "queue": job.queue, "priority": job.priority,
        "max_attempts": job.max_attempts, "run_at": job.run_at and intake.moment("run_at", job.run_at).isoformat(),
        "delay_ms": job.delay_ms,
        "payload": job.payload,
    }  # fmt: skip
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
