"""Verbs of operators: cancel, transition, change queue, dead-letter, requeue. With a key, a repeat is safe."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast
from uuid import uuid4

from tenure.errors import BadInput, JobNotFound, Refused, StaleLease, WaitingForParents
from tenure.jobs import validation
from tenure.jobs.job import Failure, Job
from tenure.jobs.operation import PayloadChanges
from tenure.jobs.outcome import Moved, Noted, Outcome, QueueChange
from tenure.jobs.wakeup import JOB_CHANGED
from tenure.postgres.bound_contract import BoundContract
from tenure.postgres.claim import ClaimVerbs
from tenure.postgres.dead_letters import DeadLetters
from tenure.postgres.engine import check_ids, only_answer
from tenure.postgres.flow_advance import advance_after
from tenure.postgres.idempotency import IdempotentCall, idempotent_call, run_once
from tenure.postgres.move import Batch, explain_missing, id_ordered_parts, invalid, move
from tenure.postgres.notes import note
from tenure.postgres.ranges import read_by_range
from tenure.postgres.reruns import EndedJob, PayloadEdit, run_again
from tenure.postgres.settle import settle_after, settle_plan
from tenure.postgres.statement import Atomic, Plan, Row, statement

#: A plan for some jobs of one contract version.
PartPlan = Callable[[BoundContract, Sequence[int]], Plan[list[Any]]]


class OperatorVerbs(ClaimVerbs):
    """The verbs of operators; part of the store. A key may be used with one job only."""

    async def cancel(
        self,
        job_id: int,
        *,
        mode: str = "soft",
        reason: str | None = None,
        actor: str = "unknown",
        key: str | None = None,
    ) -> Moved | Noted:
        """Cancel a job at once; with mode soft, a started job gets a cancel request for its holder instead."""
        answers = await self.cancel_many([job_id], mode=mode, reason=reason, actor=actor, key=key)
        return cast("Moved | Noted", only_answer(answers))

    async def cancel_many(
        self,
        ids: Sequence[int],
        *,
        mode: str = "soft",
        reason: str | None = None,
        actor: str = "unknown",
        key: str | None = None,
    ) -> list[Moved | Noted | Refused]:
        """Cancel jobs of any contracts."""
        if mode not in ("soft", "hard"):
            raise BadInput(f"mode must be soft or hard; got {mode!r}")
        _check_actor(actor, reason)

        def check(bound: BoundContract, job_id: int) -> Refused | None:
            modes = bound.contract.cancel_modes
            if not modes or mode in modes:
                return None
            why = f"contract {bound.contract.name} cancels {' and '.join(modes)} only, not {mode}"
            return Refused(job_id, why, code="CANCEL_MODE")

        plan = partial(cancel_plan, soft=mode == "soft", reason=reason, actor=actor)
        return await self._operate("cancel", ids, key, (mode, reason, actor), plan, check)

    async def cancel_waiting(self, ids: Sequence[int], *, reason: str, actor: str = "unknown") -> list[Moved | Refused]:
        """Cancel jobs of any contracts that wait; one that is held is refused, and is not asked to stop."""
        _check_actor(actor, reason)

        def plan(bound: BoundContract, part: Sequence[int]) -> Plan[list[Outcome]]:
            extra = {"actor": actor, "soft": True}
            return (yield from move(Batch(bound, "cancel", part, reasons=[reason] * len(part), extra=extra)))

        return await self._operate("cancel", ids, None, (), plan)

    async def change_queue(
        self, ids: Sequence[int], queue: str, *, actor: str, reason: str | None = None, key: str | None = None
    ) -> list[QueueChange | Refused]:
        """Move jobs that are not held to another queue, each with a log row."""
        _check_actor(actor, reason)
        validation.check_name("queue", queue)
        plan = partial(change_queue_plan, queue=queue, reason=reason, actor=actor)
        former_queues = await self._operate("change_queue", ids, key, (queue, reason, actor), plan)
        answers = [
            before if isinstance(before, Refused) else QueueChange(job_id, queue, before)
            for job_id, before in zip(ids, former_queues, strict=True)
        ]
        if any(isinstance(one, QueueChange) and one.changed for one in answers):
            self._engine.wakeups.request([("", queue)])
        return answers

    async def retry_now(
        self, ids: Sequence[int], *, actor: str, reason: str | None = None, key: str | None = None
    ) -> list[int | Refused]:
        """Let jobs that wait for their retry run now, each with a log row; refused where the contract forbids it."""
        _check_actor(actor, reason)
        plan = partial(retry_now_plan, reason=reason, actor=actor)
        answers = await self._operate("retry_now", ids, key, (reason, actor), plan)
        if any(isinstance(one, int) for one in answers):
            self._engine.wakeups.request([("", "")])
        return answers

    async def dead_letter(
        self,
        job_id: int,
        *,
        reason_code: str,
        stage: str | None = None,
        message: str = "",
        actor: str = "unknown",
        key: str | None = None,
    ) -> Moved:
        """Move a job to the dead letters, by an operator or a policy, with a reason code."""
        _check_actor(actor)
        validation.check_name("reason_code", reason_code)
        failure = Failure(message or reason_code, type="DeadLettered", code=reason_code, stage=stage)
        error = validation.to_json("error", dict(failure.facts()), self._max_bytes)

        def check(bound: BoundContract, _: int) -> None:
            letters = bound.contract.dead_letters
            for name, value, known in (("reason_code", reason_code, letters.reasons), ("stage", stage, letters.stages)):
                if known and value is not None and value not in known:
                    raise BadInput(f"{name} must be one of {', '.join(known)}; got {value!r}")

        def plan(bound: BoundContract, ids: Sequence[int]) -> Plan[list[Outcome]]:
            batch = Batch(bound, "dead_letter", ids, reasons=[reason_code], errors=[error], extra={"actor": actor})
            return (yield from move(batch))

        body = (reason_code, stage, message, actor)
        return cast("Moved", only_answer(await self._operate("dead_letter", [job_id], key, body, plan, check)))

    async def transition(
        self, job_id: int, to: str, *, reason: str | None = None, actor: str = "unknown", key: str | None = None
    ) -> Moved | Job:
        """Move a job to a state by the contract's own path and guards; refuses if the contract has no such path."""
        _check_actor(actor, reason)
        parts = await self._by_contract([job_id])
        if not parts:
            raise JobNotFound(job_id)
        ((bound, tenant, ids),) = parts
        contract = bound.contract
        if to not in contract.states:
            leads = [path.end.state for path in contract.paths if path.trigger == to]
            hint = f". Next: name the state that {to} leads to: {leads[0]}" if leads else ""
            named = f"contract {contract.name} {contract.version}"
            raise BadInput(f"{named} has no state {to!r}; it has {', '.join(contract.states)}{hint}")
        call = idempotent_call(tenant, key, "transition", job_id, to, reason, actor)
        if any(path.end.state == to for path in contract.paths if path.trigger == "claim"):
            return only_answer([await self._claim_once(call, contract.name, job_id, actor)])
        plan = partial(_transition, to=to, reason=reason, actor=actor)
        answers = await self._engine.run(lambda: _run_once_and_settle(call, bound, ids, plan))
        await advance_after(self._engine, answers, self._max_bytes)
        self._engine.refusals.note("transition", answers)
        moved = cast("Moved", only_answer(answers))
        if moved.role == "ready":
            self._engine.wakeups.request([(contract.name, "")])
        return moved

    async def make_due_now(self, job_id: int) -> None:
        """Make a ready job due now; its delay or retry time is dropped."""
        await self._engine.ask("make_due_now", id=validation.check_integer("id", job_id, 1, validation.MAX_ID))

    async def requeue(
        self,
        job_id: int,
        *,
        actor: str,
        key: str | None = None,
        payload: Any = None,
        changes: PayloadChanges | None = None,
        again: bool = False,
    ) -> int:
        """Run a finished job again as a new job that is linked to it; returns the id of the new job.

        The new job is made from the dead letter of the finished one if it has one. It gets the payload as it was, or
        `payload`, or with the values of `changes` at their paths: `[(["user", "id"], 7)]`. A job is run again once:
        with `again` the newest job that ran it again is run again, when it has finished.
        """
        _check_actor(actor)
        validation.check_integer("id", job_id, 1, validation.MAX_ID)
        letters = DeadLetters(self._engine, self._max_bytes)
        edit = PayloadEdit(payload, changes)
        if (letter := await letters.find(job_id)) is not None:
            ended = EndedJob(job_id, letter.contract, letter.tenant_id, letter.id)
        elif found := await self._engine.ask("read_job_contracts", ids=[job_id]):
            ((_, contract, _, tenant, _),) = found
            ended = EndedJob(job_id, contract, tenant, None)
        else:
            raise JobNotFound(job_id)
        return await run_again(self._engine, ended, actor, key, edit, self._max_bytes, again=again)

    async def reruns(self, job_id: int) -> tuple[int | None, int | None]:
        """The id of the job that reruns this one, and the id of the job that this one reruns."""
        validation.check_integer("id", job_id, 1, validation.MAX_ID)
        ((again, origin),) = await self._engine.ask("read_reruns", id=job_id)
        return again, origin

    async def _operate(
        self,
        verb: str,
        ids: Sequence[int],
        key: str | None,
        body: tuple[Any, ...],
        plan: PartPlan,
        check: Callable[[BoundContract, int], Refused | None] = lambda _bound, _job_id: None,
    ) -> list[Any]:
        """Run a plan for the jobs of each contract version, at most once per key; one answer per job, in order.

        `check` refuses, or raises, what the contract never allows, whatever the key.
        """
        if key is not None and len(set(ids)) > 1:
            raise BadInput("a key is for one job only")
        answers: dict[int, Any] = {job_id: JobNotFound(job_id) for job_id in ids}
        for bound, tenant, part in await self._by_contract(ids):
            if any(refused := [check(bound, job_id) for job_id in part]):
                answers |= dict(zip(part, refused, strict=True))
                continue
            call = idempotent_call(tenant, key, verb, part[0], *body)
            plan_part = partial(_run_once_and_settle, call, bound, part, plan)
            done = dict(zip(part, await self._engine.run(plan_part), strict=True))
            answers |= done
            await advance_after(self._engine, done.values(), self._max_bytes)
            if verb == "cancel":  # at once: the next contract's jobs may be locked
                moved = [job_id for job_id, one in done.items() if not isinstance(one, Refused)]
                self._engine.wakeups.request((JOB_CHANGED, str(job_id)) for job_id in moved)
        if unknown := [job_id for job_id, one in answers.items() if isinstance(one, JobNotFound)]:
            rows = await self._engine.ask("find_unstarted_nodes", ids=unknown)
            answers |= {row[0]: WaitingForParents(*row) for row in rows}
        self._engine.refusals.note(verb, answers.values())
        return [answers[job_id] for job_id in ids]

    async def _by_contract(self, ids: Sequence[int]) -> list[tuple[BoundContract, str, list[int]]]:
        """Group jobs by contract version and tenant, which a job never changes; leaves out unknown ids."""
        check_ids(ids)
        groups: dict[tuple[str, str, str], list[int]] = {}
        found = await self._engine.run(lambda: read_by_range("read_job_contracts", ids))
        for job_id, contract, version, tenant, _ in found:
            groups.setdefault((contract, version, tenant), []).append(job_id)
        return [
            (await self._engine.bound_contract(contract, version), tenant, part)
            for (contract, version, tenant), part in groups.items()
        ]

    async def _claim_once(self, call: IdempotentCall | None, contract: str, job_id: int, actor: str) -> Job | Refused:
        """Claim a job for an operator. The key stores a claim key, so that a repeat claims with the same one."""

        def make_claim_key() -> Plan[list[str]]:
            yield from ()
            return [str(uuid4())]

        claim_key = None
        if call is not None:
            (claim_key,) = await self._engine.run(lambda: run_once(call, make_claim_key))
            if isinstance(claim_key, Refused):
                return claim_key
        (claimed,) = await self.claim_by_id([job_id], worker=actor, contract=contract, claim_key=claim_key)
        if call is not None and isinstance(claimed, Refused) and not isinstance(claimed, StaleLease):
            await self._engine.ask("delete_key", tenant_id=call.tenant_id, key=call.key)
        return claimed


def _run_once_and_settle(
    call: IdempotentCall | None, bound: BoundContract, ids: Sequence[int], plan: PartPlan
) -> Plan[list[Any]]:
    """Run a plan once per key; then settle the jobs that reached a commit point, in another transaction."""
    outcomes = yield from run_once(call, partial(plan, bound, ids))
    return (yield from settle_after(bound, outcomes))


def cancel_plan(
    bound: BoundContract, ids: Sequence[int], *, soft: bool, reason: str | None, actor: str
) -> Plan[list[Any]]:
    """Cancel jobs at once; with `soft`, a job that runs or has effects gets a request for its holder instead."""
    answers: dict[int, Any] = {}
    waiting = list(dict.fromkeys(ids))
    # A job may be claimed, or become ready, between the two statements: try again a job that neither has changed.
    for _ in range(10):
        reasons = None if reason is None else [reason] * len(waiting)
        batch = Batch(bound, "cancel", waiting, reasons=reasons, extra={"actor": actor, "soft": soft})
        answers |= dict(zip(waiting, (yield from move(batch)), strict=True))
        waiting = [job_id for job_id in waiting if getattr(answers[job_id], "reason_code", "") == "HELD"]
        if not waiting:
            break
        requests = Batch(bound, "request_cancel", waiting, extra={"actor": actor, "reason": reason})
        answers |= dict(zip(waiting, (yield from note(requests)), strict=True))
        waiting = [job_id for job_id in waiting if isinstance(answers[job_id], Refused)]
        if not waiting:
            break
    return [answers[job_id] for job_id in ids]


def _transition(
    bound: BoundContract, ids: Sequence[int], *, to: str, reason: str | None, actor: str
) -> Plan[list[Outcome]]:
    """Move jobs to a state: from a commit point by settling, else by `move`."""
    done: dict[int, Outcome] = {}
    if any(path.hops[0].state == to for path in bound.contract.paths if path.trigger == "settle"):
        done = {outcome.job_id: outcome for outcome in (yield from settle_plan(bound, len(ids), ids, to=to))}  # type: ignore[misc]
    left = [job_id for job_id in ids if job_id not in done]
    if left:
        failure = {"type": "Requested", "message": reason or f"moved to {to} by request", "code": "REQUESTED"}
        batch = Batch(
            bound, "transition", left, reasons=[reason] * len(left), errors=[json.dumps(failure)] * len(left),
            extra={"actor": actor, "target": to},
        )  # fmt: skip
        done |= dict(zip(left, (yield from move(batch)), strict=True))
    return [done[job_id] for job_id in ids]


def change_queue_plan(
    bound: BoundContract, ids: Sequence[int], *, queue: str, reason: str | None, actor: str
) -> Plan[list[str | Refused]]:
    """Change the queue of each job; returns its former queue, or the refusal."""
    batch = Batch(bound, "change_queue", ids)
    answers: list[Any] = [None] * len(ids)
    for places in id_ordered_parts(ids):
        values = {"ids": [ids[n] for n in places], "queue": queue, "reason": reason, "actor": actor}
        write = _write_queue(values, wakes=bound.contract.wakeup == "pointer")
        rows = (yield Atomic(write)) if bound.contract.wakeup == "pointer" else (yield from write)
        for n, job_id, state, before, is_held in rows:
            answers[places[n - 1]] = invalid(batch, job_id, state) if is_held else before
        yield from explain_missing(batch, places, answers)
    return answers


def retry_now_plan(
    bound: BoundContract, ids: Sequence[int], *, reason: str | None, actor: str
) -> Plan[list[int | Refused]]:
    """Make jobs due now that wait for their retry; returns the id, or the refusal, of each."""
    contract = bound.contract
    if not contract.early_retry:
        why = f"contract {contract.name} lets no job run before its retry is due"
        return [Refused(job_id, f"job {job_id}: {why}", code="EARLY_RETRY") for job_id in ids]
    batch = Batch(bound, "retry_now", ids)
    answers: list[Any] = [None] * len(ids)
    for places in id_ordered_parts(ids):
        values = {"ids": [ids[n] for n in places], "reason": reason, "actor": actor}
        write = _write_due(values, bound)
        rows = (yield Atomic(write)) if contract.wakeup == "pointer" else (yield from write)
        for n, job_id, state, refusal in rows:
            answers[places[n - 1]] = job_id
            if refusal == "due":
                why = f"job {job_id} is due already. Next: tenure jobs why {job_id}"
                answers[places[n - 1]] = Refused(job_id, why, code="ALREADY_DUE")
            elif refusal is not None:
                why = f"job {job_id} is {state} and does not wait for a retry. Next: tenure jobs why {job_id}"
                answers[places[n - 1]] = Refused(job_id, why, code="NOT_RETRYING")
        yield from explain_missing(batch, places, answers)
    return answers


def _write_due(values: Mapping[str, Any], bound: BoundContract) -> Plan[list[Row]]:
    """Make jobs due; where the contract wakes workers by messages, also their wake-ups."""
    rows: list[Row] = yield statement("retry_now", {**values, "promoted": bound.claim["promoted"]})
    due = [job_id for _, job_id, state, refusal in rows if refusal is None and state not in bound.claim["promoted"]]
    if bound.contract.wakeup == "pointer" and due:
        yield statement("insert_wakeups", {"ids": due})
    return rows


def _write_queue(values: Mapping[str, Any], *, wakes: bool) -> Plan[list[Row]]:
    """Write the new queue of jobs; with `wakes`, also their wake-ups in it."""
    rows: list[Row] = yield statement("change_queue", values)
    moved = [job_id for _, job_id, _, before, is_held in rows if not is_held and before != values["queue"]]
    if wakes and moved:
        yield statement("insert_wakeups", {"ids": moved})
    return rows


def _check_actor(actor: str, reason: str | None = None) -> None:
    validation.check_name("actor", actor)
    if reason is not None:
        validation.check_name("reason", reason)
