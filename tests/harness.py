"""What the requirements assume of a test: its own eyes in the database, and hands that move time.

The words are those of requirements.md part 0: `spy` sees every change of state by a trigger of the test's own,
`expire` and `due` move time by moving the row's timestamps.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import dict_row

T = TypeVar("T")

_SPY = """
create table public.spy (
    n bigint generated always as identity, id bigint, old text, new text, counter int, claims int,
    at timestamptz default clock_timestamp(), txid bigint default txid_current());
create function public.spy() returns trigger language plpgsql as $$
begin
    -- Creation is not a hop; a row that arrives among the finished came from its last live state.
    if tg_table_name = 'job' and tg_op = 'UPDATE' then
        insert into public.spy (id, old, new, counter, claims)
        values (new.id, old.state, new.state, new.counter, new.claims);
    elsif tg_table_name <> 'job' then
        insert into public.spy (id, old, new, counter, claims)
        values (new.id, (select s.new from public.spy s where s.id = new.id order by n desc limit 1), new.state,
                new.counter, new.claims);
    end if;
    return null;
end $$;
create trigger spy after insert or update of state on tenure.job for each row execute function public.spy();
create trigger spy after insert on tenure.job_done for each row execute function public.spy();
"""


@dataclass(frozen=True)
class Hop:
    """A change of state as the spy saw it: (old, new) with the counter and claims after it."""

    old: str | None
    new: str
    counter: int
    claims: int
    at: Any
    txid: int


class Harness:
    """A superuser's connection with the requirements' own shorthands."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.connection = psycopg.connect(dsn, autocommit=True, row_factory=dict_row)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    def sql(self, query: str, *values: Any) -> list[dict[str, Any]]:
        """Run any SQL (placeholders %s); its rows as dictionaries."""
        cursor = self.connection.execute(query.encode(), values or None)
        return cursor.fetchall() if cursor.description else []

    def one(self, query: str, *values: Any) -> dict[str, Any]:
        """The only row of a query."""
        (row,) = self.sql(query, *values)
        return row

    def value(self, query: str, *values: Any) -> Any:
        """The only value of a query."""
        return next(iter(self.one(query, *values).values()))

    def row(self, job_id: int) -> dict[str, Any]:
        """Every column of a job, live or finished."""
        return self.one(
            "select * from tenure.job where id = %s union all select * from tenure.job_done where id = %s",
            job_id,
            job_id,
        )

    def log(self, job_id: int) -> list[dict[str, Any]]:
        """The engine's own log of a job, in order."""
        return self.sql("select * from tenure.event where job_id = %s order by seq", job_id)

    def hops(self, job_id: int) -> list[str]:
        """The engine's log as `from->to`."""
        return [f"{event['from_state']}->{event['to_state']}" for event in self.log(job_id) if event["hop"]]

    def expire(self, *ids: int) -> None:
        """Let the leases of these jobs have run out a second ago."""
        self.sql("update tenure.job set lease_expires_at = now() - interval '1 second' where id = any(%s)", list(ids))

    def wear(self, *ids: int) -> None:
        """Let more than half of the leases of these jobs be over: the next beat renews. Five minutes are left."""
        self.sql(
            "update tenure.job set lease_ms = 900000, heartbeat_ms = 900000, "
            "lease_expires_at = clock_timestamp() + interval '300 s' where id = any(%s)",
            list(ids),
        )

    def due(self, *ids: int) -> None:
        """Let the due time of these jobs be now."""
        self.sql("update tenure.job set due_at = now() where id = any(%s)", list(ids))

    def spy(self) -> None:
        """Watch every change of state from now on."""
        self.sql(_SPY)

    def seen(self, job_id: int) -> list[Hop]:
        """What the spy saw of a job. A path of several hops may be one row change: its first and last state."""
        return [
            Hop(r["old"], r["new"], r["counter"], r["claims"], r["at"], r["txid"])
            for r in self.sql("select * from public.spy where id = %s order by n", job_id)
        ]

    def fingerprint(self, *ids: int) -> list[dict[str, Any]]:
        """What a call without effect must leave as it was: rows with their xmin, and counts of what grows."""
        rows = [
            row
            for table in ("job", "job_done")
            for row in self.sql(f"select xmin::text, * from tenure.{table} where id = any(%s) order by id", list(ids))
        ]
        counts = self.sql(
            "select (select count(*) from tenure.event where job_id = any(%s)) as events, "
            "(select count(*) from tenure.dead_letter) as letters, (select count(*) from tenure.outbox) as outbox",
            list(ids),
        )
        return rows + counts

    def log_is_sound(self, *ids: int) -> None:
        """Assert law 5 for these jobs: seq gap-free, ts strictly rising, hops linked, and folding gives the row."""
        for job_id in ids:
            events, row = self.log(job_id), self.row(job_id)
            assert [event["seq"] for event in events] == list(range(1, len(events) + 1)), f"job {job_id}: gaps in seq"
            times = [event["ts"] for event in events]
            assert all(a < b for a, b in itertools.pairwise(times)), f"job {job_id}: ts does not rise: {times}"
            hops = [event for event in events if event["hop"]]
            for before, after in itertools.pairwise(hops):
                assert before["to_state"] == after["from_state"], f"job {job_id}: broken chain {self.hops(job_id)}"
            if hops:
                last = hops[-1]
                assert (row["state"], row["claims"], row["counter"]) == (
                    last["to_state"],
                    last["claims"],
                    last["counter"],
                )
            assert row["seq"] == len(events), f"job {job_id}: row says seq {row['seq']}, log has {len(events)}"


def lock_out(dsn: str, *, out: bool) -> None:
    """Let nobody connect to the test's database, and end who is; or let them in again."""
    name = conninfo_to_dict(dsn)["dbname"]
    with psycopg.connect(make_conninfo(dsn, dbname="postgres"), autocommit=True) as elsewhere:
        elsewhere.execute(f'alter database "{name}" with allow_connections {"false" if out else "true"}'.encode())
        if out:
            elsewhere.execute("select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", [name])


def at_once(count: int, call: Callable[[int], T]) -> list[T]:
    """Run `call(0)` … `call(count - 1)` in threads released together; their results in order."""
    barrier = threading.Barrier(count)
    results: list[Any] = [None] * count
    faults: list[BaseException] = []

    def body(n: int) -> None:
        try:
            barrier.wait()
            results[n] = call(n)
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=body, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if faults:
        raise faults[0]
    return results


def keys(payload: Sequence[str] | dict[str, Any]) -> set[str]:
    """The key set of a JSON object."""
    return set(payload)
