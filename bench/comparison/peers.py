"""The peers: version, environment, best known configuration, and the guarantees of each.

`fenced`: is a completion refused when the attempt is no longer the job's current one? `log`: is there a row for every
transition, kept after the job is done? `crash`: is an attempt spent when a worker dies while it holds the job? Each
answer comes from the peer's documents or its installed source at this version.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Peer:
    """One system under measurement."""

    name: str
    version: str
    #: Exact versions of what is installed; nothing for Tenure, which is measured as it is in this tree.
    packages: tuple[str, ...]
    configuration: str
    fenced: str
    log: str
    crash: str
    #: SQL, or a Lua expression for Redis, that counts the jobs not yet committed as finished.
    unfinished: str
    #: About four seconds of its own draining on two cores.
    jobs: int
    store: Literal["postgres", "redis"] = "postgres"
    language: Literal["python", "node"] = "python"
    #: The oldest Python it runs on.
    python: tuple[int, int] = (3, 11)
    #: The adapter, where it is not named as the peer.
    adapter: str = ""

    @property
    def module(self) -> str:
        """The name of its adapter in `bench/adapters`."""
        return self.adapter or self.name.replace("-", "_")


TENURE = Peer(
    name="tenure",
    version="",
    packages=(),
    configuration="concurrency 2000, all defaults on, psycopg, uvloop, enqueue_many",
    fenced="yes: lease token",
    log="yes: claim and end (creation is the row itself)",
    crash="yes: counted at the claim",
    unfinished="select count(*) from tenure.job",
    jobs=100_000,
)

#: Always measured.
SIX = (
    Peer(
        name="graphile-worker",
        version="0.17.3",
        packages=("graphile-worker@0.17.3", "pg@8.23.1"),
        configuration="concurrentJobs 24, localQueue 500, completeJobBatchDelay 0, pool 26, addJobs",
        fenced="no: deleted by id",
        log="no: the row is deleted",
        crash="yes: counted at the claim",
        unfinished="select count(*) from graphile_worker._private_jobs",
        jobs=100_000,
        language="node",
    ),
    Peer(
        name="pgqueuer",
        version="1.6.0",
        packages=("pgqueuer==1.6.0", "asyncpg==0.32.0", "uvloop==0.23.0"),
        configuration="asyncpg, uvloop, batch_size 1000, pool 10, enqueue with lists",
        fenced="no: deleted by id",
        log="yes: pgqueuer_log",
        crash="no: picked again, attempts unchanged",
        unfinished="select count(*) from pgqueuer",
        jobs=100_000,
    ),
    Peer(
        name="awa-pg",
        version="0.6.9",
        packages=("awa-pg==0.6.9",),
        configuration="256 workers, claim_batch_size 512, enqueue_many_copy",
        fenced="yes: run_lease",
        log="no: the last state only",
        crash="yes: counted at the claim",
        # Its view of jobs takes minutes while it is busy; these are the tables behind that.
        unfinished="""
            select (select coalesce(sum(next_lane_seq - first_lane_seq), 0) from awa.ready_segments)
                 - (select coalesce(sum(completed_count), 0) from awa.receipt_completion_batches)
                 - (select count(*) from awa.done_entries)""",
        jobs=50_000,
    ),
    Peer(
        name="procrastinate",
        version="3.10.0",
        packages=("procrastinate==3.10.0", "psycopg[binary,pool]==3.3.8"),
        configuration="concurrency 50, pool 20, LISTEN, batch_defer",
        fenced="no: finished by id and status",
        log="yes: procrastinate_events",
        crash="only when somebody retries the stalled job",
        unfinished="select count(*) from procrastinate_jobs where status in ('todo', 'doing')",
        jobs=2_000,
    ),
    Peer(
        name="oban-py",
        version="0.7.0",
        packages=("oban==0.7.0", "psycopg[binary,pool]==3.3.8", "uvloop==0.23.0"),
        configuration="limit 500, pool 10, psycopg, uvloop, enqueue_many",
        fenced="yes: attempted_at of the attempt",
        log="no: the last state only",
        crash="yes: counted at the claim",
        unfinished="select count(*) from oban_jobs where state in ('available', 'executing', 'scheduled', 'retryable')",
        jobs=6_000,
        python=(3, 12),
    ),
    Peer(
        name="bullmq",
        version="6.7.0",
        packages=("bullmq@6.7.0", "ioredis@5.11.1"),
        configuration="Redis, concurrency 100, addBulk, removeOnComplete",
        fenced="yes: lock token",
        log="no: a capped event stream",
        crash="no: a stall counter of its own",
        unfinished="redis.call('llen', 'bull:touch:wait') + redis.call('llen', 'bull:touch:active')",
        jobs=60_000,
        store="redis",
        language="node",
    ),
)  # fmt: skip
