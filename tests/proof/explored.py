"""Histories that the explorer finds, chosen so that together they take every step from every standing of a job.

The explorer's graph is walked as it is: its worlds, its moves. A history begins with a birth and takes, wherever it
can, a step that no history before it took; where all around is known it goes the shortest way to one that is not. What
changes nothing (a refusal, a repeat) is tried on the way. When nothing is new any more, histories go where chance says.
"""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Iterator
from dataclasses import replace

from tenure.contracts.declaration import Contract
from tenure.model import explore
from tenure.model.step import Action, Standing, Stepped, in_budget, step

#: How long a history that finds nothing new may be.
AT_MOST = 30


class Graph:
    """The explorer's worlds of a contract, numbered, and where each of its moves leads.

    A step is a move from where the job stands, whoever makes it. Two steps are one when only counts that decide
    nothing are different, as how often it was claimed while the budget lasts; in the `exact` graph they are two.
    """

    def __init__(self, contract: Contract, *, exact: bool) -> None:
        walk = explore._Walk(contract, 2)
        assert walk.run(60, None).complete
        self.worlds = list(walk.nodes)
        self.births = [n for n, world in enumerate(self.worlds) if walk.nodes[world].parent is None]
        self.done = [world.job.role == "done" for world in self.worlds]
        #: Of each world: (step, what is done, the world after it); and the steps that leave it as it is.
        self.onward: list[list[tuple[int, Action, int]]] = []
        self.idle: list[list[tuple[int, Action]]] = []
        numbers = {world: n for n, world in enumerate(self.worlds)}
        self.steps: dict[tuple[Standing, Action], int] = {}
        for world in self.worlds:
            self.onward.append([])
            self.idle.append([])
            for move in explore._moves(contract, world):
                outcome = step(contract, world.job, move.action)
                after = explore._after(world, move, outcome) if isinstance(outcome, Stepped) else world
                key = (world.job, move.action) if exact else _alike(contract, world.job, move.action)
                number = self.steps.setdefault(key, len(self.steps))
                if after == world:
                    self.idle[-1].append((number, move.action))
                else:
                    self.onward[-1].append((number, move.action, numbers[after]))


def _alike(contract: Contract, job: Standing, action: Action) -> tuple[Standing, Action]:
    """The step without what decides nothing there."""
    left = in_budget(contract, job)
    known = replace(
        job,
        claims=min(job.claims, 1),
        raises=0,
        counter=int(left),
        due=job.due or job.role not in ("ready", "waiting"),
        chosen_end=job.chosen_end if action.verb == "fail" and not left else None,
    )
    return known, replace(action, proof=action.proof and int(action.proof == job.claims))


class Histories:
    """Histories of a graph, always the same ones."""

    def __init__(self, graph: Graph, in_passing: int | None = None) -> None:
        self.graph = graph
        #: How much of what changes nothing is tried wherever a history comes. None: all of it is, wherever it can be.
        self.in_passing = in_passing
        moving = {number for onward in graph.onward for number, _, _ in onward}
        #: The steps that a history goes to, and those that it takes if it comes there anyway.
        self.sought = set(graph.steps.values()) if in_passing is None else moving
        self.untaken = set(graph.steps.values())
        self._chance = random.Random(1)

    def endless(self) -> Iterator[tuple[Standing, list[Action]]]:
        """History after history: how the job was born, and what was done."""
        for birth in itertools.cycle(self.graph.births):
            yield self.graph.worlds[birth].job, list(self._walk(birth))

    def _walk(self, world: int) -> Iterator[Action]:
        way: deque[tuple[int, Action, int]] = deque()
        news = True
        for length in itertools.count():
            new = [(number, action) for number, action in self.graph.idle[world] if number in self.untaken]
            for number, action in self._chance.sample(new, len(new))[: self.in_passing]:
                self._take(number)
                yield action
            if not way and news:
                way.extend(self._way(world, ending=False) or self._way(world, ending=True))
            if not way:
                news = False
                if not self.graph.onward[world] or length >= AT_MOST:
                    return
                way.append(self._chance.choice(self.graph.onward[world]))
            number, action, world = way.popleft()
            self._take(number)
            yield action

    def _take(self, number: int) -> None:
        self.untaken.discard(number)
        self.sought.discard(number)

    def _way(self, world: int, *, ending: bool) -> list[tuple[int, Action, int]]:
        """The shortest way to something that no history tried, with it; what ends the job only where that is asked."""
        graph, sought = self.graph, self.sought
        came: dict[int, tuple[int, tuple[int, Action, int]]] = {}
        waiting, seen = deque([world]), {world}
        while waiting and sought:
            here = waiting.popleft()
            onward = [edge for edge in graph.onward[here] if ending or not graph.done[edge[2]]]
            if new := [edge for edge in onward if edge[0] in sought]:
                return [*_back(came, here), self._chance.choice(new)]
            if here != world and any(number in sought for number, _ in graph.idle[here]):
                return _back(came, here)
            for edge in onward:
                if edge[2] not in seen:
                    seen.add(edge[2])
                    came[edge[2]] = (here, edge)
                    waiting.append(edge[2])
        return []


def _back(came: dict[int, tuple[int, tuple[int, Action, int]]], world: int) -> list[tuple[int, Action, int]]:
    """The way on which this world was found."""
    way: list[tuple[int, Action, int]] = []
    while world in came:
        world, edge = came[world]
        way.append(edge)
    return way[::-1]
