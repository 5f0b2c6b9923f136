"""A history of one job as text: one line per step, with the actor, the action and the job's state afterwards."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from tenure.contracts.declaration import HELD
from tenure.model.step import Action, Standing

_PHRASES = {
    "lapse": "passes: the lease runs out",
    "ripen": "passes: the job is due",
    "reap": "closes the lease that ran out",
    "promote": "makes the job ready",
    "settle": "goes on from the commit point",
    "start": "starts the job",
    "heartbeat": "sends a heartbeat",
    "succeed": "reports success",
    "snooze": "puts the job off",
    "hand_back": "hands the job back",
    "compensated": "has undone the effects",
    "compensation_failed": "cannot undo the effects",
    "dead_letter": "sets the job aside",
}
_FAILURES = {"retry": "that may be retried", "fatal": "that is final"}


class Move(NamedTuple):
    """An actor and its action."""

    who: str
    action: Action


class World(NamedTuple):
    """The job, and the claim that each worker remembers (0: none yet)."""

    job: Standing
    proofs: tuple[int, ...]


@dataclass
class Counterexample:
    """The shortest history that breaks an invariant."""

    invariant: str
    what: str
    #: Each move, and the world after it.
    moves: list[tuple[Move, World]] = field(default_factory=list)
    #: The job as it was enqueued, and how often it may run.
    start: Standing | None = None
    runs: int = 1

    def lines(self) -> list[str]:
        """Return the history as text: the enqueue, one line per step, and the broken invariant."""
        lines, before = [], self.start
        if before is not None:
            choice = f" and ends in {before.chosen_end} when that is spent" if before.chosen_end else ""
            lines.append(f"A job is enqueued that may be run {count_times(self.runs)}{choice}  [{_describe(before)}]")
        for number, (move, (after, _)) in enumerate(self.moves, 1):
            lines.append(f"{number}. {_sentence(move, before or after, after)}  [{_describe(after)}]")
            before = after
        return [*lines, f"→ {self.invariant}: {self.what}"]


def count_times(count: int) -> str:
    """Return a count as words: once, twice, 3 times."""
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


def _sentence(move: Move, before: Standing, after: Standing) -> str:
    action = move.action
    late = action.proof is not None and action.proof != before.claims
    who = f"{move.who}, which lost the job after claim {action.proof}," if late else move.who
    return f"{who} {_did(action, before, after)}"


def _did(action: Action, before: Standing, after: Standing) -> str:
    if action.verb == "claim":
        if after.role in HELD and not after.expired:
            return f"claims the job (claim {after.claims})"
        return "asks for a job: the lease that ran out is closed" if before.expired else "asks for a job"
    if action.verb == "cancel":
        asks = after.cancelling and after.state == before.state
        return "asks the holder to stop" if asks else f"cancels the job ({action.to})"
    if action.verb == "cancelled":
        return "stops, as it was asked to" if before.cancelling else "stops by itself"
    if action.verb == "transition":
        return f"asks for the state {action.to}"
    if action.verb == "effect":
        return "records an effect that can be undone" if action.flag else "records an effect"
    if action.verb == "fail":
        return f"reports a failure {_FAILURES.get(action.verdict, f'that leads to {action.verdict}')}"
    return _PHRASES.get(action.verb, f"says {action.verb}")


def _describe(job: Standing) -> str:
    """Describe a job: its state, and what else decides what may happen next."""
    words = [job.state]
    if job.role == "done":
        return f"{job.state}, final"
    if job.role in HELD:
        words.append("lease run out" if job.expired else "held" if job.held else "held by nobody")
    elif job.timeless:
        words.append("without a due time")
    elif not job.due:
        words.append("not due")
    if job.cancelling:
        words.append("asked to stop")
    if job.pending or job.effects:
        words.append("effects to undo" if job.pending else "with effects")
    return ", ".join(words)
