"""Why did a job end so? What ended it, by whom and with which error, what was decided since, what can be done next."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tenure.contracts import BUILT_IN
from tenure.jobs.job import UPKEEP
from tenure.jobs.why import DeadLetterSummary
from tests.lives import ERROR, ago, life

SLOW = "TimeoutError [SLOW]: too slow"


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_success_says_who_finished_it_and_how_long_it_took(name: str) -> None:
    seen = life(name, "claim", *["start"] * (name == "reliability"))
    told = seen.go("succeed", at=seen.row["started_at"] + timedelta(seconds=2.5)).told()
    assert f"Job 7 ended well as {seen.state} at 2026-03-01 11:51:42 UTC" in told
    allowed = BUILT_IN[name].budget.executions(BUILT_IN[name].budget.default)
    assert f"w1 finished it on claim 1 of at most {allowed}, 2.5 s after it was claimed." in told
    assert seen.steps() == ["tenure jobs events 7"], "a second run would repeat its effects"


@pytest.mark.parametrize(
    ("name", "trigger", "actor", "reason", "words"),
    [
        ("standard", "exhaust", "w1", None, f"Claim 1 failed ({SLOW}), and that was the last of 5"),
        ("simple", "exhaust", "w1", None, f"Claim 1 failed ({SLOW}), and that was the last of 3"),
        ("standard", "fatal", "w1", "permanent_error", f"not tried again (permanent_error): {SLOW}."),
        ("phase27", "expire_at_cap", UPKEEP, "lease_expired", "w1 was lost on claim 1 (lease_expired)"),
        ("standard", "dead_letter", "ada", "operator", f"ada set it aside (operator): {SLOW}."),
        ("reliability", "compensation_failed", "w1", None, "What was done for it could not be undone: TimeoutError"),
        ("dispatcher", "cancel", "ada", "too late", "ada cancelled it (too late)."),
        ("dispatcher", "cancel", UPKEEP, "lease_expired", "Its holder w1 was lost (lease_expired), so upkeep"),
    ],
)  # fmt: skip
def test_a_bad_end_says_what_ended_it(name: str, trigger: str, actor: str, reason: str | None, words: str) -> None:
    seen = life(name, "claim", *["start"] * (name == "reliability")).go(trigger, actor, reason, {"error": ERROR})
    told = seen.told()
    assert f"Job 7 ended as {seen.state} at " in told
    assert words in told


def test_a_job_cancelled_before_anybody_claimed_it_says_so() -> None:
    told = life("standard").go("cancel", "ada").told()
    assert "ada cancelled it. It was never claimed." in told


def test_a_staged_end_is_explained_by_what_came_before_it_was_settled() -> None:
    seen = life("gate_b2", "claim").go("exhaust", facts={"error": ERROR}).go("settle", UPKEEP)
    assert "Claim 1 failed (TimeoutError [SLOW]: too slow), and that was the last of 4." in seen.told()


@pytest.mark.parametrize(
    ("change", "words", "step"),
    [
        ({}, "Its dead letter 3 (operator) is open: it can be run again, or discarded, which needs two people.",
         "tenure dlq requeue 3"),
        ({"discard_asked_by": "ada"}, "ada has asked to discard it, and another person must approve.",
         "tenure dlq approve 3 --person NAME"),
        ({"status": "requeued", "requeued_as": 9}, "was run again as job 9.", "tenure jobs show 9"),
        ({"status": "discarded", "discard_asked_by": "ada", "discard_approved_by": "bob", "discard_reason": "spam"},
         "was discarded by ada and bob: spam.", "tenure dlq show 3"),
    ],
)  # fmt: skip
def test_a_dead_letter_is_told_with_what_was_decided(change: dict[str, Any], words: str, step: str) -> None:
    letter = replace(DeadLetterSummary(3, "open", "operator"), **change)
    seen = life("gate_b2", "claim", "exhaust", "settle")
    told = seen.told(letter=letter, again=letter.requeued_as)
    assert words in told
    assert told.count("run again as job") == (letter.status == "requeued")
    assert step in seen.steps(letter=letter, again=letter.requeued_as)


def test_one_person_is_enough_where_the_contract_says_so() -> None:
    told = life("standard", "claim", "exhaust").told(letter=DeadLetterSummary(3, "open", "exhausted_retries"))
    assert "is open: it can be run again, or discarded." in told


def test_a_finished_job_that_was_run_again_names_its_successor() -> None:
    seen = life("phase27", "claim", "succeed")
    assert "It was run again as job 12." in seen.told(again=12)
    assert seen.steps(again=12) == ["tenure jobs show 12", "tenure jobs events 7"]


def test_next_steps_are_only_those_that_the_contract_allows() -> None:
    assert "tenure jobs cancel 7" in life("standard").steps()
    assert life("phase27").steps() == ["tenure jobs events 7"], "this contract has no cancel"
    asked = life("standard", "claim").with_(cancel_requested_at=ago(5))
    assert asked.steps() == ["tenure jobs events 7", "tenure jobs cancel 7 --mode hard"]
    soft = life("simple", "claim").with_(cancel_requested_at=ago(5))
    assert soft.steps() == ["tenure jobs events 7"], "it was asked already, and cannot be forced"
