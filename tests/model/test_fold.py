"""Folding a log: what the model writes is accepted and tells where the job stands; what it could not write is named.

The logs come from random walks with a fixed seed: workers that are right, late or wrong, upkeep, operators and time.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from tenure.contracts import BUILT_IN
from tenure.contracts.declaration import Contract
from tenure.model.fold import Fault, fold
from tenure.model.step import HOLDER_ACTIONS, Action, LogRow, Standing, Stepped, new_standing, step

STANDARD, SIMPLE, RELIABILITY = BUILT_IN["standard"], BUILT_IN["simple"], BUILT_IN["reliability"]

Log = list[LogRow]


#: What keeps a job going, and what mostly ends it: said rarely, so that lives are long.
GOING_ON = (
    "claim",
    "claim",
    "ripen",
    "promote",
    "lapse",
    "reap",
    "start",
    "fail",
    "heartbeat",
    "effect",
    "snooze",
    "hand_back",
)
ENDING = ("succeed", "cancelled", "cancel", "dead_letter", "transition", "settle", "compensated", "compensation_failed")


def anything(contract: Contract, job: Standing, chance: random.Random) -> Action:
    """Something that somebody could say."""
    verb = chance.choice(ENDING if chance.random() < 0.12 else GOING_ON)
    proof = job.claims - (chance.random() < 0.1) if verb in HOLDER_ACTIONS else None
    verdicts = ["retry"] * 6 + [verdict.trigger for verdict in contract.retryable.classes.values()]
    if contract.retryable.rule != "any":
        verdicts.append("fatal")
    to = chance.choice([*contract.cancel_modes, "hard"]) if verb == "cancel" else chance.choice(list(contract.states))
    flag = chance.random() < 0.5 and (verb != "effect" or contract.compensates)
    return Action(verb, proof, verdict=chance.choice(verdicts), to=to, flag=flag)


def walked(contract: Contract, seed: int) -> tuple[int, list[tuple[Standing, int]], Log]:
    """A job's limit, how it stood with how many log rows after each step, and its whole log."""
    chance = random.Random(f"{contract.name} {seed}")
    budget = contract.budget
    limit = chance.randint(budget.minimum, min(budget.maximum, budget.minimum + 2))
    job = new_standing(contract, limit, chance.choice([None, *contract.choices("exhaust")]), due=chance.random() < 0.7)
    log: Log = []
    stood = [(job, 0)]
    for _ in range(60):
        outcome = step(contract, job, anything(contract, job, chance))
        if isinstance(outcome, Stepped):
            job, log = outcome.after, [*log, *outcome.rows]
            stood.append((job, len(log)))
    return limit, stood, log


def told(job: Standing) -> tuple[str, str, int, int, int, bool]:
    """What a log tells of a job."""
    return job.state, job.role, job.claims, job.counter, job.raises, job.letter


def after(contract: Contract, words: str) -> Log:
    """The log of a job that may run twice, after these words."""
    job, log = new_standing(contract, 2), list[LogRow]()
    for verb in words.split():
        outcome = step(contract, job, Action(verb, job.claims if verb in HOLDER_ACTIONS else None))
        assert isinstance(outcome, Stepped), verb
        job, log = outcome.after, [*log, *outcome.rows]
    return log


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_log_that_the_model_writes_tells_where_the_job_stands(name: str) -> None:
    contract = BUILT_IN[name]
    pulled: set[str] = set()
    for seed in range(200):
        limit, stood, log = walked(contract, seed)
        pulled.update(row.trigger for row in log)
        for job, rows in stood:
            folded = fold(contract, limit, log[:rows])
            assert isinstance(folded, Standing), (seed, folded, log[:rows])
            assert told(folded) == told(job)
    assert pulled >= contract.triggers()


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_log_with_a_row_less_or_a_row_twice_is_found_at_that_row(name: str) -> None:
    contract = BUILT_IN[name]
    tried = 0
    for seed in range(60):
        limit, _, log = walked(contract, seed)
        for at, row in enumerate(log[:-1]):
            if row.hop:
                less = fold(contract, limit, log[:at] + log[at + 1 :])
                twice = fold(contract, limit, [*log[: at + 1], *log[at:]])
                assert isinstance(less, Fault), (seed, at, log)
                assert isinstance(twice, Fault), (seed, at, log)
                assert (less.seq, twice.seq) == (at + 1, at + 2), (seed, log)
                tried += 1
    assert tried > 50


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_log_with_one_wrong_word_or_number_is_found_at_that_row(name: str) -> None:
    contract = BUILT_IN[name]
    changes: list[Callable[[LogRow], LogRow]] = [
        lambda row: replace(row, trigger="succeed" if row.trigger == "claim" else "claim"),
        lambda row: replace(row, to_state="nowhere"),
        lambda row: replace(row, from_state="nowhere"),
        lambda row: replace(row, claims=row.claims + 1),
        lambda row: replace(row, counter=row.counter - 1),
        lambda row: replace(row, hop=False),
    ]
    for seed in range(30):
        limit, _, log = walked(contract, seed)
        for at, row in enumerate(log):
            for change in changes if row.hop else changes[1:4]:
                wrong = fold(contract, limit, [*log[:at], change(row), *log[at + 1 :]])
                assert isinstance(wrong, Fault), (seed, at, change(row), log)
                assert wrong.seq == at + 1, (seed, at, change(row), wrong)


def test_a_missing_hop_is_named() -> None:
    log = after(STANDARD, "claim fail ripen claim succeed")
    del log[1]
    assert fold(STANDARD, 2, log) == Fault(2, "standard has no claim from running to running there")


def test_a_doubled_hop_is_named() -> None:
    log = after(STANDARD, "claim succeed")
    assert fold(STANDARD, 2, [*log, log[-1]]) == Fault(3, "standard has no succeed from succeeded to succeeded there")


def test_another_trigger_is_named() -> None:
    claimed, ended = after(STANDARD, "claim succeed")
    assert fold(STANDARD, 2, [claimed, replace(ended, trigger="promote")]) == Fault(
        2, "standard has no promote from running to succeeded there"
    )


def test_another_state_is_named() -> None:
    claimed, ended = after(STANDARD, "claim succeed")
    assert fold(STANDARD, 2, [claimed, replace(ended, to_state="cancelled")]) == Fault(
        2, "to_state is 'cancelled', and must be 'succeeded'"
    )


def test_a_counter_that_is_off_by_one_is_named() -> None:
    claimed, ended = after(STANDARD, "claim succeed")
    assert fold(STANDARD, 2, [replace(claimed, counter=2), ended]) == Fault(1, "counter is 2, and must be 1")
    assert fold(STANDARD, 2, [claimed, replace(ended, claims=2)]) == Fault(2, "claims is 2, and must be 1")


def test_a_claim_too_many_is_named() -> None:
    log = after(STANDARD, "claim lapse reap claim lapse")
    again = [
        LogRow("expire", "running", "queued", claims=2, counter=2),
        LogRow("claim", "queued", "running", claims=3, counter=3),
    ]
    assert fold(STANDARD, 2, [*log, *again]) == Fault(4, "standard has no expire from running to queued there")
    assert isinstance(fold(STANDARD, 3, [*log, *again]), Standing)


def test_a_retry_too_many_and_a_giving_up_too_early_are_named() -> None:
    log = after(STANDARD, "claim fail")
    assert fold(STANDARD, 1, log) == Fault(2, "standard has no retry from running to queued there")
    given_up = [log[0], LogRow("exhaust", "running", "dead", claims=1, counter=1)]
    assert fold(STANDARD, 2, given_up) == Fault(2, "standard has no exhaust from running to dead there")
    assert isinstance(fold(STANDARD, 1, given_up), Standing)


def test_a_fact_that_the_contract_does_not_declare_is_named() -> None:
    beaten = after(RELIABILITY, "claim heartbeat")
    assert isinstance(fold(RELIABILITY, 2, beaten), Standing)
    (claimed,) = after(STANDARD, "claim")
    beat = LogRow("heartbeat", "running", "running", claims=1, counter=1, hop=False)
    assert fold(STANDARD, 2, [claimed, beat]) == Fault(2, "heartbeat is not a fact that standard logs")


def test_a_fact_of_another_state_is_named() -> None:
    claimed, beat = after(RELIABILITY, "claim heartbeat")
    elsewhere = replace(beat, from_state="running", to_state="running")
    assert fold(RELIABILITY, 2, [claimed, elsewhere]) == Fault(
        2, "heartbeat was logged in running, and the job was assigned"
    )


def test_a_log_that_ends_inside_a_path_is_named() -> None:
    log = after(SIMPLE, "claim fail")
    assert [row.to_state for row in log] == ["RUNNING", "FAILED", "PENDING"]
    assert fold(SIMPLE, 2, log[:-1]) == Fault(2, "the log ends inside the path of retry: PENDING is missing")


def test_a_job_without_a_log_stands_as_it_was_made() -> None:
    for contract in BUILT_IN.values():
        assert fold(contract, 3, []) == new_standing(contract, 3)
