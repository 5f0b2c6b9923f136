"""Worker processes that are killed and frozen by their names, and what must be true of their jobs when all is over."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Self

from tenure.contracts import BUILT_IN
from tenure.postgres.store import Store
from tenure.proof import audit
from tests.harness import Harness
from tests.worker.processes import begin, end
from tests.worker.working import until

APP = "tests.faults.program:app"

#: Where handlers say that they run (see program.py), and every lease that was ever given, with its end.
_WITNESSES = """
create table public.run (
    n bigint generated always as identity primary key, job_id bigint, claims integer, pid integer, alone boolean,
    began_at timestamptz default clock_timestamp(), ended_at timestamptz);
create table public.lease (
    n bigint generated always as identity primary key, job_id bigint, claims integer, ends timestamptz,
    at timestamptz default clock_timestamp());
create function public.lease() returns trigger language plpgsql as $$
begin
    insert into public.lease (job_id, claims, ends) values (new.id, new.claims, new.lease_expires_at);
    return null;
end $$;
create trigger lease after update on tenure.job for each row
when (new.lease_expires_at is distinct from old.lease_expires_at and new.lease_expires_at is not null)
execute function public.lease();
"""

#: Leases that were taken from their holders before their time. Missed beats are another clock, of `reliability` alone.
_TAKEN_EARLY = """
select event.job_id, event.seq, event.ts, lease.ends
from tenure.event as event
cross join lateral (
    select ends from public.lease
    where job_id = event.job_id and claims = event.claims - (event.trigger = 'reclaim')::int and at <= event.ts
    order by n desc limit 1
) as lease
where event.trigger in ('expire', 'expire_at_cap', 'reclaim') and event.contract <> 'reliability'
  and lease.ends >= event.ts
"""

#: Two handlers of one job at once, in two processes or in one, although the first had not lost its lease.
_TOGETHER = """
select first.job_id, first.claims, second.claims as second
from public.run as first
join public.run as second on second.job_id = first.job_id and second.claims > first.claims
where (not second.alone or second.began_at < first.ended_at) and not exists (
    select from tenure.event where job_id = first.job_id and ts < second.began_at
      and (trigger in ('expire', 'expire_at_cap') and claims = first.claims
           or trigger = 'reclaim' and claims = first.claims + 1))
"""

#: Every path that a job took: one may have several hops, with a log row each.
_TAKEN_PATHS = """
select job_id, trigger from tenure.event where hop group by job_id, claims, trigger order by job_id, min(seq)
"""


class Fleet:
    """Workers on one database, each under a name that no other ever has, each with a log of its own."""

    def __init__(self, dsn: str, directory: Path, *arguments: str) -> None:
        self.dsn, self._directory, self._arguments = dsn, directory, arguments
        self.workers: dict[str, subprocess.Popen[str]] = {}
        #: What was done to them.
        self.did: Counter[str] = Counter()
        self._begun = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.workers.values():
            end(process)

    def begin(self, *arguments: str) -> str:
        """Start one more; its name."""
        self._begun += 1
        name = f"worker-{self._begun}"
        with self._log(name).open("w") as log:
            given = ("--name", name, "--grace", "5", *self._arguments, *arguments)
            self.workers[name] = begin(self.dsn, *given, app=APP, stderr=log)
        return name

    async def at_work(self) -> None:
        """Wait until all that were begun are connected."""
        await until(lambda: all(" works on " in self.said(name) for name in self.workers))

    def kill(self, name: str) -> None:
        """Kill −9; comes back when the process is gone."""
        assert self.workers[name].poll() is None, f"{name} had ended by itself: {self.said(name)[-2000:]}"
        end(self.workers.pop(name))
        self.did["killed"] += 1

    def freeze(self, name: str) -> None:
        """Stop it where it stands."""
        self.workers[name].send_signal(signal.SIGSTOP)
        self.did["frozen"] += 1

    def thaw(self, name: str) -> None:
        """Let it go on."""
        self.workers[name].send_signal(signal.SIGCONT)

    def stop(self, name: str) -> Counter[str]:
        """End it as a signal does; what it says it did with its jobs."""
        process = self.workers.pop(name)
        process.send_signal(signal.SIGTERM)
        try:
            assert process.wait(20) == 0, f"{name} ended with {process.returncode}: {self.said(name)[-2000:]}"
        finally:
            end(process)
        last = self.said(name).rpartition(f"{name} stopped: ")[2].splitlines()
        return Counter({what: int(count) for count, what in re.findall(r"(\d+) ([a-z ]+)", last[0] if last else "")})

    def stop_all(self) -> Counter[str]:
        """End all that live; what they say together."""
        return sum((self.stop(name) for name in list(self.workers)), Counter())

    def said(self, name: str) -> str:
        """The log of a worker, alive or not."""
        return self._log(name).read_text()

    def _log(self, name: str) -> Path:
        return self._directory / f"{name}.log"


def witness(db: Harness) -> None:
    """Write down every run of a handler and every lease from now on."""
    db.sql(_WITNESSES)


async def over(db: Harness, within: float, meanwhile: Callable[[], object] = lambda: None) -> float:
    """Wait until no job is left to move; how long it took."""
    begun = time.monotonic()
    while left := db.value("select count(*) from tenure.job"):
        stuck = f"{left} jobs did not come to their end: "
        assert time.monotonic() - begun < within, stuck + str(db.sql("select * from tenure.job limit 3"))
        meanwhile()
        await asyncio.sleep(0.05)
    return time.monotonic() - begun


def seen_by_witnesses(db: Harness) -> None:
    """Assert that nobody was robbed of a valid lease, and that no job had two handlers while it was held."""
    assert db.sql(_TAKEN_EARLY) == [], "a lease was taken before its time"
    assert db.sql(_TOGETHER) == [], "two handlers ran one job while the first held it"
    more = "select id from tenure.job_done where claims < (select count(*) from public.run where job_id = id)"
    assert db.sql(more) == [], "a handler ran oftener than its job was claimed"


async def ended_well(db: Harness, ids: list[int]) -> Counter[str]:
    """Assert that each of these jobs is there once and came to an end that its budget allows; every trigger counted.

    A job whose handler never gives up may end badly in one way alone: its last lease, too, ran out with its worker.
    """
    rows = db.sql("select id, contract, state, claims, max_attempts, raises from tenure.job_done order by id")
    assert [row["id"] for row in rows] == sorted(ids), "a job is lost, or there is one that nobody made"
    logs: dict[int, list[str]] = {job_id: [] for job_id in ids}
    for event in db.sql(_TAKEN_PATHS):
        logs[event["job_id"]].append(event["trigger"])
    for row in rows:
        contract, triggers = BUILT_IN[row["contract"]], logs[row["id"]]
        executions = contract.budget.executions(row["max_attempts"], row["raises"])
        assert row["claims"] <= executions, f"{row} was claimed {row['claims']} times"
        if row["state"] not in contract.successes():
            assert "expire_at_cap" in triggers, f"{row} ended badly: {triggers}"
            assert row["claims"] == executions, f"{row} ended before its limit: {triggers}"
    await verified(db, len(ids))
    return Counter(trigger for triggers in logs.values() for trigger in triggers)


async def verified(db: Harness, jobs: int) -> None:
    """Assert that `tenure verify` finds this many jobs, and nothing wrong."""
    async with Store.open(db.dsn, connections=1) as store:
        report = await audit(store)
    assert (report.violations, report.more, report.jobs) == ([], 0, jobs)


def lost(triggers: Counter[str]) -> int:
    """How many leases ran out."""
    return triggers["expire"] + triggers["expire_at_cap"] + triggers["reclaim"]
