"""Bugs in the gate: `postgres/queries/move.sql`."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_MOVE = "postgres/queries/move.sql"
_PROVEN = (
    "(row.claims, coalesce(row.lease_token, row.finisher)) is not distinct from (asked.claims, asked.token) as proven"
)
_LOST = "contracts/test_gate_b2_refusals.py::test_a_holder_that_lost_the_job_before_it_failed_has_a_stale_lease"

MUTANTS = (
    Mutant(
        "fence-dropped",
        "A holder's proof is not asked for, where expiry does not forfeit the lease",
        _MOVE,
        "when :fenced::boolean and (not proven or :forfeits::boolean and (expired or orphaned)) then 'stale'",
        "when :fenced::boolean and :forfeits::boolean and (expired or orphaned) then 'stale'",
        ("contracts/test_phase27_claim.py::test_a_late_holder_has_no_effect_even_under_the_same_worker_id",),
    ),
    Mutant(
        "fence-by-number",
        "The fence looks at the claim's number and not at its token",
        _MOVE,
        _PROVEN,
        "row.claims is not distinct from asked.claims as proven",
        ("contracts/test_dispatcher_completion.py::test_a_completion_with_another_token_is_rejected",),
    ),
    Mutant(
        "fence-by-token",
        "The fence looks at the claim's token and not at its number",
        _MOVE,
        _PROVEN,
        "coalesce(row.lease_token, row.finisher) is not distinct from asked.token as proven",
        ("contracts/test_dispatcher_completion.py::test_a_completion_with_another_attempt_is_rejected",),
    ),
    Mutant(
        "guard-before-lock",
        "The guards read a version of the row that was not locked, so that a wait makes them wrong",
        _MOVE,
        "        where job.id = asked.id\n        for update\n",
        "        where job.id = asked.id\n",
        (
            "races/test_two_connections.py::test_waiter_is_judged_by_what_the_holder_left[standard-fail-behind-take-during-commit]",
        ),
    ),
    Mutant(
        "clock-of-the-transaction",
        "`now()` for `clock_timestamp()`: a lease that ran out during the wait for the row counts as alive",
        _MOVE,
        "select locked.*, clock_timestamp() as t from locked",
        "select locked.*, now() as t from locked",
        ("races/test_waits.py::test_lease_that_expired_during_the_wait_is_revived_by_nobody[reliability-succeed]",),
    ),
    Mutant(
        "one-run-too-many",
        "`<=` for `<`: the budget lasts one run longer than the limit",
        _MOVE,
        "claims < greatest(1, max_attempts + :extra::integer) + raises as in_budget",
        "claims <= greatest(1, max_attempts + :extra::integer) + raises as in_budget",
        ("contracts/test_phase27_failure.py::test_of_two_attempts_the_first_retries_and_the_second_is_terminal",),
    ),
    Mutant(
        "snooze-costs-an-attempt",
        "A job that was put off has one run fewer",
        _MOVE,
        "claims < greatest(1, max_attempts + :extra::integer) + raises as in_budget",
        "claims < greatest(1, max_attempts + :extra::integer) as in_budget",
        (
            "contracts/test_mutants_found.py::test_a_job_that_was_put_off_has_its_whole_budget_and_waits_as_after_a_first_failure",
        ),
    ),
    Mutant(
        "event-skipped",
        "Of a path of several hops only the first is logged",
        _MOVE,
        "    ) as hopped\n",
        "    ) as hopped\n    where k = 1\n",
        ("contracts/test_simple_retries.py::test_an_always_failing_task_makes_eight_transitions_and_one_result",),
    ),
    Mutant(
        "event-out-of-order",
        "A log row takes the clock's time although the row before it is younger",
        _MOVE,
        "greatest(t, updated_at + interval '1 microsecond') as ts,",
        "t as ts,",
        ("postgres/test_clock.py::test_log_rises_over_a_whole_life_with_a_clock_that_keeps_stepping_back",),
    ),
    Mutant(
        "reaped-at-the-moment",
        "`<=` for `<`: a lease has run out at the very moment to which it was given",
        _MOVE,
        "coalesce(lease_expires_at < t, false) as expired",
        "coalesce(lease_expires_at <= t, false) as expired",
        ("contracts/test_mutants_found.py::test_a_lease_that_ends_at_this_very_moment_is_still_its_holders",),
    ),
    Mutant(
        "orphaned-at-the-moment",
        "`<=` for `<`: the second beat counts as missed at the very moment at which it is due",
        _MOVE,
        "* interval '1 millisecond' < t, false) as orphaned",
        "* interval '1 millisecond' <= t, false) as orphaned",
        ("contracts/test_mutants_found.py::test_a_second_beat_that_is_due_at_this_very_moment_is_not_missed_yet",),
    ),
    Mutant(
        "claimed-by-id-too-early",
        "`>=` for `>`: a job claimed by its id is not due at the very moment at which it is",
        _MOVE,
        "coalesce(due_at, '-infinity') > t or",
        "coalesce(due_at, '-infinity') >= t or",
        ("contracts/test_mutants_found.py::test_a_job_is_claimable_by_its_id_at_the_very_moment_of_its_due_time",),
    ),
    Mutant(
        "cancelled-and-reclaimed",
        "A lost job that is to be cancelled is claimed by its id once more",
        _MOVE,
        "not (expired and in_budget and not cancelling) then 'state'",
        "not (expired and in_budget) then 'state'",
        ("postgres/test_clock.py::test_lost_job_that_is_to_be_cancelled_is_not_claimed_again",),
    ),
    Mutant(
        "promoted-too-early",
        "A request makes a waiting job ready before its time",
        _MOVE,
        "when aim = 'promote' and not coalesce(due_at <= t, false) then 'not_due'\n",
        "",
        ("contracts/test_mutants_found.py::test_no_request_queues_a_failed_task_before_its_retry_time",),
    ),
    Mutant(
        "promoted-a-moment-late",
        "`<` for `<=`: a waiting job may not be queued at the very moment of its retry time",
        _MOVE,
        "when aim = 'promote' and not coalesce(due_at <= t, false) then 'not_due'\n",
        "when aim = 'promote' and not coalesce(due_at < t, false) then 'not_due'\n",
        (
            "contracts/test_mutants_found.py::test_a_request_may_queue_a_task_at_the_very_moment_of_its_retry_time",
            "contracts/test_mutants_found.py::test_the_reconciler_queues_a_task_at_the_very_moment_of_its_retry_time",
        ),
    ),
    Mutant(
        "retried-by-request-for-ever",
        "A request opens another attempt although the budget is spent",
        _MOVE,
        "when :verb::text = 'transition' and aim = 'retry' and not in_budget then 'state'\n",
        "",
        ("contracts/test_transition.py::test_a_retry_by_request_keeps_the_budget",),
    ),
    Mutant(
        "success-while-undoing",
        "A job whose effects are being undone can still succeed",
        _MOVE,
        "when compensating and aim in ('succeed', 'snooze', 'retry') then 'compensating'",
        "when compensating and aim in ('snooze', 'retry') then 'compensating'",
        (
            "contracts/test_compensation.py::test_while_effects_are_undone_the_job_can_neither_succeed_nor_wait_nor_do_more",
        ),
    ),
    Mutant(
        "soft-cancel-forgotten",
        "A holder that was asked to stop and fails is tried again",
        _MOVE,
        "when cancelling and :verb::text in ('fail', 'compensated', 'expire', 'snooze', 'hand_back') then 'cancel'",
        "when cancelling and :verb::text in ('compensated', 'expire', 'snooze', 'hand_back') then 'cancel'",
        ("contracts/test_cancel.py::test_after_a_soft_cancel_every_way_back_leads_to_cancelled",),
    ),
    Mutant(
        "spent-budget-cancels",
        "A failure that spends the budget takes the cancel path, although nobody asked for that",
        _MOVE,
        "when cancelling and :verb::text in ('fail', 'compensated', 'expire', 'snooze', 'hand_back') then 'cancel'",
        "when (cancelling or not in_budget) and :verb::text in ('fail', 'compensated', 'expire', 'snooze', 'hand_back')"
        " then 'cancel'",
        ("contracts/test_cancel.py::test_whatever_happens_without_a_cancel_call_no_task_is_ever_canceled",),
    ),
    Mutant(
        "assigned-job-asked-to-stop",
        "A soft cancel of a job that was claimed and has not started is a request to its holder",
        _MOVE,
        "when :soft::boolean and (aimed.role = 'active' or undoable) then 'held'",
        "when :soft::boolean and (aimed.role in ('leased', 'active') or undoable) then 'held'",
        (
            "contracts/test_cancel.py::test_a_reliability_job_that_has_not_started_is_cancelled_at_once_and_never_runs[assigned-soft]",
            "worker/test_requirements_reliability.py::test_soft_cancel_of_an_assigned_job_ends_it_before_its_worker_runs_the_handler",
        ),
    ),
    Mutant(
        "cancelled-with-effects",
        "A soft cancel ends a job whose effects were to be undone first",
        _MOVE,
        "when :soft::boolean and (aimed.role = 'active' or undoable) then 'held'",
        "when :soft::boolean and aimed.role = 'active' then 'held'",
        ("contracts/test_cancel.py::test_a_soft_cancel_of_an_assigned_job_waits_only_for_effects_that_must_be_undone",),
    ),
    Mutant(
        "finisher-forgotten",
        "A job that was settled does not know whose call ended it",
        _MOVE,
        "case when :fenced::boolean then lease_token else finisher end",
        "case when :fenced::boolean then lease_token end",
        (
            "contracts/test_gate_b2_refusals.py::test_the_holder_that_failed_a_job_for_good_is_refused_in_the_documents_code[failed]",
            "contracts/test_gate_b2_refusals.py::test_every_surface_refuses_a_second_end_of_a_failed_job_in_the_documents_code",
            "http/test_gate_b2_codes.py::test_a_second_end_of_a_failed_job_by_its_last_holder_is_refused_with_the_documents_code",
        ),
    ),
    Mutant(
        "finisher-not-proven",
        "Between the two transactions of a dead letter the holder that failed the job counts as another caller",
        _MOVE,
        _PROVEN,
        "(row.claims, row.lease_token) is not distinct from (asked.claims, asked.token) as proven",
        (
            "contracts/test_gate_b2_refusals.py::test_the_holder_that_failed_a_job_for_good_is_refused_in_the_documents_code[dlq_pending]",
        ),
    ),
    Mutant(
        "lost-holder-finishes",
        "A holder whose lease was taken from it counts as the one that ended the job",
        _MOVE,
        "when :fenced::boolean then job.lease_token else job.finisher end",
        "else coalesce(job.lease_token, job.finisher) end",
        (
            f"{_LOST}[by expiry]",
            f"{_LOST}[by an operator]",
        ),
    ),
    Mutant(
        "lease-kept-on-a-queued-job",
        "A job that goes back to its queue keeps its holder's token",
        _MOVE,
        "lease_token = case when told.to_role in ('leased', 'active') then job.lease_token end",
        "lease_token = job.lease_token",
        ("contracts/test_dispatcher_completion.py::test_a_stale_completion_changes_nothing_before_the_next_attempt",),
    ),
    Mutant(
        "backoff-from-the-log",
        "The due time is counted from the log's time, which may be ahead of the clock",
        _MOVE,
        "due_at = coalesce(told.t + told.wait_ms",
        "due_at = coalesce(told.ts + told.wait_ms",
        ("postgres/test_clock.py::test_retry_waits_from_the_clock_that_stepped_back",),
    ),
)
