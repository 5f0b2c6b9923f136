"""Bugs in the statements that move jobs: `postgres/queries/templates/`."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_SCHEMA = "postgres/migrations/0001_schema.sql"
_FINISH = "postgres/queries/templates/finish.template"
_EXPIRE = "postgres/queries/templates/expire.template"
_OPERATE = "postgres/queries/templates/operate.template"
_CLAIM_BY_ID = "postgres/queries/templates/claim_by_id.template"
_TAIL = "postgres/queries/templates/move_tail.part"
_LOST = "contracts/test_gate_b2_refusals.py::test_a_holder_that_lost_the_job_before_it_failed_has_a_stale_lease"
_FIRST = "contracts/test_letters.py::test_a_letter_tells_when_the_job_failed_first"
_FIELDS = "contracts/test_letter_fields.py::test_every_way_into_the_dead_letters_fills_every_field"

MUTANTS = (
    Mutant(
        "letter-without-the-last-owner",
        "The dead letter of a job that waited names no last holder",
        _TAIL,
        "coalesce(job.lease_owner, job.last_owner) as last_owner",
        "job.lease_owner as last_owner",
        (f"{_FIELDS}[reliability]", f"{_FIELDS}[standard]"),
    ),
    Mutant(
        "last-lease-forgotten",
        "A job that goes back to its queue, or to its commit point, forgets when its last lease would have ended",
        _TAIL,
        "else coalesce(job.lease_expires_at, job.last_lease_expires_at) end",
        "else job.last_lease_expires_at end",
        (f"{_FIELDS}[reliability]", f"{_FIELDS}[gate_b2]"),
    ),
    Mutant(
        "fence-dropped",
        "A holder's proof is not asked for, where expiry does not forfeit the lease",
        _FINISH,
        "when not is_holder or :forfeits::boolean and (expired or orphaned) then 'stale'",
        "when :forfeits::boolean and (expired or orphaned) then 'stale'",
        ("contracts/test_phase27_claim.py::test_a_late_holder_has_no_effect_even_under_the_same_worker_id",),
    ),
    Mutant(
        "fence-by-number",
        "The fence looks at the claim's number and not at its token",
        _SCHEMA,
        "return (claims, lease_token) is not distinct from (given_claims, given_token);",
        "return claims is not distinct from given_claims;",
        ("contracts/test_dispatcher_completion.py::test_a_completion_with_another_token_is_rejected",),
    ),
    Mutant(
        "fence-by-token",
        "The fence looks at the claim's token and not at its number",
        _SCHEMA,
        "return (claims, lease_token) is not distinct from (given_claims, given_token);",
        "return lease_token is not distinct from given_token;",
        ("contracts/test_dispatcher_completion.py::test_a_completion_with_another_attempt_is_rejected",),
    ),
    Mutant(
        "guard-before-lock",
        "The guards read a version of the row that was not locked, so that a wait makes them wrong",
        _FINISH,
        "        where job.id = call.id\n        --waiting: for update\n",
        "        where job.id = call.id\n",
        (
            "races/test_two_connections.py::test_waiter_is_judged_by_what_the_holder_left[standard-fail-behind-take-during-commit]",
        ),
    ),
    Mutant(
        "clock-of-the-transaction",
        "`now()` for `clock_timestamp()`: a lease that ran out during the wait for the row counts as alive",
        _FINISH,
        "select locked.*, clock_timestamp() as t from locked",
        "select locked.*, now() as t from locked",
        ("races/test_waits.py::test_lease_that_expired_during_the_wait_is_revived_by_nobody[reliability-succeed]",),
    ),
    Mutant(
        "one-run-too-many",
        "`<=` for `<`: the budget lasts one run longer than the limit",
        _SCHEMA,
        "return claims < greatest(1, max_attempts + extra) + raises;",
        "return claims <= greatest(1, max_attempts + extra) + raises;",
        ("contracts/test_phase27_failure.py::test_of_two_attempts_the_first_retries_and_the_second_is_terminal",),
    ),
    Mutant(
        "snooze-costs-an-attempt",
        "A job that was put off has one run fewer",
        _SCHEMA,
        "return claims < greatest(1, max_attempts + extra) + raises;",
        "return claims < greatest(1, max_attempts + extra);",
        (
            "contracts/test_mutants_found.py::test_a_job_that_was_put_off_has_its_whole_budget_and_waits_as_after_a_first_failure",
        ),
    ),
    Mutant(
        "event-skipped",
        "Of a path of several hops only the first is logged",
        _TAIL,
        "    ) as hopped\n",
        "    ) as hopped\n    where k = 1\n",
        ("contracts/test_simple_retries.py::test_an_always_failing_task_makes_eight_transitions_and_one_result",),
    ),
    Mutant(
        "event-out-of-order",
        "A log row takes the clock's time although the row before it is younger",
        _FINISH,
        "greatest(t, updated_at + interval '1 microsecond') as ts,",
        "t as ts,",
        ("postgres/test_clock.py::test_log_rises_over_a_whole_life_with_a_clock_that_keeps_stepping_back",),
    ),
    Mutant(
        "reaped-at-the-moment",
        "`<=` for `<`: a lease has run out at the very moment to which it was given",
        _SCHEMA,
        "coalesce(lease_expires_at < t, false)",
        "coalesce(lease_expires_at <= t, false)",
        ("contracts/test_mutants_found.py::test_a_lease_that_ends_at_this_very_moment_is_still_its_holders",),
    ),
    Mutant(
        "orphaned-at-the-moment",
        "`<=` for `<`: the second beat counts as missed at the very moment at which it is due",
        _SCHEMA,
        "* interval '1 millisecond' < t, false)",
        "* interval '1 millisecond' <= t, false)",
        ("contracts/test_mutants_found.py::test_a_second_beat_that_is_due_at_this_very_moment_is_not_missed_yet",),
    ),
    Mutant(
        "claimed-by-id-too-early",
        "`>=` for `>`: a job claimed by its id is not due at the very moment at which it is",
        _CLAIM_BY_ID,
        "coalesce(due_at, '-infinity') > t or",
        "coalesce(due_at, '-infinity') >= t or",
        ("contracts/test_mutants_found.py::test_a_job_is_claimable_by_its_id_at_the_very_moment_of_its_due_time",),
    ),
    Mutant(
        "cancelled-and-reclaimed",
        "A lost job that is to be cancelled is claimed by its id once more",
        _CLAIM_BY_ID,
        "and in_budget and not cancelling) then 'state'",
        "and in_budget) then 'state'",
        ("postgres/test_clock.py::test_lost_job_that_is_to_be_cancelled_is_not_claimed_again",),
    ),
    Mutant(
        "promoted-too-early",
        "A request makes a waiting job ready before its time",
        _OPERATE,
        "when chosen.trigger = 'promote' and not coalesce(due_at <= t, false) then 'not_due'\n",
        "",
        ("contracts/test_mutants_found.py::test_no_request_queues_a_failed_task_before_its_retry_time",),
    ),
    Mutant(
        "promoted-a-moment-late",
        "`<` for `<=`: a waiting job may not be queued at the very moment of its retry time",
        _OPERATE,
        "when chosen.trigger = 'promote' and not coalesce(due_at <= t, false) then 'not_due'\n",
        "when chosen.trigger = 'promote' and not coalesce(due_at < t, false) then 'not_due'\n",
        (
            "contracts/test_mutants_found.py::test_a_request_may_queue_a_task_at_the_very_moment_of_its_retry_time",
            "contracts/test_mutants_found.py::test_the_reconciler_queues_a_task_at_the_very_moment_of_its_retry_time",
        ),
    ),
    Mutant(
        "retried-by-request-for-ever",
        "A request opens another attempt although the budget is spent",
        _OPERATE,
        "when chosen.trigger = 'retry' and not in_budget then 'state'\n",
        "",
        ("contracts/test_transition.py::test_a_retry_by_request_keeps_the_budget",),
    ),
    Mutant(
        "success-while-undoing",
        "A job whose effects are being undone can still succeed",
        _FINISH,
        "when compensating and chosen.trigger in ('succeed', 'snooze', 'retry') then 'compensating'",
        "when compensating and chosen.trigger in ('snooze', 'retry') then 'compensating'",
        (
            "contracts/test_compensation.py::test_while_effects_are_undone_the_job_can_neither_succeed_nor_wait_nor_do_more",
        ),
    ),
    Mutant(
        "soft-cancel-forgotten",
        "A holder that was asked to stop and fails is tried again",
        _FINISH,
        "when cancelling and :verb::text in ('fail', 'compensated', 'snooze', 'hand_back') then 'cancel'",
        "when cancelling and :verb::text in ('compensated', 'snooze', 'hand_back') then 'cancel'",
        ("contracts/test_cancel.py::test_after_a_soft_cancel_every_way_back_leads_to_cancelled",),
    ),
    Mutant(
        "spent-budget-cancels",
        "A failure that spends the budget takes the cancel path, although nobody asked for that",
        _FINISH,
        "when cancelling and :verb::text in ('fail', 'compensated', 'snooze', 'hand_back') then 'cancel'",
        "when (cancelling or not in_budget) and :verb::text in ('fail', 'compensated', 'snooze', 'hand_back')"
        " then 'cancel'",
        ("contracts/test_cancel.py::test_whatever_happens_without_a_cancel_call_no_task_is_ever_canceled",),
    ),
    Mutant(
        "assigned-job-asked-to-stop",
        "A soft cancel of a job that was claimed and has not started is a request to its holder",
        _OPERATE,
        "when :soft::boolean and (chosen.role = 'active' or undoable) then 'held'",
        "when :soft::boolean and (chosen.role in ('leased', 'active') or undoable) then 'held'",
        (
            "contracts/test_cancel.py::test_a_reliability_job_that_has_not_started_is_cancelled_at_once_and_never_runs[assigned-soft]",
            "worker/test_requirements_reliability.py::test_soft_cancel_of_an_assigned_job_ends_it_before_its_worker_runs_the_handler",
        ),
    ),
    Mutant(
        "cancelled-with-effects",
        "A soft cancel ends a job whose effects were to be undone first",
        _OPERATE,
        "when :soft::boolean and (chosen.role = 'active' or undoable) then 'held'",
        "when :soft::boolean and chosen.role = 'active' then 'held'",
        ("contracts/test_cancel.py::test_a_soft_cancel_of_an_assigned_job_waits_only_for_effects_that_must_be_undone",),
    ),
    Mutant(
        "finisher-forgotten",
        "A job that was settled does not know whose call ended it",
        _TAIL,
        "           --others: finisher,\n",
        "           --others: null,\n",
        (
            "contracts/test_gate_b2_refusals.py::test_the_holder_that_failed_a_job_for_good_is_refused_in_the_documents_code[failed]",
            "contracts/test_gate_b2_refusals.py::test_every_surface_refuses_a_second_end_of_a_failed_job_in_the_documents_code",
            "http/test_gate_b2_codes.py::test_a_second_end_of_a_failed_job_by_its_last_holder_is_refused_with_the_documents_code",
        ),
    ),
    Mutant(
        "finisher-not-proven",
        "Between the two transactions of a dead letter the holder that failed the job counts as another caller",
        _FINISH,
        "tenure.is_holder(row.claims, coalesce(row.lease_token, row.finisher), call.claims, call.token)",
        "tenure.is_holder(row.claims, row.lease_token, call.claims, call.token)",
        (
            "contracts/test_gate_b2_refusals.py::test_the_holder_that_failed_a_job_for_good_is_refused_in_the_documents_code[dlq_pending]",
        ),
    ),
    Mutant(
        "lost-holder-finishes",
        "A holder whose lease was taken from it counts as the one that ended the job",
        _TAIL,
        "--others: finisher = case when decided.to_role = 'settling' then job.finisher end,",
        "--others: finisher = case when decided.to_role = 'settling' then coalesce(job.lease_token, job.finisher) end,",
        (
            f"{_LOST}[by expiry]",
            f"{_LOST}[by an operator]",
        ),
    ),
    Mutant(
        "lease-kept-on-a-queued-job",
        "A job that goes back to its queue keeps its holder's token",
        _TAIL,
        "lease_token = case when decided.to_role in ('leased', 'active') then job.lease_token end",
        "lease_token = job.lease_token",
        ("contracts/test_dispatcher_completion.py::test_a_stale_completion_changes_nothing_before_the_next_attempt",),
    ),
    Mutant(
        "backoff-from-the-log",
        "The due time is counted from the log's time, which may be ahead of the clock",
        _TAIL,
        "due_at = coalesce(decided.t + decided.wait_ms",
        "due_at = coalesce(decided.ts + decided.wait_ms",
        ("postgres/test_clock.py::test_retry_waits_from_the_clock_that_stepped_back",),
    ),
    Mutant(
        "first-failure-forgotten",
        "A failure that is tried again leaves no time of the first failure on the row",
        _TAIL,
        " first_failed_at = coalesce(job.first_failed_at, case when decided.error is not null then decided.ts end),\n",
        "",
        tuple(f"{_FIRST}[{contract}]" for contract in ("standard", "reliability", "gate_b2")),
    ),
    Mutant(
        "last-failure-for-the-first",
        "A dead letter tells when its job failed last",
        _TAIL,
        "coalesce(job.first_failed_at, case when decided.error is not null then decided.ts end) as first_failed_at",
        "case when decided.error is not null then decided.ts else job.first_failed_at end as first_failed_at",
        tuple(f"{_FIRST}[{contract}]" for contract in ("standard", "reliability")),
    ),
    Mutant(
        "staged-letter-of-the-last-failure",
        "A staged dead letter tells when its job failed last",
        "postgres/queries/record_dead_letters.sql",
        "coalesce(job.first_failed_at, job.updated_at)",
        "job.updated_at",
        (f"{_FIRST}[gate_b2]",),
    ),
    Mutant(
        "failed-when-undone",
        "A failure that waits for its effects to be undone leaves no time on the row",
        "postgres/queries/compensate.sql",
        "first_failed_at = coalesce(job.first_failed_at, decided.ts),",
        "first_failed_at = job.first_failed_at,",
        ("contracts/test_letters.py::test_a_letter_tells_when_the_job_failed_and_not_when_it_was_undone",),
    ),
)
