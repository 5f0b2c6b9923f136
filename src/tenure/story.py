"""A history of one job, told to people: who did what, a line a step, and how the job stood afterwards."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from tenure.contract import HELD
from tenure.step import Action, Standing

_SAID = {
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
    """Who did what."""

    who: str
    action: Action


class World(NamedTuple):
    """The job, and the claim that each worker remembers (0: none yet)."""

    job: Standing
    proofs: tuple[int, ...]


@dataclass
class Story:
    """A counterexample: the shortest history after which a promise is broken."""

    invariant: str
    what: str
    #: What was done, and the world after it.
    moves: list[tuple[Move, World]] = field(default_factory=list)
    #: The job as it was made, and how often it may be run.
    start: Standing | None = None
    runs: int = 1

    def told(self) -> list[str]:
        """The story: how the job was made, a line a step, and the promise that is broken."""
        lines, before = [], self.start
        if before is not None:
            wish = f" and ends in {before.wish} when that is spent" if before.wish else ""
            lines.append(f"A job is enqueued that may be run {times(self.runs)}{wish}  [{_stands(before)}]")
        for number, (move, (after, _)) in enumerate(self.moves, 1):
            lines.append(f"{number}. {_sentence(move, before or after, after)}  [{_stands(after)}]")
            before = after
        return [*lines, f"→ {self.invariant}: {self.what}"]


def times(count: int) -> str:
    """How often, in words."""
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
    return _SAID.get(action.verb, f"says {action.verb}")


def _stands(job: Standing) -> str:
    """How a job stands: its state, and what else decides what may happen next."""
    said = [job.state]
    if job.role == "done":
        return f"{job.state}, final"
    if job.role in HELD:
        said.append("lease run out" if job.expired else "held" if job.held else "held by nobody")
    elif not job.due:
        said.append("not due")
    if job.cancelling:
        said.append("asked to stop")
    if job.pending or job.effects:
        said.append("effects to undo" if job.pending else "with effects")
    return ", ".join(said)
