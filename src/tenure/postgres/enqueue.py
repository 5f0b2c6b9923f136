"""Enqueue: jobs of any contracts, with keys or without, by one statement; where it takes several, all or none."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from tenure import intake
from tenure.errors import IdempotencyConflict, Refused
from tenure.job import NewJob
from tenure.outcome import Enqueued
from tenure.postgres.machine import Machine
from tenure.postgres.statement import Atomic, Plan, Statement, carried, if_any, statement


class Order(NamedTuple):
    """Jobs of one contract and version, with their payloads as JSON; `alike` where these are all they differ in."""

    machine: Machine
    jobs: Sequence[NewJob]
    payloads: Sequence[str]
    alike: bool = False


def is_lone(orders: Sequence[Order]) -> bool:
    """Whether this is one job that one statement makes, which then can carry a wake-up along."""
    if len(orders) != 1 or len(orders[0].jobs) != 1:
        return False
    return orders[0].jobs[0].key is None and orders[0].machine.contract.wakeup != "pointer"


def enqueue(
    orders: Sequence[Order], created_by: str | None, word: str | None = None
) -> Plan[list[list[Enqueued | Refused]]]:
    """Make jobs; those with a key at most once. Answers per order, in the order asked.

    A lone job may carry a word to listeners: it saves the worker that waits for it a round trip.
    """
    if word is not None:
        values = {**_rows(orders[0], [0], created_by), "word": word}
        rows = yield statement("enqueue_alike" if orders[0].alike else "enqueue", values, parts=("lone",))
        return [[Enqueued(rows[0][0], made=True)]]
    plain = [_parts(order) for order in orders]
    wakes = any(order.machine.contract.wakeup == "pointer" for order in orders)
    if not wakes and len(orders) == 1 and len(plain[0]) == 1 and len(plain[0][0]) == len(orders[0].jobs):
        rows = yield _statement(orders[0], plain[0][0], created_by)
        return [[Enqueued(job_id, True) for (job_id,) in rows]]
    answers: list[list[Enqueued | Refused]] = yield Atomic(_all(orders, plain, created_by))
    return answers


def _all(
    orders: Sequence[Order], plain: Sequence[Sequence[Sequence[int]]], created_by: str | None
) -> Plan[list[list[Enqueued | Refused]]]:
    answers = []
    for order, parts in zip(orders, plain, strict=True):
        made: dict[int, Enqueued | Refused] = yield from _keyed(order, created_by)
        for part in parts:
            rows = yield _statement(order, part, created_by)
            made |= {n: Enqueued(row[0], made=True) for n, row in zip(part, rows, strict=True)}
        if order.machine.contract.wakeup == "pointer":
            fresh = [one.job_id for one in made.values() if isinstance(one, Enqueued) and one.made]
            yield statement("wake", {"ids": fresh})
        answers.append([made[n] for n in range(len(order.jobs))])
    return answers


def _keyed(order: Order, created_by: str | None) -> Plan[dict[int, Enqueued | Refused]]:
    """Jobs with a key: the new keys first, then the jobs that they stand for."""
    jobs = order.jobs
    answers: dict[int, Enqueued | Refused] = {}
    # Sorted by key: two callers with the same keys wait for each other in one direction only.
    waiting = sorted((n for n, job in enumerate(jobs) if job.key is not None), key=lambda n: _name(jobs[n]))
    hashes = {n: _body_hash(order.machine, jobs[n]) for n in waiting}
    while waiting:
        values = {"keys": [jobs[n].key for n in waiting], "hashes": [hashes[n] for n in waiting]}
        rows = yield statement("keys", {**values, **_column("tenant", [jobs[n].tenant_id for n in waiting])})
        uses = {(tenant, key): use for tenant, key, *use in rows}
        fresh: dict[tuple[str, str], tuple[int, int]] = {}
        for n in waiting:
            verb, body, job_id, made = uses.get(_name(jobs[n]), (None, None, None, None))
            if job_id is None:
                continue  # its first use was committed after our statement began: ask again
            if (verb, body) != ("enqueue", hashes[n]):
                answers[n] = IdempotencyConflict(str(jobs[n].key), job_id)
                continue
            first = made and _name(jobs[n]) not in fresh
            if first:
                fresh[_name(jobs[n])] = (n, job_id)
            answers[n] = Enqueued(job_id, made=first)
        for part in carried([n for n, _ in fresh.values()], order.payloads):
            ids = [answers[n].job_id for n in part]
            keys = {"ids": ids, "keys": [jobs[n].key for n in part]}
            yield statement("enqueue", {**_rows(order, part, created_by), **keys})
        waiting = [n for n in waiting if n not in answers]
    return answers


def _name(job: NewJob) -> tuple[str, str]:
    return job.tenant_id, str(job.key)


def _parts(order: Order) -> list[list[int]]:
    """The places of the jobs without a key, in parts that one statement carries."""
    return list(carried([n for n, job in enumerate(order.jobs) if job.key is None], order.payloads))


def _statement(order: Order, which: Sequence[int], created_by: str | None) -> Statement:
    return statement("enqueue_alike" if order.alike else "enqueue", _rows(order, which, created_by))


def _rows(order: Order, which: Sequence[int], created_by: str | None) -> dict[str, Any]:
    chosen = [order.jobs[which[0]]] if order.alike else [order.jobs[n] for n in which]
    contract = order.machine.contract
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
        **_column("limit", [job.max_attempts for job in chosen]),
        "default_limit": contract.budget.default,
        "payloads": [order.payloads[n] for n in which],
        "dues": if_any([job.run_at and intake.moment("run_at", job.run_at) for job in chosen]),
        "delays": if_any([job.delay_ms for job in chosen]),
        "traces": if_any([job.trace_id for job in chosen]),
        "correlations": if_any([job.correlation_id for job in chosen]),
        "ids": [],
        "keys": [],
    }


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
