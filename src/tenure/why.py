"""Why is a job (not) running, or why did it end so? A few plain sentences from its row, its log and its contract.

Nothing here asks a database or a clock: whoever looks brings the job, its log, the contract, the database's time, and
what stands around the job (`Around`) as far as it is known. The same sentences serve every surface.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from tenure.around import MANY, Around, SetAside
from tenure.contract import Contract
from tenure.event import Logged
from tenure.job import UPKEEP, Job
from tenure.wording import failure, plain, span, when


def why(job: Job, log: Sequence[Logged], contract: Contract, now: datetime, around: Around | None = None) -> list[str]:
    """The answer in a few sentences, the most important first."""
    told = _Told(job, [event for event in log if event.hop], log, contract, now, around or Around())
    # Names and messages are other people's words: whatever they hold, a sentence stays one line.
    return [plain(sentence, 2000) for sentence in _BY_ROLE[job.role](told)]


def next_steps(job: Job, contract: Contract, around: Around | None = None) -> list[str]:
    """The commands that make sense now, the likeliest first."""
    around = around or Around()
    if job.role == "done":
        return _after_the_end(job, around)
    resume = around.paused is not None and job.role in ("ready", "waiting")
    steps = [*([resuming(job.queue)] if resume else []), f"tenure jobs events {job.id}"]
    if contract.path("cancel", job.state) is None:
        return steps
    if job.cancel_requested_at is None:
        return [*steps, f"tenure jobs cancel {job.id}"]
    return [*steps, f"tenure jobs cancel {job.id} --mode hard"] if "hard" in contract.cancel_modes else steps


def resuming(queue: str) -> str:
    """The command that lets a paused queue be claimed again; a queue's name may hold anything."""
    return f"tenure queues resume {shlex.quote(queue)}"


def letter_steps(letter: SetAside) -> list[str]:
    """The commands that make sense for a dead letter."""
    if letter.status == "requeued":
        return [f"tenure jobs show {letter.requeued_as}"]
    if letter.status == "discarded":
        return []
    again = f"tenure dlq requeue {letter.id}"
    if letter.discard_asked_by is not None:
        return [again, f"tenure dlq approve {letter.id} --person NAME"]
    return [again, f"tenure dlq discard {letter.id} --reason TEXT --person NAME"]


def _after_the_end(job: Job, around: Around) -> list[str]:
    log = f"tenure jobs events {job.id}"
    if around.again is not None:
        return [f"tenure jobs show {around.again}", log]
    if around.letter is not None:
        return [*letter_steps(around.letter), f"tenure dlq show {around.letter.id}", log]
    return [log, f"tenure jobs requeue {job.id}"]


@dataclass(frozen=True, slots=True)
class _Told:
    """What the sentences are made of."""

    job: Job
    hops: Sequence[Logged]
    log: Sequence[Logged]
    contract: Contract
    now: datetime
    around: Around

    @property
    def executions(self) -> int:
        """How often this job may be claimed."""
        return self.contract.budget.executions(self.job.max_attempts, self.job.raises)

    @property
    def in_budget(self) -> bool:
        return self.job.claims < self.executions

    @property
    def claims(self) -> str:
        return f"claim {self.job.claims} of at most {self.executions}"

    @property
    def since(self) -> datetime:
        """When the job came to stand where it stands."""
        return self.hops[-1].ts if self.hops else self.job.created_at

    @property
    def orphaned_at(self) -> datetime | None:
        """When too many missed beats made the holder a lost one, where the contract counts them."""
        beat, last = self.contract.lease.heartbeat, self.around.last_heartbeat_at
        if beat is None or last is None:
            return None
        return last + timedelta(milliseconds=beat.missed * (self.around.heartbeat_ms or beat.default_ms))

    def at(self, moment: datetime) -> str:
        return when(moment, self.now)

    def last_hop(self, *but: str) -> Logged | None:
        """The last hop, leaving out what these triggers did."""
        return next((hop for hop in reversed(self.hops) if hop.trigger not in but), None)

    def facts(self, end: Logged) -> Mapping[str, Any]:
        """What the log says beside a path that ended with this hop; it is written with the path's first one."""
        for hop in reversed(self.hops[: self.hops.index(end) + 1]):
            if hop.trigger != end.trigger:
                break
            if isinstance(hop.facts, Mapping):
                return hop.facts
        return {}

    def holder(self) -> str:
        """Who held it last."""
        taken = [hop.actor for hop in self.hops if hop.trigger in ("claim", "reclaim")]
        return self.job.lease_owner or (taken[-1] if taken else "its holder")


def _ready(told: _Told) -> Iterator[str]:
    job = told.job
    if job.due_at is not None and job.due_at > told.now:
        yield f"Job {job.id} is {job.state} and not due before {told.at(job.due_at)}."
        yield _delayed(told)
        yield from _paused(told)
        return
    if job.lease_expires_at is not None and job.lease_expires_at >= told.now:
        yield f"Job {job.id} is {job.state} and due, but kept from claims until {told.at(job.lease_expires_at)}."
        return
    since = max(told.since, job.due_at or job.created_at)
    yield f"Job {job.id} is {job.state} and due since {told.at(since)}, and waits for a claim."
    if told.around.paused is None:
        yield from _neighbours(told)
    yield from _paused(told)
    if job.claims:
        yield f"So far it was claimed {job.claims} of at most {told.executions} times{_last_failure(job)}."


def _paused(told: _Told) -> Iterator[str]:
    paused = told.around.paused
    if paused is not None:
        because = f" ({plain(paused.reason)})" if paused.reason else ""
        yield (
            f"Queue {told.job.queue} is paused since {told.at(paused.at)} by {paused.by}{because}: "
            "no claim takes jobs from it until somebody resumes it."
        )


def _delayed(told: _Told) -> str:
    """Because of what the job is not due yet."""
    hop = told.last_hop("promote")
    if hop is None:
        return f"It was enqueued at {told.at(told.job.created_at)} to run then."
    facts = told.facts(hop)
    delay = f"{span(facts['delay_ms'])}" if facts.get("delay_ms") is not None else "some time"
    if hop.trigger == "snooze":
        return f"{hop.actor} put it off by {delay} at {told.at(hop.ts)}, which costs it no attempt."
    if hop.trigger == "hand_back":
        return f"{hop.actor} handed it back unfinished at {told.at(hop.ts)}, to be taken again after {delay}."
    backoff = f"contract {told.contract.name} waits {delay} before the next of at most {told.executions} claims"
    if hop.trigger == "expire":
        lost = "its heartbeats stopped" if hop.reason == "orphaned" else "its lease ran out"
        return f"{told.holder()} lost it at {told.at(hop.ts)}, because {lost} on claim {hop.claims}; {backoff}."
    error = failure(facts.get("error") or told.job.last_error)
    return f"Claim {hop.claims} failed at {told.at(hop.ts)}: {error}; {backoff}."


def _neighbours(told: _Told) -> Iterator[str]:
    job, ahead, held = told.job, told.around.ahead, told.around.held
    if ahead:
        goes = "1 due job goes" if ahead == 1 else f"{_counted(ahead)} due jobs go"
        yield f"{goes} before it in queue {job.queue} (by priority, then due time)."
    elif ahead == 0:
        yield f"No due job goes before it: the next claim of contract {job.contract} on queue {job.queue} takes it."
    if held:
        are = "1 job of that queue is" if held == 1 else f"{_counted(held)} jobs of that queue are"
        yield f"{are} held now, so workers are there; they may be busy."
    elif held == 0:
        yield f"No job of that queue is held now: perhaps no worker takes {job.contract} jobs from queue {job.queue}."


def _waiting(told: _Told) -> Iterator[str]:
    job, promote = told.job, told.contract.path("promote", told.job.state)
    then = f"upkeep makes it {promote.end.state}" if promote else "upkeep moves it on"
    if job.due_at is None:
        yield f"Job {job.id} is {job.state} and waits without a time, so upkeep leaves it alone."
    elif job.due_at > told.now:
        yield f"Job {job.id} is {job.state} and waits until {told.at(job.due_at)}; then {then}."
    else:
        yield f"Job {job.id} is {job.state}, and its wait was over at {told.at(job.due_at)}."
        yield f"It stays so until {then}: see that upkeep runs."
    yield _delayed(told)
    yield from _paused(told)


def _held(told: _Told) -> Iterator[str]:
    job, lease, owner = told.job, told.contract.lease, told.holder()
    expires, orphaned = job.lease_expires_at, told.orphaned_at
    expired = expires is not None and expires < told.now
    lost = expired or (orphaned is not None and orphaned < told.now)
    begun = "" if job.role == "active" else ", and its handler has not begun"
    since = f" since {told.at(job.started_at)}" if job.started_at else ""
    if not lost:
        until = f", under a lease until {told.at(expires)}" if expires else ""
        yield f"Job {job.id} is {job.state}: {owner} holds it{since}{until}{begun}."
    elif expired:
        yield f"Job {job.id} is {job.state}, but the lease of {owner} ran out at {told.at(expires or told.now)}{begun}."
    else:
        yield f"Job {job.id} is {job.state}, but {owner} sends no heartbeats any more{begun}."
    beat = told.around.last_heartbeat_at
    heard = f"its last heartbeat came at {told.at(beat)}" if beat else "it has sent no heartbeat yet"
    yield f"This is {told.claims}; {heard}{_last_failure(job, '; the last failure before it: ')}."
    if told.around.compensating:
        yield "It has failed for good, and its holder undoes what was done for it before it ends."
    if job.cancel_requested_at is not None:
        yield from _asked_to_stop(told, job.cancel_requested_at)
    if lost:
        kept = lease.after_expiry == "valid_until_taken"
        yield f"{owner} may still finish it until it is taken." if kept else f"{owner} has lost it for good."
        yield _lost_goes(told)


def _asked_to_stop(told: _Told, at: datetime) -> Iterator[str]:
    asked = next((event for event in reversed(told.log) if event.trigger == "cancel_requested"), None)
    by = f" by {asked.actor}" + (f" ({plain(asked.reason)})" if asked.reason else "") if asked else ""
    path = told.contract.path("cancel", told.job.state)
    end = path.end.state if path else "cancelled"
    yield (
        f"It was asked to stop{by} at {told.at(at)}; its holder is told at the next heartbeat. "
        f"A success that still arrives counts; a failure or a lost lease ends it as {end}."
    )


def _lost_goes(told: _Told) -> str:
    """What becomes of a job whose holder is lost."""
    job, contract = told.job, told.contract
    who = "The next claim of its queue, or upkeep," if contract.lease.closed_by_claim else "Upkeep"
    if job.cancel_requested_at is not None and (path := contract.path("cancel", job.state)):
        return f"{who} ends it as {path.end.state}."
    if told.in_budget and contract.path("reclaim", job.state):
        return f"The next claim of contract {job.contract} on queue {job.queue} takes it where it stands."
    path = contract.path("expire" if told.in_budget else "expire_at_cap", job.state)
    if path is None:
        return f"{who} closes it."
    if told.in_budget:
        return f"{who} makes it {path.end.state}, to be claimed again: see that upkeep runs."
    return f"All its claims are spent: {who[0].lower()}{who[1:]} makes it {path.end.state}. See that upkeep runs."


def _settling(told: _Told) -> Iterator[str]:
    job, path = told.job, told.contract.path("settle", told.job.state)
    if path is None:
        yield f"Job {job.id} is {job.state}, a step inside a path that commits whole: nobody should see it there."
        return
    way = " → ".join([job.state, *(hop.state for hop in path.hops)])
    yield f"Job {job.id} is {job.state} since {told.at(told.since)}: how it ends is decided, and to be recorded first."
    yield from _cause(told)
    if told.around.letter is None:
        yield f"Its dead letter is not written yet: upkeep writes it and goes on ({way}). See that upkeep runs."
    else:
        yield f"Its dead letter {told.around.letter.id} is written: upkeep goes on ({way}). See that upkeep runs."


def _done(told: _Told) -> Iterator[str]:
    job = told.job
    well = job.state in told.contract.successes()
    yield f"Job {job.id} ended {'well ' * well}as {job.state} at {told.at(job.finished_at or told.since)}."
    yield from _cause(told)
    letter = told.around.letter
    if letter is not None:
        yield from _set_aside(letter, told.contract)
    if told.around.again is not None and (letter is None or letter.requeued_as != told.around.again):
        yield f"It was run again as job {told.around.again}."


def _cause(told: _Told) -> Iterator[str]:
    """What ended the job, by whom, on which claim, with which error."""
    job, hop = told.job, told.last_hop("settle")
    if hop is None:
        yield f"Its log does not say how{_last_failure(job)}."
        return
    reason = f" ({plain(hop.reason)})" if hop.reason and hop.reason != hop.trigger else ""
    error = failure(told.facts(hop).get("error") or job.last_error)
    if hop.trigger == "succeed":
        took = (
            f", {span((hop.ts - job.started_at) / timedelta(milliseconds=1))} after it was claimed"
            if job.started_at
            else ""
        )
        yield f"{hop.actor} finished it on {told.claims}{took}{_last_failure(job, '; an earlier claim had failed: ')}."
    elif hop.trigger == "exhaust":
        yield f"Claim {hop.claims} failed ({error}), and that was the last of {told.executions}."
    elif hop.trigger == "fatal":
        yield f"{hop.actor} failed it on {told.claims} with an error that is not tried again{reason}: {error}."
    elif hop.trigger == "expire_at_cap":
        yield f"{told.holder()} was lost on claim {hop.claims}{reason}, and that was the last of {told.executions}."
    elif hop.trigger == "cancel":
        yield from _cancelled(told, hop, reason)
    elif hop.trigger == "dead_letter":
        yield f"{hop.actor} set it aside{reason}: {error}."
    elif hop.trigger == "compensation_failed":
        yield f"What was done for it could not be undone{reason}: {error}."
    else:
        yield f"{hop.actor} moved it by {hop.trigger}{reason}."
    if not job.claims:
        yield "It was never claimed."


def _cancelled(told: _Told, hop: Logged, reason: str) -> Iterator[str]:
    asked = told.job.cancel_requested_at
    after = f", after it was asked to stop at {told.at(asked)}" if asked else ""
    if hop.actor == UPKEEP:
        yield f"Its holder {told.holder()} was lost{reason}{after}, so upkeep ended it."
    else:
        yield f"{hop.actor} cancelled it{reason}{after}."
    if told.job.claims:
        yield f"It was claimed {told.job.claims} of at most {told.executions} times{_last_failure(told.job)}."


def _set_aside(letter: SetAside, contract: Contract) -> Iterator[str]:
    named = f"Its dead letter {letter.id} ({letter.reason_code})"
    if letter.status == "requeued":
        yield f"{named} was run again as job {letter.requeued_as}."
    elif letter.status == "discarded":
        approved = f" and {letter.discard_approved_by}" if letter.discard_approved_by else ""
        yield f"{named} was discarded by {letter.discard_asked_by}{approved}: {plain(letter.discard_reason or '')}."
    elif letter.discard_asked_by is not None:
        yield f"{named} is open: {letter.discard_asked_by} has asked to discard it, and another person must approve."
    else:
        people = ", which needs two people" if contract.dead_letters.reviewers > 1 else ""
        yield f"{named} is open: it can be run again, or discarded{people}."


_BY_ROLE: Mapping[str, Callable[[_Told], Iterator[str]]] = {
    "ready": _ready, "waiting": _waiting, "leased": _held, "active": _held, "settling": _settling, "done": _done,
}  # fmt: skip


def _last_failure(job: Job, before: str = "; the last failure: ") -> str:
    return "" if job.last_error is None else f"{before}{failure(job.last_error)}"


def _counted(number: int) -> str:
    return f"more than {MANY:,}" if number > MANY else f"{number:,}"
