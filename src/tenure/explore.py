"""Every reachable history of a contract, up to a bound, checked against what every contract must promise.

A small world: one job, a few workers that each remember the last claim they won, an operator, upkeep, and time. From
each world every action is tried that anybody could take, rightly or wrongly, early or late, once or again. Worlds that
are equal are one, so all histories are walked by walking a graph. It is finite: the contract's own counter decides
nothing and is left out, nothing goes on after a claim too many, and a job is put off only so often.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from tenure.contract import Contract
from tenure.promises import INVARIANTS, broken_by, is_overspent
from tenure.step import HOLDERS_VERBS, Action, Standing, Stepped, born, step
from tenure.story import Move, Story, World

__all__ = ["INVARIANTS", "Move", "Report", "Story", "World", "explore", "is_walkable"]

#: How often a job may be put off or handed back in a history: each time raises its limit, without end.
RAISES = 2

#: How many steps a history has at most, unless told: so many for each run that the largest budget allows.
STEPS_A_RUN = 10

_NAMES = "ABCDEFGH"


@dataclass
class Report:
    """What was explored of a contract."""

    contract: str
    workers: int
    #: How often a job may be run at most in these histories.
    runs: int
    #: How many steps the histories have at most, and after how many no new world was met.
    depth: int
    furthest: int
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
        return [name for name in INVARIANTS if name not in broken and name not in self.unknown]

    @property
    def unknown(self) -> list[str]:
        """The invariants of which nothing can be said: a world beyond the bound may lead to an end."""
        return [] if self.complete else ["an end"]


def explore(
    contract: Contract,
    workers: int = 2,
    depth: int | None = None,
    tell: Callable[[int, int, int], None] | None = None,
    *,
    runs: int = 3,
) -> Report:
    """Walk every history of up to `depth` steps; `tell` hears how many steps of how many, and the worlds so far."""
    walk = _Walk(contract, workers, runs)
    return walk.run(depth or STEPS_A_RUN * walk.runs, tell)


def is_walkable(contract: Contract) -> bool:
    """Whether there is a machine to walk at all: paths that lead somewhere, and a budget in numbers."""
    budget = contract.budget
    numbers = (budget.default, budget.minimum, budget.maximum, budget.extra)
    return all(path.hops for path in contract.paths) and all(isinstance(number, int) for number in numbers)


class _Walk:
    def __init__(self, contract: Contract, workers: int, runs: int = 3) -> None:
        self.contract = contract
        self.workers = workers
        self.births = [World(job, (0,) * workers) for job in _births(contract, runs)]
        self.runs = max(contract.budget.executions(birth.job.limit) for birth in self.births)
        #: The worlds in the order of their discovery, with the step that led there; what is of each is by its number.
        self.parents: dict[World, tuple[Move, World] | None] = {}
        self.numbers: dict[World, int] = {}
        self.edges: list[list[int]] = []
        #: The steps that need nobody who ever lost the job: time, upkeep, its holder, and workers that claim it anew.
        self.unaided: list[list[int]] = []
        #: How often somebody just asked for a state on the way there: such stories are the harder ones to follow.
        self.asked: list[int] = []
        self.next_level = 0
        self.broken: dict[str, Story] = {}
        self.steps = self.refused = 0

    def run(self, depth: int, tell: Callable[[int, int, int], None] | None) -> Report:
        frontier = [birth for birth in self.births if self._meet(birth, None)]
        at = 0
        while frontier and at < depth:
            at, self.next_level = at + 1, len(self.parents)
            frontier = [after for world in frontier for after in self._expand(world)]
            if tell:
                tell(at, depth, len(self.parents))
        if not frontier:
            self._check_ends()
        broken = sorted(self.broken.values(), key=lambda story: INVARIANTS.index(story.invariant))
        return Report(
            self.contract.name, self.workers, self.runs, depth, at, len(self.parents), self.steps, self.refused,
            self._histories(depth), not frontier, broken,
        )  # fmt: skip

    def _meet(self, world: World, parent: tuple[Move, World] | None) -> bool:
        """Whether this world is new; breadth first, so the first way there is the shortest."""
        number = self.numbers.setdefault(world, len(self.numbers))
        asked = 0 if parent is None else self.asked[self.numbers[parent[1]]] + (parent[0].action.verb == "transition")
        if new := number == len(self.parents):
            self.parents[world] = parent
            self.asked.append(asked)
            self.edges.append([])
            self.unaided.append([])
        elif number >= self.next_level and asked < self.asked[number]:  # as short, and more of a story
            self.parents[world], self.asked[number] = parent, asked
        return new

    def _expand(self, world: World) -> Iterator[World]:
        here = self.numbers[world]
        for move in _moves(self.contract, world):
            outcome = step(self.contract, world.job, move.action)
            self.steps += 1
            for invariant, what in broken_by(self.contract, world.job, move, outcome):
                self._break(invariant, what, world, move)
            if not isinstance(outcome, Stepped):
                self.refused += 1
                continue
            after = _after(world, move, outcome)
            if after == world or after.job.raises > RAISES:
                continue
            # After a claim too many a broken contract could go on for ever.
            if self._meet(after, (move, world)) and not is_overspent(self.contract, after.job):
                yield after
            self.edges[here].append(self.numbers[after])
            if _is_unaided(world, move):
                self.unaided[here].append(self.numbers[after])

    def _histories(self, depth: int) -> int:
        """The walks of up to so many steps through the graph, counted without walking each."""
        counts = [1 if parent is None else 0 for parent in self.parents.values()]
        total = len(self.births)
        for _ in range(depth):
            onward = [0] * len(counts)
            for number, count in enumerate(counts):
                if count:
                    for after in self.edges[number]:
                        onward[after] += count
            counts = onward
            total += sum(counts)
        return total

    def _break(self, invariant: str, what: str, world: World, last: Move | None = None) -> None:
        """Keep the story of a broken promise, if it is the first: breadth first, so that is the shortest."""
        if invariant in self.broken:
            return
        moves = [last] if last else []
        while (parent := self.parents[world]) is not None:
            moves.append(parent[0])
            world = parent[1]
        runs = self.contract.budget.executions(world.job.limit)
        self.broken[invariant] = self._lived(Story(invariant, what, [], world.job, runs), world.job, moves[::-1])

    def _lived(self, story: Story, job: Standing, moves: list[Move]) -> Story:
        """The story as it was lived: worlds put workers in order and forget their claims, and people keep both."""
        people = [(name, 0) for name in _NAMES[: self.workers]]
        for move in moves:
            at = _slot(move)
            if at is not None:
                name, proof = people[at]
                shown = None if move.action.proof is None else proof
                move = Move(f"worker {name}", replace(move.action, proof=shown))
            outcome = step(self.contract, job, move.action)
            said = [what for broken, what in broken_by(self.contract, job, move, outcome) if broken == story.invariant]
            story.what = said[0] if said else story.what
            if isinstance(outcome, Stepped):
                job = outcome.after
                if at is not None and _takes(outcome):
                    people[at] = (people[at][0], job.claims)
            people.sort(key=lambda one: _remembered(one[1], job.claims), reverse=True)
            story.moves.append((move, World(job, tuple(proof for _, proof in people))))
        return story

    def _check_ends(self) -> None:
        """Walk backwards from every end: what is not met can never end unaided."""
        worlds = list(self.parents)
        before: list[list[int]] = [[] for _ in worlds]
        for number, onward in enumerate(self.unaided):
            for after in onward:
                before[after].append(number)
        can_end = {
            number
            for number, (job, _) in enumerate(worlds)
            if job.role == "done" or is_overspent(self.contract, job)  # which is another promise's story
        }
        waiting = deque(can_end)
        while waiting:
            for number in before[waiting.popleft()]:
                if number not in can_end:
                    can_end.add(number)
                    waiting.append(number)
        lost = [number for number in range(len(worlds)) if number not in can_end]
        if lost:
            # The nearest where nothing happens any more; where something always does, the nearest of all.
            world = worlds[next((number for number in lost if not self.unaided[number]), lost[0])]
            stuck = f"the job stands in {world.job.state}, and nothing that time, upkeep or a new worker does"
            self._break("an end", f"{stuck} can end it", world)


def _births(contract: Contract, runs: int) -> list[Standing]:
    """Jobs as they are made: for one run and for more, due now or later, with each wish of a type."""
    budget = contract.budget
    limits = [min(max(budget.minimum, count - budget.extra), budget.maximum) for count in range(1, runs + 1)]
    wishes = dict.fromkeys([None, *(path.choice for path in contract.paths if path.trigger == "exhaust")])
    return [
        born(contract, limit, wish, due=due)
        for limit in dict.fromkeys(limits)
        for wish in wishes
        for due in (True, False)
    ]


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
        if verb == "start" and contract.path("start") is None:
            continue  # says nothing, to nobody
        if verb == "fail":
            for verdict in _verdicts(contract):
                yield Action(verb, proof, verdict=verdict)
        else:
            yield Action(verb, proof, flag=verb == "effect" and contract.compensates)


def _verdicts(contract: Contract) -> list[str]:
    """What the contract can make of an error."""
    known = [verdict.trigger for verdict in contract.retryable.classes.values()]
    return list(dict.fromkeys(["retry", *(["fatal"] if contract.retryable.rule != "any" else []), *known]))


def _slot(move: Move) -> int | None:
    """Which worker this is, in the world's order; None for anybody else."""
    return _NAMES.index(move.who[-1]) if move.who.startswith("worker") else None


def _takes(outcome: Stepped) -> bool:
    return outcome.trigger in ("claim", "reclaim")


def _remembered(proof: int, current: int) -> int:
    """A claim as it matters: the current one, one that is lost (whichever it was), or none."""
    return proof if proof == current else min(proof, current - 1, 1)


def _after(world: World, move: Move, outcome: Stepped) -> World:
    job, proofs = outcome.after, list(world.proofs)
    if (at := _slot(move)) is not None and _takes(outcome):
        proofs[at] = job.claims
    known = sorted((_remembered(proof, job.claims) for proof in proofs), reverse=True)
    alike = job if job.counter == world.job.counter else replace(job, counter=world.job.counter)
    return World(alike, tuple(known))


def _is_unaided(world: World, move: Move) -> bool:
    """Whether time, upkeep, a new worker, or the holder that one of those became, does this."""
    action = move.action
    if move.who in ("time", "upkeep") or action.verb == "claim":
        return True
    return action.proof is not None and action.proof == world.job.claims and not world.job.expired
