"""What the log and the jobs say, in the words of the counts: the other side of every comparison."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tests.harness import Harness

#: Not from the log: jobs that were made or changed their queue, renewals, refusals.
NOT_HOPS = ("enqueue", "requeue", "queue_changed", "renew", "recount")

_LOGGED = """
select event.contract, job.type, job.tenant_id, job.queue, event.trigger, from_state, to_state,
       job.done and event.seq = job.seq as ended, count(*)
from tenure.event join (
    select id, type, tenant_id, queue, seq, false as done from tenure.job
    union all
    select id, type, tenant_id, queue, seq, true from tenure.job_done
) as job on job.id = event.job_id
where event.hop
group by 1, 2, 3, 4, 5, 6, 7, 8
"""
_COUNTED = """
select contract, type, tenant_id, queue, trigger, from_state, to_state, ended, sum(number)::bigint
from tenure.move_count where unit = %s and trigger <> all (%s) and trigger not like 'refused%%'
group by 1, 2, 3, 4, 5, 6, 7, 8
"""
_LIVE = "select contract, type, tenant_id, queue, state, count(*) from tenure.job group by 1, 2, 3, 4, 5"
_LEVELS = """
select contract, type, tenant_id, queue, state, sum(change)::bigint
from tenure.move_count
cross join lateral (values (from_state, -number), (case when ended then '' else to_state end, number))
    as side (state, change)
where unit = 'ever' and trigger not like 'refused%%' and state <> ''
group by 1, 2, 3, 4, 5 having sum(change) <> 0
"""


def logged_hops(db: Harness) -> Counter[tuple[Any, ...]]:
    """(contract, type, tenant, queue, trigger, from, to, ended) -> hops in the log."""
    return Counter({tuple(row.values())[:-1]: row["count"] for row in db.sql(_LOGGED)})


def counted_hops(db: Harness, unit: str = "ever") -> Counter[tuple[Any, ...]]:
    """The same from the counts."""
    return Counter({tuple(row.values())[:-1]: row["sum"] for row in db.sql(_COUNTED, unit, list(NOT_HOPS))})


def live_jobs(db: Harness) -> dict[tuple[Any, ...], int]:
    """(contract, type, tenant, queue, state) -> live jobs."""
    return {tuple(row.values())[:-1]: row["count"] for row in db.sql(_LIVE)}


def levels(db: Harness) -> dict[tuple[Any, ...], int]:
    """The same from the counts."""
    return {tuple(row.values())[:-1]: row["sum"] for row in db.sql(_LEVELS.replace("%%", "%"))}
