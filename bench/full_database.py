"""Fills a database as years of use do: millions of jobs of all contracts with their logs, in thousands of id ranges.

A few hundred jobs live through the public verbs (`tests/proof/histories.py`). SQL then copies their rows and logs, each
copy with an id, a time, a type, a queue, a tenant and a payload of its own. Half of the finished jobs lie evenly in all
ranges, the other half in the newest five.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import psycopg

from bench.kernel import one
from tenure.jobs.validation import ID_UNIT
from tenure.postgres.store import Store
from tests.harness import Harness
from tests.proof.histories import live_all

TYPES, QUEUES, TENANTS, CAUSES = 60, 12, 40, 300
#: One type in so many jobs that a list of its jobs has few entries among very many.
_RARE = 100_000
_HELD, _WAITING = 2_000, 20_000
_PART = 100_000
_DENSE = 5
_AT_ONCE = 2
#: The oldest job is this old.
_DAYS = 400

#: Lives whose copies are not yet moved by upkeep, and those of finished jobs with a short log.
_TEMPLATES = """
create schema bench;
create table bench.letter as select * from tenure.dead_letter;
create table bench.done as
    select row_number() over (partition by is_bad order by id) - 1 as k, chosen.* from (
        select *, id in (select job_id from bench.letter) as is_bad from tenure.job_done
        where seq <= 5 and last_error is null
        union all
        select *, true from tenure.job_done
        where id in (select job_id from bench.letter) and seq <= 5 and last_error is not null
    ) as chosen where is_bad = (last_error is not null);
create table bench.log as select * from tenure.event where job_id in (select id from bench.done);
create table bench.live as
    select row_number() over (partition by part order by id) - 1 as k, chosen.* from (
        select *, case role when 'ready' then 'ready' when 'waiting' then 'waiting' else 'held' end as part
        from tenure.job where role in ('ready', 'waiting') or (role in ('leased', 'active') and pending is null)
    ) as chosen;
create index on bench.log (job_id);
create index on bench.letter (job_id);
"""

_MADE = """
    select id, g, is_bad, now() - interval '{days} days' * (1 - (g + 1)::float8 / {total}) as t,
           case when g % {rare} = 7 then 'rare.type' else 'app.type_' || g * 7919 % {types} end as type,
           'queue-' || g % {queues} as queue,
           case when g % 2 = 0 then 'default' else 'tenant-' || g * 104729 % {tenants} end as tenant_id,
           jsonb_build_object('to', 'user' || g % 5000 || '@example.org', 'n', g) as payload,
           -- A few causes have most of the dead letters.
           'Error' || (power((g / 100 % 1000) / 1000.0, 3) * {causes})::integer as error
"""

_FINISHED = """
with made as materialized (
    {made}
    from (select {low}::bigint + n as id, {first}::bigint + n as g, ({first} + n) % 100 = 0 as is_bad
          from generate_series(0, {count} - 1) as n) as each
),
chosen as materialized (
    select made.*, pattern.id as of, made.t - pattern.created_at as shift
    from made join bench.done as pattern
        on pattern.is_bad = made.is_bad
       and pattern.k = made.g % (select count(*) from bench.done as other where other.is_bad = made.is_bad)
),
done as (
    insert into tenure.job_done ({job_names})
    select {job_values} from chosen join bench.done as pattern on pattern.id = chosen.of
),
letters as (
    insert into tenure.dead_letter ({letter_names})
    select {letter_values} from chosen join bench.letter as pattern on pattern.job_id = chosen.of where chosen.is_bad
)
insert into tenure.event ({log_names})
select {log_values} from chosen join bench.log as pattern on pattern.job_id = chosen.of
"""

_LIVE = """
with made as materialized (
    {made}, part
    from (select {low}::bigint + n as id, {first}::bigint + n as g, false as is_bad,
                 case when n < {held} then 'held' when n < {waiting} then 'waiting' else 'ready' end as part
          from generate_series(0, {count} - 1) as n) as each
),
chosen as materialized (
    select made.*, pattern.id as of, made.t - pattern.created_at as shift
    from made join bench.live as pattern
        on pattern.part = made.part
       and pattern.k = made.g % (select count(*) from bench.live as other where other.part = made.part)
)
insert into tenure.job ({job_names})
select {job_values} from chosen join bench.live as pattern on pattern.id = chosen.of
"""

#: What upkeep must not move: leases that hold, and jobs that wait for tomorrow; two of five ready ones are delayed.
_LIVE_TIMES = """
update tenure.job set lease_expires_at = now() + interval '1 day', last_heartbeat_at = now() + interval '1 day',
                      lease_owner = 'worker-' || id % 50
where role in ('leased', 'active');
update tenure.job set due_at = now() + interval '1 day' where role = 'waiting' or (role = 'ready' and id % 5 < 2);
update tenure.job set due_at = created_at where role = 'ready' and id % 5 >= 2;
insert into tenure.worker (
    name, started_at, last_seen_at, pid, slots, busy, host, version, application, queues, contracts, types)
select 'worker-' || n, now(), now() + interval '1 day', n, 40, 40, 'host-' || n % 10, '1', 'shop',
       array(select 'queue-' || q from generate_series(0, {queues} - 1) as q), array(select name from tenure.contract),
       null
from generate_series(0, 49) as n
"""

#: Counts as two days of steady work leave them: 300 combinations of contract, type and tenant, each with moves of seven
#: kinds in every second minute of the last hour.
_COUNTS = """
insert into tenure.tally_group (contract, type, tenant_id, queue)
select contract.name, 'app.type_' || n, 'tenant-' || t, 'queue-' || n % {queues}
from (select name, row_number() over (order by name) as k
      from (select distinct name from tenure.contract) as each) as contract,
     generate_series(0, {types} - 1) as n, generate_series(1, 5) as t
where n % 6 = k % 6
on conflict do nothing;
with hop (trigger, from_state, to_state, ended, bucket, n) as (
    values ('enqueue', '', 'queued', false, -1, 100), ('claim', 'queued', 'running', false, 4, 60),
           ('claim', 'queued', 'running', false, 7, 30), ('claim', 'queued', 'running', false, 10, 10),
           ('succeed', 'running', 'succeeded', true, 3, 50),
           ('succeed', 'running', 'succeeded', true, 6, 40), ('fail', 'running', 'failed', true, 8, 9)
)
insert into tenure.rollup (
    start, last_at, seconds, number, group_id, bucket, ended, unit, trigger, from_state, to_state)
select at, at, n, n, tally_group.id, bucket, ended, unit, trigger, from_state, to_state
from tenure.tally_group, hop, (
    select '-infinity'::timestamptz as at, 'ever' as unit, 1 as every
    union all
    select date_trunc('hour', now()) - h * interval '1 hour', 'hour', 20 from generate_series(0, 24 * 30) as h
    union all
    select date_trunc('minute', now()) - m * interval '1 minute', 'minute', case when m <= 60 then 2 else 20 end
    from generate_series(0, 48 * 60) as m
) as slice
where (tally_group.id + extract(epoch from greatest(at, '1970-01-01'::timestamptz))::bigint / 60) % every = 0
on conflict do nothing
"""

_FLOWS = """
insert into tenure.flow (
    first_id, last_id, nodes, open, cleanups, failed, name, tenant_id, state, on_failure, created_at, ended_at)
select 0, 0, 5, 0, 0, (n % 20 = 0)::integer, 'nightly-' || n % 50, 'default',
       case when n % 20 = 0 then 'failed' else 'succeeded' end, 'stop',
       now() - interval '1 minute' * ({count} - n), now() - interval '1 minute' * ({count} - n)
from generate_series(0, {count} - 1) as n
"""


@dataclass(frozen=True)
class Size:
    """How full a database is."""

    jobs: int
    ranges: int

    @property
    def live(self) -> int:
        """How many of the jobs have not ended."""
        return self.jobs // 20


@dataclass(frozen=True)
class _Part:
    """Finished jobs of one range: ids from `low` on; `first` is the number of the first one among all."""

    low: int
    first: int
    count: int


def fill(dsn: str, size: Size) -> None:
    """Fill a migrated, empty database, and count what upkeep counts."""
    begun = time.perf_counter()
    with psycopg.connect(dsn, autocommit=True) as connection:
        asyncio.run(_live(dsn))
        connection.execute(_TEMPLATES.encode())
        _make_ranges(connection, size.ranges)
        _say(begun, f"{size.ranges:,} id ranges")
        copies = _Copies(connection, size)
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            parts = list(_parts(connection, size))
            for worker in [threads.submit(_copy, dsn, copies, parts[n::_AT_ONCE]) for n in range(_AT_ONCE)]:
                worker.result()
        _say(begun, f"{size.jobs - size.live:,} finished jobs with their logs")
        connection.execute(copies.live(_top(connection) - ID_UNIT // 2))
        connection.execute(_LIVE_TIMES.format(queues=QUEUES).encode())
        connection.execute(_COUNTS.format(queues=QUEUES, types=TYPES).encode())
        connection.execute(_FLOWS.format(count=max(100, size.jobs // 200)).encode())
        _say(begun, f"{size.live:,} live jobs, and counts")
        asyncio.run(_count(dsn))
        _say(begun, "causes of dead letters")
        connection.execute("drop schema bench cascade")
        connection.execute("vacuum analyze")
        connection.execute("checkpoint")
    _say(begun, "vacuumed")


async def _live(dsn: str) -> None:
    with Harness(dsn) as db:
        async with Store.open(dsn, connections=2, wake=False) as store:
            await live_all(store, db)


async def _count(dsn: str) -> None:
    """What upkeep does a second behind."""
    async with Store.open(dsn, connections=2, wake=False) as store:
        while await store.groups.count_changes():
            pass
        await store.counts.fold()
        await store.counts.recount()
        await store.counts.fold()


def _make_ranges(connection: psycopg.Connection[Any], ranges: int) -> None:
    while (made := one(connection, "select count(*) from tenure.range")) < ranges:
        connection.execute("select setval('tenure.job_id_seq', greatest(1, max(high) - 1)) from tenure.range")
        connection.execute(f"select tenure.extend_ranges({min(10, max(1, ranges - made))})".encode())
    # The newest job stands in the middle of the fifth range from the end; four lie ahead.
    connection.execute(
        "select setval('tenure.job_id_seq', (select low + %s from tenure.range order by low desc offset 4 limit 1))",
        [ID_UNIT // 2],
    )


def _top(connection: psycopg.Connection[Any]) -> int:
    return int(one(connection, "select last_value from tenure.job_id_seq"))


def _parts(connection: psycopg.Connection[Any], size: Size) -> Iterator[_Part]:
    """Where the finished jobs go, oldest first; the first range has those that lived."""
    ranges = [low for (low,) in connection.execute("select low from tenure.range order by low").fetchall()][1:-5]
    left, first = size.jobs - size.live, 0
    even = left // 2 // len(ranges)
    dense = (left - even * len(ranges)) // min(_DENSE, len(ranges))
    for place, low in enumerate(ranges):
        count = even + (dense if place >= len(ranges) - _DENSE else 0)
        for begin in range(0, count, _PART):
            yield _Part(low + begin, first + begin, min(_PART, count - begin))
        first += count


class _Copies:
    """The statements that copy."""

    def __init__(self, connection: psycopg.Connection[Any], size: Size) -> None:
        self._size = size
        own = {name: f"chosen.{name}" for name in ("id", "type", "queue", "tenant_id", "payload")}
        message = "'no answer to request ' || chosen.g"
        error = f"pattern.last_error || jsonb_build_object('type', chosen.error, 'message', {message})"
        self._columns = {
            "job": _columns(connection, "job_done", {**own, "last_error": error}),
            "live": _columns(connection, "job_done", {**own, "lease_token": "pattern.lease_token"}),
            "log": _columns(connection, "event", {"job_id": "chosen.id"}),
            "letter": _columns(connection, "dead_letter", {**own, "job_id": "chosen.id", "last_error": error}, "id"),
        }

    def finished(self, part: _Part) -> bytes:
        """Finished jobs of a part, with their logs and dead letters."""
        names = {f"{name}_names": columns[0] for name, columns in self._columns.items()}
        values = {f"{name}_values": columns[1] for name, columns in self._columns.items()}
        where = {"low": part.low, "first": part.first, "count": part.count}
        return _FINISHED.format(made=self._made(), **names, **values, **where).encode()

    def live(self, low: int) -> bytes:
        """The live jobs: the newest of all."""
        size, (names, values) = self._size, self._columns["live"]
        return _LIVE.format(
            made=self._made(), low=low, first=size.jobs - size.live, count=size.live, held=min(_HELD, size.live // 10),
            waiting=min(_HELD + _WAITING, size.live // 5), job_names=names, job_values=values,
        ).encode()  # fmt: skip

    def _made(self) -> str:
        return _MADE.format(
            days=_DAYS, total=self._size.jobs, rare=_RARE, types=TYPES, queues=QUEUES, tenants=TENANTS, causes=CAUSES
        )


def _columns(connection: psycopg.Connection[Any], table: str, own: dict[str, str], *left_out: str) -> tuple[str, str]:
    """The names of a table's columns, and the values of a copy: its own, times shifted, the others as they were."""
    rows = connection.execute(
        "select attname, atttypid = 'timestamptz'::regtype from pg_attribute "
        "where attrelid = %s::regclass and attnum > 0 and not attisdropped",
        [f"tenure.{table}"],
    ).fetchall()
    names = [name for name, _ in rows if name not in left_out]
    values = [
        own.get(name, f"pattern.{name} + chosen.shift" if is_time else f"pattern.{name}")
        for name, is_time in rows
        if name not in left_out
    ]
    return ", ".join(names), ", ".join(values)


def _copy(dsn: str, copies: _Copies, parts: list[_Part]) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("set synchronous_commit = off")
        connection.execute("set jit = off")
        for part in parts:
            connection.execute(copies.finished(part))


def _say(begun: float, what: str) -> None:
    print(f"  {what}: {time.perf_counter() - begun:.0f} s", file=sys.stderr)
