"""Bugs in the counts of moves."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_FOLD = "postgres/queries/fold_counts.sql"
_TAIL = "postgres/queries/templates/move_tail.part"
_TEST = "postgres/test_counts.py::"
_EQUAL = f"{_TEST}test_the_counts_are_what_the_log_and_the_jobs_say_under_every_contract"
_FAILURES = "http/test_metrics.py::test_a_failure_is_counted_once_whatever_its_path"

MUTANTS = (
    Mutant(
        "counts-first-hop-only",
        "A path of several hops is counted as its first hop",
        _FOLD,
        "generate_series(1, cardinality(states) - 1) as k",
        "generate_series(1, 1) as k",
        (_EQUAL,),
    ),
    Mutant(
        "counts-folded-by-two",
        "Two processes fold at once",
        _FOLD,
        "pg_try_advisory_xact_lock(hashtextextended('tenure.fold_counts', 0)) as is_mine",
        "true as is_mine",
        (f"{_TEST}test_a_fold_that_dies_changes_nothing_and_folds_beside_each_other_count_once",),
    ),
    Mutant(
        "counts-replaced",
        "A fold replaces what was counted before in the same minute",
        _FOLD,
        "number = rollup.number + excluded.number",
        "number = excluded.number",
        (_EQUAL,),
    ),
    Mutant(
        "counts-no-ends",
        "Moves that end a job are counted as if it lived on",
        _TAIL,
        "select ts, type, tenant_id, queue, trigger, state, hops, true\n",
        "select ts, type, tenant_id, queue, trigger, state, hops, false\n",
        (_EQUAL,),
    ),
    Mutant(
        "counts-groups-unbounded",
        "Every tenant and type gets roll-ups of its own, however many there are",
        _FOLD,
        "id is null and place > :groups::bigint as is_other",
        "false and place > :groups::bigint as is_other",
        (f"{_TEST}test_past_the_most_groups_new_ones_count_as_one",),
    ),
    Mutant(
        "queue-change-counted-once",
        "A job that changes its queue is counted in both",
        "postgres/queries/change_queue.sql",
        "values (changed.before, changed.state || '>'), (:queue::text, '>' || changed.state)",
        "values (:queue::text, '>' || changed.state)",
        (_EQUAL,),
    ),
    Mutant(
        "counts-of-all-tenants",
        "A key of one tenant sees the counts of all",
        "postgres/queries/read_counts.sql",
        "counts.tenant_id = :tenant::text)",
        "true)",
        ("http/test_metrics.py::test_a_tenant_sees_its_own_figures_alone",),
    ),
    Mutant(
        "failures-counted-by-hops",
        "A failure whose path has two hops counts as two",
        "jobs/stats.py",
        "if hop not in hops.later:",
        "if hop:",
        (_FAILURES,),
    ),
    Mutant(
        "failures-with-letters-not-counted",
        "A failure that leads straight to the dead letters counts as none",
        "jobs/stats.py",
        "if count.trigger in _FAILURES_OF_HOLDERS and count.bucket >= 0:",
        "if False:",
        (_FAILURES,),
    ),
    Mutant(
        "failures-of-operators",
        "A job that an operator sets aside counts as a failure",
        "jobs/stats.py",
        "if count.trigger in _FAILURES_OF_HOLDERS and count.bucket >= 0:",
        "if count.trigger in _FAILURES_OF_HOLDERS:",
        (_FAILURES,),
    ),
    Mutant(
        "staged-letters-counted-twice",
        "A staged dead letter counts at each hop of its path",
        "postgres/counts.py",
        "return PathHops(letters - later, later)",
        "return PathHops(letters, later)",
        ("http/test_metrics.py::test_the_metrics_of_a_mixed_load_are_what_the_log_implies",),
    ),
    Mutant(
        "beats-counted-as-renewals",
        "A heartbeat that renews nothing counts as a renewal",
        "postgres/queries/templates/note.template",
        "    from noted\n    where renews\n",
        "    from noted\n",
        ("http/test_metrics.py::test_a_renewal_is_counted_and_a_heartbeat_that_renews_nothing_is_not[standard]",),
    ),
    Mutant(
        "refusals-without-a-bound",
        "A flood of refused calls fills the disk for a day",
        "postgres/queries/delete_old_refusals.sql",
        "(select at from tenure.refusal order by at desc offset :most::bigint - 1 limit 1)",
        "case when :most::bigint is null then clock_timestamp() end",
        ("postgres/test_counts.py::test_a_flood_of_refusals_is_counted_and_only_a_part_is_stored",),
    ),
    Mutant(
        "refusals-of-one-hide-others",
        "A flood of refused calls of one tenant hides those of the others from alarms",
        "postgres/refusals.py",
        "of[-_MOST_TIMED_ALIKE:]]",
        "of]",
        ("postgres/test_counts.py::test_a_flood_of_refusals_is_counted_and_only_a_part_is_stored",),
    ),
    Mutant(
        "refusal-kinds-mixed",
        "The loser of a race for a named job counts as a stale write",
        "postgres/refusals.py",
        'return "conflict"',
        'return "stale"',
        (f"{_TEST}test_64_claims_of_one_job_are_one_claim_and_63_conflicts",),
    ),
    Mutant(
        "failures-counted-by-hop",
        "A failure that takes two hops counts twice in its minute",
        "postgres/queries/read_count_slices.sql",
        "case when contract || '>' || hop = any (:later::text[]) then null else kind end as kind",
        "kind",
        ("http/test_metrics.py::test_minutes_have_failures_waits_and_runs_whether_folded_or_not",),
    ),
    Mutant(
        "set-aside-is-a-failure-of-its-minute",
        "What an operator sets aside counts as a failure in its minute, and not in the sum by type",
        "postgres/queries/read_count_slices.sql",
        "('failed', 0, array['dead_letter'",
        "('failed', -1, array['dead_letter'",
        ("http/test_metrics.py::test_a_failure_is_counted_once_whatever_its_path",),
    ),
    Mutant(
        "moves-of-other-contracts-counted",
        "The moves of a contract have those of others",
        "postgres/queries/read_contract_moves.sql",
        "    where contract = :contract::text and (:tenant::text is null or tenant_id = :tenant::text)\n      and",
        "    where (:tenant::text is null or tenant_id = :tenant::text)\n      and",
        ("http/test_contracts.py::test_activity_counts_live_jobs_and_moves_of_the_contract_alone",),
    ),
    Mutant(
        "contract-explored-at-each-look",
        "Each look at a contract's verification explores it again",
        "http/contract_verifications.py",
        "        task = self._tasks.get(declared)\n",
        "        task = None\n",
        ("http/test_contracts.py::test_verification_is_computed_once_apart_from_the_event_loop_and_ends_with_it",),
    ),
)
