"""Sessions that a test leads by the hand: the kernel's verbs on one connection whose transaction may stay open."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Self, TypeVar
from uuid import UUID, uuid4

import psycopg
from psycopg.conninfo import make_conninfo
from psycopg.rows import dict_row

from tenure.errors import Refused
from tenure.jobs.holder_call import HolderCall
from tenure.jobs.job import Failure, Held, Job, NewJob
from tenure.jobs.outcome import Enqueued, Moved, Outcome
from tenure.postgres.connect import engine_dsn, translate_errors
from tenure.postgres.engine import Engine
from tenure.postgres.refusals import Refusals
from tenure.postgres.registry import Registry
from tenure.postgres.statement import Plan, run_sync
from tenure.postgres.store import Store
from tests.harness import Harness

T = TypeVar("T")

#: No session gives up a lock before its test has released it, however slow the machine is.
PATIENT = "set lock_timeout = '100s'"

CONTRACTS = ("standard", "phase27", "dispatcher", "reliability", "simple", "gate_b2")

#: Every contract takes this failure for one that may work next time.
TRANSIENT = Failure("no answer", type="TransientError", retryable=True)


class _NoRefusals(Refusals):
    """Stores no refusals: that is the work of a task on an event loop, which a session has not."""

    def note(self, verb: str, answers: Iterable[Any]) -> None:
        """Do nothing."""


class OneConnection(Engine):
    """The engine on one synchronous connection, so that a test decides when its transaction ends."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        super().__init__(None, Registry())  # type: ignore[arg-type]  # no pool: `run` is all that ever asked for it
        self.connection = connection
        self.refusals = _NoRefusals(self.run)

    async def run(self, plan: Callable[[], Plan[T]], *, beat: bool = False) -> T:
        with translate_errors():
            return run_sync(self.connection, plan())


class Session:
    """One connection of the engine; `begin` leaves what follows in an open transaction."""

    def __init__(self, dsn: str, name: str) -> None:
        self.name = name
        self.connection = psycopg.connect(engine_dsn(make_conninfo(dsn, application_name=name)), autocommit=True)
        self.connection.execute(PATIENT)
        self.store = Store(OneConnection(self.connection))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    @property
    def pid(self) -> int:
        """The backend that serves this session."""
        return self.connection.info.backend_pid

    def begin(self) -> None:
        """Open a transaction; only `end` closes it."""
        self.connection.execute("begin")

    def end(self, how: str) -> None:
        """Commit or roll back."""
        self.connection.execute(how.encode())

    def sql(self, query: str, *values: Any) -> list[dict[str, Any]]:
        """Any SQL, seen from inside this session's transaction."""
        cursor = self.connection.cursor(row_factory=dict_row).execute(query.encode(), values or None)
        return cursor.fetchall() if cursor.description else []

    def lock(self, job_id: int) -> None:
        """Hold the row and do nothing to it."""
        self.sql("select from tenure.job where id = %s for update", job_id)

    def due(self, job_id: int) -> None:
        """Let the job be due now, without a hop."""
        self.sql("update tenure.job set due_at = clock_timestamp() where id = %s", job_id)

    def enqueue(self, *jobs: NewJob) -> list[Enqueued | Refused]:
        """Make jobs."""
        return now(self.store.enqueue_many(jobs))

    def claim(self, contract: str, queue: str, limit: int = 1, key: UUID | None = None) -> list[Job]:
        """Take due jobs of a queue."""
        return now(self.store.claim(contract, [queue], worker=self.name, limit=limit, claim_key=key))

    def claim_by_id(self, contract: str, job_id: int, key: UUID | None = None) -> Job | Refused:
        """Take one job by its id."""
        (answer,) = now(self.store.claim_by_id([job_id], worker=self.name, contract=contract, claim_key=key))
        return answer

    def finish(self, verb: str, held: Held, failure: Failure = TRANSIENT) -> Outcome | None:
        """Start, succeed or fail."""
        outcome: Outcome | None
        call = HolderCall(held, failure=failure if verb == "fail" else None)
        (outcome,) = now(self.store.report(verb, [call]))
        return outcome

    def upkeep(self, verb: str, contract: str) -> list[Outcome]:
        """Reap, promote or settle."""
        verbs = {"reap": self.store.reap, "promote": self.store.promote, "settle": self.store.settle}
        return now(verbs[verb](contract))

    def give_back(self, held: Held) -> None:
        """Fail the job and make it claimable again at once, as if the backoff had passed."""
        self.finish("fail", held)
        self._ready(held)

    def take(self, held: Held) -> Job | Refused:
        """Take an expired lease away from its holder, by the contract's own way."""
        self.upkeep("reap", held.contract)
        self._ready(held)
        return self.claim_by_id(held.contract, held.id)

    def _ready(self, held: Held) -> None:
        self.due(held.id)
        self.upkeep("promote", held.contract)
        self.due(held.id)


def _answer(future: Future[T], call: Callable[[], T]) -> None:
    try:
        future.set_result(call())
    except BaseException as fault:
        future.set_exception(fault)


def now(call: Coroutine[Any, Any, T]) -> T:
    """The answer of a coroutine that never really waits."""
    try:
        call.send(None)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    raise AssertionError("the call waited for an event loop")


@dataclass(frozen=True)
class Arena:
    """A database, the test's own eyes in it, and two sessions that meet on one row."""

    dsn: str
    db: Harness
    first: Session
    second: Session

    def made(self, contract: str, **options: Any) -> tuple[int, str]:
        """A new job alone in a queue of its own."""
        queue = f"queue-{uuid4().hex[:8]}"
        (answer,) = self.second.enqueue(NewJob("t", contract=contract, queue=queue, **options))
        assert isinstance(answer, Enqueued)
        return answer.job_id, queue

    def held(self, contract: str, *, started: bool = True, **options: Any) -> tuple[Held, str]:
        """A new job that the second session holds, where the contract has that step also started."""
        job_id, queue = self.made(contract, **options)
        job = self.second.claim_by_id(contract, job_id)
        assert isinstance(job, Job)
        if started:
            self.second.finish("start", job.held)
        return job.held, queue

    def behind(self, call: Callable[[], T]) -> Future[T]:
        """Start the second session's call in a thread; come back when it is seen to wait for the first session."""
        future: Future[T] = Future()
        threading.Thread(target=_answer, args=(future, call), name="waiter").start()
        give_up = time.monotonic() + 60
        while True:
            seen = self.db.one(
                "select wait_event_type, %s = any (pg_blocking_pids(pid)) as by_first "
                "from pg_stat_activity where pid = %s",
                self.first.pid, self.second.pid,
            )  # fmt: skip
            if seen["wait_event_type"] == "Lock" and seen["by_first"]:
                return future
            if future.done():
                raise AssertionError(f"the call did not wait: {future.result()!r}")
            assert time.monotonic() < give_up, "the call was never seen waiting"
            time.sleep(0.002)

    def pending(self) -> int:
        """A gate_b2 job that stands at its commit point: failed for good, its dead letter not yet written."""
        held, _ = self.held("gate_b2")
        self.db.sql(_NO_LETTERS)
        try:
            outcome = self.second.finish("fail", held, Failure("bad", retryable=False))
        finally:
            self.db.sql("drop function public.no_letters() cascade")
        assert isinstance(outcome, Moved)
        assert outcome.state == "dlq_pending"
        return held.id


_NO_LETTERS = """
create function public.no_letters() returns trigger language plpgsql as $$
begin raise exception 'no dead letter today'; end $$;
create trigger no_letters before insert on tenure.dead_letter for each row execute function public.no_letters();
"""
