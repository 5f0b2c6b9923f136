"""The explorer: six contracts keep every promise, and each of many broken ones gives its shortest counterexample.

Some promises no contract can break, because the model itself keeps them; that these are looked at all the same is shown
by breaking the model.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace

import pytest

import tenure.model.explore
from tenure.contracts import BUILT_IN
from tenure.contracts.declaration import HELD, Contract, Role
from tenure.contracts.notation import path
from tenure.model.counterexample import Counterexample
from tenure.model.explore import Report, explore, is_explorable
from tenure.model.invariants import INVARIANTS
from tenure.model.step import HOLDER_ACTIONS, Action, LogRow, Outcome, Standing, Stepped, step
from tests.broken import BROKEN, GATE_B2, PHASE27, RELIABILITY, STANDARD, also, declared, without

Step = Callable[[Contract, Standing, Action], Outcome]


def numbers(report: Report) -> tuple[int, ...]:
    """What was counted."""
    return report.states, report.steps, report.refused, report.histories, report.furthest


def story(report: Report, invariant: str) -> Counterexample:
    """The story of a broken promise."""
    (told,) = [story for story in report.broken if story.invariant == invariant]
    return told


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_promise_holds_in_every_reachable_history(name: str) -> None:
    report, again = explore(BUILT_IN[name]), explore(BUILT_IN[name])
    assert (report.complete, report.broken, report.held) == (True, [], list(INVARIANTS))
    assert min(numbers(report)) > 0
    assert report.refused < report.steps
    assert report.histories > 10**6
    assert numbers(report) == numbers(again)


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_trigger_is_pulled_somewhere(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pulled: set[str] = set()

    def listening(contract: Contract, job: Standing, action: Action) -> Outcome:
        outcome = step(contract, job, action)
        if isinstance(outcome, Stepped):
            pulled.update(row.trigger for row in outcome.rows)
        return outcome

    monkeypatch.setattr(tenure.model.explore, "step", listening)
    explore(BUILT_IN[name])
    # The model knows whether a lease has run out, not how much of it is left: it renews only with every beat.
    assert pulled == (BUILT_IN[name].triggers() | set(BUILT_IN[name].facts)) - {"renewed"}


def test_there_are_many_broken_contracts_and_they_break_what_contracts_can_break() -> None:
    assert len(BROKEN) >= 12
    assert {invariant for _, invariant, _ in BROKEN.values()} == set(INVARIANTS) - {"no stale commit", "the end is one"}


@functools.cache
def broken(name: str) -> Report:
    """What the explorer says of a broken contract, with up to two runs."""
    return explore(BROKEN[name][0], runs=2)


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_contract_gives_the_shortest_counterexample(name: str) -> None:
    contract, invariant, length = BROKEN[name]
    report = broken(name)
    found = story(report, invariant)
    assert report.complete
    assert invariant not in report.held
    assert len(found.moves) == length
    assert found.lines()[-1] == f"→ {invariant}: {found.what}"
    assert len(found.lines()) == length + 2
    if invariant != "an end" and length > 1:  # an end is only known of a whole graph
        earlier = explore(contract, depth=length - 1).broken
        assert invariant not in [story.invariant for story in earlier]


@pytest.mark.parametrize("name", BROKEN)
def test_a_story_is_true(name: str) -> None:
    """The same words, said to the model again, leave the job where the story says it stands."""
    contract, invariant, _ = BROKEN[name]
    told = story(broken(name), invariant)
    job = told.start
    assert job is not None
    for move, (stands, _) in told.moves:
        outcome = step(contract, job, move.action)
        job = outcome.after if isinstance(outcome, Stepped) else job
        assert job == stands


def test_a_lost_last_run_that_is_queued_again_is_told_as_a_story() -> None:
    assert story(broken("a lost last run goes back to the queue"), "budget").lines() == [
        "A job is enqueued that may be run once  [PENDING]",
        "1. worker A claims the job (claim 1)  [RUNNING, held]",
        "2. worker A hands the job back  [PENDING]",
        "3. worker A claims the job (claim 2)  [RUNNING, held]",
        "→ budget: the job is claimed twice, and may be run once",
    ]


def test_a_soft_cancel_that_is_lost_with_its_holder_is_told_as_a_story() -> None:
    assert story(broken("a soft cancel that is lost with its holder"), "an end").lines() == [
        "A job is enqueued that may be run once  [queued]",
        "1. worker A claims the job (claim 1)  [assigned, held]",
        "2. operator asks the holder to stop  [assigned, held, asked to stop]",
        "3. worker A starts the job  [running, held, asked to stop]",
        "4. time passes: the lease runs out  [running, lease run out, asked to stop]",
        "→ an end: the job stands in running, and nothing that time, upkeep or a new worker does can end it",
    ]


def test_a_spent_budget_that_waits_for_more_is_told_as_a_story() -> None:
    assert story(broken("a spent budget waits for more"), "budget").lines()[2:] == [
        "2. worker A reports a failure that may be retried  [Failed, not due]",
        "3. time passes: the job is due  [Failed]",
        "4. upkeep makes the job ready  [Queued]",
        "5. worker A claims the job (claim 2)  [Running, held]",
        "→ budget: the job is claimed twice, and may be run once",
    ]


def unfenced(contract: Contract, job: Standing, action: Action) -> Outcome:
    """Whoever ever held the job is believed."""
    return step(contract, job, replace(action, proof=job.claims) if action.proof else action)


def forgiving(contract: Contract, job: Standing, action: Action) -> Outcome:
    """A lease that is forfeited is not."""
    return step(contract, replace(job, expired=False) if action.verb in HOLDER_ACTIONS else job, action)


def grasping(contract: Contract, job: Standing, action: Action) -> Outcome:
    """A claim takes what another holds."""
    return step(contract, replace(job, expired=True) if action.verb == "claim" and job.role in HELD else job, action)


def undead(contract: Contract, job: Standing, action: Action) -> Outcome:
    """What is finished can still be cancelled."""
    if job.role == "done" and action.verb == "cancel":
        row = LogRow("cancel", job.state, "cancelled", job.claims, job.counter)
        return Stepped(replace(job, state="cancelled"), (row,))
    return step(contract, job, action)


def stubborn(contract: Contract, job: Standing, action: Action) -> Outcome:
    """A failure is retried as if there were always budget left."""
    outcome = step(contract, replace(job, limit=99) if action.verb == "fail" else job, action)
    return replace(outcome, after=replace(outcome.after, limit=job.limit)) if isinstance(outcome, Stepped) else outcome


def faint_hearted(contract: Contract, job: Standing, action: Action) -> Outcome:
    """A failure is never retried."""
    outcome = step(contract, replace(job, limit=1) if action.verb == "fail" else job, action)
    return replace(outcome, after=replace(outcome.after, limit=job.limit)) if isinstance(outcome, Stepped) else outcome


def greedy(contract: Contract, job: Standing, action: Action) -> Outcome:
    """An expired lease is always taken again."""
    outcome = step(contract, replace(job, limit=99) if action.verb in ("claim", "reap") else job, action)
    return replace(outcome, after=replace(outcome.after, limit=job.limit)) if isinstance(outcome, Stepped) else outcome


def silent(contract: Contract, job: Standing, action: Action) -> Outcome:
    """A success is not logged."""
    outcome = step(contract, job, action)
    return replace(outcome, rows=()) if isinstance(outcome, Stepped) and action.verb == "succeed" else outcome


def repeating(contract: Contract, job: Standing, action: Action) -> Outcome:
    """Every hop is logged twice."""
    outcome = step(contract, job, action)
    return replace(outcome, rows=outcome.rows * 2) if isinstance(outcome, Stepped) else outcome


def forgetful(contract: Contract, job: Standing, action: Action) -> Outcome:
    """No letter is ever written."""
    outcome = step(contract, job, action)
    return replace(outcome, after=replace(outcome.after, letter=False)) if isinstance(outcome, Stepped) else outcome


def lazy(contract: Contract, job: Standing, action: Action) -> Outcome:
    """Upkeep does nothing."""
    return Stepped(job) if action.verb in ("reap", "promote", "settle") else step(contract, job, action)


def backward(contract: Contract, job: Standing, action: Action) -> Outcome:
    """A start puts the job back."""
    outcome = step(contract, job, action)
    if action.verb == "start" and isinstance(outcome, Stepped):
        (row,) = outcome.rows
        back = replace(outcome.after, state=contract.initial, role="ready", held=False)
        return replace(outcome, after=back, rows=(replace(row, to_state=contract.initial),))
    return outcome


@pytest.mark.parametrize(
    ("wrong", "contract", "invariants"),
    [
        (unfenced, STANDARD, {"no stale commit"}),
        (forgiving, RELIABILITY, {"no stale commit"}),
        (grasping, PHASE27, {"one lease"}),
        (undead, STANDARD, {"the end is one"}),
        (stubborn, STANDARD, {"retries", "budget"}),
        (faint_hearted, STANDARD, {"retries"}),
        (greedy, PHASE27, {"budget"}),
        (silent, STANDARD, {"one row a hop"}),
        (repeating, STANDARD, {"one row a hop"}),
        (forgetful, STANDARD, {"letters"}),
        (lazy, GATE_B2, {"an end"}),
        (backward, RELIABILITY, {"no way back", "budget"}),
    ],
)
def test_a_model_that_breaks_a_promise_is_found_out(
    wrong: Step, contract: Contract, invariants: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tenure.model.explore, "step", wrong)
    report = explore(contract)
    assert {story.invariant for story in report.broken} == invariants


def test_a_late_worker_keeps_its_name_and_its_claim_in_a_story(monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(contract: Contract, job: Standing, action: Action) -> Outcome:
        """Whoever held the job before is believed, while somebody holds it for the third time."""
        third = job.claims == 3 and job.role in HELD and action.verb == "succeed"
        return step(contract, job, replace(action, proof=3) if third else action)

    monkeypatch.setattr(tenure.model.explore, "step", careless)
    assert story(explore(PHASE27), "no stale commit").lines() == [
        "A job is enqueued that may be run 3 times  [queued]",
        "1. worker A claims the job (claim 1)  [running, held]",
        "2. worker A hands the job back  [running, lease run out]",
        "3. worker A claims the job (claim 2)  [running, held]",
        "4. worker A hands the job back  [running, lease run out]",
        "5. worker B claims the job (claim 3)  [running, held]",
        "6. worker A, which lost the job after claim 2, reports success  [completed, final]",
        "→ no stale commit: worker A shows claim 2, which is lost, and is heard all the same",
    ]


def test_within_a_bound_that_cuts_worlds_off_nothing_is_said_of_ends() -> None:
    report = explore(declared(STANDARD, without("expire")), depth=3)
    assert (report.complete, report.broken, report.unknown) == (False, [], ["an end"])
    assert report.held == [name for name in INVARIANTS if name != "an end"]


def test_more_workers_and_more_runs_see_more() -> None:
    small, more_workers, more_runs = explore(GATE_B2), explore(GATE_B2, 3), explore(PHASE27, runs=5)
    assert more_workers.states > small.states
    assert more_runs.states > explore(PHASE27).states
    assert (small.runs, more_runs.runs) == (4, 5)
    assert more_workers.held == more_runs.held == list(INVARIANTS)


def test_progress_is_told_after_each_step_of_all_histories() -> None:
    heard: list[tuple[int, int, int]] = []
    report = explore(PHASE27, on_progress=lambda *told: heard.append(told))
    assert [at for at, _, _ in heard] == list(range(1, report.furthest + 1))
    assert {depth for _, depth, _ in heard} == {report.depth} == {30}
    worlds = [worlds for _, _, worlds in heard]
    assert worlds == sorted(worlds)
    assert worlds[-1] == report.states


def test_a_first_run_that_differs_from_later_ones_is_explored_with_a_budget_of_one() -> None:
    states: dict[str, tuple[Role, ...]] = {**PHASE27.states, "trying": ("active",), "again": ("ready",)}
    ways = (
        path("claim", "queued > trying"), path("claim", "again > running"),
        path("succeed", "trying|running > completed"),
        path("retry", "trying|running > again"), path("expire", "trying|running > again"),
        path("exhaust", "running > failed"),
        path("expire_at_cap", "trying|running > failed"),
    )  # fmt: skip
    contract = declared(PHASE27, lambda sound: replace(sound, states=states, paths=ways))
    told = story(explore(contract), "retries")
    assert (told.runs, len(told.moves)) == (1, 2)
    # With an end for the first run too, all is well.
    whole = declared(contract, also("exhaust", "trying > failed"))
    assert explore(whole).held == list(INVARIANTS)


def test_a_contract_without_a_machine_is_not_walkable() -> None:
    emptied = declared(STANDARD, lambda sound: replace(sound, paths=(replace(sound.paths[0], hops=()),)))
    numberless = declared(STANDARD, lambda sound: replace(sound, budget=replace(sound.budget, default="5")))  # type: ignore[arg-type]
    assert [is_explorable(one) for one in (STANDARD, emptied, numberless)] == [True, False, False]
