"""Runs a recorded job again: a new job gets the calls that its log records; reports the first difference."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from tenure.contracts.declaration import HELD, Contract
from tenure.errors import JobNotFound, NotDue, TenureError
from tenure.jobs.event import LogEntry
from tenure.jobs.job import UPKEEP, Failure, Held, Job, NewJob
from tenure.model.fold import OPERATOR_FACTS
from tenure.postgres.audit_reads import ReplayedEffect
from tenure.postgres.store import Store
from tenure.proof.gate_b2_cases import REPLAY_QUEUE

#: Facts that depend on the clock (a heartbeat renews a lease after half of it), and queues: a replay has its own.
_NOT_REPLAYED = ("renewed", *OPERATOR_FACTS)
_DUE_TIMEOUT_S = 10.0
_EXPIRY_TIMEOUT_S = 120.0


@dataclass
class ReplayReport:
    """The log of a recorded job, the log of its replay, and their first difference."""

    job_id: int
    as_job_id: int
    recorded: list[str]
    replayed: list[str] = field(default_factory=list)
    #: The seq of the first recorded log row that differs, and why; None: the logs agree.
    first_difference: int | None = None
    why: str | None = None


class Stuck(Exception):
    """The call that a log row records is impossible in the state of the new job."""


async def replay(store: Store, job_id: int) -> ReplayReport:
    """Repeat a job's log through the public verbs, on a new job of the same contract, type, payload and limit."""
    found = await store.jobs([job_id])
    if not found:
        raise JobNotFound(job_id)
    job = found[0]
    log = _replayable(await store.events(job_id))
    new = NewJob(
        job.type, job.payload, contract=job.contract, version=job.version, max_attempts=job.max_attempts,
        queue=REPLAY_QUEUE, tenant_id=REPLAY_QUEUE,
    )  # fmt: skip
    contract = (await store.audit.contracts())[job.contract, job.version]
    effects = await store.audit.effects(job_id)
    created = await store.enqueue(new)
    player = _Player(store, contract, created.job_id, job, log, effects)
    why = await player.play()
    replayed = await player.read_log()
    if job.role == "settling":  # the recorded job stopped at its commit point; the new one went on
        replayed = replayed[: len(log)] + [one for one in replayed[len(log) :] if one.trigger != "settle"]
    report = ReplayReport(job_id, created.job_id, [_step(one) for one in log], [_step(one) for one in replayed])
    report.first_difference, report.why = _compare(log, report, why)
    with suppress(TenureError, Stuck):  # a job that cannot be ended stays: no worker takes jobs of its queue
        await player.end()
    return report


@dataclass
class _Player:
    """Repeats the calls of workers, operators and upkeep on the new job."""

    store: Store
    contract: Contract
    job_id: int
    recorded: Job
    log: list[LogEntry]
    effects: list[ReplayedEffect]
    held: Held | None = None
    worker: str = ""
    #: Whether an effect must be compensated before the job can fail.
    must_compensate: bool = False

    async def play(self) -> str | None:
        """Repeat the call of each log row until the logs differ; returns the error that stopped it, if any."""
        position = 0
        while position < len(self.log):
            event = self.log[position]
            try:
                await self._record_effects(event)
                await self._repeat(event)
            except (TenureError, Stuck) as error:
                return f"{event.trigger}: {type(error).__name__}: {error}"
            if event.hop and event.trigger not in ("claim", "reclaim", "start"):
                self.held = None
            log = await self.read_log()
            if len(log) <= position or any(_step(a) != _step(b) for a, b in zip(log, self.log, strict=False)):
                return None
            position = len(log)
        return None

    async def read_log(self) -> list[LogEntry]:
        """The new job's log so far."""
        return _replayable(await self.store.events(self.job_id))

    async def _repeat(self, event: LogEntry) -> None:
        if event.trigger in ("claim", "reclaim"):
            await self._claim(event)
        elif event.actor == UPKEEP:
            await self._repeat_upkeep(event)
        elif self.held is not None and self.worker == event.actor and _is_holder_call(event):
            await self._repeat_holder_call(self.held, event)
        else:
            await self._repeat_operator_call(event)

    async def _record_effects(self, event: LogEntry) -> None:
        """Record the effects that the holder committed before this event."""
        while self.held is not None and self.effects:
            effect = self.effects[0]
            if effect.claims > self.held.claims or effect.at > event.ts:
                return
            result = None if effect.result_json is None else json.loads(effect.result_json)
            await self.store.effect(self.held, effect.node, result, compensable=effect.compensable)
            self.must_compensate = self.must_compensate or effect.compensable
            self.effects.pop(0)

    async def _claim(self, event: LogEntry) -> None:
        if event.trigger == "reclaim" and self.held is not None:
            await self.store.hand_back(self.held)  # as if the lease had expired
        ends = (one for one in self.log if one.seq > event.seq and one.hop and one.trigger != "start")
        will_expire = next((one.actor == UPKEEP for one in ends), False)
        # A lease that will expire gets the shortest length, so that the replay waits less.
        await self._take(event.actor, self.contract.lease.minimum_ms if will_expire else None)

    async def _take(self, worker: str, lease_ms: int | None = None) -> None:
        async def claim() -> bool:
            (job,) = await self.store.claim_by_id(
                [self.job_id], worker=worker, contract=self.contract.name, lease_ms=lease_ms
            )
            if isinstance(job, Job):
                self.held, self.worker = job.held, worker
            elif not isinstance(job, NotDue):
                raise job
            return isinstance(job, Job)

        await _wait_until(claim, _DUE_TIMEOUT_S, "the job was not due")

    async def _repeat_upkeep(self, event: LogEntry) -> None:
        """Repeat a call of upkeep."""
        if event.trigger == "promote":
            await self._run_upkeep(event, self.store.promote, _DUE_TIMEOUT_S, "the job was not due")
        elif event.trigger == "settle":
            await self.store.settle(self.contract.name)
        else:
            await self._expire(event)

    async def _expire(self, event: LogEntry) -> None:
        """Let the lease expire, or hand the job back where that is the same hop."""
        if self.held is None:
            raise Stuck("nobody holds the job")
        if event.trigger == "cancel":  # the cancel request came before the expiry
            await self.store.cancel(self.job_id, mode="soft", actor=self.worker)
        if self.contract.path("hand_back") is None and not self.must_compensate:
            await self.store.hand_back(self.held)
        await self._run_upkeep(event, self.store.reap, _EXPIRY_TIMEOUT_S, "the lease did not run out")

    async def _run_upkeep(
        self, event: LogEntry, upkeep: Callable[[str], Awaitable[Any]], seconds: float, why: str
    ) -> None:
        """Run this part of upkeep, which may also move other jobs, until this job has a new log row."""

        async def is_logged() -> bool:
            await upkeep(self.contract.name)
            return len(await self.read_log()) > self.log.index(event)

        await _wait_until(is_logged, seconds, why)

    async def _repeat_holder_call(self, held: Held, event: LogEntry) -> None:
        """Repeat a holder's call."""
        store, facts = self.store, event.facts or {}
        error = facts.get("error") or {}
        names = ("type", "code", "stack", "stage", "retryable", "release")
        failure = Failure(str(error.get("message", "")), **{name: error[name] for name in names if name in error})
        trigger = facts.get("ends_by", "fatal") if event.trigger == "compensating" else event.trigger
        verbs: dict[str, Callable[[], Awaitable[Any]]] = {
            "start": lambda: store.start(held),
            "heartbeat": lambda: store.heartbeat(held),
            "succeed": lambda: store.succeed(held, self.recorded.result),
            "snooze": lambda: store.snooze(held, 0),
            "cancel": lambda: store.cancelled(held, event.reason),
            **dict.fromkeys(("hand_back", "expire", "expire_at_cap"), lambda: store.hand_back(held)),
            "compensated": lambda: store.compensated(held),
            "compensation_failed": lambda: store.compensation_failed(held, failure),
        }
        await verbs.get(trigger, lambda: store.fail(held, failure))()

    async def _repeat_operator_call(self, event: LogEntry) -> None:
        """Repeat an operator's call."""
        actor = event.actor
        error = (event.facts or {}).get("error") or {}
        if event.trigger == "cancel_requested":
            await self.store.cancel(self.job_id, mode="soft", reason=event.reason, actor=actor)
        elif event.trigger == "cancel":
            await self.store.cancel(self.job_id, mode=_mode(self.contract), reason=event.reason, actor=actor)
        elif event.trigger == "dead_letter" and error.get("type") == "DeadLettered":
            facts = {"reason_code": error["code"], "stage": error.get("stage"), "message": error.get("message", "")}
            await self.store.dead_letter(self.job_id, **facts, actor=actor)
        elif event.hop:
            await self.store.transition(self.job_id, event.to_state, reason=event.reason, actor=actor)
        else:
            raise Stuck(f"{event.actor} does not hold the job")

    async def end(self) -> None:
        """End the new job, so that nothing can run it and its range can be retired."""
        (job,) = await self.store.jobs([self.job_id])
        if job.role == "done":
            return
        if self.contract.path("cancel", job.state) and _mode(self.contract) == "hard":
            await self.store.cancel(self.job_id, mode="hard", actor="tenure replay", reason="the replay ended here")
            return
        if job.role == "ready":
            await self._take("tenure replay")
        elif job.role not in HELD:
            return  # upkeep continues with it
        if self.held is not None:
            await self.store.start(self.held)
            await self.store.succeed(self.held)


async def _wait_until(call: Callable[[], Awaitable[bool]], seconds: float, why: str) -> None:
    for _ in range(int(seconds / 0.05)):
        if await call():
            return
        await asyncio.sleep(0.05)
    raise Stuck(f"{why} within {seconds:g} seconds")


def _is_holder_call(event: LogEntry) -> bool:
    """Whether a holder made this call: a call of an operator has no error, or one of its own type."""
    error = (event.facts or {}).get("error") or {}
    if event.trigger in ("retry", "exhaust", "fatal", "dead_letter"):
        return bool(error) and error.get("type") not in ("DeadLettered", "Requested")
    return event.trigger != "cancel_requested"


def _mode(contract: Contract) -> str:
    return "soft" if contract.cancel_modes and "hard" not in contract.cancel_modes else "hard"


def _replayable(log: Sequence[LogEntry]) -> list[LogEntry]:
    return [event for event in log if event.trigger not in _NOT_REPLAYED]


def _step(event: LogEntry) -> str:
    hop = f"{event.from_state} → {event.to_state}" if event.hop else f"in {event.from_state}"
    return f"{event.trigger}: {hop} (claim {event.claims}, counter {event.counter})"


def _compare(log: Sequence[LogEntry], report: ReplayReport, why: str | None) -> tuple[int | None, str | None]:
    """The seq of the first recorded log row that differs (or of the row that would follow), and how."""
    because = f" ({why})" if why else ""
    last = log[-1].seq if log else 0
    for index, (recorded, replayed) in enumerate(itertools.zip_longest(report.recorded, report.replayed)):
        if recorded == replayed:
            continue
        if replayed is None:
            return log[index].seq, f"{recorded}: only in the record{because}"
        if recorded is None:
            return last + 1, f"{replayed}: only in the replay{because}"
        return log[index].seq, f"recorded {recorded}; replayed {replayed}{because}"
    return (None, None) if why is None else (last, why)
