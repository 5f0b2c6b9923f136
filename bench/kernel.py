"""What does the kernel cost beside bare SQL, and does it stay fast on a full table?

    ./dev bench kernel [--quick] [--json]

1. A whole life (enqueue, claim, succeed) in batches of 1, 10, 100 and 500, beside the same three batch statements as
   bare SQL: the same columns and ready index, the same payloads and results, but no fence, no log, no lock first and
   no checks. Interleaved, medians.
2. The claim of 100 on a table with 1 M finished and 1 M waiting jobs, and with 1 M delayed urgent jobs in front, beside
   the same claim on a table of 1,000 ready jobs.
3. WAL bytes of one life.
4. Processor time of client and server, apart, for each stage of a life (Linux).
5. Heartbeats, failures, reaping, and 64 claimers beside one that shares (`lease_costs.py`).

Compare ratios within one run; seconds differ between machines and between days.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
from psycopg.conninfo import make_conninfo

from bench import lease_costs
from tenure.embedded import Cluster
from tenure.jobs.job import Job, NewJob
from tenure.postgres.connect import engine_dsn
from tenure.postgres.migrate import migrate
from tenure.postgres.statement import array
from tenure.postgres.store import Store
from tests.holder_calls import calls

SETTINGS = {"shared_buffers": "1GB", "max_wal_size": "16GB", "checkpoint_timeout": "1h"}
_PAYLOAD = {"to": "somebody@example.org", "subject": "hello", "n": 7}

_BARE = """
create schema bare;
create table bare.job (like tenure.job including defaults including identity);
alter table bare.job add primary key (id);
create index on bare.job (contract, queue, priority, coalesce(due_at, '-infinity'), id) where role = 'ready';
create index on bare.job (contract, id) where role in ('leased', 'active', 'settling');
alter table bare.job set (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_cost_delay = 0);
create table bare.job_done (like tenure.job including defaults);
alter table bare.job_done add primary key (id);
"""

_BARE_ENQUEUE = """
insert into bare.job (contract, version, state, role, queue, type, tenant_id, priority, max_attempts, due_at, payload)
select 'standard', '1', 'queued', 'ready', a.queue, a.type, a.tenant, a.priority, 5, clock_timestamp(), a.payload
from unnest($1::text[], $2::text[], $3::text[], $4::smallint[], $5::jsonb[])
     as a (queue, type, tenant, priority, payload)
returning id, due_at, created_at
"""

_BARE_CLAIM = """
with picked as materialized (
    select ctid as tid from bare.job
    where contract = 'standard' and queue = 'default' and priority = 5 and role = 'ready'
      and coalesce(due_at, '-infinity') <= statement_timestamp()
    order by coalesce(due_at, '-infinity'), id limit $1::bigint for update skip locked
)
update bare.job set state = 'running', role = 'active', claims = claims + 1, counter = counter + 1, seq = seq + 1,
    updated_at = clock_timestamp(), started_at = clock_timestamp(), first_started_at = clock_timestamp(),
    lease_token = $2::uuid, lease_owner = 'bench', lease_expires_at = clock_timestamp() + interval '30 seconds'
from picked where job.ctid = picked.tid
returning id, contract, version, state, role, queue, type, tenant_id, priority, claims, raises, counter, max_attempts,
    payload::text, lease_token, lease_owner, lease_expires_at, due_at, created_at, updated_at, started_at, finished_at,
    cancel_requested_at, trace_id, correlation_id, idempotency_key, origin_letter, last_error::text, result::text,
    checkpoint::text
"""

_BARE_FINISH = """
with gone as (
    delete from bare.job using unnest($1::bigint[], $2::jsonb[]) as a (id, outcome) where job.id = a.id
    returning job.*, a.outcome
)
insert into bare.job_done (
    id, due_at, created_at, updated_at, first_started_at, started_at, finished_at, last_heartbeat_at,
    cancel_requested_at, origin_letter, seq, claims, raises, counter, max_attempts, priority, contract, version, state,
    role, queue, type, tenant_id, created_by, trace_id, correlation_id, idempotency_key, payload, last_error, result,
    progress, checkpoint)
select id, due_at, created_at, clock_timestamp(), first_started_at, started_at, clock_timestamp(), last_heartbeat_at,
       cancel_requested_at, origin_letter, seq + 1, claims, raises, counter, max_attempts, priority, contract, version,
       'succeeded', 'done', queue, type, tenant_id, created_by, trace_id, correlation_id, idempotency_key, payload,
       last_error, outcome, progress, checkpoint
from gone
returning id
"""


@dataclass
class Spent:
    """Seconds per stage of a life, one value per repetition."""

    enqueue: list[float] = field(default_factory=list)
    claim: list[float] = field(default_factory=list)
    finish: list[float] = field(default_factory=list)

    def median(self) -> tuple[float, float, float]:
        """The median of each stage."""
        return statistics.median(self.enqueue), statistics.median(self.claim), statistics.median(self.finish)


class Bare:
    """The same life without fence, log and lock first."""

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self.connection = connection

    async def _run(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        cursor = psycopg.AsyncRawCursor(self.connection)
        await cursor.execute(query.encode(), values)
        return await cursor.fetchall()

    async def enqueue(self, count: int) -> None:
        """Make jobs."""
        payloads = [json.dumps(_PAYLOAD) for _ in range(count)]  # no two jobs have the same, outside of a benchmark
        columns = (["default"] * count, ["noop"] * count, ["default"] * count, [5] * count, payloads)
        await self._run(_BARE_ENQUEUE, *(array(column) for column in columns))

    async def claim(self, count: int) -> list[int]:
        """Take jobs."""
        return [row[0] for row in await self._run(_BARE_CLAIM, str(count), str(uuid4()))]

    async def finish(self, ids: list[int]) -> None:
        """End them."""
        await self._run(_BARE_FINISH, array(sorted(ids)), array([json.dumps({"ok": True}) for _ in ids]))


class Ours:
    """The same life through the store."""

    def __init__(self, store: Store) -> None:
        self.store = store

    async def enqueue(self, count: int) -> None:
        """Make jobs."""
        await self.store.enqueue_many([NewJob("noop", _PAYLOAD) for _ in range(count)])

    async def claim(self, count: int) -> list[Job]:
        """Take jobs."""
        return await self.store.claim(worker="bench", limit=count)

    async def finish(self, jobs: list[Job]) -> None:
        """End them."""
        await self.store.report("succeed", calls([job.held for job in jobs], results=[{"ok": True}] * len(jobs)))


async def lives(side: Any, batch: int, jobs: int) -> tuple[float, float, float]:
    """Seconds that each stage of `jobs` lives takes in batches."""
    begun = time.perf_counter()
    for _ in range(0, jobs, batch):
        await side.enqueue(batch)
    enqueued = time.perf_counter()
    claiming = finishing = 0.0
    for _ in range(0, jobs, batch):
        start = time.perf_counter()
        held = await side.claim(batch)
        assert len(held) == batch, f"claimed {len(held)} of {batch}"
        taken = time.perf_counter()
        await side.finish(held)
        claiming += taken - start
        finishing += time.perf_counter() - taken
    return enqueued - begun, claiming, finishing


async def compare(dsn: str, quick: bool) -> list[dict[str, Any]]:
    """A whole life at four batch sizes, ours and bare in turn."""
    rows = []
    async with Store.open(dsn, connections=1) as store:
        bare = Bare(await psycopg.AsyncConnection.connect(engine_dsn(dsn), autocommit=True))
        ours = Ours(store)
        try:
            for batch, jobs in ((1, 300), (10, 2_000), (100, 10_000), (500, 20_000)):
                spent = {"ours": Spent(), "bare": Spent()}
                for side in (ours, bare):
                    await lives(side, batch, max(batch * 6, jobs // 5))  # statements are prepared, caches warm
                for _ in range(2 if quick else 5):
                    for name, side in (("bare", bare), ("ours", ours)):
                        times = await lives(side, batch, jobs // (4 if quick else 1))
                        for stage, seconds in zip(("enqueue", "claim", "finish"), times, strict=True):
                            getattr(spent[name], stage).append(seconds)
                rows.append(_compared(batch, jobs // (4 if quick else 1), spent))
        finally:
            await bare.connection.close()
    return rows


def _compared(batch: int, jobs: int, spent: dict[str, Spent]) -> dict[str, Any]:
    ours, bare = spent["ours"].median(), spent["bare"].median()
    micro = 1e6 / jobs
    ratios = [sum(o) / sum(b) for o, b in zip(_runs(spent["ours"]), _runs(spent["bare"]), strict=True)]
    return {
        "batch": batch,
        "ours_us": [round(stage * micro, 1) for stage in ours],
        "bare_us": [round(stage * micro, 1) for stage in bare],
        "ours_per_s": round(jobs / sum(ours)),
        "bare_per_s": round(jobs / sum(bare)),
        "ratio": round(statistics.median(ratios), 2),
    }


def _runs(spent: Spent) -> Iterable[tuple[float, float, float]]:
    return zip(spent.enqueue, spent.claim, spent.finish, strict=True)


async def wal_per_life(dsn: str) -> int:
    """WAL bytes of one life, in batches of 500, after a checkpoint's full pages were written."""
    async with Store.open(dsn, connections=1) as store:
        await lives(Ours(store), 500, 20_000)
        with psycopg.connect(dsn, autocommit=True) as connection:
            before = one(connection, "select pg_current_wal_insert_lsn()")
            await lives(Ours(store), 500, 20_000)
            used = one(connection, f"select pg_current_wal_insert_lsn() - '{before}'::pg_lsn")
    return round(float(used) / 20_000)


async def processor_time(dsn: str) -> dict[str, list[float]]:
    """Microseconds of processor time a job, at a batch of 500: [client, server] for each stage."""
    async with Store.open(dsn, connections=1) as store:
        ours, spent = Ours(store), [0.0] * 6
        await lives(ours, 500, 10_000)
        with psycopg.connect(dsn, autocommit=True) as connection:
            server = one(connection, "select pid from pg_stat_activity where application_name = 'tenure'")
        for _ in range(40):
            before = clocks(server)
            for stage in range(3):
                if stage == 0:
                    await ours.enqueue(500)
                elif stage == 1:
                    held = await ours.claim(500)
                else:
                    await ours.finish(held)
                after = clocks(server)
                spent[2 * stage] += after[0] - before[0]
                spent[2 * stage + 1] += after[1] - before[1]
                before = after
    micro = [round(seconds / 20_000 * 1e6, 1) for seconds in spent]
    return {"enqueue": micro[:2], "claim": micro[2:4], "succeed": micro[4:]}


def clocks(server: int) -> tuple[float, float]:
    """Seconds of processor time so far: ours, and the server process's."""
    return time.process_time(), int(Path(f"/proc/{server}/schedstat").read_text().split()[0]) / 1e9


def one(connection: psycopg.Connection[Any], query: str) -> Any:
    """The only value of a query."""
    row = connection.execute(query.encode()).fetchone()
    assert row is not None
    return row[0]


FILL = """
insert into tenure.job (contract, version, state, role, type, max_attempts, priority, due_at, payload)
select 'standard', '1', 'queued', 'ready', 'noop', 5, {priority}, {due}, '{{"n": 7}}' from generate_series(1, {count})
"""

_FILL_DONE = """
insert into tenure.job_done (id, contract, version, state, role, type, max_attempts, payload, created_at, updated_at)
select nextval('tenure.job_id_seq'), 'standard', '1', 'succeeded', 'done', 'noop', 5, '{{"n": 7}}', now(), now()
from generate_series(1, {count})
"""


class Table:
    """A database whose job table has a certain shape, and the claims that were timed on it."""

    def __init__(self, name: str, dsn: str, shape: dict[str, int]) -> None:
        self.name = name
        self.dsn = dsn
        self.times: list[float] = []
        with psycopg.connect(dsn, autocommit=True) as connection:
            while sum(shape.values()) > one(connection, "select max(high) - 2000 from tenure.range"):
                connection.execute("select tenure.extend_ranges(8)")
            later, soon = "now() + interval '1 day'", "now()"
            connection.execute(_FILL_DONE.format(count=shape["done"]).encode())
            connection.execute(FILL.format(priority=0, due=later, count=shape["urgent"]).encode())
            connection.execute(FILL.format(priority=5, due=later, count=shape["waiting"]).encode())
            connection.execute(FILL.format(priority=5, due=soon, count=1_000).encode())
            connection.execute("vacuum analyze tenure.job")

    async def claim(self, store: Store, connection: psycopg.Connection[Any]) -> None:
        """Time a claim of 100, then put what was won back."""
        start = time.perf_counter()
        jobs = await store.claim(worker="bench", limit=100)
        self.times.append(time.perf_counter() - start)
        assert len(jobs) == 100
        connection.execute(
            "update tenure.job set role = 'ready', state = 'queued', lease_token = null, lease_owner = null, "
            "lease_expires_at = null where id = any(%s)",
            ([job.id for job in jobs],),
        )
        connection.execute("vacuum (index_cleanup on, truncate false) tenure.job")


async def depth(make: Callable[[str], str], quick: bool) -> list[dict[str, Any]]:
    """The claim of 100 on tables of three shapes, each in a database of its own, in turn."""
    million = 50_000 if quick else 1_000_000
    shapes = {
        "1,000 ready": {"done": 0, "waiting": 0, "urgent": 0},
        "1 M done, 1 M waiting": {"done": million, "waiting": million, "urgent": 0},
        "1 M delayed urgent in front": {"done": 0, "waiting": 0, "urgent": million},
    }
    tables = [Table(name, make(f"depth{n}"), shape) for n, (name, shape) in enumerate(shapes.items())]
    async with AsyncExitStack() as stack:
        stores = [await stack.enter_async_context(Store.open(table.dsn, connections=1)) for table in tables]
        connections = [stack.enter_context(psycopg.connect(table.dsn, autocommit=True)) for table in tables]
        for _ in range(12 if quick else 60):
            for table, store, connection in zip(tables, stores, connections, strict=True):
                await table.claim(store, connection)
    medians = [statistics.median(table.times[6:]) for table in tables]
    return [
        {"table": table.name, "claim_ms": round(median * 1000, 2), "ratio": round(median / medians[0], 2)}
        for table, median in zip(tables, medians, strict=True)
    ]


def show(report: dict[str, Any]) -> None:
    """Print the tables."""
    print("A whole life (enqueue + claim + succeed), microseconds a job, medians")
    print("| batch | Tenure: enqueue, claim, succeed | jobs/s | bare SQL: enqueue, claim, finish | jobs/s | ratio |")
    print("|---|---|---|---|---|---|")
    for row in report["life"]:
        ours, bare = (" + ".join(f"{stage:g}" for stage in row[side]) for side in ("ours_us", "bare_us"))
        print(
            f"| {row['batch']} | {ours} | {row['ours_per_s']:,} | {bare} | {row['bare_per_s']:,} | {row['ratio']:.2f} |"
        )
    print("\nClaim of 100 jobs, median milliseconds")
    print("| table | ms | ratio |")
    print("|---|---|---|")
    for row in report["depth"]:
        print(f"| {row['table']} | {row['claim_ms']} | {row['ratio']:.2f} |")
    if report["processor"]:
        print("\nProcessor time at a batch of 500, microseconds a job")
        print("| stage | client | server |")
        print("|---|---|---|")
        for stage, (client, server) in report["processor"].items():
            print(f"| {stage} | {client} | {server} |")
    lease_costs.show(report["holding"])
    print(f"\nWAL: {report['wal_bytes']:,} bytes a life (batches of 500); PostgreSQL {report['postgres']}")


def migrated(server: str, name: str) -> str:
    """Make a database of this name with the schema in it; its address."""
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"create database {name}".encode())
    dsn = make_conninfo(server, dbname=name)
    migrate(dsn)
    return dsn


def main() -> None:
    """Run on an embedded PostgreSQL of its own, with fsync on."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller counts, for a first look")
    parser.add_argument("--json", action="store_true", help="the figures as JSON on stdout")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="tenure-bench-") as directory,
        Cluster(Path(directory), settings=SETTINGS) as cluster,
    ):
        make = partial(migrated, cluster.dsn)
        life = make("life")
        with psycopg.connect(life, autocommit=True) as connection:
            connection.execute(_BARE)
            version = one(connection, "show server_version")
        print("measuring lives …", file=sys.stderr)
        report = {"postgres": version, "life": asyncio.run(compare(life, options.quick))}
        report["wal_bytes"] = asyncio.run(wal_per_life(make("wal")))
        linux = Path("/proc/self/schedstat").exists()
        report["processor"] = asyncio.run(processor_time(make("processor"))) if linux else {}
        print("measuring held jobs …", file=sys.stderr)
        report["holding"] = asyncio.run(lease_costs.all_of(make, options.quick))
        print("measuring depth …", file=sys.stderr)
        report["depth"] = asyncio.run(depth(make, options.quick))
    if options.json:
        print(json.dumps(report, indent=2))
    else:
        show(report)


if __name__ == "__main__":
    main()
