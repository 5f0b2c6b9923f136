"""Every verb of the kernel as a generator of statements: enqueue, claim, start, succeed, fail, reap, promote, settle.

Each takes one job or many, and the number of its statements does not grow with the batch. What can be refused comes
back as a value per job, so that one stale lease does not spoil its neighbours.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import psycopg

from tenure import intake
from tenure.errors import IdempotencyConflict, InvalidTransition, JobNotFound, NotDue, Refused, StaleLease
from tenure.job import UPKEEP, Failure, Held, Job, NewJob
from tenure.outcome import Enqueued, Moved, Outcome
from tenure.postgres.machine import Machine
from tenure.postgres.statement import Atomic, Plan, Row, statement


@dataclass(frozen=True, slots=True)
class Ask:
    """One job in a batch of moves: which one, the holder's proof where the verb needs it, and the facts."""

    id: int
    held: Held | None = None
    verdict: str | None = None
    reason: str | None = None
    error: str | None = None
    result: str | None = None
    delay_ms: int | None = None


def enqueue(
    machine: Machine, jobs: Sequence[NewJob], created_by: str | None, max_bytes: int
) -> Plan[list[Enqueued | Refused]]:
    """Make jobs of one contract; those with a key at most once. Answers in the order asked."""
    checked = [intake.new_job(machine.contract, job, max_bytes) for job in jobs]
    answers: dict[int, Enqueued | Refused] = {}
    plain = [n for n, job in enumerate(jobs) if job.key is None]
    if plain:
        rows = yield statement("enqueue", _new_rows(machine, jobs, checked, plain, created_by))
        answers.update((n, Enqueued(row[0], made=True)) for n, row in zip(plain, rows, strict=True))
    # Sorted by key: two callers with the same keys wait for each other in one direction only.
    keyed = sorted((n for n, job in enumerate(jobs) if job.key is not None), key=lambda n: (jobs[n].tenant_id, jobs[n].key))
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


def claim(
    machine: Machine, queues: Sequence[str], worker: str, limit: int, key: UUID, lease_ms: int, repeatable: bool,
    job: Callable[[Row], Job],
) -> Plan[list[Job]]:  # fmt: skip
    """Take due jobs under one new lease each. With a repeatable key, a second call gets the same jobs."""
    if machine.contract.lease.closed_by_claim:
        yield from reap(machine, limit, queues)
    rows = yield statement(
        "claim",
        {**machine.claim, "queues": list(queues), "limit": limit, "claim_key": key, "owner": worker, "lease_ms": lease_ms},
    )
    won = [job(row) for row in rows if row[1] is not None]
    if won:
        return won
    if rows[0][0]:
        yield statement("forget_claim", {"claim_key": key})
    elif repeatable:
        return (yield from _repeat(machine, key, job))
    return []


def claim_by_id(
    machine: Machine, ids: Sequence[int], worker: str, key: UUID, lease_ms: int, job: Callable[[Row], Job]
) -> Plan[list[Job | Refused]]:
    """Take these jobs, waiting for their rows; each that cannot be had says why."""
    extra = {"claim_key": key, "owner": worker, "lease_ms": lease_ms, "actor": worker}
    outcomes = yield from move(machine, "claim", [Ask(job_id) for job_id in ids], extra)
    if outcomes is None:
        won = yield from _repeat(machine, key, job)
    else:
        won = [job(row) for row in (yield statement("held", {**machine.claim, "claim_key": key}))]
    held: dict[int, Job] = {each.id: each for each in won}
    if outcomes is None:
        return [held.get(job_id) or StaleLease(job_id) for job_id in ids]
    if not held:
        yield statement("forget_claim", {"claim_key": key})
    return [
        outcome if isinstance(outcome, Refused) else held.get(outcome.job_id) or StaleLease(outcome.job_id)
        for outcome in outcomes
    ]


def _repeat(machine: Machine, key: UUID, job: Callable[[Row], Job]) -> Plan[list[Job]]:
    """What an earlier call with this key won and still holds; a stale lease when that is nothing."""
    rows = yield statement("held", {**machine.claim, "claim_key": key})
    if rows:
        return [job(row) for row in rows]
    if (yield statement("claim_used", {"claim_key": key})):
        raise StaleLease(None)
    return []


def finish(machine: Machine, verb: str, asks: Sequence[Ask], actor: str | None = None) -> Plan[list[Outcome]]:
    """Move held jobs; those that stop at a commit point are settled in a transaction of their own."""
    outcomes = yield from move(machine, verb, asks, {"fenced": True, "actor": actor})
    assert outcomes is not None  # only a claim can be a repeat
    return (yield from _settle_after(machine, outcomes))


def failed(machine: Machine, held: Held, failure: Failure, max_bytes: int) -> Ask:
    """A failure as the gate is told of it: the facts, and what the contract makes of such an error."""
    facts = dict(failure.facts())
    verdict = machine.contract.retryable.verdict(facts)
    error = intake.document("error", facts, max_bytes)
    return Ask(held.id, held, verdict=verdict.trigger, reason=verdict.reason, error=error)


def reap(machine: Machine, limit: int, queues: Sequence[str] | None = None) -> Plan[list[Outcome]]:
    """Close leases that ran out: their claim is spent, and the job goes the contract's way."""
    outcomes = yield Atomic(_pick_and_move(machine, "expired", "expire", {"limit": limit, "queues": queues}, machine.lost))
    return (yield from _settle_after(machine, outcomes))


def promote(machine: Machine, limit: int) -> Plan[list[Outcome]]:
    """Make waiting jobs ready whose time has come."""
    outcomes: list[Outcome] = yield Atomic(_pick_and_move(machine, "waiting", "promote", {"limit": limit}))
    return outcomes


def settle(machine: Machine, limit: int, ids: Sequence[int] | None = None) -> Plan[list[Outcome]]:
    """Write the record of jobs that stand at a commit point, then end them: both, or neither."""
    outcomes: list[Outcome] = yield Atomic(_record_and_move(machine, limit, ids))
    return outcomes


def _pick_and_move(
    machine: Machine, picker: str, verb: str, values: Mapping[str, Any], error: str | None = None
) -> Plan[list[Outcome]]:
    rows = yield statement(picker, {**machine.claim, **values})
    if not rows:
        return []
    outcomes = yield from move(machine, verb, [Ask(row[0], error=error) for row in rows], {"actor": UPKEEP})
    return outcomes or []


def _record_and_move(machine: Machine, limit: int, ids: Sequence[int] | None) -> Plan[list[Outcome]]:
    rows = yield statement("settling", {**machine.claim, "limit": limit, "ids": ids})
    if not rows:
        return []
    path = machine.contract.path("settle")
    yield statement("record", {"ids": [row[0] for row in rows], "letter": path.letter if path else None})
    outcomes = yield from move(machine, "settle", [Ask(row[0]) for row in rows], {"actor": UPKEEP})
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
    return replace(outcome, state=end.state, role=end.role) if end and isinstance(outcome, Moved) else outcome


def move(machine: Machine, verb: str, asks: Sequence[Ask], extra: Mapping[str, Any]) -> Plan[list[Outcome] | None]:
    """Send a batch through the gate; one outcome per ask, in order. None: this claim key was used before."""
    outcomes: dict[int, Outcome] = {}
    # One job twice in a batch (a holder and its ghost, coalesced): the second asks after the first was answered.
    for turn in _turns(asks):
        rows = yield statement("move", _move_values(machine, verb, [asks[n] for n in turn], extra))
        for row in rows:
            if row[0] == 0:
                if row[2] == "repeat":
                    return None
                continue
            outcomes[turn[row[0] - 1]] = _outcome(machine, row)
        missing = [n for n in turn if n not in outcomes]
        if missing:
            done = yield statement("finished", {"ids": [asks[n].id for n in missing]})
            ended = {row[0]: row for row in done}
            for n in missing:
                outcomes[n] = _ended(machine, verb, asks[n], ended.get(asks[n].id))
    return [outcomes[n] for n in range(len(asks))]


def _turns(asks: Sequence[Ask]) -> Iterable[list[int]]:
    """The batch in id order, so that all callers lock in one order; a repeated id waits for the next turn."""
    waiting = sorted(range(len(asks)), key=lambda n: asks[n].id)
    while waiting:
        turn, later = [waiting[0]], []
        for n in waiting[1:]:
            (turn if asks[n].id != asks[turn[-1]].id else later).append(n)
        yield turn
        waiting = later


def _move_values(machine: Machine, verb: str, asks: Sequence[Ask], extra: Mapping[str, Any]) -> dict[str, Any]:
    fenced = bool(extra.get("fenced"))
    return {
        "fenced": False,
        **machine.moves[verb],
        **extra,
        "ids": [ask.id for ask in asks],
        "claims": [ask.held.claims if ask.held else None for ask in asks] if fenced else [],
        "tokens": [ask.held.token if ask.held else None for ask in asks] if fenced else [],
        # unnest pads a shorter array with NULL: a verb without these facts sends none.
        "verdicts": _unless_empty([ask.verdict for ask in asks]),
        "reasons": _unless_empty([ask.reason for ask in asks]),
        "errors": _unless_empty([ask.error for ask in asks]),
        "results": _unless_empty([ask.result for ask in asks]),
        "delays": _unless_empty([ask.delay_ms for ask in asks]),
    }


def _unless_empty(values: list[Any]) -> list[Any]:
    return values if any(value is not None for value in values) else []


def _outcome(machine: Machine, row: Row) -> Outcome:
    (_, job_id, refusal, aim, state, contract, version, claims, counter, owner, since, due_at, to_state, to_role,
     wait_ms, at) = row  # fmt: skip
    if refusal is None:
        waits = to_role in ("ready", "waiting")
        return Moved(
            job_id, aim, state, to_state, to_role, claims, counter, at, due_at if waits else None, wait_ms if waits else None
        )
    if refusal == "stale":
        return StaleLease(job_id, held_by=owner, since=since)
    if refusal == "not_due":
        return NotDue(job_id, due_at)
    if refusal == "contract":
        return Refused(job_id, f"job {job_id} is under contract {contract} {version}; ask under that", code="WRONG_CONTRACT")
    return _invalid(machine, job_id, aim, state)


def _ended(machine: Machine, verb: str, ask: Ask, row: Row | None) -> Refused:
    """Why a job that is not live refuses: it is unknown, finished by this very holder, or lost to another."""
    if row is None:
        return JobNotFound(ask.id)
    _, _, _, state, claims, token, _ = row
    if ask.held and (ask.held.claims, ask.held.token) != (claims, token):
        return StaleLease(ask.id)
    return _invalid(machine, ask.id, verb, state)


def _invalid(machine: Machine, job_id: int, trigger: str, state: str) -> InvalidTransition:
    contract = machine.contract
    return InvalidTransition(job_id, trigger, state, contract=contract.name, code=contract.invalid_transition)


def _new_rows(
    machine: Machine, jobs: Sequence[NewJob], checked: Sequence[tuple[str, int]], which: Sequence[int], created_by: str | None
) -> dict[str, Any]:
    chosen = [jobs[n] for n in which]
    contract = machine.contract
    return {
        "contract": contract.name,
        "version": contract.version,
        "state": contract.initial,
        "counter": contract.counter.initial,
        "created_by": created_by,
        "queues": [job.queue for job in chosen],
        "types": [job.type for job in chosen],
        "tenants": [job.tenant_id for job in chosen],
        "priorities": [job.priority for job in chosen],
        "limits": [checked[n][1] for n in which],
        "payloads": [checked[n][0] for n in which],
        "dues": _unless_empty([job.run_at for job in chosen]),
        "delays": _unless_empty([job.delay_ms for job in chosen]),
        "traces": _unless_empty([job.trace_id for job in chosen]),
        "correlations": _unless_empty([job.correlation_id for job in chosen]),
    }


def _body_hash(machine: Machine, job: NewJob) -> str:
    """What must be equal for a repeated key to be the same request."""
    body = {
        "contract": machine.contract.name, "type": job.type, "queue": job.queue, "priority": job.priority,
        "max_attempts": job.max_attempts, "run_at": job.run_at and job.run_at.isoformat(), "delay_ms": job.delay_ms,
        "payload": job.payload,
    }  # fmt: skip
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
