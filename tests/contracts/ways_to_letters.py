"""Every way into the dead letters, made from the declarations: a path that writes one, from each of its states.

The steps to a state are found in the contract's own paths. A trigger that neither `STEPS` nor `_ends` knows is an
error, so that a new way cannot be left out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import uuid4

from tenure.contracts.declaration import HELD, Contract, Path
from tenure.jobs.job import Failure, Held, NewJob
from tenure.postgres.store import Store
from tests.contracts.gate_b2 import NO_PAPER
from tests.harness import Harness

_AGAIN = Failure("not yet", type="TransientError", code="AGAIN", retryable=True)
_NEVER = Failure("broken for good", type="PermanentError", code="BROKEN", retryable=False)
#: The least that a failure says.
_BARE = Failure("no")


@dataclass
class Traveller:
    """A job on its way, with who saw it last."""

    store: Store
    db: Harness
    contract: Contract
    id: int
    queue: str
    held: Held | None = None
    claims: int = 0
    #: The last lease: its owner, and when it would have ended.
    lease: tuple[str, Any] | None = None

    @property
    def holder(self) -> Held:
        """The proof of the last claim."""
        assert self.held is not None
        return self.held

    def remember(self) -> None:
        """Read the lease that the job has now, if it has one."""
        for row in self.db.sql(
            "select lease_owner, lease_expires_at from tenure.job where id = %s and lease_owner is not null", self.id
        ):
            self.lease = tuple(row.values())

    def spend(self) -> None:
        """Let no claim be left."""
        extra = self.contract.budget.extra
        self.db.sql("update tenure.job set max_attempts = claims + raises - %s where id = %s", extra, self.id)


Act = Callable[[Traveller], Awaitable[object]]


async def _claim(job: Traveller) -> None:
    job.db.due(job.id)
    job.claims += 1
    (taken,) = await job.store.claim(job.contract.name, [job.queue], worker=f"w{job.claims}")
    job.held = taken.held


async def _expire(job: Traveller) -> None:
    job.db.expire(job.id)
    job.remember()
    await job.store.reap(job.contract.name)


async def _promote(job: Traveller) -> None:
    job.db.due(job.id)
    await job.store.promote(job.contract.name)


#: How a job is led along a path that does not end it. A decision is a request for its state.
STEPS: Mapping[str, Act] = {
    "claim": _claim,
    "reclaim": _claim,
    "start": lambda job: job.store.start(job.holder),
    "retry": lambda job: job.store.fail(job.holder, _AGAIN),
    "expire": _expire,
    "promote": _promote,
    "snooze": lambda job: job.store.snooze(job.holder, 0),
    "hand_back": lambda job: job.store.hand_back(job.holder),
}


async def _fail(job: Traveller, failure: Failure) -> None:
    await job.store.fail(job.holder, failure)


async def _exhaust(job: Traveller, failure: Failure) -> None:
    job.spend()
    await _fail(job, failure)


async def _ask(job: Traveller, reason: str) -> None:
    await job.store.dead_letter(job.id, reason_code=reason)


async def _request(job: Traveller, to: str) -> None:
    await job.store.transition(job.id, to, reason="by hand", actor="ada")


async def _expire_at_cap(job: Traveller) -> None:
    job.spend()
    await _expire(job)


async def _miss_beats(job: Traveller) -> None:
    job.spend()
    job.db.sql("update tenure.job set last_heartbeat_at = last_heartbeat_at - interval '1 hour' where id = %s", job.id)
    await job.store.reap(job.contract.name)


async def _hand_back_at_cap(job: Traveller) -> None:
    job.spend()
    await job.store.hand_back(job.holder)


async def _to_compensate(job: Traveller, source: str) -> None:
    """Let the job fail after an effect, and be in this state when the effect is to be undone."""
    if job.db.row(job.id)["state"] != source or source == "assigned":
        await STEPS["start"](job)
    await job.store.effect(job.holder, "charge", compensable=True)
    await job.store.fail(job.holder, _NEVER)
    if job.db.row(job.id)["state"] != source:
        await _expire(job)
        await _claim(job)


async def _compensation_failed(job: Traveller, source: str) -> None:
    await _to_compensate(job, source)
    job.remember()
    await job.store.compensation_failed(job.holder, _BARE)


async def _lost_while_compensating(job: Traveller, source: str) -> None:
    await _to_compensate(job, source)
    await _expire_at_cap(job)


def _failures(contract: Contract, trigger: str) -> Iterator[Failure]:
    """One failure of each class that leads to this trigger, and one that says as little as it can."""
    rule = contract.retryable
    kinds = [_BARE, _AGAIN, _NEVER, *(Failure("no", type=name) for name in rule.classes)]
    yield from (one for one in kinds if rule.verdict(one.facts()).trigger == trigger)


def _ends(contract: Contract, path: Path, source: str) -> Iterator[tuple[str, Act]]:
    """What leads a job along this path from this state: a name, and the act."""
    is_held = set(contract.states[source]) <= HELD
    failing = {"exhaust": "retry", "fatal": "fatal", "dead_letter": "dead_letter"}.get(path.trigger)
    if failing and is_held:
        # A class with a reason of its own gives it to the letter.
        fail = _exhaust if path.trigger == "exhaust" else _fail
        for one in _failures(contract, failing):
            yield f"{one.type} {one.code}", partial(fail, failure=one)
    match path.trigger:
        case "exhaust" | "fatal":
            assert is_held
        case "dead_letter":
            for reason in contract.dead_letters.reasons or ("operator",):
                yield f"asked for {reason}", partial(_ask, reason=reason)
            yield "requested", partial(_request, to=path.hops[0].state)
        case "expire_at_cap":
            yield "lease", _expire_at_cap
            if contract.lease.heartbeat and "active" in contract.states[source]:
                yield "beats", _miss_beats
            if contract.path("hand_back", source) is None:
                yield "handed back", _hand_back_at_cap
        case "compensation_failed":
            yield "reported", partial(_compensation_failed, source=source)
            yield "lost", partial(_lost_while_compensating, source=source)
        case decision:
            assert decision in contract.decisions, f"{decision}: how does a job go this way?"
            yield "decided", partial(_request, to=path.end.state)


@dataclass(frozen=True)
class Way:
    """One way into the dead letters: from this state, claimed before or not, by this act."""

    contract: Contract
    path: Path
    source: str
    #: Triggers that lead from the job's beginning to the source, each with the state that it leads to.
    steps: tuple[tuple[str, str], ...]
    name: str
    act: Act

    def __str__(self) -> str:
        return f"{' '.join(trigger for trigger, _ in self.steps)} {self.path.trigger} from {self.source}: {self.name}"

    async def go(self, store: Store, db: Harness) -> Traveller:
        """Lead a new job this way."""
        queue = uuid4().hex
        made = await store.enqueue(NewJob("t", {"n": 7}, contract=self.contract.name, queue=queue))
        job = Traveller(store, db, self.contract, made.job_id, queue)
        for trigger, to in self.steps:
            job.remember()
            if trigger in self.contract.decisions:
                await store.transition(job.id, to, actor="ada")
            else:
                await STEPS[trigger](job)
        assert db.row(job.id)["state"] == self.source
        job.remember()
        await self.act(job)
        return job


def ways(contract: Contract) -> Iterator[Way]:
    """Every way into the dead letters that a contract declares."""
    is_staged = contract.dead_letters.mode == "staged"
    commit_points = [state for path in contract.paths if path.trigger == "settle" for state in path.sources]
    for path in contract.paths:
        if not (path.end.role == "settling" if is_staged else path.letter):
            continue
        for source in path.sources:
            for steps in _steps_to(contract, source):
                for name, act in _ends(contract, path, source):
                    yield Way(contract, path, source, steps, name, act)
                    for state in commit_points if is_staged else ():
                        later = partial(_settled_by_upkeep, act=act, state=state)
                        yield Way(contract, path, source, steps, f"{name}, settled from {state}", later)


async def _settled_by_upkeep(job: Traveller, act: Act, state: str) -> None:
    """Act while no letter can be written; then upkeep settles the job, which has come to this state."""
    job.db.sql(NO_PAPER)
    await act(job)
    job.db.sql("drop function public.no_paper() cascade")
    job.db.sql("update tenure.job set state = %s where id = %s and role = 'settling'", state, job.id)
    await job.store.settle(job.contract.name)


def _steps_to(contract: Contract, source: str) -> Iterator[tuple[tuple[str, str], ...]]:
    """The shortest ways to this state: of a job that was never claimed, and of one that was, where there are such."""
    waiting: deque[tuple[str, bool, tuple[tuple[str, str], ...]]] = deque([(contract.initial, False, ())])
    seen: set[tuple[str, bool]] = set()
    while waiting:
        state, is_claimed, steps = waiting.popleft()
        if (state, is_claimed) in seen:
            continue
        seen.add((state, is_claimed))
        if state == source:
            yield steps
        for path in contract.paths:
            if state in path.sources and path.end.role not in ("done", "settling") and path.choice is None:
                claims = is_claimed or path.trigger in ("claim", "reclaim")
                waiting.append((path.end.state, claims, (*steps, (path.trigger, path.end.state))))
