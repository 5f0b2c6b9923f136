"""Worker processes that are killed and frozen by their names, and what must be true of their jobs when all is over."""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Self

from tenure.contracts import BUILT_IN
from tenure.postgres.store import Store
from tenure.proof import audit
from tests.faults import clock
from tests.harness import Harness
from tests.worker.processes import QUICK, ROOT, end
from tests.worker.working import until

APP = "tests.faults.program:app"
#: Seconds that every lease lasts where the test lets time go by: no machine is too slow for them.
LEASE_S = 120
#: `reliability` has a second clock: two beats missed. This is the longest between two beats that it allows.
BEAT_S = 30
#: The environment of workers with such leases.
LONG_LEASES = {f"TENURE_{name.upper()}_LEASE_MS": f"{LEASE_S}000" for name in BUILT_IN}
LONG_LEASES["TENURE_RELIABILITY_HEARTBEAT_MS"] = f"{BEAT_S}000"

#: Where handlers say that they run (see program.py), and every lease that was ever given, with its end.
_WITNESSES = """
create table public.run (
    n bigint generated always as identity primary key, job_id bigint, claims integer, pid integer, alone boolean,
    worker_clock timestamptz, began_at timestamptz default clock_timestamp(), ended_at timestamptz);
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
  -- Not handed back by the holder itself, which goes this way where the contract has no other.
  and event.actor is distinct from (
      select actor from tenure.event as claim
      where claim.job_id = event.job_id and claim.claims = event.claims and claim.trigger = 'claim')
"""

#: Two handlers of one job at once, in two processes or in one, although the first had not lost its lease. One whose end
#: nobody wrote was killed, which lets go of its lock, or still runs.
_TOGETHER = """
select first.job_id, first.claims, second.claims as second
from public.run as first
join public.run as second on second.job_id = first.job_id and second.claims > first.claims
where (first.ended_at is null and not second.alone or second.began_at < first.ended_at) and not exists (
    select from tenure.event where job_id = first.job_id and ts < second.began_at
      and (trigger in ('expire', 'expire_at_cap') and claims = first.claims
           or trigger = 'reclaim' and claims = first.claims + 1))
"""

#: Every path that a job took: one may have several hops, with a log row each.
_TAKEN_PATHS = """
select job_id, trigger from tenure.event where hop group by job_id, claims, trigger order by job_id, min(seq)
"""


_STEP_S = 10
_AGE = """
update tenure.job
set lease_expires_at = lease_expires_at - make_interval(secs => %s),
    last_heartbeat_at = last_heartbeat_at - make_interval(secs => %s)
where lease_expires_at is not null
"""
#: Leases of which a beat is overdue: half of one is gone, or the time between two beats, and a step more.
_SILENT = f"""
select count(*) from tenure.job
where lease_expires_at < clock_timestamp() + make_interval(secs => {LEASE_S / 2 - 1.5 * _STEP_S})
   or contract = 'reliability'
      and last_heartbeat_at < clock_timestamp() - make_interval(secs => {BEAT_S + 0.5 * _STEP_S})
"""


class Fleet:
    """Workers on one database, each under a name that no other ever has, each with a log of its own."""

    def __init__(self, dsn: str, directory: Path, *arguments: str, **environment: str) -> None:
        self.dsn, self._directory, self._arguments = dsn, directory, arguments
        self.workers: dict[str, subprocess.Popen[str]] = {}
        #: What was done to them.
        self.did: Counter[str] = Counter()
        self._begun = 0
        self._clock, self._ahead = directory / "clock", 0.0
        clock.move(self._clock, 0.0)
        ours = {"TENURE_TEST_CLOCK": str(self._clock), "TENURE_TEST_GATES": str(directory)}
        self._environment = {**QUICK, **ours, **environment, "DATABASE_URL": dsn}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.workers.values():
            end(process)

    def begin(self, *arguments: str, **environment: str) -> str:
        """Start one more, with more environment than the others; its name."""
        self._begun += 1
        name = f"worker-{self._begun}"
        with self._log(name).open("w") as log:
            given = ("--poll", "0.05", "--name", name, "--grace", "5", *self._arguments, *arguments)
            self.workers[name] = subprocess.Popen(
                [sys.executable, "-m", "tenure", "worker", APP, *given],
                cwd=ROOT, env={**os.environ, **self._environment, **environment}, stderr=log, text=True,
            )  # fmt: skip
        return name

    async def at_work(self) -> None:
        """Wait until all that were begun are connected."""
        await until(lambda: all(" works on " in self.said(name) for name in self.workers), 60)

    def kill(self, name: str) -> None:
        """Kill −9; comes back when the process is gone."""
        assert self.workers[name].poll() is None, f"{name} had ended by itself: {self.said(name)[-2000:]}"
        end(self.workers.pop(name))
        self.did["killed"] += 1

    def bury(self, db: Harness) -> None:
        """Let every lease be over whose holder is dead."""
        db.sql(
            "update tenure.job set lease_expires_at = now() - interval '1 second' "
            "where lease_expires_at > now() and lease_owner <> all(%s)",
            list(self.workers),
        )

    def freeze(self, name: str) -> None:
        """Stop it where it stands; comes back when all its threads do."""
        process = self.workers[name]
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        self.did["frozen"] += 1

    def thaw(self, name: str) -> None:
        """Let it go on."""
        self.workers[name].send_signal(signal.SIGCONT)

    def open(self, gate: str, attempt: int = 1) -> None:
        """Let handlers of this attempt pass that wait at this gate."""
        (self._directory / f"{gate}-{attempt}").touch()

    def ahead(self, seconds: float) -> None:
        """Let the clock of all workers be ahead by so much more."""
        self._ahead += seconds
        clock.move(self._clock, self._ahead)

    async def age(self, db: Harness, leases: int) -> None:
        """Let the time of so many leases go by, in the database and in the workers; after each step holders beat.

        First in the database, where a beat would skip a row that is being written: then no beat is due yet.
        """
        for _ in range(leases * LEASE_S // _STEP_S):
            db.sql(_AGE, _STEP_S, _STEP_S)
            self.ahead(_STEP_S)
            await until(lambda: db.value(_SILENT) == 0, 60)

    def stop(self, name: str) -> Counter[str]:
        """End it as a signal does; what it says it did with its jobs."""
        process = self.workers.pop(name)
        process.send_signal(signal.SIGTERM)
        try:
            assert process.wait(60) == 0, f"{name} ended with {process.returncode}: {self.said(name)[-2000:]}"
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


def at_work(db: Harness) -> int:
    """How many handlers are at work, as the witnesses say."""
    count: int = db.value("select count(*) from public.run where ended_at is null")
    return count


async def one_at_work(db: Harness, fleet: Fleet, chance: random.Random, besides: Collection[str] = ()) -> str:
    """Wait until a handler runs; a worker that has one. `besides` are left out."""
    busy = "select lease_owner from tenure.job join public.run on job_id = id where ended_at is null"
    names: list[str] = []

    def is_any() -> bool:
        names[:] = sorted({row["lease_owner"] for row in db.sql(busy)} & fleet.workers.keys() - set(besides))
        return bool(names)

    await until(is_any, 60)
    return chance.choice(names)


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
    early, together = db.sql(_TAKEN_EARLY), db.sql(_TOGETHER)
    assert early == [], f"a lease was taken before its time: {early}"
    assert together == [], f"two handlers ran one job while the first held it: {together}"
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
