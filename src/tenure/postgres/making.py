"""Make jobs: check them all, write them out, send them, and let listeners know.

In two steps, so that one batch can be prepared while another is made. Every job is checked before any is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from tenure import intake
from tenure.contract import Contract
from tenure.errors import BadInput, Refused
from tenure.job import NewJob
from tenure.outcome import Enqueued
from tenure.postgres.engine import Engine
from tenure.postgres.enqueue import Order, enqueue, is_lone
from tenure.postgres.wake import due


class Prepared(NamedTuple):
    """Jobs that were checked and written out: which go together, and how they are asked for."""

    jobs: Sequence[NewJob]
    places: Sequence[Sequence[int]]
    orders: Sequence[Order]
    created_by: str | None


async def prepare(engine: Engine, jobs: Sequence[NewJob], max_bytes: int, created_by: str | None) -> Prepared:
    """Check jobs and write them out, those of a contract together."""
    if created_by is not None:
        intake.name("created_by", created_by)
    alike = intake.are_alike(jobs)
    groups = {(jobs[0].contract, jobs[0].version): range(len(jobs))} if alike else _groups(jobs)
    orders = []
    for group, places in groups.items():
        machine = await engine.machine(*group)
        payloads = _checked(machine.contract, jobs, places, max_bytes, alike=alike)
        orders.append(Order(machine, jobs if alike else [jobs[n] for n in places], payloads, alike))
    return Prepared(jobs, list(groups.values()), orders, created_by)


async def make(engine: Engine, prepared: Prepared) -> list[Enqueued | Refused]:
    """Make them, a statement for each contract; answers in the order asked."""
    jobs, groups, orders, created_by = prepared
    word = engine.wakeups.along(jobs[0]) if is_lone(orders) else None
    made = await engine.extending(lambda: enqueue(orders, created_by, word)) if orders else []
    answers: list[Any] = [None] * len(jobs)
    for places, part in zip(groups, made, strict=True):
        if len(part) == len(jobs):
            answers = list(part)
            break
        for n, answer in zip(places, part, strict=True):
            answers[n] = answer
    if word is None and engine.wakeups.on:  # listeners hear of what can be claimed; nobody waits for it
        some = jobs[:1] if all(order.alike for order in orders) else jobs
        fresh = (job for job, one in zip(some, answers, strict=False) if isinstance(one, Enqueued) and one.made)
        engine.wakeups.want(due(fresh))
    return answers


def _groups(jobs: Sequence[NewJob]) -> dict[tuple[str, str | None], Sequence[int]]:
    """The places of each contract's jobs."""
    groups: dict[tuple[str, str | None], list[int]] = {}
    for n, job in enumerate(jobs):
        if not isinstance(job, NewJob):
            raise BadInput(f"job {n + 1} of {len(jobs)}: give a NewJob, not {job!r}")
        groups.setdefault((job.contract, job.version), []).append(n)
    return dict(groups)


def _checked(
    contract: Contract, jobs: Sequence[NewJob], places: Sequence[int], max_bytes: int, *, alike: bool
) -> list[str]:
    """The payloads of these jobs as JSON; of jobs that are alike only the first is looked at beyond that."""
    payloads: list[str] = []
    for n in places:
        try:
            if alike and payloads:
                payloads.append(intake.document("payload", jobs[n].payload, max_bytes))
            else:
                payloads.append(intake.new_job(contract, jobs[n], max_bytes))
        except BadInput as error:
            if len(jobs) == 1:
                raise
            raise type(error)(f"job {n + 1} of {len(jobs)}: {error}") from None
    return payloads
