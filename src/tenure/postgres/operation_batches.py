"""One batch of an operation on many jobs or dead letters: one transaction.

    take items that nobody works on ─▶ lock their rows ─▶ leave out what changed ─▶ the verb ─▶ write the ends ─▶ commit

An item's end and the change of its job commit together, so a process that dies at any statement leaves the item as it
was, and nothing is done twice. Rows that others have locked, items as well as jobs, are left to a later batch. When the
database refuses one item, the batch is repeated item by item, so that the others go on.

Every transaction holds a shared lock of its operation, taken before it reads whether the operation still runs. An abort
waits for that lock, so nothing of it runs when the abort has returned.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import psycopg

from tenure.errors import InvalidTransition, Refused
from tenure.jobs import validation
from tenure.jobs.outcome import Moved, Noted
from tenure.jobs.wakeup import JOB_CHANGED
from tenure.postgres.bound_contract import BoundContract
from tenure.postgres.connect import first_line
from tenure.postgres.dead_letters import discard_plan
from tenure.postgres.engine import Engine
from tenure.postgres.flow_advance import advance_after, advance_released
from tenure.postgres.flow_operations import requeue_node
from tenure.postgres.move import is_row_error
from tenure.postgres.operate import cancel_plan, change_queue_plan, retry_now_plan
from tenure.postgres.ranges import group_by_range, read_by_range
from tenure.postgres.settle import settle_after
from tenure.postgres.statement import Atomic, Plan, Row, statement


class Ended(NamedTuple):
    """What became of an item: done (no code), or skipped with the reason; and the job that was made of it."""

    code: str | None = None
    why: str | None = None
    made: int | None = None


_CHANGED = Ended("CHANGED", "it is no longer as it was when the preview was made")
_GONE = Ended("GONE", "it is no longer stored")


class Batch(NamedTuple):
    """What a batch did: how many items, and the id behind which the next batch goes on; None: there is none now."""

    items: int = 0
    last: int | None = None
    troubles: Sequence[str] = ()


class _Work(NamedTuple):
    """What the operation's row says is to be done."""

    of_letters: bool
    verb: str
    options: Mapping[str, Any]
    actor: str
    reason: str


@dataclass(slots=True)
class _Done:
    """What a transaction did, for the steps behind its commit."""

    #: Whether the operation runs and it was this transaction's turn.
    runs: bool = False
    items: int = 0
    last: int | None = None
    moved: list[tuple[BoundContract, list[Any]]] = field(default_factory=list)
    woken: set[tuple[str, str]] = field(default_factory=set)
    flows: set[int] = field(default_factory=set)


async def run_batch(engine: Engine, operation_id: int, after: int, size: int, max_bytes: int) -> Batch:
    """Work on the next items of an operation behind the id `after`; ends the operation when none is left."""

    tried: list[int] = []

    def plan() -> Plan[_Done]:
        done: _Done = yield Atomic(_batch(engine, operation_id, after, size, max_bytes, tried))
        return done

    try:
        done = await engine.run_and_extend_ranges(plan)
    except psycopg.Error as error:
        if not is_row_error(error) or not tried:
            raise
        if len(tried) > 1:
            return await _one_by_one(engine, operation_id, after, size, max_bytes)
        return await _skip(engine, operation_id, tried[0], error)
    await _finish(engine, done, max_bytes)
    if done.runs and done.last is None:
        await engine.ask("end_operation", id=operation_id)
    return Batch(done.items, done.last)


async def _one_by_one(engine: Engine, operation_id: int, after: int, size: int, max_bytes: int) -> Batch:
    """Repeat a batch of which the database has refused an item, item by item."""
    items, troubles = 0, list[str]()
    for _ in range(size):
        one = await run_batch(engine, operation_id, after, 1, max_bytes)
        items += one.items
        troubles += one.troubles
        if one.last is None:
            return Batch(items, None, troubles)
        after = one.last
    return Batch(items, after, troubles)


async def _skip(engine: Engine, operation_id: int, item_id: int, error: psycopg.Error) -> Batch:
    """Leave out this item, which the database has refused, unless another process works on it or did meanwhile."""

    def plan() -> Plan[Batch]:
        yield statement("begin_operation_batch", {"id": operation_id})
        if not (yield statement("read_running_operation", {"id": operation_id})):
            return Batch()
        taken = yield statement("take_operation_items", {"id": operation_id, "after": item_id - 1, "limit": 1})
        if [one for one, _ in taken] != [item_id]:
            return Batch(0, item_id)
        yield from _end(operation_id, {item_id: Ended("NOT_POSSIBLE", first_line(error))})
        return Batch(1, item_id, [f"operation {operation_id}: item {item_id}: {first_line(error)}"])

    def atomic() -> Plan[Batch]:
        batch: Batch = yield Atomic(plan())
        return batch

    return await engine.run(atomic)


async def _finish(engine: Engine, done: _Done, max_bytes: int) -> None:
    """Settle, advance flows and wake workers, behind the commit; if that fails, upkeep does it later."""
    for bound, outcomes in done.moved:
        settled = await engine.run(lambda bound=bound, outcomes=outcomes: settle_after(bound, list(outcomes)))  # type: ignore[misc]
        await advance_after(engine, settled, max_bytes)
        ids = [one.job_id for one in outcomes if isinstance(one, (Moved, Noted))]
        engine.wakeups.request((JOB_CHANGED, str(job_id)) for job_id in ids)
    engine.wakeups.request(done.woken)
    await advance_released(engine, done.flows, max_bytes)


def _batch(engine: Engine, operation_id: int, after: int, size: int, max_bytes: int, tried: list[int]) -> Plan[_Done]:
    """Work on the next items, whose ids `tried` then has."""
    done = _Done()
    tried.clear()
    yield statement("begin_operation_batch", {"id": operation_id})
    rows = yield statement("read_running_operation", {"id": operation_id})
    if not rows:
        return done
    ((of_letters, verb, options_json, actor, per_second),) = rows
    if per_second is not None:
        if not (yield statement("lock_operation_turn", {"id": operation_id})):
            return done
        size = max(1, min(size, int(per_second)))
    taken = yield statement("take_operation_items", {"id": operation_id, "after": after, "limit": size})
    if not of_letters:
        # The locks of a transaction add up: the rest of these jobs, in further id ranges, is left to the next batch.
        together = next(group_by_range([item_id for item_id, _ in taken]), [])
        taken = taken[: len(together)]
    done.runs = True
    tried.extend(item_id for item_id, _ in taken)
    if not taken:
        return done
    options = json.loads(options_json)
    reason = f"operation {operation_id}" + (f": {options['reason']}" if options.get("reason") else "")
    work = _Work(of_letters, verb, options, actor, reason[: validation.LENGTHS["reason"]])
    seen = dict(taken)
    if of_letters:
        ended = yield from _letters(engine, work, seen, max_bytes, done)
    elif verb == "requeue":
        ended = yield from _rerun_jobs(engine, work, list(seen), max_bytes, done)
    else:
        ended = yield from _live_jobs(engine, work, seen, done)
    yield from _end(operation_id, ended)
    if per_second is not None:
        yield statement("delay_operation", {"id": operation_id, "done": len(ended)})
    done.items, done.last = len(ended), taken[-1][0]
    return done


def _end(operation_id: int, ended: Mapping[int, Ended]) -> Plan[None]:
    """Write what became of items."""
    if ended:
        codes, whys, made = zip(*ended.values(), strict=True)
        values = {"id": operation_id, "ids": list(ended), "codes": codes, "whys": whys, "made": made}
        yield statement("end_operation_items", values)


def _unknown(contract: str) -> Ended:
    return Ended("UNKNOWN_VERSION", f"contract {contract} is unknown here")


def _refused(refused: Refused) -> Ended:
    code = "STATE" if isinstance(refused, InvalidTransition) else refused.reason_code
    return Ended(code, str(refused)[:500])


def _live_jobs(engine: Engine, work: _Work, seen: Mapping[int, str], done: _Done) -> Plan[dict[int, Ended]]:
    """Cancel jobs, move them to another queue, or let them retry now."""
    rows = yield statement("lock_jobs_to_change", {"ids": list(seen)})
    ended, missing = dict[int, Ended](), seen.keys() - {row[0] for row in rows}
    if missing:
        locked = {row[0] for row in (yield statement("find_live_ids", {"ids": sorted(missing)}))}
        found = {row[0] for row in (yield from read_by_range("read_job_contracts", sorted(missing - locked)))}
        ended |= {job_id: _CHANGED if job_id in found else _GONE for job_id in missing - locked}
    parts: dict[tuple[str, str], list[int]] = {}
    for job_id, contract, version, now in rows:
        if now == seen[job_id]:
            parts.setdefault((contract, version), []).append(job_id)
        else:
            ended[job_id] = _CHANGED
    for which, ids in parts.items():
        bound = engine.registry.find(*which)
        if bound is None:
            ended |= dict.fromkeys(ids, _unknown(" ".join(which)))
            continue
        ended |= dict(zip(ids, (yield from _change_jobs(bound, ids, work, done)), strict=True))
    return ended


def _change_jobs(bound: BoundContract, ids: Sequence[int], work: _Work, done: _Done) -> Plan[list[Ended]]:
    """Change jobs of one contract version that are locked."""
    options, facts = work.options, {"reason": work.reason, "actor": work.actor}
    contract = bound.contract
    if work.verb == "cancel":
        mode = options.get("mode", "soft")
        if contract.cancel_modes and mode not in contract.cancel_modes:
            why = f"contract {contract.name} cancels {' and '.join(contract.cancel_modes)} only, not {mode}"
            return [Ended("CANCEL_MODE", why)] * len(ids)
        answers: list[Any] = yield from cancel_plan(bound, ids, soft=mode == "soft", **facts)
        done.moved.append((bound, [one for one in answers if not isinstance(one, Refused)]))
    elif work.verb == "move":
        answers = yield from change_queue_plan(bound, ids, queue=options["queue"], **facts)
        done.woken.add(("", options["queue"]))
    else:
        answers = yield from retry_now_plan(bound, ids, **facts)
        done.woken.add((contract.name, ""))
    return [_refused(one) if isinstance(one, Refused) else Ended() for one in answers]


def _rerun_jobs(engine: Engine, work: _Work, ids: list[int], max_bytes: int, done: _Done) -> Plan[dict[int, Ended]]:
    """Run finished jobs again; those with a dead letter through it."""
    found = yield from read_by_range("read_job_contracts", ids)
    contracts = {job_id: contract for job_id, contract, *_ in found}
    ended: dict[int, Ended] = {job_id: _GONE for job_id in ids if job_id not in contracts}
    of_letter = dict((yield statement("find_letters_of_jobs", {"ids": sorted(contracts)})))
    if of_letter:
        jobs = {letter_id: job_id for job_id, letter_id in of_letter.items()}
        locked = yield statement("lock_letters_to_change", {"ids": sorted(jobs)})
        of_letters = yield from _requeue_letters(engine, work, [row[:3] for row in locked], max_bytes, done)
        ended |= {jobs[letter_id]: end for letter_id, end in of_letters.items()}
    rest = [job_id for job_id in contracts if job_id not in of_letter]
    in_flows = {row[0] for row in (yield statement("find_jobs_in_flows", {"ids": rest}))} if rest else set()
    parts: dict[str, list[int]] = {}
    for job_id in rest:
        parts.setdefault(contracts[job_id], []).append(job_id)
    for contract, part in parts.items():
        if (bound := engine.registry.find(contract)) is None:
            ended |= dict.fromkeys(part, _unknown(contract))
            continue
        values = _new_job(bound, work, max_bytes)
        made: dict[int, int] = {}
        together = [job_id for job_id in part if job_id not in in_flows]
        rows = (yield from read_by_range("rerun_job", together, **values)) if together else []
        made |= {job_id: new_id for new_id, job_id in rows}
        for job_id in sorted(in_flows & set(part)):

            def insert(node: int | None, job_id: int = job_id, values: dict[str, Any] = values) -> Plan[int | Refused]:
                for new_id, _ in (yield statement("rerun_job", {**values, "ids": [job_id], "flow_node": node})):
                    return int(new_id)
                return Refused(job_id, "it was run again before", code="REQUEUE_CONFLICT")

            requeued = yield from requeue_node(engine.registry, job_id, insert, max_bytes)
            done.woken.update(requeued.queues)
            done.flows.update(requeued.flows)
            if isinstance(requeued.made, int):
                made[job_id] = requeued.made
        conflict = Ended("REQUEUE_CONFLICT", "it was run again before")
        ended |= {job_id: Ended(made=made[job_id]) if job_id in made else conflict for job_id in part}
        yield from _wake(bound, list(made.values()), done)
    return ended


def _letters(
    engine: Engine, work: _Work, seen: Mapping[int, str], max_bytes: int, done: _Done
) -> Plan[dict[int, Ended]]:
    """Requeue dead letters, request their discard, or approve it."""
    locked = yield statement("lock_letters_to_change", {"ids": list(seen)})
    ended = {row[0]: _CHANGED for row in locked if row[3] != seen[row[0]]}
    same = [row[:3] for row in locked if row[0] not in ended]
    if work.verb == "requeue":
        return ended | (yield from _requeue_letters(engine, work, same, max_bytes, done))
    asks = work.verb == "discard"
    parts: dict[str, dict[int, int]] = {}
    for letter_id, job_id, contract in same:
        parts.setdefault(contract, {})[letter_id] = job_id
    for contract, part in parts.items():
        if (bound := engine.registry.find(contract)) is None:
            ended |= dict.fromkeys(part, _unknown(contract))
            continue
        answers = yield from discard_plan(
            part, person=work.actor, asks=asks, reviewers=bound.contract.dead_letters.reviewers,
            reason=work.options["reason"] if asks else None,
        )  # fmt: skip
        ended |= {one: _refused(answer) if isinstance(answer, Refused) else Ended() for one, answer in answers.items()}
    return ended


def _requeue_letters(
    engine: Engine, work: _Work, letters: Sequence[tuple[int, int, str]], max_bytes: int, done: _Done
) -> Plan[dict[int, Ended]]:
    """Make new jobs of dead letters that are locked: together, but one by one where a flow goes on with the new job."""
    if not letters:
        return {}
    ended: dict[int, Ended] = {}
    in_flows = {
        row[0] for row in (yield statement("find_jobs_in_flows", {"ids": [job_id for _, job_id, _ in letters]}))
    }
    parts: dict[str, list[tuple[int, int]]] = {}
    for letter_id, job_id, contract in letters:
        parts.setdefault(contract, []).append((letter_id, job_id))
    for contract, part in parts.items():
        if (bound := engine.registry.find(contract)) is None:
            ended |= {letter_id: _unknown(contract) for letter_id, _ in part}
            continue
        values = _new_job(bound, work, max_bytes)
        rows = list[Row]()
        if together := [letter_id for letter_id, job_id in part if job_id not in in_flows]:
            rows += yield statement("requeue_dead_letter", {**values, "ids": together})
        for letter_id, job_id in part:
            if job_id in in_flows:

                def insert(
                    node: int | None,
                    letter_id: int = letter_id,
                    values: dict[str, Any] = values,
                    rows: list[Row] = rows,
                ) -> Plan[int | Refused]:
                    ((*which, new_id),) = yield statement(
                        "requeue_dead_letter", {**values, "ids": [letter_id], "flow_node": node}
                    )
                    rows.append((*which, new_id))
                    return Refused(None, f"it is {which[-1]}") if new_id is None else int(new_id)

                requeued = yield from requeue_node(engine.registry, job_id, insert, max_bytes)
                done.woken.update(requeued.queues)
                done.flows.update(requeued.flows)
        for letter_id, _, status, new_id in rows:
            if new_id is not None:
                ended[letter_id] = Ended(made=new_id)
            elif status == "open":
                ended[letter_id] = Ended("NO_PAYLOAD", "its payload is no longer stored")
            else:
                ended[letter_id] = Ended("DLQ_REQUEUE_CONFLICT", f"it is {status} already")
        yield from _wake(bound, [row[3] for row in rows if row[3] is not None], done)
    return ended


def _new_job(bound: BoundContract, work: _Work, max_bytes: int) -> dict[str, Any]:
    """The parameters of new jobs, which are under the newest version of their contract."""
    contract, options = bound.contract, work.options
    return {
        "version": contract.version, "state": contract.initial, "role": contract.initial_role,
        "counter": contract.counter.initial, "actor": work.actor, "flow_node": None, "max_bytes": max_bytes,
        "payload": json.dumps(options["payload"]) if "payload" in options else None,
        "changes": json.dumps(options["changes"]) if "changes" in options else None,
    }  # fmt: skip


def _wake(bound: BoundContract, made: list[int], done: _Done) -> Plan[None]:
    if made and bound.contract.wakeup == "pointer":
        yield statement("insert_wakeups", {"ids": made})
    if made:
        done.woken.add((bound.contract.name, ""))
