"""Bugs in unique jobs and in jobs that expire."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_JUDGE = "postgres/queries/judge_unique_jobs.sql"
_FORGET = "postgres/queries/delete_unique_jobs.sql"
_EXPIRED = "postgres/queries/find_expired_unbegun.sql"
_LIST = "postgres/queries/list_contracts_with_expired_jobs.sql"
_MIGRATION = "postgres/migrations/0005_unique_and_expiring_jobs.sql"
_UNIQUE = "postgres/test_unique_jobs.py::"
_EXPIRING = "postgres/test_expiring_jobs.py::"
_RACES = "races/test_unique_at_once.py::"

MUTANTS = (
    Mutant(
        "unique-active-waits-only",
        "A job that runs is in the way of no other",
        _JUDGE,
        "(select max(id) from live where live.n = clocked.n))",
        "null)",
        (f"{_UNIQUE}test_an_active_one_is_in_the_way_until_it_ends",),
    ),
    Mutant(
        "unique-waiting-runs-too",
        "Under `waiting`, a job that runs is in the way",
        _JUDGE,
        "job.role in ('ready', 'waiting') and not each.holds as waits",
        "not each.holds as waits",
        (f"{_UNIQUE}test_one_that_waits_is_in_the_way_and_one_that_runs_is_not",),
    ),
    Mutant(
        "unique-replaces-what-runs",
        "A replacement changes a job that a claim has taken meanwhile",
        _JUDGE,
        "where job.id = each.id and role in ('ready', 'waiting')\n        for update",
        "where job.id = each.id\n        for update",
        (f"{_RACES}test_a_claim_that_was_faster_beats_a_replacement",),
    ),
    Mutant(
        "unique-replaces-a-retry",
        "A job that waits for its retry gets another payload, with the effects of the old one",
        _JUDGE,
        "claims = 0 and state = :initial::text and",
        "state = :initial::text and",
        (f"{_UNIQUE}test_a_job_that_waits_for_its_retry_is_not_replaced_but_returned",),
    ),
    Mutant(
        "unique-replaces-what-was-decided",
        "A job that people approved gets another payload",
        _JUDGE,
        "claims = 0 and state = :initial::text and",
        "claims = 0 and :initial::text is not null and",
        ("contracts/test_decisions.py::test_a_job_that_people_decided_about_gets_no_other_payload",),
    ),
    Mutant(
        "unique-replacement-decides",
        "A replaced job that waits for a decision is due at once",
        _JUDGE,
        "case when locked.role = 'ready' then 0 end)",
        "0)",
        ("contracts/test_decisions.py::test_a_replaced_job_still_waits_for_its_decision",),
    ),
    Mutant(
        "unique-forgets-the-earlier",
        "Only the last job of a scope is known",
        _JUDGE,
        "earlier = array(select live.id from live where live.n = decided.n order by live.id)",
        "earlier = '{}'",
        (f"{_UNIQUE}test_a_job_that_waits_for_its_retry_is_in_the_way_also_when_a_newer_one_runs",),
    ),
    Mutant(
        "unique-period-of-live-jobs-only",
        "A period ends with its job",
        _JUDGE,
        "> t then clocked.job_id end",
        "> t then (select max(id) from live where live.n = clocked.n) end",
        (f"{_UNIQUE}test_a_period_runs_from_the_creation_of_the_first_and_outlives_it",),
    ),
    Mutant(
        "unique-replacement-not-logged",
        "A changed payload leaves no trace in the log",
        _JUDGE,
        "jsonb_build_object('due_at', tenure.iso(due_at))\n    from replaced",
        "jsonb_build_object('due_at', tenure.iso(due_at))\n    from replaced where false",
        (f"{_UNIQUE}test_a_replacement_changes_payload_and_times_with_one_log_row",),
    ),
    Mutant(
        "unique-job-claimed-before-the-commit",
        "A job whose ticket was returned in a transaction may run before that transaction commits",
        _JUDGE,
        "call.replaces or :holds::boolean as holds",
        "call.replaces or (:holds::boolean and false) as holds",
        (f"{_RACES}test_a_job_that_was_returned_in_a_transaction_begins_after_its_commit",),
    ),
    Mutant(
        "unique-scopes-in-any-order",
        "Batches lock their scopes in the order of the call",
        "postgres/unique_jobs.py",
        "sorted(places, key=lambda n: (scopes[n], n))",
        "list(places)",
        (f"{_RACES}test_batches_in_different_orders_do_not_deadlock",),
    ),
    Mutant(
        "unique-key-keeps-its-own-id",
        "The key of a call that met another job stands for a job that was never made",
        "postgres/enqueue.py",
        "    if moved:\n",
        "    if moved and not ids:\n",
        (f"{_UNIQUE}test_a_key_is_replayed_first_and_stands_for_the_job_in_the_way",),
    ),
    Mutant(
        "unique-refusal-keeps-its-key",
        "A refused duplicate has used up its key",
        "postgres/enqueue.py",
        "        if isinstance(answers[n], Refused):\n            yield",
        "        if isinstance(answers[n], Refused) and not ids:\n            yield",
        (f"{_UNIQUE}test_a_key_is_replayed_first_and_stands_for_the_job_in_the_way",),
    ),
    Mutant(
        "unique-row-deleted-under-a-live-job",
        "Upkeep deletes the row of a scope whose job lives",
        _FORGET,
        "exists (select from tenure.job where job.id = due.job_id)",
        "exists (select from tenure.job where job.id = due.job_id and job.role = 'active')",
        (f"{_UNIQUE}test_upkeep_deletes_rows_whose_jobs_ended_and_keeps_the_others",),
    ),
    Mutant(
        "unique-period-deleted-early",
        "Upkeep deletes the row of a period that still runs",
        _FORGET,
        "not lives and coalesce(until, '-infinity') <= t as is_over",
        "not lives as is_over",
        (f"{_UNIQUE}test_upkeep_deletes_rows_whose_jobs_ended_and_keeps_the_others",),
    ),
    Mutant(
        "expired-job-claimed",
        "A claim hands out a job that has expired",
        "postgres/queries/templates/claim.template",
        "    from chosen\n    where not is_expired",
        "    from chosen",
        (
            f"{_EXPIRING}test_no_claim_hands_out_an_expired_job_and_the_next_one_is_found_behind_a_backlog",
            f"{_EXPIRING}test_a_claim_takes_what_is_due_from_between_expired_jobs",
        ),
    ),
    Mutant(
        "expired-job-claimed-by-id",
        "A claim by id hands out a job that has expired",
        "postgres/queries/templates/claim_by_id.template",
        "when chosen.trigger = 'claim' and tenure.is_expired(expires_at, claims, t) then 'expired'",
        "when chosen.trigger = 'none' and tenure.is_expired(expires_at, claims, t) then 'expired'",
        (f"{_EXPIRING}test_a_claim_by_id_refuses_an_expired_job",),
    ),
    Mutant(
        "expiry-of-a-begun-job",
        "A job that was claimed once expires in its retry",
        _MIGRATION,
        "expires_at <= t and claims = 0",
        "expires_at <= t and claims >= 0",
        (
            f"{_EXPIRING}test_an_expiry_at_this_very_moment_is_past",
            f"{_EXPIRING}test_a_job_that_has_begun_does_not_expire_in_a_retry",
        ),
    ),
    Mutant(
        "expiry-a-moment-late",
        "`<` for `<=`: a job may begin at the very moment of its expiry",
        _MIGRATION,
        "expires_at <= t and claims = 0",
        "expires_at < t and claims = 0",
        (f"{_EXPIRING}test_an_expiry_at_this_very_moment_is_past",),
    ),
    Mutant(
        "begun-job-cancelled",
        "Upkeep cancels a job that has begun and waits for its retry",
        _EXPIRED,
        "and claims = 0 and quarantined_at",
        "and quarantined_at",
        (f"{_EXPIRING}test_find_leaves_out_a_job_that_has_begun",),
    ),
    Mutant(
        "expired-found-late",
        "Expired jobs are found an hour late",
        _LIST,
        "expires_at <= clock.t",
        "expires_at <= clock.t - interval '1 hour'",
        (f"{_EXPIRING}test_a_job_that_did_not_begin_is_cancelled_with_its_reason",),
    ),
    Mutant(
        "backlog-hides-due-jobs",
        "A claim that meets only expired jobs answers that nothing is due",
        "postgres/claim.py",
        "if not jobs and await",
        "if jobs and await",
        (f"{_EXPIRING}test_no_claim_hands_out_an_expired_job_and_the_next_one_is_found_behind_a_backlog",),
    ),
    Mutant(
        "expired-job-not-quarantined",
        "An expired job that cannot be logged stands before the due ones for ever",
        "postgres/upkeep_verbs.py",
        "yield from quarantine(unlogged)",
        "yield from quarantine({})",
        (f"{_EXPIRING}test_upkeep_puts_an_expired_job_that_cannot_be_logged_into_quarantine",),
    ),
    Mutant(
        "quarantined-job-met-again",
        "A round of upkeep meets the jobs in quarantine, and cancels none behind them",
        _EXPIRED,
        "claims = 0 and quarantined_at is null",
        "claims = 0",
        (f"{_EXPIRING}test_an_expired_job_that_cannot_be_logged_goes_into_quarantine_and_stops_nobody",),
    ),
    Mutant(
        "expiry-without-a-cancel",
        "A job expires under a contract that cannot cancel it",
        "jobs/expiry.py",
        'if contract.path("cancel", state) is None]',
        'if contract.path("claim", state) is None]',
        (f"{_EXPIRING}test_a_contract_without_a_way_to_cancel_refuses_an_expiry",),
    ),
)
