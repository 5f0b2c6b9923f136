"""After a mixed load with killed workers, every metric is what SQL finds in the log, the letters and the leases."""

from __future__ import annotations

import asyncio
import json
import math
import random
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tenure.app import App
from tenure.contracts import BUILT_IN
from tenure.jobs.job import Job, NewJob
from tenure.jobs.stats import BOUNDS
from tenure.postgres.store import Store
from tenure.task import Task
from tests.faults import program
from tests.faults.fleet import LONG_LEASES, Fleet, one_at_work, over, verified, witness
from tests.harness import Harness
from tests.http.conftest import serving
from tests.http.test_metrics import parsed, total
from tests.postgres.counted import counted_hops, levels, live_jobs, logged_hops

pytestmark = [pytest.mark.serial, pytest.mark.timeout(1_200)]

_TASKS: list[Task[[float], Any]] = [
    program.on_the_loop, program.in_a_thread, program.unlucky_at_first, program.with_an_effect, program.hopeless,
    program.invalid,
]  # fmt: skip
_KILLED = "select count(*) from public.run where ended_at is null"

#: What each claim waited, as the test's own trigger saw it.
_WAITS = """
create table public.wait (contract text, type text, seconds double precision);
create function public.wait() returns trigger language plpgsql as $$
begin
    insert into public.wait values (new.contract, new.type,
        extract(epoch from new.updated_at - greatest(old.due_at, old.created_at)));
    return null;
end $$;
create trigger wait after update on tenure.job for each row
when (new.claims > old.claims and old.role not in ('leased', 'active')) execute function public.wait();
"""

#: Each path that a job took once, by its first hop, with the job's type and tenant; and who held the job then.
_TAKEN = """
with job as (select id, contract, type, tenant_id from tenure.job union all
             select id, contract, type, tenant_id from tenure.job_done),
taken as (
    select distinct on (event.job_id, event.claims, event.trigger) event.*, job.type as task, tenant_id,
           (select actor from tenure.event as claim where claim.job_id = event.job_id and claim.claims = event.claims
            and trigger in ('claim', 'reclaim')) as holder,
           (select ts from tenure.event as claim where claim.job_id = event.job_id and claim.claims = event.claims
            and trigger in ('claim', 'reclaim')) as claimed_at
    from tenure.event join job on job.id = event.job_id where hop
    order by event.job_id, event.claims, event.trigger, event.seq
)
"""
_FAILURES = "trigger in ('retry', 'exhaust', 'fatal') or trigger in ('dead_letter', 'compensation_failed')"
_LOGGED = f"""{_TAKEN}
select contract, task as type, tenant_id,
       count(*) filter (where trigger in ('claim', 'reclaim')) as claims,
       count(*) filter (where trigger in ('expire', 'expire_at_cap', 'reclaim')) as lease_expiries,
       count(*) filter (where trigger = 'retry') as retries,
       count(*) filter (where ({_FAILURES}) and actor = holder) as failures
from taken group by 1, 2, 3
"""
_LETTERS = "select contract, type, tenant_id, count(*) as dlq_count from tenure.dead_letter group by 1, 2, 3"
#: Leases that got a later end from the holder that they had.
_RENEWED = """
select contract, type, tenant_id, count(*) as lease_renewals
from (select job_id, ends > lag(ends) over (partition by job_id, claims order by n) as is_renewed
      from public.lease) as lease
join (select id, contract, type, tenant_id from tenure.job union all
      select id, contract, type, tenant_id from tenure.job_done) as job on id = job_id
where is_renewed group by 1, 2, 3
"""
_RUNS = f"""{_TAKEN}
select contract, task as type, extract(epoch from ts - claimed_at)::float8 as seconds from taken
where trigger in ('succeed', 'retry', 'exhaust', 'fatal') or trigger in ('dead_letter', 'expire') and actor = holder
"""
_COUNTERS = ("claims", "claim_conflicts", "lease_renewals", "lease_expiries", "retries", "failures", "dlq_count")
_HOPS = """
select event.contract, job.type, tenant_id, event.trigger, from_state, to_state, count(*)
from tenure.event join (select id, type, tenant_id from tenure.job union all
                        select id, type, tenant_id from tenure.job_done) as job on job.id = job_id
where hop group by 1, 2, 3, 4, 5, 6
"""

Key = tuple[str, str, str]


async def raced(store: Store, db: Harness, jobs: int, racers: int) -> Counter[Key]:
    """Let callers race for named jobs, whose winners renew their leases; how many lost, by type and tenant."""
    lost: Counter[Key] = Counter()
    for n in range(jobs):
        contract = sorted(BUILT_IN)[n % len(BUILT_IN)]
        made = await store.enqueue(NewJob("raced", contract=contract, queue="raced", tenant_id="ab"[n % 2]))
        calls = (store.claim_by_id([made.job_id], worker=f"r{k}", contract=contract) for k in range(racers))
        answers = [one for (one,) in await asyncio.gather(*calls)]
        (job,) = [one for one in answers if isinstance(one, Job)]
        lost[contract, "raced", "ab"[n % 2]] += len(answers) - 1
        await store.start(job.held)
        # More than half of the lease is over, and minutes are left.
        db.sql(
            "update tenure.job set lease_ms = 900000, heartbeat_ms = 900000, lease_expires_at = lease_expires_at "
            "- interval '1 ms' where id = %s", job.id,
        )  # fmt: skip
        await store.heartbeat(job.held)
        await store.succeed(job.held)
    await store.refusals.flush()
    return lost


def expected(db: Harness, conflicts: Counter[Key]) -> dict[Key, Counter[str]]:
    """Every counter of documents' S2-56 by contract, type and tenant, as SQL finds it."""
    found: dict[Key, Counter[str]] = {}
    for query in (_LOGGED, _LETTERS, _RENEWED):
        for row in db.sql(query):
            key = row.pop("contract"), row.pop("type"), row.pop("tenant_id")
            found.setdefault(key, Counter()).update(row)
    for key, number in conflicts.items():
        found[key]["claim_conflicts"] += number
    return found


def quantile_fits(true: list[float], shown: float, share: float) -> bool:
    """Whether a percentile lies in the bucket of the true one."""
    exact = sorted(true)[max(0, math.ceil(share * len(true)) - 1)]
    bucket = next((n for n, bound in enumerate(BOUNDS) if exact <= bound), len(BOUNDS) - 1)
    return (BOUNDS[bucket - 1] if bucket else 0.0) <= shown <= BOUNDS[bucket]


def read(url: str, path: str) -> str:
    """The body of an answer."""
    with urllib.request.urlopen(f"{url}{path}") as answer:
        text: str = answer.read().decode()
    return text


@pytest.mark.req("S2-56", "S2-57")
@pytest.mark.parametrize(
    ("jobs", "kills", "waits"), [(120, 2, False), pytest.param(5_000, 40, True, marks=pytest.mark.prove)]
)
async def test_metrics_after_kills_are_what_sql_finds_in_the_log(
    app: App, store: Store, dsn: str, db: Harness, tmp_path: Path, jobs: int, kills: int, waits: bool
) -> None:
    chance = random.Random(jobs)
    witness(db)
    db.sql(_WAITS)
    ids: list[int] = []
    leases = dict(LONG_LEASES)
    if waits:
        leases |= {name: "5000" for name in LONG_LEASES if name.endswith("LEASE_MS")}
        leases |= {"TENURE_RELIABILITY_LEASE_MS": "30000", "TENURE_RELIABILITY_HEARTBEAT_MS": "10000"}
    with Fleet(dsn, tmp_path, "--concurrency", "8", **leases) as fleet:
        for _ in range(3 if waits else 2):
            fleet.begin()
        for _ in range(kills):
            contracts = [chance.choice(sorted(BUILT_IN)) for _ in range(jobs // kills)]
            calls = [
                chance.choice(_TASKS).options(contract=contract, tenant=chance.choice("ab"), key=uuid4().hex)
                .call(round(chance.uniform(0.01, 0.2), 3))
                for contract in contracts
            ]  # fmt: skip
            ids += await app.enqueue_many(calls)
            fleet.kill(await one_at_work(db, fleet, chance))
            fleet.begin()
            if not waits:
                fleet.bury(db)
        conflicts = await raced(store, db, jobs=12, racers=8)
        took = await over(db, 600, lambda: None if waits else fleet.bury(db))
        fleet.stop_all()
    await verified(db, len(ids) + 12)
    assert counted_hops(db) == logged_hops(db)
    assert levels(db) == live_jobs(db) == {}
    with serving(dsn) as url:
        metrics = parsed(await asyncio.to_thread(read, url, "/metrics"))
        stats = json.loads(await asyncio.to_thread(read, url, "/api/v1/stats?since_seconds=7200"))
    found = expected(db, conflicts)
    assert differences(metrics, stats, found) == []
    assert hops_and_percentiles(db, metrics, stats) == []
    sums = {name: sum(one[name] for one in found.values()) for name in _COUNTERS}
    cut_off = db.value(_KILLED)
    print(
        f"{len(ids)} jobs of {len(found)} contracts, types and tenants, {kills} workers killed, {cut_off} handlers cut "
        f"off; {sums}; over {took:.1f} s after the last kill"
    )
    assert cut_off >= kills // 2
    assert [name for name, number in sums.items() if number == 0] == []


def differences(metrics: dict[Any, float], stats: dict[str, Any], found: dict[Key, Counter[str]]) -> list[str]:
    """Where `/metrics` or the JSON statistics say another number than SQL."""
    wrong = []
    by_type: dict[tuple[str, str], Counter[str]] = {}
    for (contract, task, tenant), numbers in found.items():
        by_type.setdefault((contract, task), Counter()).update(numbers)
        for name in _COUNTERS:
            shown = total(metrics, f"tenure_{name}_total", contract=contract, type=task, tenant=tenant)
            if shown != numbers[name]:
                wrong.append(f"/metrics, {contract} {task} {tenant}: {name} is {shown}, SQL finds {numbers[name]}")
    for name in _COUNTERS:
        if total(metrics, f"tenure_{name}_total") != sum(one[name] for one in found.values()):
            wrong.append(f"/metrics: {name} of types that SQL does not know")
    for one in stats["types"]:
        numbers = by_type.pop((one["contract"], one["type"]), Counter())
        wrong += [f"stats, {one['contract']} {one['type']}: {name}" for name in _COUNTERS if one[name] != numbers[name]]
    return wrong + [f"stats: {key} is missing" for key in by_type]


def hops_and_percentiles(db: Harness, metrics: dict[Any, float], stats: dict[str, Any]) -> list[str]:
    """Where transitions, counts of durations or percentiles are not what SQL finds."""
    wrong = []
    names = ("contract", "type", "tenant", "trigger", "from", "to")
    for row in db.sql(_HOPS):
        *labels, number = row.values()
        shown = total(metrics, "tenure_transitions_total", **dict(zip(names, labels, strict=True)))
        if shown != number:
            wrong.append(f"{labels}: {shown} transitions, the log has {number}")
    if total(metrics, "tenure_transitions_total") != db.value("select count(*) from tenure.event where hop"):
        wrong.append("transitions that the log does not have")
    for phase, metric, query in (
        ("wait", "queue", "select contract, type, seconds from public.wait"),
        ("run", "run", _RUNS),
    ):
        true: dict[tuple[str, str], list[float]] = {}
        for row in db.sql(query):
            true.setdefault((row["contract"], row["type"]), []).append(row["seconds"])
        for one in stats["types"]:
            contract, task = one["contract"], one["type"]
            seconds, of = true.pop((contract, task), []), {"contract": contract, "type": task}
            counts = one[phase]["count"], total(metrics, f"tenure_{phase}_seconds_count", **of)
            if counts != (len(seconds), len(seconds)):
                wrong.append(f"{phase} of {contract} {task}: {counts} durations, SQL finds {len(seconds)}")
                continue
            for share in (0.5, 0.95) if seconds else ():
                shown = total(metrics, "tenure_duration_quantile_seconds", **of, phase=metric, share=f"{share:g}")
                if not quantile_fits(seconds, shown, share) or shown != one[phase][f"p{share * 100:g}_s"]:
                    wrong.append(f"{phase} of {contract} {task}: p{share * 100:g} is {shown}")
        wrong += [f"{phase} of {key} is missing" for key in true]
    return wrong
