"""Any recorded job, run again: its log's facts go through a fresh job, and the first difference is shown."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tenure.contract import HELD, Contract
from tenure.errors import JobNotFound, NotDue, TenureError
from tenure.event import Logged
from tenure.job import UPKEEP, Failure, Held, Job, NewJob
from tenure.postgres.audit import ReplayedEffect
from tenure.postgres.store import Store
from tenure.proof.cases import PLACE

#: Facts that depend on the clock: a beat renews a lease when half of it is gone.
_BY_THE_CLOCK = ("renewed",)
_DUE_WITHIN = 10.0
_LOST_WITHIN = 120.0


@dataclass
class Replayed:
    """A job run again: what its log says, what the fresh job's log says, and where they part."""

    job_id: int
    as_job_id: int
    recorded: list[str]
    replayed: list[str] = field(default_factory=list)
    #: The recorded log row at which they part, and why; None: they agree.
    place: int | None = None
    why: str | None = None


class Stuck(Exception):
    """What a log row tells of cannot be done with the fresh job as it stands."""


async def replay(store: Store, job_id: int) -> Replayed:
    """Run a job's log again through the public verbs, on a fresh job of the same contract, type, payload and limit."""
    found = await store.jobs([job_id])
    if not found:
        raise JobNotFound(job_id)
    job = found[0]
    log = _told(await store.events(job_id))
    fresh = NewJob(
        job.type, job.payload, contract=job.contract, version=job.version, max_attempts=job.max_attempts,
        queue=PLACE, tenant_id=PLACE,
    )  # fmt: skip
    contract = (await store.audit.contracts())[job.contract, job.version]
    effects = await store.audit.effects(job_id)
    made = await store.enqueue(fresh)
    player = _Player(store, contract, made.job_id, job, log, effects)
    why = await player.play()
    replayed = await player.written()
    if job.role == "settling":  # it was stopped at its commit point; the fresh job went on
        replayed = replayed[: len(log)] + [one for one in replayed[len(log) :] if one.trigger != "settle"]
    report = Replayed(job_id, made.job_id, [_step(one) for one in log], [_step(one) for one in replayed])
    report.place, report.why = _compared(log, report, why)
    await player.put_away()
    return report


class _Player:
    """Says again what workers, operators and upkeep said."""

    def __init__(
        self,
        store: Store,
        contract: Contract,
        job_id: int,
        of: Job,
        log: Sequence[Logged],
        effects: Sequence[ReplayedEffect],
    ) -> None:
        self.store = store
        self.contract = contract
        self.job_id = job_id
        self.of = of
        self.log = log
        self.effects = list(effects)
        self.held: Held | None = None
        self.worker = ""
        #: Whether something is to be undone before the job may end badly.
        self.undoable = False

    async def play(self) -> str | None:
        """Do what each log row tells of, in order, until the logs part; what stopped it, if anything did."""
        at = 0
        while at < len(self.log):
            event = self.log[at]
            try:
                await self._had(event)
                await self._do(event)
            except (TenureError, Stuck) as error:
                return f"{event.trigger}: {type(error).__name__}: {error}"
            if event.hop and event.trigger not in ("claim", "reclaim", "start"):
                self.held = None
            written = await self.written()
            if len(written) <= at or any(_step(a) != _step(b) for a, b in zip(written, self.log, strict=False)):
                return None
            at = len(written)
        return None

    async def written(self) -> list[Logged]:
        """The fresh job's log so far."""
        return _told(await self.store.events(self.job_id))

    async def _do(self, event: Logged) -> None:
        if event.trigger in ("claim", "reclaim"):
            await self._claim(event)
        elif event.actor == UPKEEP:
            await self._keep_up(event)
        elif self.held is not None and self.worker == event.actor and _is_holders(event):
            await self._say(self.held, event)
        else:
            await self._ask(event)

    async def _had(self, event: Logged) -> None:
        """Record what the holder had done before this."""
        while self.held is not None and self.effects:
            effect = self.effects[0]
            if effect.claims > self.held.claims or effect.at > event.ts:
                return
            result = None if effect.result_json is None else json.loads(effect.result_json)
            await self.store.effect(self.held, effect.node, result, compensable=effect.compensable)
            self.undoable = self.undoable or effect.compensable
            self.effects.pop(0)

    async def _claim(self, event: Logged) -> None:
        if event.trigger == "reclaim" and self.held is not None:
            await self.store.hand_back(self.held)  # let go: as if the lease had run out
        ends = (one for one in self.log if one.seq > event.seq and one.hop and one.trigger != "start")
        lost = next((one.actor == UPKEEP for one in ends), False)
        # What will be lost need not be waited for any longer than it must.
        await self._take(event.actor, self.contract.lease.minimum_ms if lost else None)

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

        await self._until(claim, _DUE_WITHIN, "the job was not due")

    async def _keep_up(self, event: Logged) -> None:
        """What upkeep did."""
        name = self.contract.name
        if event.trigger == "promote":
            await self._until(lambda: self._grew(event, self.store.promote(name)), _DUE_WITHIN, "the job was not due")
        elif event.trigger == "settle":
            await self.store.settle(name)
        else:
            await self._lose(event)

    async def _lose(self, event: Logged) -> None:
        """The holder is lost: its lease runs out, or, where handing back is the same hop, it hands back."""
        if self.held is None:
            raise Stuck("nobody holds the job")
        if event.trigger == "cancel":  # asked to stop before it was lost
            await self.store.cancel(self.job_id, mode="soft", actor=self.worker)
        if self.contract.path("hand_back") is None and not self.undoable:
            await self.store.hand_back(self.held)
        reap = self.store.reap
        await self._until(
            lambda: self._grew(event, reap(self.contract.name)), _LOST_WITHIN, "the lease did not run out"
        )

    async def _grew(self, event: Logged, upkeep: Awaitable[Any]) -> bool:
        """Whether a round of upkeep, or whatever came before it, moved this job: others may be moved by it too."""
        await upkeep
        return len(await self.written()) > self.log.index(event)

    async def _say(self, held: Held, event: Logged) -> None:
        """What a holder said."""
        store, facts = self.store, event.facts or {}
        error = facts.get("error") or {}
        names = ("type", "code", "stack", "stage", "retryable")
        failure = Failure(str(error.get("message", "")), **{name: error[name] for name in names if name in error})
        trigger = facts.get("ends_by", "fatal") if event.trigger == "compensating" else event.trigger
        verbs: dict[str, Callable[[], Awaitable[Any]]] = {
            "start": lambda: store.start(held),
            "heartbeat": lambda: store.heartbeat(held),
            "succeed": lambda: store.succeed(held, self.of.result),
            "snooze": lambda: store.snooze(held, 0),
            "hand_back": lambda: store.hand_back(held),
            "cancel": lambda: store.cancelled(held, event.reason),
            "expire": lambda: store.hand_back(held),
            "expire_at_cap": lambda: store.hand_back(held),
            "compensated": lambda: store.compensated(held),
            "compensation_failed": lambda: store.compensation_failed(held, failure),
        }
        await verbs.get(trigger, lambda: store.fail(held, failure))()

    async def _ask(self, event: Logged) -> None:
        """What an operator asked for."""
        who: dict[str, Any] = {"actor": event.actor}
        error = (event.facts or {}).get("error") or {}
        if event.trigger == "cancel_requested":
            await self.store.cancel(self.job_id, mode="soft", reason=event.reason, **who)
        elif event.trigger == "cancel":
            await self.store.cancel(self.job_id, mode=_mode(self.contract), reason=event.reason, **who)
        elif event.trigger == "dead_letter" and error.get("type") == "DeadLettered":
            what = {"reason_code": error["code"], "stage": error.get("stage"), "message": error.get("message", "")}
            await self.store.dead_letter(self.job_id, **what, **who)
        elif event.hop:
            await self.store.transition(self.job_id, event.to_state, reason=event.reason, **who)
        else:
            raise Stuck(f"{event.actor} does not hold the job")

    async def _until(self, call: Callable[[], Awaitable[bool]], seconds: float, why: str) -> None:
        for _ in range(int(seconds / 0.05)):
            if await call():
                return
            await asyncio.sleep(0.05)
        raise Stuck(f"{why} within {seconds:g} seconds")

    async def put_away(self) -> None:
        """Leave nothing that could run, or that would keep its range from leaving."""
        try:
            await self._end()
        except (TenureError, Stuck):
            return  # its queue is nobody's

    async def _end(self) -> None:
        (job,) = await self.store.jobs([self.job_id])
        if job.role == "done":
            return
        if self.contract.path("cancel", job.state) and _mode(self.contract) == "hard":
            await self.store.cancel(self.job_id, mode="hard", actor="tenure replay", reason="the replay ended here")
            return
        if job.role == "ready":
            await self._take("tenure replay")
        elif job.role not in HELD:
            return  # upkeep goes on with it
        if self.held is not None:
            await self.store.start(self.held)
            await self.store.succeed(self.held)


def _is_holders(event: Logged) -> bool:
    """Whether only a holder can have said it: an operator's words come without an error, or with its own kind."""
    error = (event.facts or {}).get("error") or {}
    if event.trigger in ("retry", "exhaust", "fatal", "dead_letter"):
        return bool(error) and error.get("type") not in ("DeadLettered", "Requested")
    return event.trigger != "cancel_requested"


def _mode(contract: Contract) -> str:
    return "soft" if contract.cancel_modes and "hard" not in contract.cancel_modes else "hard"


def _told(log: Sequence[Logged]) -> list[Logged]:
    return [event for event in log if event.trigger not in _BY_THE_CLOCK]


def _step(event: Logged) -> str:
    how = f"{event.from_state} → {event.to_state}" if event.hop else f"in {event.from_state}"
    return f"{event.trigger}: {how} (claim {event.claims}, counter {event.counter})"


def _compared(log: Sequence[Logged], report: Replayed, why: str | None) -> tuple[int | None, str | None]:
    """The number of the recorded log row at which they part (or the one that would follow), and how."""
    because = f" ({why})" if why else ""
    last = log[-1].seq if log else 0
    for place, (was, now) in enumerate(itertools.zip_longest(report.recorded, report.replayed)):
        if was == now:
            continue
        if now is None:
            return log[place].seq, f"{was}: only in the record{because}"
        if was is None:
            return last + 1, f"{now}: only in the replay{because}"
        return log[place].seq, f"recorded {was}; replayed {now}{because}"
    return (None, None) if why is None else (last, why)
