"""Run a finished job again: a new job that points back to it, through its dead letter where it has one.

A job is run again once: by the row of `tenure.rerun`, or by the status of its dead letter. To repeat it, the newest of
the jobs that ran it again is run again (`again`). So a job has one chain of reruns and never two, and while the newest
job of the chain runs, no other one is made.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import psycopg

from tenure.errors import BadInput, JobNotFound, Refused, RunAgainAlready
from tenure.jobs import validation
from tenure.jobs.operation import PayloadChanges, check_payload_edit
from tenure.postgres.connect import first_line
from tenure.postgres.engine import Engine, only_answer
from tenure.postgres.flow_advance import advance_released
from tenure.postgres.flow_operations import requeue_node
from tenure.postgres.idempotency import IdempotentCall, idempotent_call, run_once
from tenure.postgres.statement import Plan, statement


class PayloadEdit(NamedTuple):
    """The payload of the new job: another one, or the old one with other values at some paths, or as it was."""

    payload: Any = None
    changes: PayloadChanges | None = None

    def values(self, max_bytes: int) -> dict[str, Any]:
        """Return the parameters of the statements."""
        return {
            "payload": None if self.payload is None else json.dumps(self.payload, ensure_ascii=False),
            "changes": None if self.changes is None else json.dumps(self.changes, ensure_ascii=False),
            "max_bytes": max_bytes,
        }

    def hash(self) -> list[Any]:
        """Return what a repeated key must be equal in, beside the rest; nothing for a payload as it was."""
        return [] if self.payload is None and self.changes is None else [self.payload, self.changes]


class EndedJob(NamedTuple):
    """A job that is run again as another one, and its dead letter."""

    id: int
    contract: str
    tenant_id: str
    letter_id: int | None


#: Makes the new job of a flow's node (None: of no flow); the dictionary has the parameters of the new job.
_Insert = Callable[[dict[str, Any]], Plan[int | Refused]]


async def run_again(
    engine: Engine, ended: EndedJob, actor: str, key: str | None, edit: PayloadEdit, max_bytes: int, *, again: bool
) -> int:
    """Make a new job of a finished one; returns its id. Refuses a second time, unless `again` repeats the newest."""
    validation.check_name("actor", actor)
    if not isinstance(again, bool):
        raise BadInput(f"again must be True or False, not {again!r}")
    check_payload_edit(edit.payload, edit.changes, max_bytes)
    # A repeat of the call has the same hash, although the newest job is another one then.
    body = [actor, *edit.hash(), *(["again"] if again else [])]
    call = idempotent_call(ended.tenant_id, key, "requeue", ended.id, *body)
    one = await _newest(engine, ended) if again else ended
    which: _Insert
    if one.letter_id is None:
        which = partial(_rerun, one.id, edit.values(max_bytes))
    else:
        which = partial(_requeue, one.id, one.letter_id, edit.values(max_bytes))
    with bad_edit():
        made = await _enqueue(engine, one, actor, call, which, max_bytes)
    if isinstance(made, Refused) and made.reason_code == "HAS_LETTER":  # written after the caller has looked for it
        if (late := await _with_letter(engine, one)).letter_id is None:
            raise JobNotFound(one.id)
        return await run_again(engine, ended if again else late, actor, key, edit, max_bytes, again=again)
    return only_answer([made])


async def _newest(engine: Engine, ended: EndedJob) -> EndedJob:
    """The newest of the jobs that ran a job again, each the one before; the job itself if there is none."""
    ((_, newest),) = await engine.ask("find_newest_runs", ids=[ended.id])
    if newest != ended.id and not await engine.ask("read_job_contracts", ids=[newest]):
        raise JobNotFound(newest)
    return await _with_letter(engine, ended._replace(id=newest))


async def _with_letter(engine: Engine, ended: EndedJob) -> EndedJob:
    letters = await engine.ask("find_letters_of_jobs", ids=[ended.id])
    return ended._replace(letter_id=letters[0][1] if letters else None)


@contextmanager
def bad_edit() -> Iterator[None]:
    """Refuse changes that do not fit the payload, in PostgreSQL's words."""
    try:
        yield
    except psycopg.errors.DataException as error:
        if isinstance(error, psycopg.errors.SequenceGeneratorLimitExceeded):
            raise
        raise BadInput(first_line(error)) from None


async def _enqueue(
    engine: Engine, ended: EndedJob, actor: str, call: IdempotentCall | None, insert: _Insert, max_bytes: int
) -> int | Refused:
    """Run the plan `insert`, which makes a new job from an ended one; returns its id or the refusal.

    The new job is under the newest version of the contract. It and its wake-up are written together or not at all.
    If the ended job ran a node of a flow, the flow goes on with the new one.
    """
    contract = (await engine.bound_contract(ended.contract)).contract
    woken: set[tuple[str, str]] = set()
    locked: set[int] = set()
    values = {
        "version": contract.version, "state": contract.initial, "role": contract.initial_role,
        "counter": contract.counter.initial, "actor": actor,
    }  # fmt: skip

    def rerun() -> Plan[list[int | Refused]]:
        requeued = yield from requeue_node(
            engine.registry, ended.id, lambda node: insert({**values, "flow_node": node}), max_bytes
        )
        woken.update(requeued.queues)
        locked.update(requeued.flows)
        if contract.wakeup == "pointer" and not isinstance(requeued.made, Refused):
            yield statement("insert_wakeups", {"ids": [requeued.made]})
        return [requeued.made]

    (made,) = await engine.run_and_extend_ranges(lambda: run_once(call, rerun, whole=True))
    if not isinstance(made, Refused):
        engine.wakeups.request({(contract.name, ""), *woken})
    await advance_released(engine, locked, max_bytes)
    return made  # type: ignore[no-any-return]


def _requeue(job_id: int, letter_id: int, edit: dict[str, Any], values: dict[str, Any]) -> Plan[int | Refused]:
    """Insert the new job of a dead letter; returns its id, or why it cannot be run again."""
    ((_, _, status, made, before),) = yield statement("requeue_dead_letter", {**values, **edit, "ids": [letter_id]})
    if made is not None:
        return int(made)
    if status == "open":
        why = f"the payload of dead letter {letter_id} is no longer stored. Next: give another payload"
        return Refused(job_id, why, code="NO_PAYLOAD")
    if status == "requeued":
        return RunAgainAlready(job_id, before, letter=letter_id)
    return Refused(job_id, f"dead letter {letter_id} is {status} already", code="DLQ_REQUEUE_CONFLICT")


def _rerun(job_id: int, edit: dict[str, Any], values: dict[str, Any]) -> Plan[int | Refused]:
    """Insert the new job of a finished one; returns its id, or why the job cannot be run again."""
    for made, _ in (yield statement("rerun_job", {**values, **edit, "ids": [job_id]})):
        return int(made)
    if (yield statement("find_live_ids", {"ids": [job_id]})):
        return Refused(
            job_id,
            f"job {job_id} is not finished; only a finished job is run again. Next: tenure jobs why {job_id}",
            code="NOT_FINISHED",
        )
    for _, made, _ in (yield statement("find_reruns", {"ids": [job_id]})):
        return RunAgainAlready(job_id, made)
    return Refused(job_id, f"job {job_id} has a dead letter. Next: requeue the dead letter", code="HAS_LETTER")
