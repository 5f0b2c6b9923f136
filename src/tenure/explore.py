"""Every reachable history of a contract, up to a bound, checked against what every contract must promise.

A small world: one job, a few workers that each remember the last claim they won, an operator, upkeep, and time. From
each world every action is tried that anybody could take, rightly or wrongly, early or late, once or again. Worlds that
are equal are one, so all histories are walked by walking a graph. What is checked at each step and of the whole graph:

    one lease        a job is claimed only when nobody's lease on it is alive
    no stale commit  nothing is accepted of a holder that does not hold the job
    no way back      inside an epoch (from a claim to its end) the job only rises
    the end is one   a finished job never changes
    budget           a job is claimed at most as often as its limit allows
    retries          a failure is retried exactly while the budget lasts
    one row a hop    every hop has its log row, linked to the one before, and nothing else has one
    letters          a job is set aside with its dead letter, or ends without one, as its contract says
    an end           from wherever a job stands, time, upkeep and new workers alone can bring it to an end
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from tenure.contract import HELD, Contract
from tenure.soundness import EPOCH_ENDS, RANK
from tenure.step import HOLDERS_VERBS, Action, Standing, Stepped, born, in_budget, step

INVARIANTS = (
    "one lease", "no stale commit", "no way back", "the end is one", "budget", "retries", "one row a hop", "letters",
    "an end",
)  # fmt: skip

#: How often a job may be put off or handed back in a history: each time raises its limit, without end.
RAISES = 2

_NAMES = "ABCDEFGH"


class World(NamedTuple):
    """The job, and the claim that each worker remembers (0: none yet)."""

    job: Standing
    proofs: tuple[int, ...]


class Move(NamedTuple):
    """Who did what."""

    who: str
    action: Action


@dataclass
class Story:
    """A counterexample: the shortest history after which a promise is broken."""

    invariant: str
    what: str
    moves: list[tuple[Move, World]] = field(default_factory=list)

    def told(self) -> list[str]:
        """The story, a line a step."""
        lines = [f"{n}. {_sentence(move, world)}" for n, (move, world) in enumerate(self.moves, 1)]
        return [*lines, f"→ {self.invariant}: {self.what}"]


@dataclass
class Report:
    """What was explored of a contract."""

    contract: str
    workers: int
    depth: int
    states: int
    steps: int
    refused: int
    histories: int
    #: Whether every reachable world was walked, or the bound cut some off.
    complete: bool
    broken: list[Story]

    @property
    def held(self) -> list[str]:
        """The invariants that held."""
        broken = {story.invariant for story in self.broken}
        unknown = set() if self.complete else {"an end"}  # a world beyond the bound may lead there
        return [name for name in INVARIANTS if name not in broken | unknown]


def explore(
    contract: Contract, workers: int = 2, depth: int = 40, tell: Callable[[int, int], None] | None = None
) -> Report:
    """Walk every history of up to `depth` steps; `tell` hears the depth and the worlds so far."""
    return _Walk(contract, workers).run(depth, tell)


class _Walk:
    def __init__(self, contract: Contract, workers: int) -> None:
        self.contract = contract
        self.workers = workers
        self.parents: dict[World, tuple[Move, World] | None] = {}
        self.edges: dict[World, list[World]] = {}
        #: The steps that need nobody who ever lost the job: time, upkeep, its holder, and workers that claim it anew.
        self.unaided: dict[World, list[World]] = {}
        self.broken: dict[str, Story] = {}
        self.steps = self.refused = 0

    def run(self, depth: int, tell: Callable[[int, int], None] | None) -> Report:
        starts = [World(job, (0,) * self.workers) for job in _births(self.contract)]
        self.parents = dict.fromkeys(starts)
        frontier, at = starts, 0
        while frontier and at < depth:
            at += 1
            frontier = [after for world in frontier for after in self._expand(world)]
            if tell:
                tell(at, len(self.parents))
        if not frontier:
            self._check_ends()
        broken = sorted(self.broken.values(), key=lambda story: INVARIANTS.index(story.invariant))
        return Report(
            self.contract.name, self.workers, at, len(self.parents), self.steps, self.refused,
            self._histories(starts, depth if not frontier else at), not frontier, broken,
        )  # fmt: skip

    def _expand(self, world: World) -> Iterator[World]:
        self.edges[world], self.unaided[world] = [], []
        for move in _moves(self.contract, world):
            outcome = step(self.contract, world.job, move.action)
            self.steps += 1
            if not isinstance(outcome, Stepped):
                self.refused += 1
                continue
            after = _after(world, move, outcome)
            for invariant, what in _faults(self.contract, world.job, move, outcome):
                self._break(invariant, what, world, [(move, after)])
            if after == world:
                continue
            self.edges[world].append(after)
            if _is_unaided(world, move):
                self.unaided[world].append(after)
            if after not in self.parents:
                self.parents[after] = (move, world)
                yield after

    def _histories(self, starts: list[World], depth: int) -> int:
        """The walks of up to so many steps through the graph, counted without walking each."""
        counts, total = dict.fromkeys(starts, 1), len(starts)
        for _ in range(depth):
            onward: dict[World, int] = {}
            for world, count in counts.items():
                for after in self.edges.get(world, ()):
                    onward[after] = onward.get(after, 0) + count
            counts = onward
            total += sum(counts.values())
        return total

    def _break(self, invariant: str, what: str, world: World, last: list[tuple[Move, World]]) -> None:
        if invariant not in self.broken:  # breadth first: the first is the shortest
            self.broken[invariant] = Story(invariant, what, [*self._history(world), *last])

    def _history(self, world: World) -> list[tuple[Move, World]]:
        moves: list[tuple[Move, World]] = []
        while (parent := self.parents[world]) is not None:
            moves.append((parent[0], world))
            world = parent[1]
        return moves[::-1]

    def _check_ends(self) -> None:
        """Walk backwards from every end: what is not met can never end unaided."""
        before: dict[World, list[World]] = {}
        for world, onward in self.unaided.items():
            for after in onward:
                before.setdefault(after, []).append(world)
        can_end = {world for world in self.parents if world.job.role == "done"}
        waiting = deque(can_end)
        while waiting:
            for world in before.get(waiting.popleft(), ()):
                if world not in can_end:
                    can_end.add(world)
                    waiting.append(world)
        for world in self.parents:  # in the order of their discovery: the first is the nearest
            if world not in can_end:
                what = (
                    f"the job stands in {world.job.state}, and nothing that time, upkeep or a new worker does ends it"
                )
                self._break("an end", what, world, [])
                return


def _births(contract: Contract) -> list[Standing]:
    """Jobs as they are made: with a budget of three executions, due now or later, with each wish of a type."""
    budget = contract.budget
    limit = min(max(budget.minimum, 3 - budget.extra), budget.maximum)
    wishes = [None, *contract.choices("exhaust")]
    return [born(contract, limit, wish, due=due) for wish in wishes for due in (True, False)]


def _moves(contract: Contract, world: World) -> Iterator[Move]:
    """Everything that anybody could do now, rightly or wrongly."""
    for n, proof in enumerate(world.proofs):
        who = f"worker {_NAMES[n]}"
        if proof or n == 0 or world.proofs[n - 1]:  # workers that never had it are all alike
            yield Move(who, Action("claim"))
        if proof and proof not in world.proofs[:n]:
            for action in _holders_actions(contract, proof):
                if world.job.raises < RAISES or action.verb not in ("snooze", "hand_back"):
                    yield Move(who, action)
    for verb in ("reap", "promote", "settle"):
        yield Move("upkeep", Action(verb))
    for verb in ("lapse", "ripen"):
        yield Move("time", Action(verb))
    for mode in contract.cancel_modes or ("soft", "hard"):
        yield Move("operator", Action("cancel", to=mode))
    yield Move("operator", Action("dead_letter"))
    for state in contract.states:
        yield Move("operator", Action("transition", to=state))


def _holders_actions(contract: Contract, proof: int) -> Iterator[Action]:
    for verb in HOLDERS_VERBS:
        if verb == "fail":
            for verdict in _verdicts(contract):
                yield Action(verb, proof, verdict=verdict)
        else:
            yield Action(verb, proof, flag=verb == "effect" and contract.compensates)


def _verdicts(contract: Contract) -> list[str]:
    """What the contract can make of an error."""
    known = [verdict.trigger for verdict in contract.retryable.classes.values()]
    return list(dict.fromkeys(["retry", *(["fatal"] if contract.retryable.rule != "any" else []), *known]))


def _after(world: World, move: Move, outcome: Stepped) -> World:
    proofs = list(world.proofs)
    if outcome.trigger in ("claim", "reclaim") and move.who.startswith("worker"):
        proofs[_NAMES.index(move.who[-1])] = outcome.after.claims
    # Which worker is which does not matter, and of claims that are lost only that they are lost.
    current = outcome.after.claims
    known = sorted((proof if proof == current else min(proof, current - 1, 1) for proof in proofs), reverse=True)
    return World(outcome.after, tuple(known))


def _is_unaided(world: World, move: Move) -> bool:
    """Whether time, upkeep, a new worker, or the holder that one of those became, does this."""
    action = move.action
    if move.who in ("time", "upkeep") or action.verb == "claim":
        return True
    return action.proof is not None and action.proof == world.job.claims and not world.job.expired


def _faults(contract: Contract, before: Standing, move: Move, outcome: Stepped) -> Iterable[tuple[str, str]]:
    """What this step breaks."""
    after, action = outcome.after, move.action
    triggers = [row.trigger for row in outcome.rows if row.hop]
    if after.claims > before.claims and before.held and not before.expired:
        yield "one lease", f"{move.who} claims the job while the lease of claim {before.claims} is alive"
    if after.claims > before.claims and after.role not in HELD:
        yield "one lease", f"{move.who} claims the job, and it stands in {after.state} without a lease"
    if action.verb in HOLDERS_VERBS and not (before.held and action.proof == before.claims):
        yield "no stale commit", f"{move.who} shows claim {action.proof}, and its {action.verb} is accepted"
    if before.role == "done" and after != before:
        yield "the end is one", f"the job was {before.state}, which is final, and becomes {after.state}"
    if after.claims > contract.budget.executions(after.limit, after.raises):
        yield "budget", f"the job is claimed {after.claims} times with a limit of {after.limit}"
    if "retry" in triggers and not in_budget(contract, before):
        yield "retries", "the job is tried again although its budget is spent"
    if "exhaust" in triggers and in_budget(contract, before):
        yield "retries", "the job is given up although its budget lasts"
    fell = RANK.get(after.role, 0) < RANK.get(before.role, 0)
    if triggers and fell and not EPOCH_ENDS & set(triggers):
        yield "no way back", f"{', '.join(triggers)} takes the job from {before.state} back to {after.state}"
    yield from _log_faults(before, outcome)
    kept = {path.end.state for path in contract.paths if path.letter and path.end.role == "done"}
    if after.role == "done" and before.role != "done" and after.letter != (after.state in kept):
        what = (
            "without its dead letter" if after.state in kept else "with a dead letter that its contract does not keep"
        )
        yield "letters", f"the job ends in {after.state} {what}"


def _log_faults(before: Standing, outcome: Stepped) -> Iterable[tuple[str, str]]:
    state = before.state
    for row in outcome.rows:
        if row.from_state != state or (not row.hop and row.to_state != state):
            yield "one row a hop", f"the log says {row.from_state} → {row.to_state} while the job was {state}"
        state = row.to_state
    if state != outcome.after.state:
        yield "one row a hop", f"the job becomes {outcome.after.state}, and its log ends in {state}"


def _sentence(move: Move, world: World) -> str:
    action, job = move.action, world.job
    said = {
        "claim": f"claims the job (claim {job.claims})",
        "lapse": "passes: the lease runs out",
        "ripen": "passes: the job is due",
        "reap": "closes the lease that ran out",
        "promote": "makes the job ready",
        "settle": "ends what stood at its commit point",
        "cancel": f"cancels it, {action.to}",
        "dead_letter": "sets the job aside",
        "transition": f"asks for {action.to}",
        "effect": "records an effect that can be undone" if action.flag else "records an effect",
        "fail": f"reports a failure ({action.verdict})",
        "hand_back": "hands the job back",
        "cancelled": "stops and says so",
    }.get(action.verb, f"says {action.verb}")
    lease = ", lease run out" if job.expired else ", held" if job.held and job.role in HELD else ""
    asked = ", asked to stop" if job.cancelling and job.role != "done" else ""
    return f"{move.who} {said}  [{job.state}{lease}{asked}]"
