"""The limit of the machine: the same life as bare SQL, by pgbench alone, in batches of 1,000.

Ready jobs, held jobs and constant columns are in separate tables, and every job writes three log rows. A library that
keeps such a log cannot be faster on this machine.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from bench.comparison.installation import Missing
from bench.comparison.servers import Postgres
from tenure.embedded import find_binaries

_TABLES = """
create table job (id bigint generated always as identity primary key, payload jsonb not null);
create table ready (priority smallint, due_at timestamptz, id bigint, primary key (priority, due_at, id));
create table held (batch bigint, id bigint, expires_at timestamptz, primary key (batch, id));
create table event (job_id bigint, seq smallint, ts timestamptz, trigger text, primary key (job_id, seq));
create sequence batch;
"""

_ENQUEUE = """
with made as (
    insert into job (payload) select '{"n": 7}' from generate_series(1, 1000) returning id
), waiting as (
    insert into ready select 5, now(), id from made
)
insert into event select id, 0, clock_timestamp(), 'enqueue' from made;
"""

_WORK = """
select nextval('batch') as batch \\gset
with first as materialized (
    select ctid as tid from ready where due_at <= now()
    order by priority, due_at, id limit 1000 for update skip locked
), picked as (
    delete from ready using first where ready.ctid = first.tid returning id
), taken as (
    insert into held select :batch, id, now() + interval '30 seconds' from picked
), logged as (
    insert into event select id, 1, clock_timestamp(), 'claim' from picked
)
select job.id, job.payload from picked join job using (id);
with done as (
    delete from held where batch = :batch returning id
)
insert into event select id, 2, clock_timestamp(), 'succeed' from done;
"""

_LOTS = 1_000


def measure(server: Postgres, binaries: Path | None, batches: int) -> dict[str, float]:
    """Jobs a second of enqueue, of claim and finish, and of whole lives; refuses with Missing."""
    pgbench = _program(binaries)
    address = server.fresh("bare")
    found = {}
    with tempfile.TemporaryDirectory(prefix="tenure-limit-") as directory:
        scripts = {name: Path(directory) / f"{name}.sql" for name in ("enqueue", "work", "life")}
        for name, text in (("enqueue", _ENQUEUE), ("work", _WORK), ("life", _ENQUEUE + _WORK)):
            scripts[name].write_text(text)
        server.run("bare", _TABLES)
        before = server.wal()
        for label, name in (("enqueue", "enqueue"), ("claim + finish", "work"), ("whole life", "life")):
            server.run("bare", "vacuum analyze")
            found[f"{label}/s"] = _run(pgbench, scripts[name], address, batches)
            if name == "work" and before is not None:
                found["WAL bytes a life"] = ((server.wal() or 0) - before) / (batches * _LOTS)
    return found


def _run(pgbench: str, script: Path, address: str, batches: int) -> float:
    clients = 2
    command = [pgbench, "-n", "-M", "prepared", "-c", str(clients), "-j", "1", "-t", str(batches // clients)]
    done = subprocess.run([*command, "-f", str(script), address], capture_output=True, text=True, timeout=300)
    rate = re.search(r"tps = ([\d.]+)", done.stdout)
    if done.returncode != 0 or rate is None:
        raise Missing(f"pgbench failed: {done.stderr.strip()[-300:]}")
    return float(rate[1]) * _LOTS


def _program(binaries: Path | None) -> str:
    beside = (binaries or find_binaries()) / "pgbench"
    found = str(beside) if beside.exists() else shutil.which("pgbench")
    if found is None:
        raise Missing("there is no pgbench on this machine")
    return found
