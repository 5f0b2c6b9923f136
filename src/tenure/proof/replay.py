"""Any recorded job, run again: its log's facts go through a fresh job, and the first difference is shown."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tenure.contract import Contract
from tenure.errors import JobNotFound, TenureError
from tenure.event import Logged
from tenure.job import UPKEEP, Failure, Held, Job, NewJob
from tenure.postgres.store import Store
from tenure.proof.cases import PLACE

#: Facts that depend on the clock: a beat renews a lease when half of it is gone.
_BY_THE_CLOCK = ("renewed",)


@dataclass
class Replayed:
    """A job run again: what its log says, what the fresh job's log says, and where they part."""

    job_id: int
    as_job_id: int
    recorded: list[str]
    replayed: list[str] = field(default_factory=list)
    #: The first place (from 1) at which they differ, and why; None: they agree.
    place: int | None = None
    why: str | None = None


async def replay(store: Store, job_id: int) -> Replayed:
    """Run a job's log again through the public verbs, on a fresh job of the same contract, type, payload and limit."""
    found = await store.jobs([job_id])
    if not found:
        raise JobNotFound(job_id)
    job = found[0]
    log = [event for event in await store.events(job_id) if event.trigger not in _BY_THE_CLOCK]
    fresh = NewJob(
        job.type, job.payload, contract=job.contract, version=job.version, max_attempts=job.max_attempts,
        queue=PLACE, tenant_id=PLACE,
    )  # fmt: skip
    made = await store.enqueue(fresh)
    contract = (await store.audit.contracts())[job.contract, job.version]
    player = _Player(store, contract, made.job_id, job, log, await store.effects(job_id))
    report = Replayed(job_id, made.job_id, [_step(event) for event in log])
    why = await player.play()
    report.replayed = [_step(e) for e in await store.events(made.job_id) if e.trigger not in _BY_THE_CLOCK]
    report.place, report.why = _compared(report.recorded, report.replayed, why)
    if report.place is not None:
        await _put_away(store, made.job_id)
    return report


class _Player:
    def __init__(
        self, store: Store, contract: Contract, job_id: int, of: Job, log: Sequence[Logged], effects: dict[str, Any]
    ) -> None:
        self.store = store
        self.contract = contract
        self.job_id = job_id
        self.of = of
        self.log = log
        self.effects = effects
        self.held: Held | None = None

    async def play(self) -> str | None:
        """Do what each log row tells of, in order; what stopped it, if anything did."""
        at = 0
        while at < len(self.log):
            event = self.log[at]
            before = len(await self.store.events(self.job_id))
            try:
                await self._do(event)
            except TenureError as error:
                return f"{event.trigger}: {type(error).__name__}: {error}"
            written = len(await self.store.events(self.job_id)) - before
            at += max(written, 1)
        return None

    async def _do(self, event: Logged) -> None:
        trigger = event.trigger
        if trigger in ("claim", "reclaim"):
            await self._claim(event)
        elif trigger in ("expire", "expire_at_cap", "compensation_failed") and event.actor == UPKEEP:
            await self._lose()
        elif trigger == "promote":
            await self._until(lambda: self.store.promote(self.contract.name))
        elif trigger == "settle":
            await self.store.settle(self.contract.name)
        elif trigger == "cancel_requested":
            await self.store.cancel(self.job_id, mode="soft", actor=event.actor, reason=event.reason)
        elif trigger == "cancel" and not self._by_holder(event):
            await self.store.cancel(self.job_id, mode="hard", actor=event.actor, reason=event.reason)
        elif trigger == "dead_letter" and not self._by_holder(event):
            code = event.reason or "policy_violation"
            await self.store.dead_letter(self.job_id, reason_code=code, actor=event.actor)
        elif self.held is not None:
            await self._say(self.held, event)

    async def _say(self, held: Held, event: Logged) -> None:
        """What a holder said."""
        store, error = self.store, (event.facts or {}).get("error") or {}
        names = ("type", "code", "stack", "stage", "retryable")
        failure = Failure(str(error.get("message", "")), **{name: error[name] for name in names if name in error})
        verbs: dict[str, Callable[[], Awaitable[Any]]] = {
            "start": lambda: store.start(held),
            "heartbeat": lambda: store.heartbeat(held),
            "succeed": lambda: store.succeed(held, self.of.result),
            "snooze": lambda: store.snooze(held, 0),
            "hand_back": lambda: store.hand_back(held),
            "cancel": lambda: store.cancelled(held, event.reason),
            "expire": lambda: store.hand_back(held),
            "expire_at_cap": lambda: store.hand_back(held),
            "compensating": lambda: self._fails_with_effects(held, failure),
            "compensated": lambda: store.compensated(held),
            "compensation_failed": lambda: store.compensation_failed(held, failure),
        }
        await verbs.get(event.trigger, lambda: store.fail(held, failure))()

    async def _fails_with_effects(self, held: Held, failure: Failure) -> None:
        for node, result in reversed(self.effects.items()):
            await self.store.effect(held, node, result, compensable=True)
        await self.store.fail(held, failure)

    async def _claim(self, event: Logged) -> None:
        async def claim() -> bool:
            (job,) = await self.store.claim_by_id([self.job_id], worker=event.actor, contract=self.contract.name)
            if isinstance(job, Job):
                self.held = job.held
            return isinstance(job, Job)

        if event.trigger == "reclaim" and self.held is not None:
            await self.store.hand_back(self.held)  # let go: as if the lease had run out
        await self._until(claim)

    async def _lose(self) -> None:
        """The holder is lost: its lease runs out, or, where handing back is the same hop, it hands back."""
        if self.held is not None and self.contract.path("hand_back") is None:
            await self.store.hand_back(self.held)
            return
        await self._until(lambda: self.store.reap(self.contract.name), seconds=120)

    def _by_holder(self, event: Logged) -> bool:
        claims = [one for one in self.log if one.trigger in ("claim", "reclaim") and one.seq < event.seq]
        return bool(claims) and claims[-1].actor == event.actor and self.held is not None

    async def _until(self, call: Callable[[], Awaitable[Any]], seconds: float = 10) -> None:
        for _ in range(int(seconds / 0.05)):
            if await call():
                return
            await asyncio.sleep(0.05)


async def _put_away(store: Store, job_id: int) -> None:
    """A replay that parted from its record leaves nothing that could run."""
    try:
        await store.cancel(job_id, mode="hard", actor="tenure replay", reason="the replay ended here")
    except TenureError:
        return  # it ended, or its contract cancels nothing; its queue is nobody's


def _step(event: Logged) -> str:
    how = f"{event.from_state} → {event.to_state}" if event.hop else f"in {event.from_state}"
    return f"{event.trigger}: {how} (claim {event.claims}, counter {event.counter})"


def _compared(recorded: list[str], replayed: list[str], why: str | None) -> tuple[int | None, str | None]:
    for place, (was, now) in enumerate(zip(recorded, replayed, strict=False), 1):
        if was != now:
            return place, f"recorded {was}; replayed {now}"
    if len(recorded) != len(replayed):
        place = min(len(recorded), len(replayed)) + 1
        missing = recorded[place - 1] if len(recorded) > len(replayed) else replayed[place - 1]
        side = "only in the record" if len(recorded) > len(replayed) else "only in the replay"
        return place, f"{missing}: {side}{f' ({why})' if why else ''}"
    return (None, None) if why is None else (len(recorded), why)
