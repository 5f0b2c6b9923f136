"""Claim jobs: claim jobs that are due, or jobs by id, for one caller or for several callers at the same time.

Each caller has a claim key, which becomes the lease token of every job that it wins. One statement serves several
callers, and each caller gets the same as from a call of its own: its number of jobs, its name on the rows, its token.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any
from uuid import UUID, uuid4

from tenure.errors import BadInput, Busy, JobNotFound, Refused, StaleLease, WaitingForParents
from tenure.jobs import validation
from tenure.jobs.claim_cursor import MAX_CLAIM_BYTES, ClaimCursor
from tenure.jobs.job import Job
from tenure.jobs.job_type import JobType, claim_numbers
from tenure.jobs.outcome import Moved, Outcome
from tenure.postgres.bound_contract import BoundContract
from tenure.postgres.engine import EngineUser, check_ids, only_answer
from tenure.postgres.lost_lease_warnings import warn_of_closed, warn_of_reclaimed
from tenure.postgres.move import UNKNOWN_VERSION, Batch, move
from tenure.postgres.quarantine import claim_skipping_unloggable, tenant_suffix
from tenure.postgres.statement import Atomic, Plan, Row, statement
from tenure.postgres.upkeep_verbs import cancel_expired, reap_plan

#: The short statement for one caller, where `BoundContract.plain_claim` has its parameters.
PLAIN = "claim_plain"


@dataclass(slots=True, eq=False)
class Claimer:
    """A caller that claims: its name, the maximum number of jobs, and its claim key, if it has one."""

    worker: str
    limit: int = 1
    key: UUID | str | None = None
    #: True: a call with this key may be running now, and the claim waits for it. False: the claim only looks it up.
    repeats: bool = True
    #: The lease token of the jobs that it wins: its key, or a new one.
    token: UUID = field(init=False)

    def __post_init__(self) -> None:
        """Refuse an impossible claim."""
        validation.check_name("worker", self.worker)
        validation.check_integer("limit", self.limit, 1, validation.MAX_BATCH)
        self.token = uuid4() if self.key is None else validation.parse_uuid(self.key)

    @property
    def may_wait(self) -> bool:
        """Whether a call with the same key may be running elsewhere, for which the claim waits."""
        return self.key is not None and self.repeats


class ClaimVerbs(EngineUser):
    """The verbs that claim jobs; part of the store."""

    async def due(
        self,
        contracts: Sequence[str],
        queues: Sequence[str],
        *,
        types: Sequence[str] | None = None,
        tenant: str | None = None,
    ) -> list[str]:
        """The contracts that have a claimable job in these queues now. This is a hint: it locks no row."""
        await self._engine.refresh()
        registry = self._engine.registry
        known = {name: versions for name in dict.fromkeys(contracts) if (versions := registry.versions(name))}
        each_versions = ["\n".join(lanes(versions, (), None)["versions"]) for versions in known.values()]
        values = {**lanes((), queues, types), "contracts": list(known), "tenant": tenant}
        rows = await self._engine.ask("list_contracts_with_due_jobs", **values, each_versions=each_versions)
        return [name for (name,) in rows]

    async def claim(
        self,
        contract: str = "standard",
        queues: Sequence[str] = ("default",),
        *,
        worker: str,
        limit: int = 1,
        claim_key: UUID | str | None = None,
        lease_ms: int | None = None,
        types: Sequence[str] | None = None,
        tenant: str | None = None,
        cursor: ClaimCursor | None = None,
        declared: Sequence[JobType] | None = None,
    ) -> list[Job]:
        """Claim due jobs for one caller, as `claim_for_many` does; a repeated key without held jobs is StaleLease."""
        return only_answer(
            await self.claim_for_many(
                contract, queues, [Claimer(worker, limit, claim_key)], types=types, tenant=tenant, lease_ms=lease_ms,
                cursor=cursor, declared=declared,
            )
        )  # fmt: skip

    async def claim_for_many(
        self,
        contract: str,
        queues: Sequence[str],
        claimers: Sequence[Claimer],
        *,
        types: Sequence[str] | None = None,
        tenant: str | None = None,
        lease_ms: int | None = None,
        cursor: ClaimCursor | None = None,
        declared: Sequence[JobType] | None = None,
    ) -> list[list[Job] | Refused]:
        """Claim due jobs, of these types or of all, in one statement for callers with different keys.

        One answer per caller, in order. A repeated claim key gets the same jobs while they are held, else StaleLease.
        With `cursor` (one caller's), the claim starts at the end of its last claim. `declared`: the types that the
        callers' code knows, with their options. None: the stored options apply.
        """
        if isinstance(queues, str) or not queues:
            raise BadInput(f"queues must be a list with at least one queue name; got {queues!r}")
        queues = list(dict.fromkeys(queues))  # a repeated queue would fill the limit with the same jobs twice
        for queue in queues:
            validation.check_name("queue", queue)
        if tenant is not None:
            validation.check_name("tenant_id", tenant)
        limit = validation.check_integer("limit", sum(one.limit for one in claimers), 1, validation.MAX_BATCH)
        versions = await self._versions(contract)
        bound = versions[-1]  # all versions claim in the same way
        values = {
            **bound.claim, **lanes(versions, queues, types), "limit": limit, "tenant": tenant,
            "lease_ms": validation.check_lease_ms(bound.contract, lease_ms), "heaviest": MAX_CLAIM_BYTES,
            "options": None if declared is None else _options_json(bound, tuple(declared)),
        }  # fmt: skip
        cursor = cursor or ClaimCursor()
        while True:
            positions = cursor.begin()
            values |= {"positions": positions or {}, "seen": sorted(cursor.types) or None}
            answers, met_expired = await self._engine.run(partial(claim_plan, versions, claimers, values))
            jobs = _in_index_order(answers)
            if met_expired and not jobs and any(await self._engine.run(partial(cancel_expired, versions, 1_000))):
                continue  # the expired jobs may have stood before those that are due
            cursor.end(jobs, limit)
            if jobs or not positions or not cursor.found_nothing():
                if not jobs:
                    await self._engine.refresh()
                return answers

    async def claim_by_id(
        self,
        ids: Sequence[int],
        *,
        worker: str,
        contract: str = "standard",
        claim_key: UUID | str | None = None,
        lease_ms: int | None = None,
    ) -> list[Job | Refused]:
        """Claim these jobs for one caller; one job or refusal per id."""
        claimer = Claimer(worker, 1, uuid4() if claim_key is None else claim_key, claim_key is not None)
        return await self.claim_ids_for_many(contract, ids, [claimer] * len(ids), lease_ms=lease_ms)

    async def claim_ids_for_many(
        self,
        contract: str,
        ids: Sequence[int],
        claimers: Sequence[Claimer],
        *,
        lease_ms: int | None = None,
        skip_locked: bool = False,
        heeds_pause: bool = False,
    ) -> list[Job | Refused]:
        """Claim these jobs, each for its claimer; one job or refusal per id.

        `skip_locked`: a locked job is Busy. `heeds_pause`: a job of a paused queue is refused (QUEUE_PAUSED).
        """
        check_ids(ids)
        if not ids:
            return []
        versions = await self._versions(contract)
        lease_ms = validation.check_lease_ms(versions[-1].contract, lease_ms)
        run, registry = self._engine.run, self._engine.registry
        plan = partial(claim_by_id_plan, lease_ms=lease_ms, skip_locked=skip_locked, heeds_pause=heeds_pause)
        answers = await run(lambda: plan(versions, ids, claimers))
        unknown = [
            n for n, one in enumerate(answers) if isinstance(one, Refused) and one.reason_code == UNKNOWN_VERSION
        ]
        if unknown:
            await run(registry.load)
            known = registry.versions(contract)
            if len(known) > len(versions):  # the version was registered since, and this process can read it
                again = await run(lambda: plan(known, [ids[n] for n in unknown], [claimers[n] for n in unknown]))
                for n, answer in zip(unknown, again, strict=True):
                    answers[n] = answer
        self._engine.refusals.note("claim", answers)
        return answers

    async def claim_one_job(
        self,
        worker: str,
        *,
        queues: Sequence[str] = ("default",),
        contract: str = "reliability",
        claim_key: UUID | str | None = None,
        job_id: int | None = None,
    ) -> Job | None:
        """Claim one due job, or this one; None if no job is due. The same worker and key again: the same job."""
        if job_id is None:
            jobs = await self.claim(contract, queues, worker=worker, claim_key=claim_key)
        else:
            by_id = await self.claim_by_id([job_id], worker=worker, contract=contract, claim_key=claim_key)
            jobs = [only_answer(by_id)]
        check_owner(jobs, worker)
        return jobs[0] if jobs else None

    async def _versions(self, contract: str) -> list[BoundContract]:
        """All known versions of a contract, the newest last; refuses an unknown contract."""
        await self._engine.bound_contract(contract)
        return self._engine.registry.versions(contract)


def check_owner(jobs: Iterable[Job], worker: str) -> None:
    """Refuse claimed jobs that another worker holds: it used the same claim key."""
    for job in jobs:
        if job.lease_owner != worker:
            raise StaleLease(job.id, held_by=job.lease_owner, since=job.started_at)


@lru_cache(maxsize=1_000)
def _options_json(bound: BoundContract, options: tuple[JobType, ...]) -> str:
    """The declared options as JSON for the claim statement; cached, because callers repeat the same declarations."""
    return json.dumps(claim_numbers(bound.contract, options))


def _in_index_order(answers: Sequence[list[Job] | Refused]) -> list[Job]:
    """The claimed jobs of all callers in index order: the cursor stores the last position of each lane."""
    if len(answers) == 1:
        return answers[0] if isinstance(answers[0], list) else []
    jobs = [job for answer in answers if isinstance(answer, list) for job in answer]
    return sorted(jobs, key=lambda job: (job.queue, job.priority, job.due_at or job.created_at))


def claim_plan(
    versions: Sequence[BoundContract], claimers: Sequence[Claimer], values: Mapping[str, Any]
) -> Plan[tuple[list[list[Job] | Refused], bool]]:
    """Claim due jobs, each under a new lease, and distribute them to the claimers; one answer per claimer.

    A key that won jobs before gets the same jobs while they are held, and StaleLease when none of them is. Also returns
    whether the statement claimed nothing and met jobs that expired before they began.
    """
    bound, shared = versions[-1], len(claimers) > 1
    yield from _close_expired(versions, values["limit"], queues=values["queues"])
    callers = _shared_callers(claimers) if shared else {"claim_key": claimers[0].token, "owner": claimers[0].worker}
    rows = yield from _claim(bound, {**values, **callers}, shared=shared)
    if met_expired := bool(rows) and rows[0][0] is None:
        rows = []
    won: dict[UUID, list[Job]] = {claimer.token: [] for claimer in claimers}
    if shared:
        for *row, token, owner in rows:
            won[token].append(_claimed_job(row, bound, owner, token))
    else:
        alone = claimers[0]
        won[alone.token] = [_claimed_job(row, bound, alone.worker, alone.token) for row in rows]
    if bound.reclaims:
        lost = {row[0] for row in rows if row[_TRIGGER_COLUMN] == "reclaim"}
        warn_of_reclaimed([job for jobs in won.values() for job in jobs if job.id in lost])
    without_jobs = [claimer for claimer in claimers if claimer.key is not None and not won[claimer.token]]
    earlier = (yield from _earlier_claims(bound, without_jobs)) if without_jobs else {}
    return [earlier.get(claimer.token, won[claimer.token]) for claimer in claimers], met_expired


def _claim(bound: BoundContract, values: Mapping[str, Any], *, shared: bool) -> Plan[list[Row]]:
    """Claim by the short statement where it applies; where it leaves jobs that may be due, by the whole one."""
    if bound.plain_claim is not None and not shared and values["tenant"] is None:
        rows = yield from claim_skipping_unloggable(bound, PLAIN, {**values, **bound.plain_claim})
        if not rows or rows[0][0] is not None:
            return rows
    name = claim_statement(bound, values["tenant"], shared=shared)
    return (yield from claim_skipping_unloggable(bound, name, values))


def _shared_callers(claimers: Sequence[Claimer]) -> dict[str, Any]:
    """Parameters of a claim by several callers."""
    return {
        "claim_keys": [claimer.token for claimer in claimers],
        "owners": [claimer.worker for claimer in claimers],
        "wants": [claimer.limit for claimer in claimers],
    }


def lanes(versions: Sequence[BoundContract], queues: Sequence[str], types: Sequence[str] | None) -> dict[str, Any]:
    """Parameters of the lanes to read: queues in their order; versions and types sorted by bytes for tenure.lanes."""
    return {
        "queues": list(dict.fromkeys(queues)),
        "versions": sorted({bound.contract.version for bound in versions}),
        "types": None if types is None else sorted(set(types)),
    }


def claim_statement(bound: BoundContract, tenant: str | None, *, shared: bool = False) -> str:
    """The variant of claim.sql: for one caller or several, reclaiming or not, by the index of named tenants or not."""
    return f"claim{'_shared' * shared}{'_reclaiming' * bound.reclaims}{tenant_suffix(tenant)}"


#: In the reclaiming variants the trigger follows the columns of the job (`_claimed_job` reads those).
_TRIGGER_COLUMN = 26


def _claimed_job(row: Sequence[Any], bound: BoundContract, owner: str, token: UUID) -> Job:
    """Convert a row of the claim statement: the job's start is its last change; it has no end and no result yet."""
    name, started_at = bound.contract.name, row[16]
    return bound.to_job(
        (row[0], name, *row[1:13], owner, *row[13:17], started_at, None, *row[17:23], None, *row[23:26], token)
    )


def claim_by_id_plan(
    versions: Sequence[BoundContract],
    ids: Sequence[int],
    claimers: Sequence[Claimer],
    *,
    lease_ms: int | None = None,
    skip_locked: bool = False,
    heeds_pause: bool = False,
) -> Plan[list[Job | Refused]]:
    """Claim these jobs, each for its claimer; waits for locked rows unless `skip_locked`. One job or refusal per id."""
    bound = versions[-1]
    pairs = [(job_id, claimer.token) for job_id, claimer in zip(ids, claimers, strict=True)]
    owners: dict[tuple[int, UUID], str] = {}
    for pair, claimer in zip(pairs, claimers, strict=True):
        owners.setdefault(pair, claimer.worker)
    job_ids, tokens = [job_id for job_id, _ in owners], [token for _, token in owners]
    yield from _close_expired(versions, len(job_ids), ids=list(dict.fromkeys(job_ids)))
    batch = Batch(bound, "claim", job_ids, claim_keys=tokens, owners=list(owners.values()))
    readable = lanes(versions, (), None)["versions"]
    batch.extra = {"lease_ms": lease_ms, "versions": readable, "heeds_pause": heeds_pause}
    moved = yield from move(batch, skip_locked=skip_locked)
    outcomes = dict(zip(owners, moved, strict=True))
    won = yield from _held_by_id(bound, tokens, job_ids)
    warn_of_reclaimed([won[pair] for pair, outcome in outcomes.items() if pair in won and _is_reclaim(outcome)])
    winners = {token for _, token in won}
    # A key that holds no job may have been used by an earlier call that lost its jobs since.
    unsure = {claimer.token for claimer in claimers if claimer.may_wait and claimer.token not in winners}
    used = (yield from _used_keys(list(unsure))) if unsure else set()
    if used:  # the earlier call may have won after the read above: then its jobs are held now
        won |= yield from _held_by_id(bound, list(used), job_ids)
    if unknown := [job_id for (job_id, _), outcome in outcomes.items() if isinstance(outcome, JobNotFound)]:
        waiting = {
            row[0]: WaitingForParents(*row) for row in (yield statement("find_unstarted_nodes", {"ids": unknown}))
        }
        outcomes |= {pair: waiting[pair[0]] for pair in outcomes if pair[0] in waiting}
    return [won.get(pair) or _refusal(pair[0], outcomes[pair], pair[1] in used, skip_locked) for pair in pairs]


def _held_by_id(
    bound: BoundContract, tokens: Sequence[UUID], ids: Sequence[int]
) -> Plan[dict[tuple[int, UUID | None], Job]]:
    """The jobs among these that are held under these tokens, by id and token."""
    rows = yield statement("read_held_jobs_by_id", {**bound.claim, "claim_keys": tokens, "ids": ids})
    return {(job.id, job.lease_token): job for job in map(bound.to_job, rows)}


def _is_reclaim(outcome: Outcome) -> bool:
    return isinstance(outcome, Moved) and outcome.trigger == "reclaim"


def _refusal(job_id: int, outcome: Outcome, used: bool, skip_locked: bool) -> Refused:
    """Why a claim by id did not win a job: the refusal of the move, or StaleLease where the key was used before."""
    # The job was claimed but is not held any more; or it was not moved, because its key was used before.
    lost = isinstance(outcome, Moved) or (isinstance(outcome, Busy) and not skip_locked)
    return StaleLease(job_id) if used or lost or not isinstance(outcome, Refused) else outcome


def _close_expired(
    versions: Sequence[BoundContract],
    limit: int,
    *,
    queues: Sequence[str] | None = None,
    ids: Sequence[int] | None = None,
) -> Plan[None]:
    """Close expired leases among the rows to claim, under contracts whose claim does that."""
    for bound in versions:
        if bound.contract.lease.closed_by_claim:
            closed = yield from reap_plan(bound, limit, queues=queues, ids=ids)
            yield from warn_of_closed(bound.contract.name, closed)


def _earlier_claims(bound: BoundContract, claimers: Sequence[Claimer]) -> Plan[dict[UUID, list[Job] | Refused]]:
    """By used key: the jobs that earlier calls with it won and still hold, or StaleLease where there are none."""
    used: set[UUID] = set()
    if awaited := [claimer.token for claimer in claimers if claimer.may_wait]:
        used |= yield Atomic(_wait_for_used_keys(awaited))
    if others := [claimer.token for claimer in claimers if not claimer.may_wait]:
        used |= yield from _used_keys(others)
    if not used:
        return {}
    held: dict[UUID, list[Job] | Refused] = {}
    rows = yield statement("read_held_jobs", {**bound.claim, "claim_keys": list(used)})
    for job in map(bound.to_job, rows):
        if job.lease_token is not None:
            held.setdefault(job.lease_token, []).append(job)  # type: ignore[union-attr]
    return {key: held.get(key, StaleLease(None)) for key in used}


def _wait_for_used_keys(keys: Sequence[UUID]) -> Plan[set[UUID]]:
    """The keys with which calls have won jobs; waits for running calls with these keys."""
    yield statement("lock_claim_keys", {"claim_keys": keys})
    return (yield from _used_keys(keys))


def _used_keys(keys: Sequence[UUID]) -> Plan[set[UUID]]:
    return {key for (key,) in (yield statement("find_used_claim_keys", {"claim_keys": keys}))}
