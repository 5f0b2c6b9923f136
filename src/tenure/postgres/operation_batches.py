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
from tenure.postgres.move import is_row_error
from tenure.postgres.operate import cancel_plan, change_queue_plan, retry_now_plan
from tenure.postgres.operation_requeues import find_reruns, repeat, requeue_letters, rerun_jobs
from tenure.postgres.operation_work import CHANGED, GONE, Done, Ended, Work, run_again_already, unknown_contract
from tenure.postgres.ranges import group_by_range, read_by_range
from tenure.postgres.settle import settle_after
from tenure.postgres.statement import Atomic, Plan, statement


class Batch(NamedTuple):
    """What a batch did: how many items, and the id behind which the next batch goes on; None: there is none now."""

    items: int = 0
    last: int | None = None
    troubles: Sequence[str] = ()


async def run_batch(engine: Engine, operation_id: int, after: int, size: int, max_bytes: int) -> Batch:
    """Work on the next items of an operation behind the id `after`; ends the operation when none is left."""

    tried: list[int] = []

    def plan() -> Plan[Done]:
        done: Done = yield Atomic(_batch(engine, operation_id, after, size, max_bytes, tried))
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


async def _finish(engine: Engine, done: Done, max_bytes: int) -> None:
    """Settle, advance flows and wake workers, behind the commit; if that fails, upkeep does it later."""
    for bound, outcomes in done.moved:
        settled = await engine.run(lambda bound=bound, outcomes=outcomes: settle_after(bound, list(outcomes)))  # type: ignore[misc]
        await advance_after(engine, settled, max_bytes)
        ids = [one.job_id for one in outcomes if isinstance(one, (Moved, Noted))]
        engine.wakeups.request((JOB_CHANGED, str(job_id)) for job_id in ids)
    engine.wakeups.request(done.woken)
    await advance_released(engine, done.flows, max_bytes)


def _batch(engine: Engine, operation_id: int, after: int, size: int, max_bytes: int, tried: list[int]) -> Plan[Done]:
    """Work on the next items, whose ids `tried` then has."""
    done = Done()
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
    work = Work(of_letters, verb, options, actor, reason[: validation.LENGTHS["reason"]])
    seen = dict(taken)
    if of_letters:
        ended = yield from _letters(engine, work, seen, max_bytes, done)
    elif verb == "requeue" and "again" in options:
        ended = yield from repeat(engine, work, {item: item for item in seen}, seen, max_bytes, done)
    elif verb == "requeue":
        ended = yield from rerun_jobs(engine, work, list(seen), max_bytes, done)
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


def _refused(refused: Refused) -> Ended:
    code = "STATE" if isinstance(refused, InvalidTransition) else refused.reason_code
    return Ended(code, str(refused)[:500])


def _live_jobs(engine: Engine, work: Work, seen: Mapping[int, str], done: Done) -> Plan[dict[int, Ended]]:
    """Cancel jobs, move them to another queue, or let them retry now."""
    rows = yield statement("lock_jobs_to_change", {"ids": list(seen)})
    ended, missing = dict[int, Ended](), seen.keys() - {row[0] for row in rows}
    if missing:
        locked = {row[0] for row in (yield statement("find_live_ids", {"ids": sorted(missing)}))}
        found = {row[0] for row in (yield from read_by_range("read_job_contracts", sorted(missing - locked)))}
        ended |= {job_id: CHANGED if job_id in found else GONE for job_id in missing - locked}
    parts: dict[tuple[str, str], list[int]] = {}
    for job_id, contract, version, now in rows:
        if now == seen[job_id]:
            parts.setdefault((contract, version), []).append(job_id)
        else:
            ended[job_id] = CHANGED
    for which, ids in parts.items():
        bound = engine.registry.find(*which)
        if bound is None:
            ended |= dict.fromkeys(ids, unknown_contract(" ".join(which)))
            continue
        ended |= dict(zip(ids, (yield from _change_jobs(bound, ids, work, done)), strict=True))
    return ended


def _change_jobs(bound: BoundContract, ids: Sequence[int], work: Work, done: Done) -> Plan[list[Ended]]:
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


def _letters(engine: Engine, work: Work, seen: Mapping[int, str], max_bytes: int, done: Done) -> Plan[dict[int, Ended]]:
    """Requeue dead letters, request their discard, or approve it."""
    locked = yield statement("lock_letters_to_change", {"ids": list(seen)})
    if "again" in work.options:
        return (yield from repeat(engine, work, {row[0]: row[1] for row in locked}, seen, max_bytes, done))
    ended = {row[0]: CHANGED for row in locked if row[3] != seen[row[0]]}
    same = [row[:3] for row in locked if row[0] not in ended]
    if work.verb == "requeue":
        rerun = yield from find_reruns([row[1] for row in locked if row[0] in ended])
        ended |= {row[0]: run_again_already(rerun[row[1]]) for row in locked if row[0] in ended and row[1] in rerun}
        return ended | (yield from requeue_letters(engine, work, same, max_bytes, done))
    asks = work.verb == "discard"
    parts: dict[str, dict[int, int]] = {}
    for letter_id, job_id, contract in same:
        parts.setdefault(contract, {})[letter_id] = job_id
    for contract, part in parts.items():
        if (bound := engine.registry.find(contract)) is None:
            ended |= dict.fromkeys(part, unknown_contract(contract))
            continue
        answers = yield from discard_plan(
            part, person=work.actor, asks=asks, reviewers=bound.contract.dead_letters.reviewers,
            reason=work.options["reason"] if asks else None,
        )  # fmt: skip
        ended |= {one: _refused(answer) if isinstance(answer, Refused) else Ended() for one, answer in answers.items()}
    return ended
