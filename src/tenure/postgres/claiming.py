"""Claiming: take jobs that are due, or jobs by name, for one caller or for several who ask at the same time.

Every caller has a key of its own, which becomes the token of what it wins. Those who ask together cost one statement,
and each gets what it would have got alone: its number, its name on the row, its own token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple
from uuid import UUID, uuid4

from tenure import intake
from tenure.errors import BadInput, Refused
from tenure.job import Job
from tenure.marks import Marks
from tenure.postgres import verbs
from tenure.postgres.engine import Engine, ask
from tenure.postgres.machine import Machine
from tenure.postgres.verbs import Taking


class Stranger(NamedTuple):
    """A due job of a type that its finder does not know."""

    id: int
    type: str
    contract: str
    waited_s: float
    #: Somebody works on another job of this type and queue: one day it is this one's turn.
    is_known: bool


class Working(NamedTuple):
    """A worker that holds jobs: how many, since when, and when it was last heard of."""

    worker_id: str
    held: int
    since: datetime | None
    last_heartbeat_at: datetime | None
    lease_expires_at: datetime | None


@dataclass(frozen=True, slots=True)
class Claimer:
    """Who claims, and how many jobs at the most; with a key, an earlier call may have won some already."""

    worker: str
    limit: int = 1
    key: UUID | str | None = None
    #: Whether a call with this key may be under way right now, and is waited for; else it is only looked for.
    repeats: bool = True


async def claim(
    engine: Engine,
    contract: str,
    queues: Sequence[str],
    claimers: Sequence[Claimer],
    *,
    types: Sequence[str] | None = None,
    tenant: str | None = None,
    lease_ms: int | None = None,
    marks: Marks | None = None,
) -> list[list[Job] | Refused]:
    """Take due jobs for these callers, whose keys differ; what each of them got."""
    if isinstance(queues, str) or not queues:
        raise BadInput(f"name at least one queue, in a list of queues, not {queues!r}")
    for queue in queues:
        intake.name("queue", queue)
    if tenant is not None:
        intake.name("tenant_id", tenant)
    versions, takings = await _takings(engine, contract, claimers, lease_ms)
    limit = intake.whole("limit", sum(taking.limit for taking in takings), 1, intake.MAX_BATCH)
    marks = marks or Marks()
    while True:
        since = marks.begin()
        dealt = await engine.run(
            lambda since=since: verbs.claim(versions, queues, takings, types=types, tenant=tenant, since=since)  # type: ignore[misc]
        )
        jobs = _in_order(dealt)
        marks.end(jobs, limit)
        if jobs or not since or not marks.nothing():
            return dealt


async def claim_by_id(
    engine: Engine,
    contract: str,
    ids: Sequence[int],
    claimers: Sequence[Claimer],
    *,
    lease_ms: int | None = None,
    skip_locked: bool = False,
) -> list[Job | Refused]:
    """Take these jobs, each for its claimer, or say of each why not; one that somebody has locked may be skipped."""
    intake.whole("number of ids", len(ids), 0, intake.MAX_BATCH)
    for job_id in ids:
        intake.whole("id", job_id, 1, intake.MAX_ID)
    if not ids:
        return []
    versions, takings = await _takings(engine, contract, claimers, lease_ms)
    return await engine.run(lambda: verbs.claim_by_id(versions, ids, takings, skip_locked=skip_locked))


async def due(engine: Engine, contracts: Sequence[str], queues: Sequence[str], tenant: str | None = None) -> list[str]:
    """Which of these contracts have something to claim from these queues now; a hint, which locks nothing."""
    values = {"contracts": list(contracts), "queues": list(queues), "tenant": tenant}
    return [name for (name,) in await engine.run(lambda: ask("due", values, parts=verbs.of_tenant(tenant)))]


async def strangers(
    engine: Engine, contracts: Sequence[str], queues: Sequence[str], known: Sequence[str]
) -> list[Stranger]:
    """Jobs of these contracts and queues that are due, of other types than these; locks nothing."""
    values = {"contracts": list(contracts), "queues": list(queues), "known": list(known)}
    rows = await engine.run(lambda: ask("strangers", values))
    return [Stranger(job_id, kind, contract, float(waited), known) for job_id, kind, contract, waited, known in rows]


def _in_order(dealt: Sequence[list[Job] | Refused]) -> list[Job]:
    """What was taken, as it stands in the index: marks are set at the ends of lanes."""
    if len(dealt) == 1:
        return dealt[0] if isinstance(dealt[0], list) else []
    jobs = [job for part in dealt if isinstance(part, list) for job in part]
    return sorted(jobs, key=lambda job: (job.queue, job.priority, job.due_at or job.created_at))


async def _takings(
    engine: Engine, contract: str, claimers: Sequence[Claimer], lease_ms: int | None
) -> tuple[list[Machine], list[Taking]]:
    machine = await engine.machine(contract)
    lease_ms = intake.lease_ms(machine.contract, lease_ms)
    takings = [
        Taking(
            key=uuid4() if claimer.key is None else intake.token(claimer.key),
            worker=intake.name("worker", claimer.worker),
            limit=intake.whole("limit", claimer.limit, 1, intake.MAX_BATCH),
            lease_ms=lease_ms,
            repeatable=claimer.key is not None and claimer.repeats,
            installation=engine.registry.installation,
            keyed=claimer.key is not None,
        )
        for claimer in claimers
    ]
    return engine.registry.versions(contract), takings
