"""The model of one job: what each contract makes of what people, time and upkeep do, and what it refuses.

A life is written as the words that were said, in order. A holder speaks with the current claim, unless it is `late`.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tenure.contracts import BUILT_IN
from tenure.contracts.declaration import Contract
from tenure.model.step import (
    Action,
    LogRow,
    RefusedStep,
    Standing,
    Stepped,
    in_budget,
    new_standing,
    pass_commit_point,
    step,
)
from tests.actions import action

#: contract → (the words, the states that the log walks through). Each job may run twice; gate_b2's four times.
LIVES = {
    "standard": [
        ("claim succeed", "queued running succeeded"),
        ("claim fail ripen claim succeed", "queued running queued running succeeded"),
        ("claim fail ripen claim fail", "queued running queued running dead"),
        ("claim fail:fatal", "queued running dead"),
        ("claim lapse reap claim lapse reap", "queued running queued running dead"),
        ("claim lapse succeed", "queued running succeeded"),
        ("claim snooze:later ripen claim hand_back:now claim", "queued running queued running queued running"),
        ("cancel:soft", "queued cancelled"),
        ("claim cancel:hard", "queued running cancelled"),
        ("claim cancel:soft cancelled", "queued running cancelled"),
        ("dead_letter", "queued dead"),
    ],
    "phase27": [
        ("claim succeed", "queued running completed"),
        ("claim fail ripen claim fail", "queued running queued running failed"),
        ("claim lapse claim succeed", "queued running running completed"),
        ("claim lapse claim lapse reap", "queued running running failed"),
        ("claim hand_back claim", "queued running running"),
    ],
    "dispatcher": [
        ("claim succeed", "Queued Running Completed"),
        ("claim fail ripen promote claim fail", "Queued Running Failed Queued Running Failed"),
        ("claim lapse reap ripen promote claim lapse reap", "Queued Running Failed Queued Running Failed"),
        ("claim fail cancel:hard", "Queued Running Failed Canceled"),
        ("claim hand_back ripen promote", "Queued Running Failed Queued"),
    ],
    "reliability": [
        ("claim start succeed", "queued assigned running succeeded"),
        ("claim start fail ripen claim start fail", "queued assigned running queued assigned running dead_lettered"),
        ("claim start fail:fatal", "queued assigned running failed"),
        ("claim start fail:dead_letter", "queued assigned running dead_lettered"),
        ("claim lapse claim lapse claim", "queued assigned queued assigned dead_lettered"),
        ("claim cancel:soft", "queued assigned cancelled"),
        ("claim start cancel:soft fail", "queued assigned running cancelled"),
        ("claim dead_letter", "queued assigned dead_lettered"),
    ],
    "simple": [
        ("claim succeed", "PENDING RUNNING SUCCESS"),
        ("claim fail ripen claim fail", "PENDING RUNNING FAILED PENDING RUNNING FAILED"),
        ("claim lapse reap ripen claim lapse reap", "PENDING RUNNING FAILED PENDING RUNNING FAILED"),
        ("claim cancel:soft lapse reap", "PENDING RUNNING CANCELLED"),
    ],
    "gate_b2": [
        ("claim succeed", "queued running succeeded"),
        ("claim fail ripen claim succeed", "queued running retrying running succeeded"),
        ("claim fail:fatal settle", "queued running dlq_pending dlq_recorded failed"),
        ("claim lapse reap dead_letter settle", "queued running retrying dlq_pending dlq_recorded failed"),
        ("claim fail:fatal to:dlq_recorded", "queued running dlq_pending dlq_recorded failed"),
    ],
}  # fmt: skip

#: contract, the words, why the last of them is refused.
REFUSALS = [
    ("standard", "succeed", "stale"),
    ("standard", "claim claim", "invalid"),
    ("standard", "claim fail claim", "not_due"),
    ("standard", "claim fail late:succeed", "stale"),
    ("standard", "claim lapse reap claim late:succeed", "stale"),
    ("standard", "claim compensated", "invalid"),
    ("standard", "claim to:succeeded to:succeeded", "finished"),
    ("standard", "claim succeed succeed", "finished"),
    ("standard", "claim cancel:hard succeed", "stale"),
    ("standard", "claim succeed cancel:hard", "finished"),
    ("phase27", "cancel:hard", "invalid"),
    ("phase27", "claim claim", "invalid"),
    ("phase27", "claim snooze:now", "invalid"),
    ("phase27", "claim lapse claim late:heartbeat", "stale"),
    ("dispatcher", "claim fail to:Queued", "not_due"),
    ("reliability", "claim succeed", "invalid"),
    ("reliability", "claim start start", "invalid"),
    ("reliability", "claim start lapse succeed", "stale"),
    ("reliability", "claim lapse start", "stale"),
    ("reliability", "claim start to:queued", "invalid"),
    ("reliability", "claim start effect:undo fail:fatal succeed", "compensating"),
    ("reliability", "claim start effect:undo fail:fatal effect:undo", "compensating"),
    ("simple", "claim to:FAILED ripen claim to:FAILED", "invalid"),
    ("reliability", "claim cancel:soft start", "stale"),
    ("gate_b2", "claim fail:fatal to:failed", "invalid"),
    ("gate_b2", "claim fail:fatal succeed", "invalid"),
    ("gate_b2", "claim fail:fatal heartbeat", "invalid"),
    ("gate_b2", "claim fail:fatal effect", "invalid"),
    ("gate_b2", "claim fail:fatal late:succeed", "stale"),
    ("gate_b2", "claim fail:fatal settle succeed", "finished"),
    ("gate_b2", "claim fail:fatal settle late:succeed", "stale"),
    ("gate_b2", "claim dead_letter succeed", "stale"),
    ("gate_b2", "claim dead_letter settle succeed", "stale"),
]


def lived(contract: Contract, words: str, job: Standing | None = None) -> tuple[Standing, list[LogRow]]:
    """How a job stands after these words, and its log; every word is heard."""
    job = job or new_standing(contract, None if contract.budget.minimum == contract.budget.maximum else 2)
    log: list[LogRow] = []
    for word in words.split():
        outcome = step(contract, job, action(word, job))
        assert isinstance(outcome, Stepped), f"{word} in {job} is refused: {outcome}"
        log += outcome.rows
        job = outcome.after
    return job, log


@pytest.mark.parametrize(
    ("name", "words", "states"), [(name, *life) for name, lives in LIVES.items() for life in lives]
)  # fmt: skip
def test_a_life_goes_through_its_contracts_states(name: str, words: str, states: str) -> None:
    contract = BUILT_IN[name]
    job, log = lived(contract, words)
    hops = [row for row in log if row.hop]
    assert [contract.initial, *(row.to_state for row in hops)] == states.split()
    assert [row.from_state for row in hops] == states.split()[:-1]
    assert job.state == states.split()[-1]


@pytest.mark.parametrize(("name", "words", "why"), REFUSALS)
def test_what_may_not_be_is_refused(name: str, words: str, why: str) -> None:
    *before, last = words.split()
    job, _ = lived(BUILT_IN[name], " ".join(before))
    assert step(BUILT_IN[name], job, action(last, job)) == RefusedStep(why)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_trigger_of_every_contract_is_pulled_in_some_life(name: str) -> None:
    lives = [life for life, _ in LIVES[name]]
    pulled = {row.trigger for words in lives for row in lived(BUILT_IN[name], words)[1] if row.hop}
    # gate_b2's own end of the budget and reliability's lost compensation have tests of their own below.
    apart = {"gate_b2": {"exhaust", "expire_at_cap"}, "reliability": {"compensation_failed"}}
    assert pulled == BUILT_IN[name].triggers() - apart.get(name, set())


def test_rows_carry_the_claims_and_the_contracts_own_counter() -> None:
    _, log = lived(BUILT_IN["dispatcher"], "claim fail ripen promote claim fail")
    assert log == [
        LogRow("claim", "Queued", "Running", claims=1, counter=1),
        LogRow("retry", "Running", "Failed", claims=1, counter=1),
        LogRow("promote", "Failed", "Queued", claims=1, counter=2),
        LogRow("claim", "Queued", "Running", claims=2, counter=2),
        LogRow("exhaust", "Running", "Failed", claims=2, counter=2),
    ]


def test_a_path_of_two_hops_has_two_rows_of_one_trigger() -> None:
    _, log = lived(BUILT_IN["simple"], "claim fail")
    assert [(row.trigger, row.from_state, row.to_state) for row in log[1:]] == [
        ("retry", "RUNNING", "FAILED"),
        ("retry", "FAILED", "PENDING"),
    ]


def test_the_end_of_a_frozen_budget_comes_after_four_runs() -> None:
    contract = BUILT_IN["gate_b2"]
    job, log = lived(contract, "claim fail ripen " * 3 + "claim fail")
    assert (job.state, job.role, job.claims, job.counter) == ("dlq_pending", "settling", 4, 3)
    assert log[-1].trigger == "exhaust"
    job, log = lived(contract, "claim lapse reap ripen " * 3 + "claim lapse reap")
    assert (job.state, job.claims, log[-1].trigger) == ("dlq_pending", 4, "expire_at_cap")


def test_a_letter_is_written_by_the_path_that_says_so_and_at_no_other_time() -> None:
    assert lived(BUILT_IN["standard"], "claim fail:fatal")[0].letter
    assert not lived(BUILT_IN["standard"], "claim cancel:hard")[0].letter
    assert not lived(BUILT_IN["gate_b2"], "claim fail:fatal")[0].letter
    assert lived(BUILT_IN["gate_b2"], "claim fail:fatal settle")[0].letter


def test_a_step_that_ends_at_a_commit_point_is_settled_at_once_unless_stopped() -> None:
    contract = BUILT_IN["gate_b2"]
    job, _ = lived(contract, "claim")
    first = step(contract, job, Action("fail", 1, verdict="fatal"))
    whole = pass_commit_point(contract, first)
    assert isinstance(first, Stepped)
    assert isinstance(whole, Stepped)
    assert (first.after.state, whole.after.state, whole.trigger) == ("dlq_pending", "failed", "fatal")
    assert [row.to_state for row in whole.rows] == ["dlq_pending", "dlq_recorded", "failed"]
    assert pass_commit_point(contract, RefusedStep("stale")) == RefusedStep("stale")
    assert pass_commit_point(contract, Stepped(job)) == Stepped(job)


def test_time_lets_leases_run_out_and_jobs_become_due_and_logs_nothing() -> None:
    contract = BUILT_IN["standard"]
    waiting, _ = lived(contract, "claim fail")
    held, _ = lived(contract, "ripen claim", waiting)
    assert step(contract, waiting, Action("ripen")) == Stepped(replace(waiting, due=True))
    assert step(contract, held, Action("lapse")) == Stepped(replace(held, expired=True))
    for untouched, verb in ((waiting, "lapse"), (held, "ripen")):
        assert step(contract, untouched, Action(verb)) == Stepped(untouched)


@pytest.mark.parametrize("verb", ["reap", "promote", "settle"])
def test_upkeep_that_comes_too_early_changes_nothing(verb: str) -> None:
    for contract in BUILT_IN.values():
        for words in ("", "claim"):
            job, _ = lived(contract, words)
            assert step(contract, job, Action(verb)) == Stepped(job)


def test_a_job_that_is_born_for_later_is_claimed_when_it_is_due() -> None:
    contract = BUILT_IN["standard"]
    later = new_standing(contract, due=False)
    assert step(contract, later, Action("claim")) == RefusedStep("not_due")
    assert lived(contract, "ripen claim", later)[0].state == "running"


def test_a_heartbeat_saves_an_expired_lease_only_where_it_is_valid_until_taken() -> None:
    standard, forfeiting = BUILT_IN["standard"], BUILT_IN["reliability"]
    assert not lived(standard, "claim lapse heartbeat")[0].expired
    lost, _ = lived(forfeiting, "claim start lapse")
    assert step(forfeiting, lost, Action("heartbeat", 1)) == RefusedStep("stale")


def test_declared_facts_are_logged_and_are_no_hops() -> None:
    _, log = lived(BUILT_IN["standard"], "claim cancel:soft cancel:soft")
    assert log[1:] == [LogRow("cancel_requested", "running", "running", claims=1, counter=1, hop=False)]
    _, log = lived(BUILT_IN["reliability"], "claim heartbeat")
    assert log[1:] == [LogRow("heartbeat", "assigned", "assigned", claims=1, counter=1, hop=False)]
    assert lived(BUILT_IN["phase27"], "claim heartbeat")[1][1:] == []


def test_putting_a_job_off_spends_no_budget() -> None:
    contract = BUILT_IN["standard"]
    job, _ = lived(contract, "claim snooze:now claim hand_back:now claim fail ripen claim")
    assert (job.claims, job.raises, in_budget(contract, job)) == (4, 2, False)


@pytest.mark.parametrize("words", ["fail", "snooze:now", "hand_back:now", "cancelled", "lapse reap"])
def test_after_a_soft_cancel_every_way_back_leads_to_cancelled(words: str) -> None:
    job, log = lived(BUILT_IN["standard"], f"claim cancel:soft {words}")
    assert (job.state, log[-1].trigger, log[-1].from_state) == ("cancelled", "cancel", "running")


def test_a_success_that_arrives_after_a_soft_cancel_still_wins() -> None:
    assert lived(BUILT_IN["standard"], "claim cancel:soft succeed")[0].state == "succeeded"


def test_a_soft_cancel_of_a_job_that_has_not_started_waits_only_for_effects_to_be_undone() -> None:
    contract = BUILT_IN["reliability"]
    job, log = lived(contract, "claim cancel:soft")
    assert (job.state, job.held, log[-1]) == ("cancelled", False, LogRow("cancel", "assigned", "cancelled", 1, 1))
    asked, _ = lived(contract, "claim effect:undo cancel:soft")
    assert (asked.state, asked.held, asked.cancelling) == ("assigned", True, True)
    ended, log = lived(contract, "cancelled compensated", asked)
    assert (ended.state, [row.trigger for row in log]) == ("cancelled", ["compensating", "compensated", "cancel"])


def test_effects_are_undone_before_a_job_ends_badly() -> None:
    contract = BUILT_IN["reliability"]
    job, log = lived(contract, "claim start effect:undo fail:fatal")
    assert (job.state, job.pending, log[-1].trigger, log[-1].hop) == ("running", "fatal", "compensating", False)
    ended, log = lived(contract, "compensated", job)
    assert (ended.state, [row.trigger for row in log]) == ("failed", ["compensated", "fatal"])
    assert lived(contract, "compensation_failed", job)[0].state == "dead_lettered"
    assert lived(contract, "claim start effect:undo succeed")[0].state == "succeeded"
    assert lived(contract, "claim start effect:undo fail")[0].state == "queued"
    assert lived(contract, "claim start effect fail:fatal")[0].state == "failed"


def test_a_compensation_that_is_lost_is_tried_again_and_then_set_aside() -> None:
    contract = BUILT_IN["reliability"]
    again, _ = lived(contract, "claim start effect:undo fail:fatal lapse reap")
    assert (again.state, again.pending) == ("queued", "fatal")
    lost, log = lived(contract, "claim lapse reap", again)
    assert (lost.state, lost.letter, log[-1].trigger) == ("dead_lettered", True, "compensation_failed")


@pytest.mark.parametrize(
    ("wish", "end"), [(None, "dead_lettered"), ("failed", "failed"), ("dead_lettered", "dead_lettered")]
)
def test_a_type_chooses_the_end_of_its_budget_and_nothing_else(wish: str | None, end: str) -> None:
    contract = BUILT_IN["reliability"]
    spent, _ = lived(contract, "claim start fail", new_standing(contract, 1, wish))
    assert (spent.state, spent.letter) == (end, end == "dead_lettered")
    lost, _ = lived(contract, "claim lapse reap", new_standing(contract, 1, wish))
    assert lost.state == "dead_lettered"
