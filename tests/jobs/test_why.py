"""Why is a job (not) running? Told from made-up rows and logs: every role of all six contracts, every kind of wait."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest

from tenure.contracts import BUILT_IN
from tenure.contracts.declaration import Contract
from tenure.jobs.formats import format_duration, format_time, to_one_line
from tenure.jobs.job import UPKEEP
from tenure.jobs.why import COUNT_LIMIT, DeadLetterSummary, QueuePause, explain_job
from tests.lives import ERROR, NOW, ago, life


def routes(contract: Contract) -> Iterator[tuple[str, str, list[str]]]:
    """Every (state, role) in which a job can be seen, with triggers that lead there; and steps inside a path."""
    reached: dict[tuple[str, str], list[str]] = {(contract.initial, "ready"): []}
    waiting = list(reached.items())
    while waiting:
        (state, role), way = waiting.pop(0)
        for path in contract.paths:
            end = (path.end.state, str(path.end.role))
            if role != "done" and state in path.sources and path.choice is None and end not in reached:
                reached[end] = [*way, path.trigger]
                waiting.append((end, reached[end]))
    for (state, role), way in reached.items():
        yield state, role, way


SEEN = [
    pytest.param(contract, state, role, way, id=f"{contract.name}-{state}-{role}")
    for contract in BUILT_IN.values()
    for state, role, way in routes(contract)
]
INSIDE = {
    (contract.name, state, role)
    for contract in BUILT_IN.values()
    for state, roles in contract.states.items()
    for role in roles
} - {(contract.name, state, role) for contract in BUILT_IN.values() for state, role, _ in routes(contract)}


@pytest.mark.parametrize(("contract", "state", "role", "way"), SEEN)
def test_every_role_of_every_contract_has_an_answer(contract: Contract, state: str, role: str, way: list[str]) -> None:
    seen = life(contract.name, *way)
    assert (seen.job.state, seen.job.role) == (state, role)
    said = explain_job(seen.job, seen.log, contract, NOW)
    assert said[0].startswith(("Job 7 is " if role != "done" else "Job 7 ended ") + ("" if role == "done" else state))
    assert state in said[0]
    assert 1 <= len(said) <= 6
    for sentence in said:
        assert sentence.endswith(".")
        assert "None" not in sentence
    for step in seen.steps():
        assert step.startswith("tenure ")


def test_only_steps_inside_a_path_are_never_seen_at_rest() -> None:
    assert {("simple", "FAILED", "settling"), ("gate_b2", "dlq_recorded", "settling")} == INSIDE


def test_a_step_inside_a_path_is_said_to_be_one() -> None:
    stuck = life("simple", "claim")
    stuck.state, stuck.role = "FAILED", "settling"
    assert "commits whole: nobody should see it there" in stuck.told()


def test_a_due_job_says_since_when_and_what_goes_before_it() -> None:
    told = life("standard", due_at=ago(180)).told(ahead=12, held=3)
    assert "is queued and due since 2026-03-01 11:57:00 UTC (3 min ago), and waits for a claim." in told
    assert "12 due jobs go before it in queue mail (by priority, then due time, then enqueue)." in told
    assert "3 jobs of that queue are held now, so workers are there" in told


def test_a_due_job_that_nobody_claims_says_that_no_worker_seems_to_be_there() -> None:
    told = life("standard").told(ahead=0, held=0)
    assert "the next claim of contract standard on queue mail takes it" in told
    assert "perhaps no worker takes standard jobs from queue mail" in told


@pytest.mark.parametrize("due_at", [ago(5), NOW + timedelta(hours=1)])
def test_a_job_in_a_paused_queue_says_who_paused_it_and_how_to_resume_it(due_at: datetime) -> None:
    seen = life("standard", queue="slow mail; rm", due_at=due_at)
    paused = {"ahead": 0, "held": 0, "paused": QueuePause(ago(60), "ada", "the server\nis down")}
    told = seen.told(**paused)
    assert (
        "Queue slow mail; rm is paused since 2026-03-01 11:59:00 UTC (1 min ago) by ada (the server is down): " in told
    )
    assert "no claim takes jobs from it until somebody resumes it." in told
    assert "the next claim of contract" not in told
    assert seen.steps(**paused)[0] == "tenure queues resume 'slow mail; rm'"


def test_a_pause_is_told_where_it_matters() -> None:
    paused = QueuePause(ago(60), "ada")
    waits = life("dispatcher", "claim", "retry")
    assert (waits.role, "is paused since" in waits.told(paused=paused)) == ("waiting", True)
    held = life("standard", "claim")
    assert "paused" not in held.told(paused=paused), "a held job goes on"
    assert "tenure queues" not in " ".join(held.steps(paused=paused))


def test_neighbours_are_counted_up_to_a_bound_and_one_is_no_plural() -> None:
    assert "more than 1,000 due jobs go before it" in life("standard").told(ahead=COUNT_LIMIT + 1)
    told = life("standard").told(ahead=1, held=1)
    assert "1 due job goes before it" in told
    assert "1 job of that queue is held" in told
    assert "queue mail" not in life("standard").told(), "what nobody looked for is not said"


def test_a_retried_job_that_is_due_again_says_how_often_it_was_claimed() -> None:
    seen = life("phase27", "claim", "retry", last_error_json='{"type": "TimeoutError", "message": "too slow"}')
    assert "claimed 1 of at most 5 times; the last failure: TimeoutError: too slow." in seen.told(ahead=0)


def test_a_job_that_waits_out_its_backoff_says_which_failure_it_waits_for() -> None:
    seen = life("standard", "claim").go("retry", facts={"error": ERROR, "delay_ms": 4100})
    told = seen.with_(due_at=NOW + timedelta(seconds=3)).told()
    assert "is queued and not due before 2026-03-01 12:00:03 UTC (in 3 s)." in told
    assert "Claim 1 failed at 2026-03-01 11:51:50 UTC (8.17 min ago): TimeoutError [SLOW]: too slow" in told
    assert "contract standard waits 4.1 s before the next of at most 5 claims." in told


def test_a_forgotten_payload_of_the_log_still_leaves_the_rows_own_error() -> None:
    seen = life("standard", "claim", "retry", last_error_json='{"type": "E", "message": "m"}')
    assert "E: m; contract standard waits some time" in seen.with_(due_at=NOW + timedelta(1)).told()


def test_a_job_put_off_before_its_first_claim_says_so() -> None:
    told = life("standard", due_at=NOW + timedelta(hours=3)).told()
    assert "not due before 2026-03-01 15:00:00 UTC (in 3 h)." in told
    assert "It was enqueued at 2026-03-01 11:43:20 UTC (16.7 min ago) to run then." in told


@pytest.mark.parametrize(
    ("name", "trigger", "reason", "words"),
    [
        ("standard", "snooze", None, "w1 put it off by 1 min"),
        ("standard", "hand_back", None, "w1 handed it back unfinished"),
        (
            "gate_b2",
            "expire",
            "lease_expired",
            "w1 lost it at 2026-03-01 11:51:50 UTC (8.17 min ago), because its lease",
        ),
        ("simple", "expire", "orphaned", "because its heartbeats stopped on claim 1; contract simple waits 1 min"),
    ],
)
def test_other_delays_name_who_made_them(name: str, trigger: str, reason: str | None, words: str) -> None:
    actor = UPKEEP if trigger == "expire" else "w1"
    seen = life(name, "claim").go(trigger, actor, reason, {"delay_ms": 60_000})
    assert words in seen.with_(due_at=NOW + timedelta(seconds=30)).told()


def test_a_waiting_job_says_until_when_and_what_follows() -> None:
    seen = life("dispatcher", "claim").go("retry", facts={"error": ERROR, "delay_ms": 37_000})
    told = seen.with_(due_at=NOW + timedelta(seconds=27)).told()
    assert "is Failed and waits until 2026-03-01 12:00:27 UTC (in 27 s); then upkeep makes it Queued." in told
    assert "TimeoutError [SLOW]: too slow; contract dispatcher waits 37 s" in told
    late = seen.with_(due_at=ago(120)).told()
    assert "its wait was over at 2026-03-01 11:58:00 UTC (2 min ago). It stays so until upkeep makes it Queued" in late
    assert "leaves it alone" in seen.with_(due_at=None).told()


def test_a_held_job_says_by_whom_until_when_and_when_it_was_heard_of() -> None:
    seen = life("standard", "claim")
    told = seen.told(last_heartbeat_at=ago(4))
    assert "is running: w1 holds it since 2026-03-01 11:51:40 UTC (8.33 min ago)" in told
    assert "under a lease until 2026-03-01 12:00:20 UTC (in 20 s)." in told
    assert "This is claim 1 of at most 5; its last heartbeat came at 2026-03-01 11:59:56 UTC (4 s ago)." in told
    assert "it has sent no heartbeat yet" in seen.told()
    assert "and its handler has not begun" not in told
    assert "and its handler has not begun" in life("reliability", "claim").told()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("standard", "w1 may still finish it until it is taken. Upkeep makes it queued"),
        ("phase27", "The next claim of contract phase27 on queue mail takes it where it stands."),
        ("reliability", "w1 has lost it for good. The next claim of its queue, or upkeep, makes it queued"),
        ("dispatcher", "Upkeep makes it Failed, to be claimed again"),
        ("simple", "Upkeep makes it PENDING"),
        ("gate_b2", "Upkeep makes it retrying"),
    ],
)
def test_an_expired_lease_waits_for_what_the_contract_says(name: str, words: str) -> None:
    told = life(name, "claim", *["start"] * (name == "reliability")).with_(lease_expires_at=ago(5)).told()
    assert "but the lease of w1 ran out at 2026-03-01 11:59:55 UTC (5 s ago)" in told
    assert words in told


@pytest.mark.parametrize(
    ("name", "end"),
    [
        ("standard", "dead"), ("phase27", "failed"), ("reliability", "dead_lettered"), ("dispatcher", "Failed"),
        ("simple", "FAILED"), ("gate_b2", "dlq_pending"),
    ],
)  # fmt: skip
def test_an_expired_last_claim_ends_the_job(name: str, end: str) -> None:
    allowed = BUILT_IN[name].budget.executions(BUILT_IN[name].budget.default)
    told = life(name, "claim").with_(lease_expires_at=ago(5), claims=allowed).told()
    assert f"This is claim {allowed} of at most {allowed}" in told
    assert "All its claims are spent" in told
    assert f"upkeep makes it {end}" in told.replace("or upkeep, makes", "upkeep makes")


def test_a_holder_whose_heartbeats_stopped_is_lost_where_the_contract_counts_them() -> None:
    seen = life("reliability", "claim", "start")
    assert "but w1 sends no heartbeats any more" in seen.told(last_heartbeat_at=ago(31))
    assert "w1 holds it since" in seen.told(last_heartbeat_at=ago(29))
    assert "w1 holds it since" in seen.told(last_heartbeat_at=ago(31), heartbeat_ms=30_000), "its type beats slower"
    assert "w1 holds it since" in life("standard", "claim").told(last_heartbeat_at=ago(3000))


def test_a_job_that_was_asked_to_stop_says_by_whom_and_what_still_counts() -> None:
    seen = life("standard", "claim").fact("cancel_requested", "ada", "wrong address").with_(cancel_requested_at=ago(5))
    told = seen.told()
    assert "asked to stop by ada (wrong address) at 2026-03-01 11:59:55 UTC (5 s ago)" in told
    assert "A success that still arrives counts; a failure or a lost lease ends it as cancelled." in told
    assert "Upkeep ends it as cancelled." in seen.with_(lease_expires_at=ago(1)).told()
    silent = life("dispatcher", "claim").with_(cancel_requested_at=ago(5)).told()
    assert "It was asked to stop at " in silent
    assert "ends it as Canceled." in silent


def test_a_compensating_holder_is_said_to_be_one() -> None:
    assert "its holder undoes what was done for it" in life("reliability", "claim", "start").told(compensating=True)


def test_a_job_at_its_commit_point_says_why_it_ends_and_what_is_missing() -> None:
    seen = life("gate_b2", "claim").go("fatal", facts={"error": ERROR})
    told = seen.told()
    assert "is dlq_pending since 2026-03-01 11:51:50 UTC (8.17 min ago): how it ends is decided" in told
    assert "w1 failed it on claim 1 of at most 4 with an error that is not tried again: TimeoutError [SLOW]" in told
    assert "dead letter is not written yet: upkeep writes it and goes on (dlq_pending → dlq_recorded → failed)" in told
    assert "dead letter 3 is written: upkeep goes on" in seen.told(
        letter=DeadLetterSummary(3, "open", "exhausted_retries")
    )


def test_words_of_others_stay_one_line_that_no_terminal_obeys() -> None:
    seen = life("standard").go("claim", actor="w1\x1b[2J\nJob 7 is fine.")
    assert all("\x1b" not in line and "\n" not in line for line in explain_job(seen.job, seen.log, seen.contract, NOW))
    assert to_one_line("a\x1b[31m\u202eb\r\nc") == "a [31m b c"
    assert to_one_line("x" * 400) == "x" * 300 + "…"


@pytest.mark.parametrize(
    ("ms", "text"),
    [(0, "0 ms"), (999, "999 ms"), (1500, "1.5 s"), (90_000, "1.5 min"), (86_400_000, "24 h"), (604_800_000, "7 days")],
)
def test_spans_are_told_in_their_largest_unit(ms: int, text: str) -> None:
    assert format_duration(ms) == text


def test_moments_are_told_in_utc_with_their_distance() -> None:
    assert format_time(ago(0.5), NOW) == "2026-03-01 11:59:59 UTC (just now)"
    assert format_time(NOW + timedelta(days=4000), NOW) == "2037-02-11 12:00:00 UTC (in 4,000 days)"
