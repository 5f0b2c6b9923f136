"""Calls that are cut off: what is prepared for each verb, how its backend is killed, and what must be true after."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar
from uuid import UUID, uuid4

from tenure.errors import ConnectionLost, Refused
from tenure.jobs.job import Failure, Held, NewJob
from tenure.jobs.outcome import Enqueued
from tenure.postgres.store import Store
from tests.harness import Harness
from tests.races.sessions import TRANSIENT, Arena

P = ParamSpec("P")
T = TypeVar("T")

VICTIM = "victim"
GATE = 4711

#: For each verb and contract: the state and the number of log rows after the call was made once, and only once.
ENDS: dict[tuple[str, str], tuple[str, int]] = {
    ("enqueue", "standard"): ("queued", 0),
    ("enqueue_keyed", "standard"): ("queued", 0),
    ("claim", "standard"): ("running", 1),
    ("claim", "phase27"): ("running", 1),
    ("claim", "reliability"): ("assigned", 1),
    ("claim_by_id", "standard"): ("running", 1),
    ("claim_by_id", "dispatcher"): ("Running", 1),
    ("start", "reliability"): ("running", 2),
    ("succeed", "standard"): ("succeeded", 2),
    ("succeed", "reliability"): ("succeeded", 3),
    ("retry", "standard"): ("queued", 2),
    ("retry", "simple"): ("PENDING", 3),
    ("retry", "dispatcher"): ("Failed", 2),
    ("exhaust", "standard"): ("dead", 2),
    ("exhaust", "simple"): ("FAILED", 2),
    ("exhaust", "gate_b2"): ("failed", 4),
    ("reap", "standard"): ("queued", 2),
    ("reap", "simple"): ("PENDING", 3),
    ("reap_at_cap", "standard"): ("dead", 2),
    ("reap_at_cap", "phase27"): ("failed", 2),
    ("promote", "dispatcher"): ("Queued", 3),
    ("settle", "gate_b2"): ("failed", 4),
}

#: Which of them leave a dead letter.
LETTERS = {("exhaust", "standard"), ("exhaust", "gate_b2"), ("reap_at_cap", "standard"), ("settle", "gate_b2")}


@dataclass(frozen=True)
class Scene:
    """A job, prepared for one call of one verb."""

    verb: str
    contract: str
    queue: str
    key: UUID
    id: int | None = None
    held: Held | None = None

    async def call(self, store: Store) -> Any:
        """The call; made again it is the same call, with the same keys."""
        match self.verb:
            case "enqueue":
                return await store.enqueue(NewJob("t", queue=self.queue))
            case "enqueue_keyed":
                return await store.enqueue(NewJob("t", queue=self.queue, key=str(self.key)))
            case "claim":
                return await store.claim(self.contract, [self.queue], worker="w", claim_key=self.key)
            case "claim_by_id":
                assert self.id is not None
                return await store.claim_by_id([self.id], worker="w", contract=self.contract, claim_key=self.key)
            case "reap" | "reap_at_cap":
                return await store.reap(self.contract)
            case "promote":
                return await store.promote(self.contract)
            case "settle":
                return await store.settle(self.contract)
        assert self.held is not None
        if self.verb == "start":
            return await store.start(self.held)
        if self.verb == "succeed":
            return await store.succeed(self.held, {"n": 1})
        return await store.fail(self.held, _FATAL if self.contract == "gate_b2" else TRANSIENT)

    def jobs(self, db: Harness) -> list[int]:
        """The jobs of this scene's queue."""
        both = "select id from tenure.job where queue = %s union select id from tenure.job_done where queue = %s"
        return [row["id"] for row in db.sql(both, self.queue, self.queue)]

    def print(self, db: Harness) -> Any:
        """Everything that a call which never happened must leave as it was."""
        keys = "select (select count(*) from tenure.key), (select count(*) from tenure.claim) as claims"
        return db.fingerprint(*self.jobs(db)), db.one(keys)

    def happened(self, db: Harness) -> bool:
        """Whether the call took effect, whole; row and log must agree in either case."""
        ids = self.jobs(db)
        db.log_is_sound(*ids)
        if not ids:
            assert self.verb.startswith("enqueue")
            return False
        (job_id,) = ids
        letters = db.value("select count(*) from tenure.dead_letter where job_id = %s", job_id)
        end = db.row(job_id)["state"], len(db.log(job_id))
        if end != ENDS[self.verb, self.contract]:
            assert letters == 0
            return False
        assert letters == ((self.verb, self.contract) in LETTERS)
        return True


_FATAL = Failure("bad input", retryable=False)


def prepared(arena: Arena, verb: str, contract: str) -> Scene:
    """A job in the state in which the verb moves it."""
    key = uuid4()
    if verb.startswith("enqueue"):
        return Scene(verb, contract, f"queue-{key.hex[:8]}", key)
    if verb == "settle":
        job_id = arena.pending()
        return Scene(verb, contract, arena.db.row(job_id)["queue"], key, job_id)
    options = {"max_attempts": 1} if verb in ("exhaust", "reap_at_cap") and contract != "gate_b2" else {}
    if verb.startswith("claim"):
        job_id, queue = arena.made(contract)
        return Scene(verb, contract, queue, key, job_id)
    held, queue = arena.held(contract, started=verb != "start", **options)
    if verb.startswith("reap"):
        arena.db.expire(held.id)
    if verb == "promote":
        arena.second.finish("fail", held)
        arena.second.due(held.id)
    return Scene(verb, contract, queue, key, held.id, held)


@contextmanager
def halted(arena: Arena, point: str) -> Iterator[None]:
    """Make every statement stop at this point of its work (`before insert on event`) until its backend is killed."""
    arena.db.sql(f"""
        create function public.halt() returns trigger language plpgsql as $$
        begin perform pg_advisory_xact_lock_shared({GATE}); return coalesce(new, old); end $$;
        create trigger halt {point.replace(" on ", " on tenure.")} for each row execute function public.halt();
    """)
    arena.first.sql("select pg_advisory_lock(%s)", GATE)
    try:
        yield
    finally:
        arena.first.sql("select pg_advisory_unlock(%s)", GATE)
        arena.db.sql("drop function public.halt() cascade")


async def kill_at_the_gate(db: Harness) -> None:
    """Kill the victim's backend once it stands at the gate."""
    give_up = time.monotonic() + 60
    kill = (
        "select pg_terminate_backend(pid) from pg_stat_activity "
        "where application_name = %s and wait_event = 'advisory' and datname = current_database()"
    )
    while not db.sql(kill, VICTIM):
        assert time.monotonic() < give_up, "the statement never came to this point"
        await asyncio.sleep(0.002)


async def killed_after(db: Harness, store: Store, seconds: float, call: Coroutine[Any, Any, T]) -> T | ConnectionLost:
    """Make the call and kill its backend that long after it began; what the caller was told."""
    ours = "select pid from pg_stat_activity where application_name = %s and datname = current_database()"
    await again(store.jobs, [1])  # the pool has replaced what the last kill took
    pid = db.value(ours, VICTIM)
    calling = asyncio.create_task(call)
    await asyncio.sleep(seconds)
    db.sql("select pg_terminate_backend(%s)", pid)
    try:
        return await calling
    except ConnectionLost as lost:
        return lost


async def again(call: Callable[P, Awaitable[T]], *values: P.args, **names: P.kwargs) -> T | Refused:
    """Repeat a call until the database has answered it."""
    give_up = time.monotonic() + 60
    while time.monotonic() < give_up:
        try:
            return await call(*values, **names)
        except Refused as refusal:
            return refusal
        except ConnectionLost:
            await asyncio.sleep(0.005)
    raise AssertionError("the database never answered")


class Pauses:
    """Random pauses before a kill: longer after a kill that came before the answer, shorter after one that did not.

    So about half of the kills cut their call off, however fast the machine is.
    """

    def __init__(self, chance: random.Random) -> None:
        self._chance, self._longest_s = chance, 0.01

    def next(self) -> float:
        """Seconds until the next kill."""
        return self._chance.uniform(0, self._longest_s)

    def learn(self, *, cut_off: bool) -> None:
        """Hear whether the last kill came before the answer."""
        self._longest_s = min(1.0, self._longest_s * 1.25) if cut_off else max(0.000_1, self._longest_s * 0.8)


def ids_of(answers: list[Enqueued | Refused]) -> list[int]:
    """The ids of jobs that were made."""
    return [answer.job_id for answer in answers if isinstance(answer, Enqueued)]
