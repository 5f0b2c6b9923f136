"""Explain why a job is or is not running, or how it ended: a few sentences from its row, its log and its contract.

Nothing here reads a database or a clock. The caller passes the job, its log, its contract, the database's time, and the
known facts around the job (`Situation`). All surfaces show the same sentences.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from tenure.jobs.event import LogEntry
from tenure.jobs.formats import describe_failure, elapsed, format_duration, format_time, to_one_line
from tenure.jobs.job import UPKEEP, Job

if TYPE_CHECKING:
    from tenure.contracts.declaration import Contract
    from tenure.jobs.flow import FlowNode, WaitingNode

#: How many parents are named.
_NAMED: Final = 5
#: Other jobs of the queue are counted up to this number, so that a full queue does not make the query slow.
COUNT_LIMIT: Final = 1000


@dataclass(frozen=True, slots=True)
class DeadLetterSummary:
    """The dead letter of a job, in short."""

    id: int
    status: str
    reason_code: str
    requeued_as: int | None = None
    discard_asked_by: str | None = None
    discard_approved_by: str | None = None
    discard_reason: str | None = None


@dataclass(frozen=True, slots=True)
class QueuePause:
    """The pause of a queue: since when, by whom, and why."""

    at: datetime
    by: str
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Situation:
    """Facts around a job; None: not looked up."""

    last_heartbeat_at: datetime | None = None
    #: The heartbeat interval of its holder, if the job type overrides the contract.
    heartbeat_ms: int | None = None
    #: The job has failed, and its holder compensates its effects.
    compensating: bool = False
    #: How many due jobs come before it, and how many of its queue are held; counted up to COUNT_LIMIT.
    ahead: int | None = None
    held: int | None = None
    letter: DeadLetterSummary | None = None
    #: The id of the new job that runs it again.
    again: int | None = None
    #: The pause of its queue.
    paused: QueuePause | None = None
    #: Why no live worker takes it, if none does.
    unserved: str | None = None
    #: Whether a live worker takes jobs of its contract and queue.
    has_worker: bool = True
    #: Since when claims skip it because it cannot be logged, and the database's reason.
    quarantined_at: datetime | None = None
    quarantine_reason: str | None = None
    #: When it is cancelled unless it has begun.
    expires_at: datetime | None = None


def explain_job(
    job: Job, log: Sequence[LogEntry], contract: Contract, now: datetime, situation: Situation | None = None
) -> list[str]:
    """Return the explanation as a few sentences, the most important first."""
    view = _JobView(job, [event for event in log if event.hop], log, contract, now, situation or Situation())
    # Names and messages may contain anything; each sentence must stay one line.
    return [to_one_line(sentence, 2000) for sentence in _BY_ROLE[job.role](view)]


def next_commands(job: Job, contract: Contract, situation: Situation | None = None) -> list[str]:
    """Return the commands that make sense now, the most likely first."""
    situation = situation or Situation()
    if job.role == "done":
        return _after_end_commands(job, contract, situation)
    resume = situation.paused is not None and job.role in ("ready", "waiting")
    decide = contract.decisions_from(job.state).values() if job.role == "waiting" else ()
    decisions = [f"tenure jobs transition {job.id} {state} --reason TEXT" for state in decide]
    if decisions:
        return [*decisions, f"tenure jobs events {job.id}"]
    steps = [*([resume_command(job.queue)] if resume else []), f"tenure jobs events {job.id}"]
    if situation.unserved is not None:
        move = [f"tenure jobs move {job.id} --queue QUEUE"] if job.role in ("ready", "waiting") else []
        start = [] if situation.has_worker else [worker_command(job.queue)]
        steps[resume:resume] = [*start, "tenure workers list", *move]
    if contract.path("cancel", job.state) is None:
        end = contract.path("exhaust", job.state) if job.role == "active" else None
        return [*steps, f"tenure jobs transition {job.id} {end.end.state} --reason TEXT"] if end else steps
    if job.cancel_requested_at is None:
        return [*steps, f"tenure jobs cancel {job.id}"]
    return [*steps, f"tenure jobs cancel {job.id} --mode hard"] if "hard" in contract.cancel_modes else steps


def explain_node(waiting: WaitingNode) -> list[str]:
    """Return why the job of a node is not made: it waits for its parents, or will not run."""
    return [to_one_line(sentence, 2000) for sentence in _node_sentences(waiting)]


def _node_sentences(waiting: WaitingNode) -> Iterator[str]:
    node = waiting.node
    which = f"Job {node.job_id or node.id} is node {node.name} of flow {waiting.flow_id} ({waiting.flow})"
    if node.state == "waiting" and node.is_cleanup:
        yield f"{which}, a clean-up node: it runs when all other nodes have ended, and one of them badly."
    elif node.state == "waiting" and waiting.parents:
        named = ", ".join(map(_parent, waiting.parents[:_NAMED]))
        more = len(waiting.parents) - _NAMED
        yield f"{which} and waits for {named}{f' and {more:,} more' if more > 0 else ''}."
        ended = len(node.parents) - len(waiting.parents)
        if ended:
            yield f"{ended:,} of its {len(node.parents):,} parents have ended."
    elif node.state == "waiting":
        yield f"{which}. Its parents have ended, and it is about to start."
    elif node.state == "failed":
        yield f"{which}, and could not be started: {node.error}."
    elif node.state == "cancelled":
        yield f"{which}, and the flow was cancelled before it started."
    elif node.is_cleanup:
        yield f"{which}, a clean-up node, and was skipped: no node ended badly."
    else:
        yield f"{which}, and was skipped: a node of the flow ended badly."


def _parent(node: FlowNode) -> str:
    """A parent that has not ended, and how far it is."""
    if node.state == "waiting":
        return f"{node.name} (waiting)"
    if node.is_mapped:
        return f"{node.name} ({node.open:,} of its jobs have not ended)"
    return f"{node.name} ({node.job_state or node.state}, job {node.job_id})"


def next_commands_of_node(waiting: WaitingNode) -> list[str]:
    """Return the commands that make sense while the job of a node is not made, the most likely first."""
    show = f"tenure flows show {waiting.flow_id}"
    if waiting.node.state == "waiting":
        live = [parent.job_id for parent in waiting.parents if parent.state == "started" and not parent.is_mapped]
        return [show, *(f"tenure jobs why {job_id}" for job_id in live[:1])]
    return [show, f"tenure flows resume {waiting.flow_id}"]


def resume_command(queue: str) -> str:
    """Return the command that resumes a paused queue; the name is quoted for the shell."""
    return f"tenure queues resume {shlex.quote(queue)}"


def worker_command(queue: str) -> str:
    """Return the command that starts a worker for a queue; its code must have the tasks."""
    return f"tenure worker APP --queues {shlex.quote(queue)}"


def dead_letter_commands(letter: DeadLetterSummary) -> list[str]:
    """Return the commands that make sense for a dead letter."""
    if letter.status == "requeued":
        return [f"tenure jobs show {letter.requeued_as}"]
    if letter.status == "discarded":
        return []
    again = f"tenure dlq requeue {letter.id}"
    if letter.discard_asked_by is not None:
        return [again, f"tenure dlq approve {letter.id} --person NAME"]
    return [again, f"tenure dlq discard {letter.id} --reason TEXT --person NAME"]


def _after_end_commands(job: Job, contract: Contract, situation: Situation) -> list[str]:
    log = f"tenure jobs events {job.id}"
    if situation.again is not None:
        return [f"tenure jobs show {situation.again}", log]
    if situation.letter is not None:
        return [*dead_letter_commands(situation.letter), f"tenure dlq show {situation.letter.id}", log]
    # To run a job again that ended well repeats its effects.
    return [log] if job.state in contract.successes() else [log, f"tenure jobs requeue {job.id}"]


@dataclass(frozen=True, slots=True)
class _JobView:
    """The job and everything that the sentences are made of."""

    job: Job
    hops: Sequence[LogEntry]
    log: Sequence[LogEntry]
    contract: Contract
    now: datetime
    situation: Situation

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
        """When the job entered its current state."""
        return self.hops[-1].ts if self.hops else self.job.created_at

    @property
    def orphaned_at(self) -> datetime | None:
        """When missed heartbeats make the job an orphan, if the contract counts them."""
        beat, last = self.contract.lease.heartbeat, self.situation.last_heartbeat_at
        if beat is None or last is None:
            return None
        return last + timedelta(milliseconds=beat.missed * (self.situation.heartbeat_ms or beat.default_ms))

    def at(self, moment: datetime) -> str:
        return format_time(moment, self.now)

    def last_hop(self, *but: str) -> LogEntry | None:
        """Return the last hop whose trigger is none of these."""
        return next((hop for hop in reversed(self.hops) if hop.trigger not in but), None)

    def facts(self, end: LogEntry) -> Mapping[str, Any]:
        """Return the facts of the path that ended with this hop; they are logged with its first hop."""
        for hop in reversed(self.hops[: self.hops.index(end) + 1]):
            if hop.trigger != end.trigger:
                break
            if isinstance(hop.facts, Mapping):
                return hop.facts
        return {}

    def holder(self) -> str:
        """Return the current or last holder."""
        taken = [hop.actor for hop in self.hops if hop.trigger in ("claim", "reclaim")]
        return self.job.lease_owner or (taken[-1] if taken else "its holder")


def _ready(view: _JobView) -> Iterator[str]:
    job = view.job
    if job.due_at is not None and job.due_at > view.now:
        yield f"Job {job.id} is {job.state} and not due before {view.at(job.due_at)}."
        yield _delayed(view)
        yield from _expiry(view)
        yield from _unserved(view)
        yield from _paused(view)
        return
    if job.lease_expires_at is not None and job.lease_expires_at >= view.now:
        yield f"Job {job.id} is {job.state} and due, but kept from claims until {view.at(job.lease_expires_at)}."
        return
    since = max(view.since, job.due_at or job.created_at)
    yield f"Job {job.id} is {job.state} and due since {view.at(since)}, and waits for a claim."
    yield from _expiry(view)
    yield from _unserved(view)
    yield from _quarantined(view)
    if view.situation.paused is None and view.situation.quarantined_at is None:
        yield from _neighbours(view)
    yield from _paused(view)
    if job.claims:
        yield f"So far it was claimed {job.claims} of at most {view.executions} times{_last_failure(job)}."


def _expiry(view: _JobView) -> Iterator[str]:
    expires_at = view.situation.expires_at
    if expires_at is not None and not view.job.claims:
        late = expires_at <= view.now
        then = (
            "no claim takes it, and upkeep cancels it" if late else "unless it is claimed before, it is cancelled then"
        )
        yield f"It {'expired' if late else 'expires'} at {view.at(expires_at)}: {then}."


def _unserved(view: _JobView) -> Iterator[str]:
    if view.situation.unserved is not None:
        yield f"{view.situation.unserved[0].upper()}{view.situation.unserved[1:]}: it waits until one comes that does."


def _quarantined(view: _JobView) -> Iterator[str]:
    situation = view.situation
    if situation.quarantined_at is not None:
        yield (
            f"Claims leave it out since {view.at(situation.quarantined_at)}, because it could not be logged "
            f"({to_one_line(situation.quarantine_reason or 'no reason is known')}). "
            "Upkeep lets it be tried again every few minutes."
        )


def _paused(view: _JobView) -> Iterator[str]:
    paused = view.situation.paused
    if paused is not None:
        because = f" ({to_one_line(paused.reason)})" if paused.reason else ""
        yield (
            f"Queue {view.job.queue} is paused since {view.at(paused.at)} by {paused.by}{because}: "
            "no claim takes jobs from it until somebody resumes it."
        )


def _delayed(view: _JobView) -> str:
    """Return why the job is not due yet."""
    hop = view.last_hop("promote", *view.contract.decisions)
    if hop is None:
        return f"It was enqueued at {view.at(view.job.created_at)} to run then."
    facts = view.facts(hop)
    delay = f"{format_duration(facts['delay_ms'])}" if facts.get("delay_ms") is not None else "some time"
    if hop.trigger == "snooze":
        return f"{hop.actor} put it off by {delay} at {view.at(hop.ts)}, which costs it no attempt."
    if hop.trigger == "hand_back":
        return f"{hop.actor} handed it back unfinished at {view.at(hop.ts)}, to be taken again after {delay}."
    backoff = f"contract {view.contract.name} waits {delay} before the next of at most {view.executions} claims"
    if hop.trigger == "expire":
        lost = "its heartbeats stopped" if hop.reason == "orphaned" else "its lease ran out"
        return f"{view.holder()} lost it at {view.at(hop.ts)}, because {lost} on claim {hop.claims}; {backoff}."
    error = describe_failure(facts.get("error") or view.job.last_error)
    return f"Claim {hop.claims} failed at {view.at(hop.ts)}: {error}; {backoff}."


def _neighbours(view: _JobView) -> Iterator[str]:
    job, ahead, held = view.job, view.situation.ahead, view.situation.held
    if ahead:
        goes = "1 due job goes" if ahead == 1 else f"{_counted(ahead)} due jobs go"
        yield f"{goes} before it in queue {job.queue} (by priority, then due time, then enqueue)."
    elif ahead == 0 and view.situation.unserved is None:
        yield f"No due job goes before it: the next claim of contract {job.contract} on queue {job.queue} takes it."
    if held:
        are = "1 job of that queue is" if held == 1 else f"{_counted(held)} jobs of that queue are"
        yield f"{are} held now, so workers are there; they may be busy."
    elif held == 0:
        guess = f": perhaps no worker takes {job.contract} jobs from queue {job.queue}"
        yield f"No job of that queue is held now{guess if view.situation.unserved is None else ''}."


def _waiting(view: _JobView) -> Iterator[str]:
    job, promote = view.job, view.contract.path("promote", view.job.state)
    then = f"upkeep makes it {promote.end.state}" if promote else "upkeep moves it on"
    if decisions := view.contract.decisions_from(job.state):
        yield from _undecided(view, decisions)
        if promote is None or job.due_at is None:
            yield from _paused(view)
            return
    if job.due_at is None:
        yield f"Job {job.id} is {job.state} and waits without a time, so upkeep leaves it alone."
    elif job.due_at > view.now:
        yield f"Job {job.id} is {job.state} and waits until {view.at(job.due_at)}; then {then}."
    else:
        yield f"Job {job.id} is {job.state}, and its wait was over at {view.at(job.due_at)}."
        yield f"It stays so until {then}: see that upkeep runs."
    yield _delayed(view)
    yield from _expiry(view)
    yield from _paused(view)


def _undecided(view: _JobView, decisions: Mapping[str, str]) -> Iterator[str]:
    """Say since when the job waits for a person, and what that person can decide."""
    job = view.job
    choice = " or ".join(f"{decision} (it becomes {state})" for decision, state in decisions.items())
    yield f"Job {job.id} is {job.state} since {view.at(view.since)}, and waits for a decision: {choice}."
    if job.due_at is not None and job.due_at > view.now and view.contract.path("promote", job.state) is None:
        yield f"It is not due before {view.at(job.due_at)}, whatever is decided."
    if job.claims:
        yield f"So far it was claimed {job.claims} of at most {view.executions} times{_last_failure(job)}."


def _held(view: _JobView) -> Iterator[str]:
    job, lease, owner = view.job, view.contract.lease, view.holder()
    expires, orphaned = job.lease_expires_at, view.orphaned_at
    expired = expires is not None and expires < view.now
    lost = expired or (orphaned is not None and orphaned < view.now)
    begun = "" if job.role == "active" else ", and its handler has not begun"
    since = f" since {view.at(job.started_at)}" if job.started_at else ""
    if not lost:
        until = f", under a lease until {view.at(expires)}" if expires else ""
        yield f"Job {job.id} is {job.state}: {owner} holds it{since}{until}{begun}."
    elif expired:
        yield f"Job {job.id} is {job.state}, but the lease of {owner} ran out at {view.at(expires or view.now)}{begun}."
    else:
        yield f"Job {job.id} is {job.state}, but {owner} sends no heartbeats any more{begun}."
    beat = view.situation.last_heartbeat_at
    heard = f"its last heartbeat came at {view.at(beat)}" if beat else "it has sent no heartbeat yet"
    yield f"This is {view.claims}; {heard}{_last_failure(job, '; the last failure before it: ')}."
    if view.situation.compensating:
        yield "It has failed for good, and its holder undoes what was done for it before it ends."
    if job.cancel_requested_at is not None:
        yield from _cancel_requested(view, job.cancel_requested_at)
    if lost:
        kept = lease.after_expiry == "valid_until_taken"
        yield f"{owner} may still finish it until it is taken." if kept else f"{owner} has lost it for good."
        yield _after_loss(view)


def _cancel_requested(view: _JobView, at: datetime) -> Iterator[str]:
    asked = next((event for event in reversed(view.log) if event.trigger == "cancel_requested"), None)
    by = f" by {asked.actor}" + (f" ({to_one_line(asked.reason)})" if asked.reason else "") if asked else ""
    path = view.contract.path("cancel", view.job.state)
    end = path.end.state if path else "cancelled"
    yield (
        f"It was asked to stop{by} at {view.at(at)}; its holder is told at the next heartbeat. "
        f"A success that still arrives counts; a failure or a lost lease ends it as {end}."
    )


def _after_loss(view: _JobView) -> str:
    """Return what happens to a job whose holder is lost."""
    job, contract = view.job, view.contract
    who = "The next claim of its queue, or upkeep," if contract.lease.closed_by_claim else "Upkeep"
    if job.cancel_requested_at is not None and (path := contract.path("cancel", job.state)):
        return f"{who} ends it as {path.end.state}."
    if view.in_budget and contract.path("reclaim", job.state):
        if (unserved := view.situation.unserved) is not None:
            return f"{unserved[0].upper()}{unserved[1:]}: it stays as it is until one comes that does."
        return f"The next claim of contract {job.contract} on queue {job.queue} takes it where it stands."
    path = contract.path("expire" if view.in_budget else "expire_at_cap", job.state)
    if path is None:
        return f"{who} closes it."
    if view.in_budget:
        return f"{who} makes it {path.end.state}, to be claimed again: see that upkeep runs."
    return f"All its claims are spent: {who[0].lower()}{who[1:]} makes it {path.end.state}. See that upkeep runs."


def _settling(view: _JobView) -> Iterator[str]:
    job, path = view.job, view.contract.path("settle", view.job.state)
    if path is None:
        yield f"Job {job.id} is {job.state}, a step inside a path that commits whole: nobody should see it there."
        return
    way = " → ".join([job.state, *(hop.state for hop in path.hops)])
    yield f"Job {job.id} is {job.state} since {view.at(view.since)}: how it ends is decided, and to be recorded first."
    yield from _cause(view)
    if view.situation.letter is None:
        yield f"Its dead letter is not written yet: upkeep writes it and goes on ({way}). See that upkeep runs."
    else:
        yield f"Its dead letter {view.situation.letter.id} is written: upkeep goes on ({way}). See that upkeep runs."


def _done(view: _JobView) -> Iterator[str]:
    job = view.job
    well = job.state in view.contract.successes()
    yield f"Job {job.id} ended {'well ' * well}as {job.state} at {view.at(job.finished_at or view.since)}."
    yield from _cause(view)
    letter = view.situation.letter
    if letter is not None:
        yield from _set_aside(letter, view.contract)
    if view.situation.again is not None and (letter is None or letter.requeued_as != view.situation.again):
        yield f"It was run again as job {view.situation.again}."


def _cause(view: _JobView) -> Iterator[str]:
    """Yield what ended the job: actor, claim and error."""
    job, hop = view.job, view.last_hop("settle")
    if hop is None:
        yield f"Its log does not say how{_last_failure(job)}."
        return
    reason = f" ({to_one_line(hop.reason)})" if hop.reason and hop.reason != hop.trigger else ""
    error = describe_failure(view.facts(hop).get("error") or job.last_error)
    took = f", {elapsed(job.started_at, hop.ts)} after it was claimed" if job.started_at else ""
    earlier = _last_failure(job, "; an earlier claim had failed: ")
    last = f"and that was the last of {view.executions}"
    causes = {
        "succeed": f"{hop.actor} finished it on {view.claims}{took}{earlier}.",
        "exhaust": f"Claim {hop.claims} failed ({error}), {last}.",
        "fatal": f"{hop.actor} failed it on {view.claims} with an error that is not tried again{reason}: {error}.",
        "expire_at_cap": f"{view.holder()} was lost on claim {hop.claims}{reason}, {last}.",
        "dead_letter": f"{hop.actor} set it aside{reason}: {error}.",
        "compensation_failed": f"What was done for it could not be undone{reason}: {error}.",
    }
    if hop.trigger in view.contract.decisions:
        yield f"{hop.actor} decided: {hop.trigger}{reason}."
    elif hop.trigger == "cancel":
        yield from _cancelled(view, hop, reason)
    else:
        yield causes.get(hop.trigger, f"{hop.actor} moved it by {hop.trigger}{reason}.")
    if not job.claims:
        yield "It was never claimed."


def _cancelled(view: _JobView, hop: LogEntry, reason: str) -> Iterator[str]:
    asked = view.job.cancel_requested_at
    after = f", after it was asked to stop at {view.at(asked)}" if asked else ""
    if hop.actor == UPKEEP:
        yield f"Its holder {view.holder()} was lost{reason}{after}, so upkeep ended it."
    else:
        yield f"{hop.actor} cancelled it{reason}{after}."
    if view.job.claims:
        yield f"It was claimed {view.job.claims} of at most {view.executions} times{_last_failure(view.job)}."


def _set_aside(letter: DeadLetterSummary, contract: Contract) -> Iterator[str]:
    named = f"Its dead letter {letter.id} ({letter.reason_code})"
    if letter.status == "requeued":
        yield f"{named} was run again as job {letter.requeued_as}."
    elif letter.status == "discarded":
        approved = f" and {letter.discard_approved_by}" if letter.discard_approved_by else ""
        reason = to_one_line(letter.discard_reason or "")
        yield f"{named} was discarded by {letter.discard_asked_by}{approved}: {reason}."
    elif letter.discard_asked_by is not None:
        yield f"{named} is open: {letter.discard_asked_by} has asked to discard it, and another person must approve."
    else:
        people = ", which needs two people" if contract.dead_letters.reviewers > 1 else ""
        yield f"{named} is open: it can be run again, or discarded{people}."


_BY_ROLE: Mapping[str, Callable[[_JobView], Iterator[str]]] = {
    "ready": _ready, "waiting": _waiting, "leased": _held, "active": _held, "settling": _settling, "done": _done,
}  # fmt: skip


def _last_failure(job: Job, before: str = "; the last failure: ") -> str:
    return "" if job.last_error is None else f"{before}{describe_failure(job.last_error)}"


def _counted(number: int) -> str:
    return f"more than {COUNT_LIMIT:,}" if number > COUNT_LIMIT else f"{number:,}"
