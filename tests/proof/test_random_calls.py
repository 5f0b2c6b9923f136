"""Random calls of every verb, rightly and wrongly, on every contract: PostgreSQL does and says what the model does.

Fifty histories of thirty steps a contract in `./dev test`, always the same ones; in `./dev prove` more and longer ones,
others each time. A history that goes wrong is made as short as it can be and told step by step.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tenure.contracts import BUILT_IN
from tests.decisions import OWN
from tests.proof.calls import Calls
from tests.proof.stage import Stage

CONTRACTS = {**BUILT_IN, **OWN}
#: How many histories, and of how many steps.
SLICE = (30, 30)
WHOLE = pytest.param((300, 50), marks=[pytest.mark.prove, pytest.mark.timeout(1200)])

pytestmark = pytest.mark.timeout(600)  # a history that goes wrong is first made short, which takes a while

#: A finished job is asked this much before the next one is made.
AFTER_THE_END = 4


class Numbers(list[int]):
    """Shown without its zeros, because no call was made for them."""

    def __repr__(self) -> str:
        return f"Numbers({list(filter(None, self))})"


@pytest.mark.parametrize("size", [SLICE, WHOLE])
@pytest.mark.parametrize("name", CONTRACTS)
def test_postgresql_does_what_the_model_does(dsn: str, name: str, size: tuple[int, int]) -> None:
    examples, steps = size
    calls = Calls(CONTRACTS[name])

    # Numbers, not actions: which call a number stands for depends on where the job stands. 0 is no call at all, so
    # that a story becomes shorter without the rest of it becoming another one.
    @settings(
        # The first example is the simplest, in which nothing happens.
        max_examples=examples + 1, derandomize=size == SLICE, database=None, deadline=None, print_blob=size != SLICE,
        report_multiple_bugs=False, phases=[Phase.generate, Phase.shrink], suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(
        birth=st.integers(0, len(calls.births) - 1),
        numbers=st.lists(st.integers(0, 9_999), min_size=steps, max_size=steps).map(Numbers),
        stops=st.booleans(),
    )
    def play(birth: int, numbers: Numbers, stops: bool) -> None:
        player, after_the_end = stage.enter(calls.births[birth]), 0
        for number in filter(None, numbers):
            if after_the_end == AFTER_THE_END:
                birth, after_the_end = (birth + 1) % len(calls.births), 0
                player = stage.enter(calls.births[birth])
            player.act(calls.chosen(player.model, number), stopped=stops)
            after_the_end += player.model.role == "done"

    with Stage(dsn, calls.contract) as stage:
        play()
        assert stage.audited() == []
    assert stage.steps > examples * steps * 0.9, "too many histories were cut short"
