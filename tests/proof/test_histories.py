"""The explorer's histories, replayed on PostgreSQL: row, log, dead letter and answer are the model's after every step.

In `./dev test` thirty histories a contract, and up to twice as many until every kind of move was made (of
`reliability`, which has a thousand kinds, a part). In `./dev prove` five hundred and as many more as it takes until
every step that the explorer knows was taken from every standing of a job: each move, each refusal, each repeat.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from tenure.contracts import BUILT_IN
from tenure.model.step import Action, Standing
from tests.decisions import OWN
from tests.proof.explored import Graph, Histories
from tests.proof.stage import Stage

CONTRACTS = {**BUILT_IN, **OWN}
#: How many histories at least, and at most.
SLICE = (20, 40)
WHOLE = pytest.param((500, 12_000), marks=[pytest.mark.prove, pytest.mark.timeout(1800)])


@pytest.mark.parametrize("size", [SLICE, WHOLE])
@pytest.mark.parametrize("name", CONTRACTS)
def test_what_the_explorer_walks_happens_on_postgresql(
    dsn: str, name: str, size: tuple[int, int], record_property: Callable[[str, object], None]
) -> None:
    whole = size != SLICE
    histories = Histories(Graph(CONTRACTS[name], exact=whole), in_passing=None if whole else 3)
    with Stage(dsn, CONTRACTS[name]) as stage:
        for played, (born, history) in enumerate(histories.endless(), 1):
            # Every other claim is by queue, and every other lease is lost by missing its beats.
            varied = [
                replace(action, flag=n % 2 == 1) if action.verb in ("claim", "lapse") else action
                for n, action in enumerate(history)
            ]
            if play(stage, born, varied) is not None:
                raise AssertionError(shortest(stage, born, varied))
            if played == size[1] or (played >= size[0] and not histories.sought):
                break
        assert stage.audited() == []
    left = f"{len(histories.untaken)} of {len(histories.graph.steps)} steps left"
    record_property("histories", f"{played} histories, {stage.steps} steps, {left}")
    assert not (whole and histories.untaken), left


def play(stage: Stage, born: Standing, history: Sequence[Action]) -> AssertionError | None:
    """Play a history, stopped at each commit point as the explorer is; what went wrong."""
    player = stage.enter(born)
    try:
        for action in history:
            player.act(action, stopped=True)
    except AssertionError as wrong:
        return wrong
    return None


def shortest(stage: Stage, born: Standing, history: list[Action]) -> AssertionError | None:
    """What goes wrong in a history without everything that can be left out of it."""
    for n in reversed(range(len(history))):
        without = history[:n] + history[n + 1 :]
        if play(stage, born, without) is not None:
            history = without
    return play(stage, born, history)
