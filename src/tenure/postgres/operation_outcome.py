"""How the jobs are now that an operation has made: the proof that a requeue has repaired something."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tenure.jobs.operation import MadeJobs, OperationItem
from tenure.postgres.ranges import read_by_range
from tenure.postgres.registry import Registry
from tenure.postgres.statement import Plan, statement

#: Items of one page, and the pages that are read of an operation.
_PAGE, _PAGES = 1_000, 10


def list_items(operation_id: int, state: str | None, limit: int, after: int) -> Plan[Sequence[OperationItem]]:
    """Read items of an operation by their ids, each with the state of the job that was made of it."""
    values = {"id": operation_id, "after": after, "state": state, "limit": limit}
    items = [OperationItem._make((*row, None)) for row in (yield statement("list_operation_items", values))]
    made = [item.made for item in items if item.made is not None]
    states = {row[0]: row[2] for row in (yield from read_by_range("read_job_states", made))}
    return [item._replace(made_state=states.get(item.made)) for item in items]


def count_made(registry: Registry, operation_id: int) -> Plan[MadeJobs]:
    """Count the jobs that an operation has made by their states: page by page, of the first 10,000 items at most."""
    yield from registry.load()
    states, ends = Counter[str](), Counter[str]()
    failed_states: set[str] = set()
    after = 0
    for _ in range(_PAGES):
        values = {"id": operation_id, "after": after, "state": "done", "limit": _PAGE}
        items = yield statement("list_operation_items", values)
        made = [row[4] for row in items if row[4] is not None]
        rows = yield from read_by_range("read_job_states", made)
        ends["gone"] += len(made) - len(rows)
        for _, name, state, role in rows:
            states[state] += 1
            bound = registry.find(name)
            if role != "done":
                ends["unfinished"] += 1
            elif bound is None:  # a contract that is unknown here: its state alone is counted
                continue
            elif state in bound.contract.successes():
                ends["succeeded"] += 1
            else:
                ends["failed"] += 1
                failed_states.add(state)
        if len(items) < _PAGE:
            complete = True
            break
        after = items[-1][0]
    else:
        complete = False
    return MadeJobs(
        dict(states.most_common()), ends["succeeded"], ends["failed"], ends["unfinished"], ends["gone"], complete,
        sorted(failed_states),
    )  # fmt: skip
