"""What a batch of an operation does to run jobs and dead letters again: as new jobs, each once unless repeated."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tenure.errors import Refused
from tenure.postgres.bound_contract import BoundContract
from tenure.postgres.engine import Engine
from tenure.postgres.flow_operations import requeue_node
from tenure.postgres.operation_work import CHANGED, GONE, Done, Ended, Work, run_again_already, unknown_contract
from tenure.postgres.ranges import group_by_range, read_by_range
from tenure.postgres.statement import Plan, Row, statement

_UNFINISHED = Ended("NOT_FINISHED", "the job, or the newest one that runs it again, has not finished")


def repeat(
    engine: Engine, work: Work, jobs: Mapping[int, int], seen: Mapping[int, str], max_bytes: int, done: Done
) -> Plan[dict[int, Ended]]:
    """Run for each item the newest run of its job again, unless that is another one than in the preview."""
    newest = dict((yield statement("find_newest_runs", {"ids": list(jobs.values())}))) if jobs else {}
    ended = {item: CHANGED for item, job_id in jobs.items() if str(newest[job_id]) != seen[item]}
    items: dict[int, int] = {}
    for item, job_id in jobs.items():
        if item in ended:
            continue
        if newest[job_id] in items:  # several items lead to one job: it is run again once
            ended[item] = CHANGED
        items.setdefault(newest[job_id], item)
    # The locks of a transaction add up: the rest is left to a later batch.
    together = next(group_by_range(list(items)), [])
    made = yield from rerun_jobs(engine, work, together, max_bytes, done)
    return ended | {items[job_id]: end for job_id, end in made.items()}


def rerun_jobs(engine: Engine, work: Work, ids: list[int], max_bytes: int, done: Done) -> Plan[dict[int, Ended]]:
    """Run finished jobs again; those with a dead letter through it."""
    found = yield from read_by_range("read_job_contracts", ids)
    contracts = {job_id: contract for job_id, contract, *_ in found}
    ended: dict[int, Ended] = {job_id: GONE for job_id in ids if job_id not in contracts}
    of_letter = dict((yield statement("find_letters_of_jobs", {"ids": sorted(contracts)})))
    if of_letter:
        jobs = {letter_id: job_id for job_id, letter_id in of_letter.items()}
        locked = yield statement("lock_letters_to_change", {"ids": sorted(jobs)})
        of_letters = yield from requeue_letters(engine, work, [row[:3] for row in locked], max_bytes, done)
        ended |= {jobs[letter_id]: end for letter_id, end in of_letters.items()}
    rest = [job_id for job_id in contracts if job_id not in of_letter]
    in_flows = {row[0] for row in (yield statement("find_jobs_in_flows", {"ids": rest}))} if rest else set()
    parts: dict[str, list[int]] = {}
    for job_id in rest:
        parts.setdefault(contracts[job_id], []).append(job_id)
    for contract, part in parts.items():
        if (bound := engine.registry.find(contract)) is None:
            ended |= dict.fromkeys(part, unknown_contract(contract))
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
                return Refused(job_id, "it is not run again", code="REQUEUE_CONFLICT")

            requeued = yield from requeue_node(engine.registry, job_id, insert, max_bytes)
            done.woken.update(requeued.queues)
            done.flows.update(requeued.flows)
            if isinstance(requeued.made, int):
                made[job_id] = requeued.made
        ended |= {job_id: Ended(made=new_id) for job_id, new_id in made.items()}
        missing = [job_id for job_id in part if job_id not in made]
        rerun = yield from find_reruns(missing)
        ended |= {job_id: run_again_already(rerun[job_id]) if job_id in rerun else _UNFINISHED for job_id in missing}
        yield from _wake(bound, list(made.values()), done)
    return ended


def find_reruns(ids: Sequence[int]) -> Plan[dict[int, int]]:
    """Return by which job each of these was run again, of those that were."""
    return {row[0]: row[1] for row in (yield statement("find_reruns", {"ids": list(ids)}))} if ids else {}


def requeue_letters(
    engine: Engine, work: Work, letters: Sequence[tuple[int, int, str]], max_bytes: int, done: Done
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
            ended |= {letter_id: unknown_contract(contract) for letter_id, _ in part}
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
                    (row,) = yield statement("requeue_dead_letter", {**values, "ids": [letter_id], "flow_node": node})
                    rows.append(row)
                    return Refused(None, f"it is {row[2]}") if row[3] is None else int(row[3])

                requeued = yield from requeue_node(engine.registry, job_id, insert, max_bytes)
                done.woken.update(requeued.queues)
                done.flows.update(requeued.flows)
        for letter_id, _, status, new_id, before in rows:
            if new_id is not None:
                ended[letter_id] = Ended(made=new_id)
            elif status == "requeued":
                ended[letter_id] = run_again_already(before)
            elif status == "open":
                ended[letter_id] = Ended("NO_PAYLOAD", "its payload is no longer stored")
            else:
                ended[letter_id] = Ended("DLQ_REQUEUE_CONFLICT", f"it is {status} already")
        yield from _wake(bound, [row[3] for row in rows if row[3] is not None], done)
    return ended


def _new_job(bound: BoundContract, work: Work, max_bytes: int) -> dict[str, Any]:
    """The parameters of new jobs, which are under the newest version of their contract."""
    contract, options = bound.contract, work.options
    return {
        "version": contract.version, "state": contract.initial, "role": contract.initial_role,
        "counter": contract.counter.initial, "actor": work.actor, "flow_node": None, "max_bytes": max_bytes,
        "payload": json.dumps(options["payload"]) if "payload" in options else None,
        "changes": json.dumps(options["changes"]) if "changes" in options else None,
    }  # fmt: skip


def _wake(bound: BoundContract, made: list[int], done: Done) -> Plan[None]:
    if made and bound.contract.wakeup == "pointer":
        yield statement("insert_wakeups", {"ids": made})
    if made:
        done.woken.add((bound.contract.name, ""))
