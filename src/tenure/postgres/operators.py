"""What people do to jobs: cancel, transition, set aside, run again. Each may carry a key, so that a repeat is safe."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from uuid import uuid4

from tenure import intake
from tenure.errors import BadInput, JobNotFound, Refused, StaleLease
from tenure.job import Failure, Job
from tenure.outcome import Moved, Noted, Outcome
from tenure.postgres import notes, verbs
from tenure.postgres.engine import Engine, ask
from tenure.postgres.gate import Batch
from tenure.postgres.letters import Letters
from tenure.postgres.machine import Machine
from tenure.postgres.repeats import Use, once
from tenure.postgres.statement import Plan, statement
from tenure.wakeup import ABOUT_A_JOB


async def cancel(
    engine: Engine, ids: Sequence[int], *, mode: str, reason: str | None, actor: str, key: str | None = None
) -> list[Moved | Noted | Refused]:
    """Cancel jobs of any contracts; a key stands for one job."""
    if mode not in ("soft", "hard"):
        raise BadInput(f"a cancel is soft or hard, not {mode!r}")
    _why(actor, reason)

    async def cancels(machine: Machine, part: Sequence[int], tenant: str) -> Sequence[Moved | Noted | Refused]:
        modes = machine.contract.cancel_modes
        if modes and mode not in modes:
            why = f"contract {machine.contract.name} cancels {' and '.join(modes)} only, not {mode}"
            return [Refused(job_id, why, code="CANCEL_MODE") for job_id in part]
        use = _use(tenant, key, "cancel", part[0], mode, reason, actor)
        soft = mode == "soft"
        answers = await engine.run(
            lambda: once(use, lambda: notes.cancels(machine, part, soft=soft, reason=reason, actor=actor))
        )
        engine.wakeups.want((ABOUT_A_JOB, str(one.job_id)) for one in answers if not isinstance(one, Refused))
        return answers

    return await engine.by_job(ids, cancels)


async def transition(
    engine: Engine,
    job_id: int,
    to: str,
    *,
    reason: str | None,
    actor: str,
    key: str | None,
    claim: Callable[..., Any],
) -> Moved | Job:
    """Make the hop to a state by its trigger's own path and guards; refused where the contract has none."""
    _why(actor, reason)

    async def transitions(machine: Machine, part: Sequence[int], tenant: str) -> Sequence[Moved | Job | Refused]:
        contract = machine.contract
        if to not in contract.states:
            raise BadInput(f"contract {contract.name} has no state {to!r}; it has {', '.join(contract.states)}")
        use = _use(tenant, key, "transition", part[0], to, reason, actor)
        if any(path.end.state == to for path in contract.paths if path.trigger == "claim"):
            token = None if use is None else await _claim_key(engine, use)
            if isinstance(token, Refused):
                return [token]
            taken: Sequence[Job | Refused] = await claim(part, worker=actor, contract=contract.name, claim_key=token)
            if use is not None and isinstance(taken[0], Refused) and not isinstance(taken[0], StaleLease):
                await engine.run(lambda: ask("forget_key", {"tenant_id": tenant, "key": use.key}))
            return taken
        return await engine.run(
            lambda: _settled(machine, use, lambda: verbs.transition(machine, part, to, reason, actor))
        )

    (answer,) = await engine.by_job([job_id], transitions)
    if isinstance(answer, Refused):
        raise answer
    return answer  # type: ignore[no-any-return]


async def dead_letter(
    engine: Engine,
    job_id: int,
    *,
    reason_code: str,
    stage: str | None,
    message: str,
    actor: str,
    key: str | None,
    max_bytes: int,
) -> list[Outcome]:
    """Set a job aside, by an operator or a policy, with its reason."""
    _why(actor, None)
    intake.name("reason_code", reason_code)

    async def set_aside(machine: Machine, part: Sequence[int], tenant: str) -> list[Outcome]:
        letters = machine.contract.dead_letters
        for what, given, known in (("reason_code", reason_code, letters.reasons), ("stage", stage, letters.stages)):
            if known and given is not None and given not in known:
                raise BadInput(f"{what} is one of {', '.join(known)}, not {given!r}")
        failure = Failure(message or reason_code, type="DeadLettered", code=reason_code, stage=stage)
        error = intake.document("error", dict(failure.facts()), max_bytes)
        batch = Batch(list(part), reasons=[reason_code] * len(part), errors=[error] * len(part))
        use = _use(tenant, key, "dead_letter", part[0], reason_code, stage, message, actor)
        return await engine.run(lambda: _settled(machine, use, lambda: verbs.set_aside(machine, batch, actor)))

    return await engine.by_job([job_id], set_aside)


async def requeue(engine: Engine, letters: Letters, job_id: int, *, actor: str, key: str | None) -> int:
    """Run a finished job again as a new one: through its dead letter where it has one."""
    _why(actor, None)
    intake.whole("id", job_id, 1, intake.MAX_ID)
    if (letter := await letters.find(job_id)) is not None:
        return await letters.requeue(letter.id, actor=actor, key=key)
    found = await engine.run(lambda: ask("contracts_of", {"ids": [job_id]}))
    if not found:
        raise JobNotFound(job_id)
    ((_, name, _, tenant),) = found
    machine = await engine.machine(name)  # a new job is made under the newest version
    contract = machine.contract
    values = {
        "id": job_id, "version": contract.version, "state": contract.initial, "counter": contract.counter.initial,
        "actor": actor,
    }  # fmt: skip
    use = _use(tenant, key, "requeue", job_id, actor)

    def rerun() -> Plan[list[int | Refused]]:
        rows = yield statement("rerun", values)
        if rows and contract.wakeup == "pointer":
            yield statement("wake", {"ids": [rows[0][0]]})
        return [rows[0][0] if rows else (yield from _not_rerun(job_id))]

    (made,) = await engine.extending(lambda: once(use, rerun, whole=True))
    if isinstance(made, Refused):
        if made.reason_code == "HAS_LETTER":  # it ended while we looked
            return await requeue(engine, letters, job_id, actor=actor, key=key)
        raise made
    engine.wakeups.want([(contract.name, "")])
    return int(made)


def _not_rerun(job_id: int) -> Plan[Refused]:
    if (yield statement("live", {"ids": [job_id]})):
        return Refused(
            job_id,
            f"job {job_id} is not finished; only a finished job is run again. Next: tenure jobs why {job_id}",
            code="NOT_FINISHED",
        )
    ((again, _),) = yield statement("reruns", {"id": job_id})
    if again is None:
        return Refused(job_id, f"job {job_id} has a dead letter: run that again", code="HAS_LETTER")
    why = f"job {job_id} was run again as job {again} already. Next: look at that one, and run that again"
    return Refused(job_id, why, code="REQUEUE_CONFLICT")


async def _claim_key(engine: Engine, use: Use) -> str | Refused:
    """The claim key that stands for this operator's key: made once, and safe to claim with again."""

    def make() -> Plan[list[str]]:
        yield from ()
        return [str(uuid4())]

    (made,) = await engine.run(lambda: once(use, make))
    return made  # type: ignore[no-any-return]


def _settled(machine: Machine, use: Use | None, act: Callable[[], Plan[list[Outcome]]]) -> Plan[list[Outcome]]:
    """Act, once for a key; what reached a commit point is settled in a transaction of its own."""
    outcomes = yield from once(use, act)
    return (yield from verbs.settle_after(machine, outcomes))


def _use(tenant: str, key: str | None, verb: str, job_id: int, *body: Any) -> Use | None:
    return None if key is None else Use(tenant, intake.name("key", key), verb, job_id, body)


def _why(actor: str, reason: str | None) -> None:
    intake.name("actor", actor)
    if reason is not None:
        intake.name("reason", reason)
