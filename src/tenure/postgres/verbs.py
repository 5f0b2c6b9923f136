"""The verbs of the kernel as generators of statements: claim, start, succeed, fail, reap, promote, settle.

Each takes one job or many, and the number of its statements does not grow with the batch. What can be refused comes
back as a value per job, so that one stale lease does not spoil its neighbours.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import psycopg

from tenure import intake
from tenure.contract import Verdict
from tenure.errors import Busy, Refused, StaleLease
from tenure.job import UPKEEP, Failure, Held, Job
from tenure.marks import HEAVIEST
from tenure.outcome import Moved, Outcome
from tenure.postgres.gate import Batch, move, succeed
from tenure.postgres.machine import Machine
from tenure.postgres.notes import note
from tenure.postgres.statement import Atomic, Plan, Row, statement

_log = logging.getLogger("tenure")


@dataclass(frozen=True, slots=True)
class Taking:
    """Who claims, how many at the most, for how long, and under which key."""

    key: UUID
    worker: str
    limit: int
    lease_ms: int | None
    #: Whether a call with this key may be under way elsewhere: then it is waited for.
    repeatable: bool
    installation: str
    #: Whether the key is the caller's, and another call with it may have won.
    keyed: bool = True

    def job(self, row: Row) -> Job:
        """A row as a job."""
        return Job._make((*row, self.installation))


def claim(
    versions: Sequence[Machine],
    queues: Sequence[str],
    sharers: Sequence[Taking],
    *,
    types: Sequence[str] | None = None,
    tenant: str | None = None,
    since: Mapping[str, Any] | None = None,
) -> Plan[list[list[Job] | Refused]]:
    """Take due jobs under one new lease each, from the marks of their lanes on, and deal them out to who asks for them.

    With a repeatable key, a second call gets the same jobs, or is refused where none of them is held any more.
    """
    machine, first = versions[-1], sharers[0]  # all versions claim in the same way
    limit = sum(taking.limit for taking in sharers)
    yield from _close_expired(versions, limit, queues=queues)
    values = {
        **machine.claim, "queues": list(queues), "limit": limit, "marks": since or {}, "lease_ms": first.lease_ms,
        "types": types, "tenant": tenant, "heaviest": HEAVIEST,
    }  # fmt: skip
    parts = ("reclaiming",) * machine.reclaims + ("typed",) * (types is not None) + of_tenant(tenant)
    won: dict[UUID, list[Job]] = {taking.key: [] for taking in sharers}
    if len(sharers) == 1:
        rows = yield statement(
            "claim", {**values, "claim_key": first.key, "owner": first.worker}, parts=(*parts, "alone")
        )
        won[first.key] = [_claimed(row, machine, first.worker, first.key, first.installation) for row in rows]
    else:
        values |= {
            "claim_keys": [taking.key for taking in sharers],
            "owners": [taking.worker for taking in sharers],
            "wants": [taking.limit for taking in sharers],
        }
        rows = yield statement("claim", values, parts=(*parts, "shared"))
        for *row, key, owner in rows:
            won[key].append(_claimed(row, machine, owner, key, first.installation))
    unsure = [taking for taking in sharers if taking.keyed and not won[taking.key]]
    if not unsure:
        return [won[taking.key] for taking in sharers]
    again = yield from _repeat(machine, unsure)
    return [again.get(taking.key, won[taking.key]) for taking in sharers]


def of_tenant(tenant: str | None) -> tuple[str, ...]:
    """The parts of a statement that looks for one tenant's jobs alone; those of a named one have an index."""
    return () if tenant is None else ("tenanted",) if tenant == "default" else ("tenanted", "apart")


def _claimed(row: Sequence[Any], machine: Machine, owner: str, key: UUID, made_by: str) -> Job:
    """A job that was claimed just now: its start is its last move; it has neither an end nor a result."""
    name = machine.contract.name
    return Job._make(
        (row[0], name, *row[1:13], owner, *row[13:17], row[16], None, *row[17:23], None, *row[23:25], key, made_by)
    )


def claim_by_id(
    versions: Sequence[Machine], ids: Sequence[int], takings: Sequence[Taking], *, skip_locked: bool = False
) -> Plan[list[Job | Refused]]:
    """Take these jobs, each for its taker, waiting for their rows or not; each that cannot be had says why."""
    machine = versions[-1]
    asked = list(dict.fromkeys(zip(ids, takings, strict=True)))
    jobs = [job_id for job_id, _ in asked]
    yield from _close_expired(versions, len(jobs), ids=list(dict.fromkeys(jobs)))
    keys = [taking.key for _, taking in asked]
    batch = Batch(jobs, claim_keys=keys, owners=[taking.worker for _, taking in asked])
    moved = yield from move(machine, "claim", batch, {"lease_ms": takings[0].lease_ms}, skip_locked=skip_locked)
    outcomes = dict(zip(zip(jobs, keys, strict=True), moved, strict=True))
    rows = yield statement("held", {**machine.claim, "claim_keys": keys, "ids": jobs}, parts=("named",))
    won = {(job.id, job.lease_token): job for job in map(takings[0].job, rows)}
    winners = {token for _, token in won}
    # Nothing moved and nothing is held: was the key used before, and what it won lost since?
    unsure = [taking.key for taking in dict.fromkeys(takings) if taking.repeatable and taking.key not in winners]
    used = {key for (key,) in (yield statement("claim_used", {"claim_keys": unsure}))} if unsure else set()
    return [
        won.get(which) or _not_won(which[0], outcomes[which], which[1] in used, skip_locked)
        for which in ((job_id, taking.key) for job_id, taking in zip(ids, takings, strict=True))
    ]


def _not_won(job_id: int, outcome: Outcome, used: bool, skipped: bool) -> Refused:
    """Why a job was not had: what the gate said, unless the key was spent on it before."""
    # Taken, but not held any more; or left alone, because the key was spent already.
    lost = isinstance(outcome, Moved) or (isinstance(outcome, Busy) and not skipped)
    return StaleLease(job_id) if used or lost or not isinstance(outcome, Refused) else outcome


def _close_expired(
    versions: Sequence[Machine], limit: int, *, queues: Sequence[str] | None = None, ids: Sequence[int] | None = None
) -> Plan[None]:
    """Where a contract's claim does so, close what expired among the rows it looks at."""
    for machine in versions:
        if machine.contract.lease.closed_by_claim:
            yield from reap(machine, limit, queues=queues, ids=ids)


def _repeat(machine: Machine, takings: Sequence[Taking]) -> Plan[dict[UUID, list[Job] | Refused]]:
    """What earlier calls with these keys won and still hold; a stale lease where that is nothing."""
    used: set[UUID] = set()
    if waits := [taking.key for taking in takings if taking.repeatable]:
        used |= yield Atomic(_were_used(waits))
    if looks := [taking.key for taking in takings if not taking.repeatable]:
        used |= {key for (key,) in (yield statement("claim_used", {"claim_keys": looks}))}
    if not used:
        return {}
    held: dict[UUID, list[Job] | Refused] = {}
    rows = yield statement("held", {**machine.claim, "claim_keys": list(used)})
    for job in map(takings[0].job, rows):
        if job.lease_token is not None:
            held.setdefault(job.lease_token, []).append(job)  # type: ignore[union-attr]
    return {key: held.get(key, StaleLease(None)) for key in used}


def _were_used(keys: Sequence[UUID]) -> Plan[set[UUID]]:
    """With which of these keys calls have won jobs; waits for those that are under way right now."""
    free = {key for (key,) in (yield statement("spend_claim", {"claim_keys": sorted(keys)}))}
    if free:
        yield statement("forget_claim", {"claim_keys": list(free)})
    return set(keys) - free


def finish(machine: Machine, verb: str, batch: Batch, *, skip_locked: bool = False) -> Plan[list[Outcome]]:
    """Move held jobs; those that stop at a commit point are settled in a transaction of their own."""
    if verb == "succeed" and not skip_locked and verb not in machine.waking:
        outcomes = yield from succeed(machine, batch)
    else:
        outcomes = yield from _move(machine, verb, batch, {"fenced": True}, skip_locked=skip_locked)
    return (yield from settle_after(machine, outcomes))


def report(machine: Machine, verb: str, batch: Batch, events: Sequence[str]) -> Plan[list[Outcome]]:
    """Move a held job, and keep what its holder reports with that: both, or neither."""
    outcomes: list[Outcome] = yield Atomic(_moved_and_emitted(machine, verb, batch, events))
    return (yield from settle_after(machine, outcomes))


def _moved_and_emitted(machine: Machine, verb: str, batch: Batch, events: Sequence[str]) -> Plan[list[Outcome]]:
    (outcome,) = yield from _move_and_wake(machine, verb, batch, {"fenced": True})
    if isinstance(outcome, Moved) and not outcome.compensate and batch.held:
        (held,) = batch.held
        yield statement("emit", {"id": held.id, "claims": held.claims, "bodies": list(events)})
    return [outcome]


def _move(
    machine: Machine, verb: str, batch: Batch, extra: Mapping[str, Any], *, skip_locked: bool = False
) -> Plan[list[Outcome]]:
    """Through the gate; where that may make jobs ready that a worker is to be told of, together with their wake-ups."""
    if verb not in machine.waking:
        return (yield from move(machine, verb, batch, extra, skip_locked=skip_locked))
    outcomes: list[Outcome] = yield Atomic(_move_and_wake(machine, verb, batch, extra, skip_locked=skip_locked))
    return outcomes


def _move_and_wake(
    machine: Machine, verb: str, batch: Batch, extra: Mapping[str, Any], *, skip_locked: bool = False
) -> Plan[list[Outcome]]:
    outcomes = yield from move(machine, verb, batch, extra, skip_locked=skip_locked)
    ready = [outcome.job_id for outcome in outcomes if isinstance(outcome, Moved) and outcome.role == "ready"]
    if ready and verb in machine.waking:
        yield statement("wake", {"ids": ready})
    return outcomes


def compensated(machine: Machine, held: Held, key: str | None) -> Plan[list[Outcome]]:
    """The effects are undone: say so in the log, and let the failure that waited for it end the job."""
    outcomes: list[Outcome] = yield Atomic(_undone_and_moved(machine, held, key))
    return (yield from settle_after(machine, outcomes))


def _undone_and_moved(machine: Machine, held: Held, key: str | None) -> Plan[list[Outcome]]:
    (noted,) = yield from note(machine, "compensated", Batch([held.id], [held]), {})
    if not isinstance(noted, Refused):
        yield statement("compensated", {"id": held.id})
    # What refused the note refuses the move too, and a repeat is answered there.
    batch = Batch([held.id], [held], keys=None if key is None else [key])
    (moved,) = yield from move(machine, "compensated", batch, {"fenced": True})
    if isinstance(moved, Refused) and not isinstance(noted, Refused):
        raise moved  # the lease ran out between the two: neither
    return [moved]


def tell(batch: Batch, machine: Machine, failed: Sequence[Failure], max_bytes: int) -> None:
    """Failures as the gate is told of them: the facts, and what the contract makes of such errors."""
    facts = [dict(failure.facts()) for failure in failed]
    verdicts = [machine.contract.retryable.verdict(fact) for fact in facts]
    batch.verdicts = [verdict.trigger for verdict in verdicts]
    batch.reasons = [_reason(machine, verdict, fact) for verdict, fact in zip(verdicts, facts, strict=True)]
    batch.errors = [intake.document("error", fact, max_bytes) for fact in facts]


def _reason(machine: Machine, verdict: Verdict, fact: Mapping[str, Any]) -> str | None:
    """Why an error sets a job aside: its own code where that is one of the contract's reasons, else the verdict's."""
    given = fact.get("code")
    return given if verdict.reason and given in machine.contract.dead_letters.reasons else verdict.reason


def transition(machine: Machine, ids: Sequence[int], to: str, reason: str | None, actor: str) -> Plan[list[Outcome]]:
    """Make the hop to a state: through the gate, or, from a commit point, by settling. Then: `settle_after`."""
    contract = machine.contract
    if any(path.hops[0].state == to for path in contract.paths if path.trigger == "settle"):
        settled = yield from settle(machine, len(ids), ids, to=to)
        done = {outcome.job_id: outcome for outcome in settled}
        left = [job_id for job_id in ids if job_id not in done]
    else:
        done, left = {}, list(ids)
    if left:
        errors = [_asked_for(to, reason)] * len(left)
        batch = Batch(left, reasons=[reason] * len(left), errors=errors)
        moved = yield from _move(machine, "transition", batch, {"actor": actor, "target": to})
        done |= dict(zip(left, moved, strict=True))
    return [done[job_id] for job_id in ids]


def _asked_for(to: str, reason: str | None) -> str:
    """What a job that is failed by request has as its failure."""
    return json.dumps({"type": "Requested", "message": reason or f"asked to be {to}", "code": "REQUESTED"})


def set_aside(machine: Machine, batch: Batch, actor: str) -> Plan[list[Outcome]]:
    """Dead-letter jobs, by an operator or a policy."""
    return (yield from move(machine, "dead_letter", batch, {"actor": actor}))


def reap(
    machine: Machine,
    limit: int,
    *,
    queues: Sequence[str] | None = None,
    ids: Sequence[int] | None = None,
    until: datetime | None = None,
    jumped: datetime | None = None,
) -> Plan[list[Outcome]]:
    """Close leases that ran out: their claim is spent, and the job goes the contract's way."""
    which = {"limit": limit, "queues": queues, "ids": ids, "until": until, "jumped": jumped}
    outcomes = yield from _upkeep(machine, "expired", "expire", which, machine.lost)
    return (yield from settle_after(machine, outcomes))


def promote(machine: Machine, limit: int) -> Plan[list[Outcome]]:
    """Make waiting jobs ready whose time has come."""
    return (yield from _upkeep(machine, "waiting", "promote", {"limit": limit}))


def settle(
    machine: Machine, limit: int, ids: Sequence[int] | None = None, *, to: str | None = None
) -> Plan[list[Outcome]]:
    """Write the record of jobs that stand at a commit point, then end them: both, or neither."""
    sources = [
        source
        for path in machine.contract.paths
        if path.trigger == "settle" and to in (None, path.hops[0].state)
        for source in path.sources
    ]
    tried: list[int] = []
    outcomes: list[Outcome] = []
    which = {**machine.claim, "limit": limit, "ids": ids, "sources": sources}
    while rows := (yield statement("settling", {**which, "tried": tried or None})):
        page = [row[0] for row in rows]
        outcomes += yield from _settle_page(machine, page)
        tried += page
        if ids is not None or len(page) < limit:
            break
    return outcomes


def _settle_page(machine: Machine, page: Sequence[int]) -> Plan[list[Outcome]]:
    """Settle jobs together; when a record cannot be written, one by one, so that it holds up no neighbour's."""
    try:
        outcomes: list[Outcome] = yield Atomic(_record_and_move(machine, page))
    except psycopg.Error as error:
        if isinstance(error, psycopg.OperationalError):
            raise  # the database went away or could not, which is no refusal of a record
        if len(page) == 1:
            why = f"job {page[0]}: its record could not be written ({str(error).splitlines()[0]})"
            return [Refused(page[0], why, code="NOT_SETTLED")]
        outcomes = []
        for job_id in page:
            outcomes += yield from _settle_page(machine, [job_id])
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
    return (yield from _move_and_wake(machine, verb, batch, {"actor": UPKEEP}))


def _record_and_move(machine: Machine, ids: Sequence[int]) -> Plan[list[Outcome]]:
    rows = yield statement("settling", {**machine.claim, "limit": len(ids), "ids": ids, "sources": None})
    if not rows:
        return []
    path = machine.contract.path("settle")
    picked = [row[0] for row in rows]
    yield statement("record", {"ids": picked, "letter": path.letter if path else None})
    return (yield from move(machine, "settle", Batch(picked), {"actor": UPKEEP}))


def settle_after(machine: Machine, outcomes: list[Outcome]) -> Plan[list[Outcome]]:
    """Settle what just reached a commit point. If that fails the job stays there, seen, and upkeep goes on with it."""
    pending = [outcome.job_id for outcome in outcomes if isinstance(outcome, Moved) and outcome.role == "settling"]
    if not pending:
        return outcomes
    try:
        settled = yield from settle(machine, len(pending), pending)
    except psycopg.Error as error:
        _log.warning("jobs %s stay at their commit point until the next settle: %s", pending, error)
        return outcomes
    ends = {outcome.job_id: outcome.state for outcome in settled if isinstance(outcome, Moved)}
    if len(ends) < len(pending):  # upkeep was faster, or this is a repeat: what became of them?
        ends |= {row[0]: row[3] for row in (yield statement("finished", {"ids": pending}))}
    return [_settled(outcome, ends) for outcome in outcomes]


def _settled(outcome: Outcome, ends: Mapping[int, str]) -> Outcome:
    if not isinstance(outcome, Moved) or outcome.job_id not in ends:
        return outcome
    return outcome._replace(state=ends[outcome.job_id], role="done")
