"""Explore every reachable history of a contract, up to a bound, and check the invariants of every contract.

The world is small: one job, a few workers that each remember the last claim they won, an operator, upkeep, and time.
From each world the explorer tries every action of every actor: allowed or not, early or late, once or repeated. Equal
worlds are stored once, so walking a graph covers all histories. The graph is finite: the contract's own counter
decides nothing and is left out, a history stops after a claim beyond the budget, and snoozes are limited.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from tenure.contracts.declaration import Contract
from tenure.model.counterexample import Counterexample, Move, World
from tenure.model.invariants import INVARIANTS, find_violations, is_overspent
from tenure.model.step import HOLDER_ACTIONS, Action, Standing, Stepped, new_standing, step

__all__ = ["INVARIANTS", "Counterexample", "Move", "Report", "World", "explore", "is_explorable"]

#: How often a job may be snoozed or handed back in a history. Each time raises its limit, so this needs a bound.
RAISES = 2

#: The default bound of a history: this many steps for each run that the largest budget allows.
STEPS_PER_RUN = 10

_NAMES = "ABCDEFGH"


@dataclass
class Report:
    """The result of an exploration."""

    contract: str
    workers: int
    #: The largest number of runs of a job in these histories.
    runs: int
    #: The bound in steps, and after how many steps no new world was found.
    depth: int
    furthest: int
    states: int
    steps: int
    refused: int
    histories: int
    #: Whether every reachable world was visited; False if the bound cut some off.
    complete: bool
    broken: list[Counterexample]

    @property
    def held(self) -> list[str]:
        """The invariants that held."""
        broken = {story.invariant for story in self.broken}
        return [name for name in INVARIANTS if name not in broken and name not in self.unknown]

    @property
    def unknown(self) -> list[str]:
        """The invariants that could not be decided: a world beyond the bound may lead to an end."""
        return [] if self.complete else ["an end"]

    def to_json(self) -> dict[str, Any]:
        """The report as JSON shows it; the number of histories is a text, because it may be too large for a number."""
        stories = [{"invariant": one.invariant, "what": one.what, "story": one.lines()} for one in self.broken]
        names = ("contract", "workers", "runs", "depth", "complete", "states", "steps", "refused", "held", "unknown")
        fields = {name: getattr(self, name) for name in names}
        return {**fields, "histories": str(self.histories), "broken": stories}


def explore(
    contract: Contract,
    workers: int = 2,
    depth: int | None = None,
    on_progress: Callable[[int, int, int], None] | None = None,
    *,
    runs: int = 3,
) -> Report:
    """Explore every history of up to `depth` steps; calls `on_progress(steps, depth, worlds)` after each step."""
    walk = _Walk(contract, workers, runs)
    return walk.run(depth or STEPS_PER_RUN * walk.runs, on_progress)


def is_explorable(contract: Contract) -> bool:
    """Whether the contract can be explored: its paths have hops and its budget is numeric."""
    budget = contract.budget
    numbers = (budget.default, budget.minimum, budget.maximum, budget.extra)
    return all(path.hops for path in contract.paths) and all(isinstance(number, int) for number in numbers)


@dataclass(eq=False, slots=True)
class _Node:
    """A reached world: the move that led to it, and the nodes that one more move leads to."""

    world: World
    parent: tuple[Move, _Node] | None
    #: After how many steps it was reached, and how many of them were transition requests: few are easier to follow.
    depth: int
    asked: int
    edges: list[_Node] = field(default_factory=list)
    #: Edges that need no worker that lost the job: those of time, upkeep, the holder, and workers that claim it.
    unaided: list[_Node] = field(default_factory=list)


class _Walk:
    def __init__(self, contract: Contract, workers: int, runs: int = 3) -> None:
        self.contract = contract
        self.decisions = contract.decisions
        self.workers = workers
        self.starts = [World(job, (0,) * workers) for job in _starts(contract, runs)]
        self.runs = max(contract.budget.executions(start.job.limit) for start in self.starts)
        #: The worlds in order of discovery.
        self.nodes: dict[World, _Node] = {}
        self.broken: dict[str, Counterexample] = {}
        self.steps = self.refused = 0

    def run(self, depth: int, on_progress: Callable[[int, int, int], None] | None) -> Report:
        frontier = [self._meet(start, None, 0) for start in self.starts]
        at = 0
        while frontier and at < depth:
            at += 1
            frontier = [after for node in frontier for after in self._expand(node, at)]
            if on_progress:
                on_progress(at, depth, len(self.nodes))
        if not frontier:
            self._check_ends()
        broken = sorted(self.broken.values(), key=lambda story: INVARIANTS.index(story.invariant))
        return Report(
            self.contract.name, self.workers, self.runs, depth, at, len(self.nodes), self.steps, self.refused,
            self._histories(depth), not frontier, broken,
        )  # fmt: skip

    def _meet(self, world: World, parent: tuple[Move, _Node] | None, depth: int) -> _Node:
        """Return the node of a world. The search is breadth first, so the first path is the shortest."""
        asked = 0 if parent is None else parent[1].asked + (parent[0].action.verb == "transition")
        node = self.nodes.get(world)
        if node is None:
            node = self.nodes[world] = _Node(world, parent, depth, asked)
        elif node.depth == depth and asked < node.asked:  # equally short and easier to follow
            node.parent, node.asked = parent, asked
        return node

    def _expand(self, node: _Node, depth: int) -> Iterator[_Node]:
        """Try every move from a world; yields the new worlds to go on from."""
        world = node.world
        for move in _moves(self.contract, world):
            outcome = step(self.contract, world.job, move.action)
            self.steps += 1
            for invariant, what in find_violations(self.contract, world.job, move, outcome):
                self._break(invariant, what, node, move)
            if not isinstance(outcome, Stepped):
                self.refused += 1
                continue
            after = _after(world, move, outcome)
            if after == world or after.job.raises > RAISES:
                continue
            is_new = after not in self.nodes
            met = self._meet(after, (move, node), depth)
            node.edges.append(met)
            if _is_unaided(world, move, outcome.trigger, self.decisions):
                node.unaided.append(met)
            # Beyond the budget a broken contract could go on for ever.
            if is_new and not is_overspent(self.contract, after.job):
                yield met

    def _histories(self, depth: int) -> int:
        """Count the walks of up to `depth` steps through the graph without walking each one."""
        counts = {node: 1 for node in self.nodes.values() if node.parent is None}
        total = len(self.starts)
        for _ in range(depth):
            onward: dict[_Node, int] = {}
            for node, count in counts.items():
                for after in node.edges:
                    onward[after] = onward.get(after, 0) + count
            counts = onward
            total += sum(counts.values())
        return total

    def _break(self, invariant: str, what: str, node: _Node, last: Move | None = None) -> None:
        """Keep the history of a broken invariant if it is the first one; breadth first, so it is the shortest."""
        if invariant in self.broken:
            return
        moves = [last] if last else []
        while node.parent is not None:
            move, node = node.parent
            moves.append(move)
        job = node.world.job
        story = Counterexample(invariant, what, [], job, self.contract.budget.executions(job.limit))
        self.broken[invariant] = self._replayed(story, job, moves[::-1])

    def _replayed(self, story: Counterexample, job: Standing, moves: list[Move]) -> Counterexample:
        """Rebuild the history with fixed worker names and claims; worlds sort workers and forget old claims."""
        workers_by_name = [(name, 0) for name in _NAMES[: self.workers]]
        for move in moves:
            at = _slot(move)
            if at is not None:
                name, proof = workers_by_name[at]
                shown = None if move.action.proof is None else proof
                move = Move(f"worker {name}", replace(move.action, proof=shown))
            outcome = step(self.contract, job, move.action)
            found = [
                what for broken, what in find_violations(self.contract, job, move, outcome) if broken == story.invariant
            ]
            story.what = found[0] if found else story.what
            if isinstance(outcome, Stepped):
                job = outcome.after
                if at is not None and _takes(outcome):
                    workers_by_name[at] = (workers_by_name[at][0], job.claims)
            workers_by_name.sort(key=lambda one: _remembered(one[1], job.claims), reverse=True)
            story.moves.append((move, World(job, tuple(proof for _, proof in workers_by_name))))
        return story

    def _check_ends(self) -> None:
        """Walk backwards from every end: a world that is not reached can never end unaided."""
        before: dict[_Node, list[_Node]] = {node: [] for node in self.nodes.values()}
        for node in before:
            for after in node.unaided:
                before[after].append(node)
        # A world beyond the budget is another promise's story.
        ends = [node for node in before if node.world.job.role == "done" or is_overspent(self.contract, node.world.job)]
        can_end, waiting = set(ends), deque(ends)
        while waiting:
            new = set(before[waiting.popleft()]) - can_end
            can_end |= new
            waiting.extend(new)
        lost = [node for node in before if node not in can_end]
        if lost:
            # The nearest where nothing happens any more; where something always does, the nearest of all.
            nearest = next((node for node in lost if not node.unaided), lost[0])
            doers = "time, upkeep, a decision or a new worker" if self.decisions else "time, upkeep or a new worker"
            stuck = f"the job stands in {nearest.world.job.state}, and nothing that {doers} does"
            self._break("an end", f"{stuck} can end it", nearest)


def _starts(contract: Contract, runs: int) -> list[Standing]:
    """Jobs as they are made: for one run and for more, due now or later, with each chosen_end of a type."""
    budget = contract.budget
    limits = [min(max(budget.minimum, count - budget.extra), budget.maximum) for count in range(1, runs + 1)]
    ends = dict.fromkeys([None, *(path.choice for path in contract.paths if path.trigger == "exhaust")])
    return [
        new_standing(contract, limit, chosen_end, due=due)
        for limit in dict.fromkeys(limits)
        for chosen_end in ends
        for due in (True, False)
    ]


def _moves(contract: Contract, world: World) -> Iterator[Move]:
    """Yield every action that any actor could try now, allowed or not."""
    for n, proof in enumerate(world.proofs):
        who = f"worker {_NAMES[n]}"
        if proof or n == 0 or world.proofs[n - 1]:  # workers that never claimed it are interchangeable
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
    for verb in HOLDER_ACTIONS:
        if verb == "start" and contract.path("start") is None:
            continue  # the contract has no start step
        if verb == "fail":
            for verdict in _verdicts(contract):
                yield Action(verb, proof, verdict=verdict)
        else:
            yield Action(verb, proof, flag=verb == "effect" and contract.compensates)


def _verdicts(contract: Contract) -> list[str]:
    """Return the triggers that an error can lead to under this contract."""
    known = [verdict.trigger for verdict in contract.retryable.classes.values()]
    return list(dict.fromkeys(["retry", *(["fatal"] if contract.retryable.rule != "any" else []), *known]))


def _slot(move: Move) -> int | None:
    """Return the index of this worker in the world; None for any other actor."""
    return _NAMES.index(move.who[-1]) if move.who.startswith("worker") else None


def _takes(outcome: Stepped) -> bool:
    return outcome.trigger in ("claim", "reclaim")


def _remembered(proof: int, current: int) -> int:
    """Reduce a claim to what matters: the current one, any lost one, or none."""
    return proof if proof == current else min(proof, current - 1, 1)


def _after(world: World, move: Move, outcome: Stepped) -> World:
    job, proofs = outcome.after, list(world.proofs)
    if (at := _slot(move)) is not None and _takes(outcome):
        proofs[at] = job.claims
    known = sorted((_remembered(proof, job.claims) for proof in proofs), reverse=True)
    alike = job if job.counter == world.job.counter else replace(job, counter=world.job.counter)
    return World(alike, tuple(known))


def _is_unaided(world: World, move: Move, trigger: str, decisions: Collection[str]) -> bool:
    """Whether time, upkeep, a decision, a new claim or the current holder makes this move."""
    action = move.action
    if move.who in ("time", "upkeep") or action.verb == "claim" or trigger in decisions:
        return True
    return action.proof is not None and action.proof == world.job.claims and not world.job.expired
