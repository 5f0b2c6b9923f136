"""Document 004's cases RP-001 to RP-005, run through the public verbs in the order in which a worker calls them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tenure.errors import NotDue, Refused
from tenure.job import Failure, Job, NewJob
from tenure.postgres.store import Store

CONTRACT = "gate_b2"
#: Its own queue and tenant, so that nobody else's workers take these jobs and nobody else's counts see them.
PLACE = "tenure-replay"
#: Waits are shortened for a replay: the rule is the same, its unit is a millisecond.
QUICK = {"backoff_base_ms": 1, "backoff_cap_ms": 1}

_TRANSIENT = Failure("the other side did not answer", type="TransientError", code="UPSTREAM_TIMEOUT", retryable=True)
_AGAIN = ["running->retrying", "retrying->running"]
_DEAD = ["running->dlq_pending", "dlq_pending->dlq_recorded", "dlq_recorded->failed"]


@dataclass
class Played:
    """What became of a case: a record per transition, and, where it failed, why."""

    case: str
    about: str
    job_id: int | None = None
    records: list[dict[str, Any]] = field(default_factory=list)
    why: str | None = None

    @property
    def passed(self) -> bool:
        """Whether everything was as the document says."""
        return self.why is None


class Broken(Exception):
    """A case went otherwise than the document says."""


async def play(store: Store, names: Sequence[str] = ()) -> list[Played]:
    """Run these cases, or all; the store must have the QUICK numbers."""
    return [await _played(store, name) for name in names or list(CASES)]


async def _played(store: Store, name: str) -> Played:
    about, case = CASES[name]
    played = Played(name, about)
    job = NewJob(f"replay.{name}", {"case": name}, contract=CONTRACT, queue=PLACE, tenant_id=PLACE)
    try:
        played.job_id = (await store.enqueue(job)).job_id
        await case(store, played.job_id)
    except Broken as broken:
        played.why = str(broken)
    except Exception as error:  # whatever stops a case, it did not pass, and the others are still to be run
        played.why = f"{type(error).__name__}: {error}"
    if played.job_id is not None:
        (made,) = await store.jobs([played.job_id])
        played.records = [
            {
                "trace_id": made.trace_id, "job_id": str(made.id), "retry_count": event.counter,
                "status_transition": f"{event.from_state}->{event.to_state}",
            }
            for event in await store.events(made.id) if event.hop
        ]  # fmt: skip
    return played


async def _succeeds(store: Store, job_id: int) -> None:
    await _after(store, job_id, 0)
    await _went(store, job_id, ["queued->running", "running->succeeded"], "succeeded", 0)


async def _fails_once(store: Store, job_id: int) -> None:
    await _after(store, job_id, 1)
    await _went(store, job_id, ["queued->running", *_AGAIN, "running->succeeded"], "succeeded", 1)


async def _fails_three_times(store: Store, job_id: int) -> None:
    await _after(store, job_id, 3)
    await _went(store, job_id, ["queued->running", *_AGAIN * 3, "running->succeeded"], "succeeded", 3)


async def _fails_four_times(store: Store, job_id: int) -> None:
    for _ in range(4):
        await store.fail((await _taken(store, job_id)).held, _TRANSIENT)
    await _went(store, job_id, ["queued->running", *_AGAIN * 3, *_DEAD], "failed", 3)
    letter = await store.letters.find(job_id)
    if letter is None:
        raise Broken("the failed job has no dlq_id")


async def _writes_its_end_again(store: Store, job_id: int) -> None:
    job = await _after(store, job_id, 0)
    before = await store.events(job_id)
    wanted = "WF_STATE_TRANSITION_INVALID"
    calls: list[tuple[str, Callable[[], Awaitable[Any]]]] = [
        ("a second success", lambda: store.succeed(job.held, {"again": True})),
        ("a failure", lambda: store.fail(job.held, _TRANSIENT)),
        *[
            (f"the transition to {state}", lambda state=state: store.transition(job_id, state, actor="replay"))
            for state in ("succeeded", "failed", "running", "retrying")
        ],
    ]
    for what, call in calls:
        try:
            await call()
        except Refused as refusal:
            if refusal.reason_code != wanted:
                raise Broken(f"{what} was refused with {refusal.reason_code}, not {wanted}") from None
        else:
            raise Broken(f"{what} was accepted after the job had succeeded")
    if await store.events(job_id) != before:
        raise Broken("a refused write left a log row")
    await _went(store, job_id, ["queued->running", "running->succeeded"], "succeeded", 0)


CASES: dict[str, tuple[str, Callable[[Store, int], Awaitable[None]]]] = {
    "RP-001": ("a queued job is taken and succeeds", _succeeds),
    "RP-002": ("one transient failure, then success", _fails_once),
    "RP-003": ("three transient failures, then success", _fails_three_times),
    "RP-004": ("the fourth transient failure ends in the dead letters", _fails_four_times),
    "RP-005": ("a second terminal write is refused", _writes_its_end_again),
}


async def _after(store: Store, job_id: int, failures: int) -> Job:
    """Fail so many times, then succeed."""
    for _ in range(failures):
        await store.fail((await _taken(store, job_id)).held, _TRANSIENT)
    job = await _taken(store, job_id)
    await store.succeed(job.held, {"ok": True})
    return job


async def _taken(store: Store, job_id: int) -> Job:
    """The job, claimed and started as a worker does, as soon as it is due."""
    for _ in range(200):
        (job,) = await store.claim_by_id([job_id], worker="tenure replay", contract=CONTRACT)
        if isinstance(job, Job):
            await store.start(job.held)
            return job
        if not isinstance(job, NotDue):
            raise Broken(f"the job cannot be taken: {job}")
        await asyncio.sleep(0.02)
    raise Broken("the job was not due within four seconds")


async def _went(store: Store, job_id: int, path: list[str], state: str, retries: int) -> None:
    """Refuse a case that went another way than the document's."""
    (job,) = await store.jobs([job_id])
    walked = [f"{event.from_state}->{event.to_state}" for event in await store.events(job_id) if event.hop]
    if walked != path:
        raise Broken(f"the job went {', '.join(walked)}; the document says {', '.join(path)}")
    if (job.state, job.counter) != (state, retries):
        raise Broken(f"the job is {job.state} with retry_count {job.counter}; it should be {state} with {retries}")
