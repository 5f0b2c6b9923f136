"""The store: every operation on jobs, run on a connection pool.

    Store            enqueue, claim, a holder's verbs, an operator's verbs, upkeep's verbs, reads of jobs
    store.letters    dead letters        store.queues   queues and pauses     store.history  retention
    store.keys       API keys            store.types    options of job types  store.audit    reads of the audit
    store.workers    live workers        store.watch    the work of upkeep
    store.schedules  schedules            store.flows    flows
    store.datasets   datasets, their generations and events    store.sessions   log-ins of the dashboard
    store.doctor     what is wrong with the database and its workers
    store.counts     counts of moves      store.refusals  refused calls of this store
    store.alarms     alarms, mutes and notices

Each group of verbs is a class in the module that also has its plans. Batch methods return one answer or refusal per
job; their single forms raise the refusal. After a deadlock the engine runs the operation again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tenure.jobs import validation
from tenure.postgres.alarms import Alarms
from tenure.postgres.api_keys import ApiKeys
from tenure.postgres.audit_reads import Audit
from tenure.postgres.counts import Counts
from tenure.postgres.dashboard_sessions import DashboardSessions
from tenure.postgres.datasets.datasets import Datasets
from tenure.postgres.dead_letters import DeadLetters
from tenure.postgres.doctor.examination import Doctor
from tenure.postgres.engine import Engine
from tenure.postgres.enqueue import EnqueueVerbs
from tenure.postgres.flows import Flows
from tenure.postgres.hold import HolderVerbs
from tenure.postgres.job_types import JobTypes
from tenure.postgres.letter_groups import LetterGroups
from tenure.postgres.live_workers import Workers
from tenure.postgres.operate import OperatorVerbs
from tenure.postgres.operations import Operations
from tenure.postgres.outbox import Outbox
from tenure.postgres.queues import Queues
from tenure.postgres.read import JobReads
from tenure.postgres.registry import ContractNumbers
from tenure.postgres.retention import Retention
from tenure.postgres.schedules import Schedules
from tenure.postgres.search import JobSearch
from tenure.postgres.upkeep_verbs import UpkeepVerbs
from tenure.postgres.upkeep_work import UpkeepWork


class Store(EnqueueVerbs, HolderVerbs, OperatorVerbs, UpkeepVerbs, JobReads, JobSearch):
    """Operations on jobs; created by `Store.connect` or, around a block, `Store.open`."""

    def __init__(self, engine: Engine, max_bytes: int = validation.MAX_BYTES) -> None:
        super().__init__(engine, max_bytes)
        self.letters = DeadLetters(engine, max_bytes)
        self.groups = LetterGroups(engine)
        self.operations = Operations(engine, max_bytes)
        self.keys = ApiKeys(engine)
        self.sessions = DashboardSessions(engine)
        self.types = JobTypes(engine)
        self.queues = Queues(engine)
        self.history = Retention(engine)
        self.audit = Audit(engine)
        self.watch = UpkeepWork(engine)
        self.workers = Workers(engine)
        self.outbox = Outbox(engine)
        self.schedules = Schedules(engine, max_bytes)
        self.flows = Flows(engine, max_bytes)
        self.datasets = Datasets(engine, max_bytes)
        self.doctor = Doctor(engine)
        self.counts = Counts(engine)
        self.refusals = engine.refusals
        self.alarms = Alarms(engine)

    @classmethod
    async def connect(
        cls,
        dsn: str,
        *,
        numbers: ContractNumbers | None = None,
        max_bytes: int = validation.MAX_BYTES,
        connections: int = 4,
        wake: bool = True,
        patience_s: float = 10.0,
        statement_ms: int | None = None,
        heartbeats: bool = False,
    ) -> Store:
        """Connect, or raise; `numbers` are this process's settings per contract. Close the store after use.

        With `wake`, the store sends a NOTIFY for committed jobs that can be claimed. A call waits for a connection for
        at most `patience_s`, and for a statement for at most `statement_ms` (default: two minutes). With `heartbeats`,
        one of the connections (at least two) is reserved for heartbeats.
        """
        engine = await Engine.connect(
            dsn, numbers, connections, wake=wake, patience_s=patience_s, statement_ms=statement_ms,
            heartbeats=heartbeats,
        )  # fmt: skip
        return cls(engine, max_bytes)

    @classmethod
    @asynccontextmanager
    async def open(cls, dsn: str, **settings: Any) -> AsyncIterator[Store]:
        """`connect` and `close` around a block."""
        store = await cls.connect(dsn, **settings)
        try:
            yield store
        finally:
            await store.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._engine.close()

    def abandon(self) -> None:
        """Close the connections when their event loop is closed already."""
        self._engine.abandon()

    async def extend_ranges(self, ahead: int = 4) -> int:
        """Create id ranges in advance; returns how many."""
        return await self._engine.extend_ranges(validation.check_integer("ahead", ahead, 1, 64))
