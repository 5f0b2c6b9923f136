"""The ring: two callers, each with a thread and a store of its own, who reach for the same job at the same moment.

Whoever won starts a little later in the next round, so that the two stay close together and both win their share. What
each round must have left is noted, and compared with all rows and logs at once when the last round is over.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from tenure.contracts import BUILT_IN
from tenure.errors import Refused
from tenure.jobs.job import Failure, Held, NewJob
from tenure.jobs.outcome import Enqueued, Moved, Noted
from tenure.postgres.store import Store
from tests.harness import Harness
from tests.holder_calls import calls
from tests.races.sessions import Session, now

_BATCH = 100  # jobs prepared at once, at the most
_MOST = 20  # times as many rounds as asked for, before a ring says that it is no race
_STEP = 0.0001  # seconds; what a win costs in the next round, times the wins in a row
_SPREAD = 0.0005
_AT_MOST = 60.0  # seconds for one round

FATAL = Failure("broken for good", type="ValidationError", code="BROKEN", retryable=False)


@dataclass
class Round:
    """One job to fight for, and what each side was told so far."""

    job_id: int
    queue: str
    held: Held | None = None
    letter: int | None = None
    told: list[Any] = field(default_factory=lambda: [None, None])

    @property
    def lease(self) -> Held:
        """The lease on the job."""
        assert self.held is not None
        return self.held

    @property
    def paper(self) -> int:
        """The dead letter of the job."""
        assert self.letter is not None
        return self.letter


Call = Callable[[Store, Round], Awaitable[Any]]


class Met(NamedTuple):
    """How a round ended: which side won, what the winner got and what the other was told."""

    winner: int
    got: Any
    told: Any


def has_won(answer: Any) -> bool:
    """Whether an answer is a win; a refusal is none, nor is upkeep that found nothing to do."""
    return bool(answer) and not isinstance(answer, Refused)


def way(contract: str, *triggers: str) -> list[str]:
    """The hops that these triggers make one after the other from the contract's first state, as it declares them."""
    states = [BUILT_IN[contract].initial]
    for trigger in triggers:
        path = BUILT_IN[contract].path(trigger, states[-1])
        assert path is not None, f"{contract} has no {trigger} from {states[-1]}"
        states += [hop.state for hop in path.hops]
    return [f"{before}->{after}" for before, after in itertools.pairwise(states)]


class Side:
    """One of the two callers."""

    def __init__(self, dsn: str, gong: threading.Barrier) -> None:
        self._gong = gong
        self._runner = asyncio.Runner()
        self._thread = ThreadPoolExecutor(1)
        self._store = self._thread.submit(self._runner.run, Store.connect(dsn, connections=1)).result(_AT_MOST)

    def close(self) -> None:
        """Close the store, in its own thread."""
        self._thread.submit(self._runner.run, self._store.close()).result(_AT_MOST)
        self._thread.submit(self._runner.close).result(_AT_MOST)
        self._thread.shutdown()

    def ask(self, number: int, call: Call, fight: Round, after: float) -> Any:
        """Begin the call so many seconds after the gong; gives when it began and when it was answered."""
        return self._thread.submit(self._ask, number, call, fight, after)

    def _ask(self, number: int, call: Call, fight: Round, after: float) -> tuple[float, float]:
        self._gong.wait(_AT_MOST)
        time.sleep(after)
        began = time.perf_counter()
        fight.told[number] = self._runner.run(self._told(call, fight))
        return began, time.perf_counter()

    async def _told(self, call: Call, fight: Round) -> Any:
        try:
            return await asyncio.wait_for(call(self._store, fight), _AT_MOST)
        except Refused as refusal:
            return refusal


class Ring:
    """A database with two callers in it; `rounds` jobs are made, fought for and judged."""

    def __init__(self, dsn: str, rounds: int) -> None:
        self.rounds = rounds
        self._batch = min(rounds, _BATCH)
        self.wins = [0, 0]
        self.overlapped = 0
        self._chance = random.Random(rounds)
        self._middle = 0.0  # where both win equally often: how much earlier the first side starts, in seconds
        self._ahead = 0.0  # and how much earlier it starts in the coming round
        self._in_a_row = (0, 0)  # the side that won last, and how often
        self._ends: dict[int, tuple[list[str], str, int]] = {}  # hops, state, dead letters
        self._stack = ExitStack()
        self.db = self._stack.enter_context(Harness(dsn))
        self.preparer = self._stack.enter_context(Session(dsn, "preparer"))
        gong = threading.Barrier(2)
        self._sides = [Side(dsn, gong), Side(dsn, gong)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for side in self._sides:
            side.close()
        self._stack.close()

    def made(self, contract: str, together: int = 1) -> Iterator[Round]:
        """A round for each of many new jobs, which nobody holds; so many of them share a queue.

        There are as many as asked for, and more until it was a race that both can win: how soon depends on the machine.
        """
        for begun in range(0, self.rounds * _MOST, self._batch):
            if begun >= self.rounds and self.was_a_race():
                return
            numbers = range(begun, begun + self._batch)
            jobs = [NewJob("t", contract=contract, queue=f"queue-{n // together}") for n in numbers]
            for job, answer in zip(jobs, self.preparer.enqueue(*jobs), strict=True):
                assert isinstance(answer, Enqueued)
                yield Round(answer.job_id, job.queue)

    def held(self, contract: str) -> Iterator[Round]:
        """A round for each of many held jobs, where the contract has that step also started."""
        made = self.made(contract, together=self._batch)
        while batch := list(itertools.islice(made, self._batch)):
            held = [job.held for job in self.preparer.claim(contract, batch[0].queue, len(batch))]
            assert sorted(one.id for one in held) == [each.job_id for each in batch]
            now(self.preparer.store.report("start", calls(held)))
            self.db.sql(_LONG_LEASES, [one.id for one in held])
            yield from (Round(one.id, batch[0].queue, one) for one in held)

    def letters(self, contract: str) -> Iterator[Round]:
        """A round for each of many open dead letters."""
        held = self.held(contract)
        while batch := list(itertools.islice(held, self._batch)):
            now(
                self.preparer.store.report("fail", calls([each.lease for each in batch], failures=[FATAL] * len(batch)))
            )
            for each in batch:
                letter = now(self.preparer.store.letters.of_job(each.job_id))
                assert letter.status == "open"
                yield Round(each.job_id, each.queue, letter=letter.id)

    def both(self, fight: Round, first: Call, second: Call) -> tuple[Any, Any]:
        """Let both call at once; what each was told."""
        late = (max(0.0, -self._ahead), max(0.0, self._ahead))
        calls = [
            side.ask(n, call, fight, late[n])
            for n, (side, call) in enumerate(zip(self._sides, (first, second), strict=True))
        ]
        times = [call.result(_AT_MOST) for call in calls]
        self.overlapped += max(began for began, _ in times) < min(ended for _, ended in times)
        return fight.told[0], fight.told[1]

    def meet(self, fight: Round, first: Call, second: Call) -> Met:
        """Let both call at once; exactly one of them must win, and the other be refused or find nothing."""
        told = self.both(fight, first, second)
        winners = [n for n in (0, 1) if has_won(told[n])]
        assert len(winners) == 1, f"job {fight.job_id} has {len(winners)} winners: {told}"
        self.count(winners[0])
        return Met(winners[0], told[winners[0]], told[1 - winners[0]])

    def count(self, winner: int) -> None:
        """This side won; it starts later in the next round."""
        self.wins[winner] += 1
        last, often = self._in_a_row
        self._in_a_row = (winner, often + 1 if winner == last else 1)
        self._middle += _STEP * self._in_a_row[1] * (-1 if winner == 0 else 1)
        self._ahead = self._middle + self._chance.uniform(-_SPREAD, _SPREAD)

    def head_start(self) -> float:
        """What the first side shall have ahead in the coming round, for a test that gives it by other means."""
        given, self._ahead = max(0.0, self._ahead), min(0.0, self._ahead)
        return given

    def ends(self, job_id: int, contract: str, *triggers: str, letters: int = 0) -> None:
        """Note what the job's log must tell, whole, and how many dead letters it must have."""
        hops = way(contract, *triggers)
        self._ends[job_id] = (hops, hops[-1].split("->")[1], letters)

    def judge(self) -> None:
        """Compare every row, log and dead letter with what was noted, and see that it was a race that both can win."""
        assert len(self._ends) == sum(self.wins) >= self.rounds
        logs_are_sound(self.db, list(self._ends))
        found = self.db.sql(_ENDS, list(self._ends))
        told = {row["id"]: (row["hops"], row["state"], row["letters"]) for row in found}
        wrong = {job_id: (told.get(job_id), end) for job_id, end in self._ends.items() if told.get(job_id) != end}
        assert not wrong, f"as found, and as it should be: {wrong}"
        assert self.was_a_race(), f"won {self.wins}, {self.overlapped} of {sum(self.wins)} rounds overlapped"

    def was_a_race(self) -> bool:
        """Whether each side won often enough, and enough calls were under way at the same time."""
        return min(self.wins) >= self.rounds // 20 and self.overlapped >= self.rounds // 4


#: No lease runs out, and no beat is missed, while its job waits for its round.
_LONG_LEASES = """
update tenure.job
set lease_expires_at = lease_expires_at + interval '1 hour', last_heartbeat_at = last_heartbeat_at + interval '1 hour'
where id = any(%s)
"""

#: Jobs with the hops that their logs tell, and the dead letters that they have.
_ENDS = """
select id, state,
       (select array_agg(from_state || '->' || to_state order by seq)
        from tenure.event where job_id = job.id and hop) as hops,
       (select count(*) from tenure.dead_letter where job_id = job.id) as letters
from (select id, state from tenure.job union all select id, state from tenure.job_done) as job
where id = any(%s)
"""

#: `Harness.log_is_sound` for many jobs in one question: those that break law 5.
_UNSOUND = """
with row as (
    select id, state, seq, claims, counter from tenure.job where id = any(%(ids)s)
    union all
    select id, state, seq, claims, counter from tenure.job_done where id = any(%(ids)s)
),
logged as (
    select *, row_number() over log as n, lag(ts) over log as ts_before,
           lag(to_state) over hops as state_before, lag(seq) over hops is null as first_hop,
           lead(seq) over hops is null and hop as last_hop
    from tenure.event
    where job_id = any(%(ids)s)
    window log as (partition by job_id order by seq), hops as (partition by job_id, hop order by seq)
)
select job_id as id, 'its log has a gap or goes back' as fault from logged where n <> seq or ts <= ts_before
union all
select job_id, 'its hops are not linked' from logged where hop and not first_hop and from_state <> state_before
union all
select row.id, 'its row and its last hop disagree' from row join logged on logged.job_id = row.id and logged.last_hop
where (row.state, row.claims, row.counter) is distinct from (logged.to_state, logged.claims, logged.counter)
union all
select id, 'its row counts other log rows than there are' from row
where seq <> (select count(*) from tenure.event where job_id = row.id)
union all
select id, 'it is both live and finished' from row group by id having count(*) > 1
union all
select asked, 'there is no such job' from unnest(%(ids)s::bigint[]) as asked where asked not in (select id from row)
"""


def logs_are_sound(db: Harness, ids: list[int]) -> None:
    """Assert law 5 for these jobs: seq gap-free, ts strictly rising, hops linked, and folding gives the row."""
    faults = db.connection.execute(_UNSOUND, {"ids": ids}).fetchall()
    assert not faults, faults


def upkeep_of(verb: str, contract: str) -> Call:
    """Upkeep that goes round until it moved the job, or the other side has been told that it keeps it."""

    async def call(store: Store, fight: Round) -> list[Moved]:
        round_of = {"reap": store.reap, "promote": store.promote, "settle": store.settle}[verb]
        while True:
            kept = has_won(fight.told[0])  # asked first: one more look is taken after the other's win
            moved = []
            for outcome in await round_of(contract):
                assert isinstance(outcome, Moved)
                assert outcome.job_id == fight.job_id
                moved.append(outcome)
            if moved or kept:
                return moved

    return call


async def beat(store: Store, fight: Round) -> Noted:
    """Beat until it is known whether the job is kept: busy is not lost."""
    while True:
        (answer,) = await store.report("heartbeat", calls([fight.lease]))
        if isinstance(answer, Noted):
            return answer
        if answer.code != "BUSY":
            raise answer
