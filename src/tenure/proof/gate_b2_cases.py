"""Document 004's cases RP-001 to RP-005, run through the public verbs in the order in which a worker calls them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tenure.errors import NotDue, Refused
from tenure.jobs.job import Failure, Job, NewJob
from tenure.postgres.store import Store

CONTRACT = "gate_b2"
#: The queue and tenant of replayed jobs, so that no worker takes them and no other count includes them.
REPLAY_QUEUE = "tenure-replay"
#: Backoffs of a replay: the same rule with milliseconds.
FAST_NUMBERS = {"backoff_base_ms": 1, "backoff_cap_ms": 1}

_TRANSIENT = Failure("the other side did not answer", type="TransientError", code="UPSTREAM_TIMEOUT", retryable=True)
_RETRY = ["running->retrying", "retrying->running"]
_DEAD = ["running->dlq_pending", "dlq_pending->dlq_recorded", "dlq_recorded->failed"]


@dataclass
class CaseResult:
    """The result of a case: a record per transition, and the reason when it failed."""

    case: str
    about: str
    job_id: int | None = None
    records: list[dict[str, Any]] = field(default_factory=list)
    why: str | None = None

    @property
    def passed(self) -> bool:
        """Whether the job behaved as the document says."""
        return self.why is None


class CaseFailed(Exception):
    """The job did not behave as the document says."""


async def run_cases(store: Store, names: Sequence[str] = ()) -> list[CaseResult]:
    """Run these cases, or all; the store must have the FAST_NUMBERS."""
    return [await _run_case(store, name) for name in names or list(CASES)]


async def _run_case(store: Store, name: str) -> CaseResult:
    about, case = CASES[name]
    result = CaseResult(name, about)
    new = NewJob(f"replay.{name}", {"case": name}, contract=CONTRACT, queue=REPLAY_QUEUE, tenant_id=REPLAY_QUEUE)
    try:
        result.job_id = (await store.enqueue(new)).job_id
        await case(store, result.job_id)
    except CaseFailed as failed:
        result.why = str(failed)
    except Exception as error:  # any error fails the case and does not stop the others
        result.why = f"{type(error).__name__}: {error}"
    if result.job_id is not None:
        (job,) = await store.jobs([result.job_id])
        result.records = [
            {
                "trace_id": job.trace_id, "job_id": str(job.id), "retry_count": event.counter,
                "status_transition": f"{event.from_state}->{event.to_state}",
            }
            for event in await store.events(job.id) if event.hop
        ]  # fmt: skip
    return result


async def _succeeds_after(failures: int, store: Store, job_id: int) -> Job:
    """Fail this often, then succeed."""
    for _ in range(failures):
        await store.fail((await _claim(store, job_id)).held, _TRANSIENT)
    job = await _claim(store, job_id)
    await store.succeed(job.held, {"ok": True})
    path = ["queued->running", *_RETRY * failures, "running->succeeded"]
    await _check_path(store, job_id, path, "succeeded", failures)
    return job


async def _fails_four_times(store: Store, job_id: int) -> None:
    for _ in range(4):
        await store.fail((await _claim(store, job_id)).held, _TRANSIENT)
    await _check_path(store, job_id, ["queued->running", *_RETRY * 3, *_DEAD], "failed", 3)
    if await store.letters.find(job_id) is None:
        raise CaseFailed("the failed job has no dlq_id")


async def _ends_twice(store: Store, job_id: int) -> None:
    job = await _succeeds_after(0, store, job_id)
    before = await store.events(job_id)
    expected = "WF_STATE_TRANSITION_INVALID"
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
            if refusal.reason_code != expected:
                raise CaseFailed(f"{what} was refused with {refusal.reason_code}, not {expected}") from None
        else:
            raise CaseFailed(f"{what} was accepted after the job had succeeded")
    if await store.events(job_id) != before:
        raise CaseFailed("a refused write left a log row")
    await _check_path(store, job_id, ["queued->running", "running->succeeded"], "succeeded", 0)


CASES: dict[str, tuple[str, Callable[[Store, int], Awaitable[object]]]] = {
    "RP-001": ("a queued job is taken and succeeds", partial(_succeeds_after, 0)),
    "RP-002": ("one transient failure, then success", partial(_succeeds_after, 1)),
    "RP-003": ("three transient failures, then success", partial(_succeeds_after, 3)),
    "RP-004": ("the fourth transient failure ends in the dead letters", _fails_four_times),
    "RP-005": ("a second terminal write is refused", _ends_twice),
}


async def _claim(store: Store, job_id: int) -> Job:
    """Claim and start the job, as a worker does, when it is due."""
    for _ in range(200):
        (job,) = await store.claim_by_id([job_id], worker="tenure replay", contract=CONTRACT)
        if isinstance(job, Job):
            await store.start(job.held)
            return job
        if not isinstance(job, NotDue):
            raise CaseFailed(f"the job cannot be claimed: {job}")
        await asyncio.sleep(0.02)
    raise CaseFailed("the job was not due within four seconds")


async def _check_path(store: Store, job_id: int, path: list[str], state: str, retries: int) -> None:
    """Raise CaseFailed unless the job took this path to this state."""
    (job,) = await store.jobs([job_id])
    taken = [f"{event.from_state}->{event.to_state}" for event in await store.events(job_id) if event.hop]
    if taken != path:
        raise CaseFailed(f"the job went {', '.join(taken)}; the document says {', '.join(path)}")
    if (job.state, job.counter) != (state, retries):
        raise CaseFailed(f"the job is {job.state} with retry_count {job.counter}; it should be {state} with {retries}")
