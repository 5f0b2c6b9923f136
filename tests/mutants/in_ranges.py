"""Bugs in how statements stay within a few id ranges, and in how ranges are made."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_MANY = "postgres/test_many_ranges.py"
_LIVES = f"{_MANY}::test_whole_lives_upkeep_lists_and_the_audit_lock_a_few_partitions[60-ranges]"
_VIEWS = f"{_MANY}::test_a_view_locks_the_partitions_of_the_jobs_that_are_asked_for"
_TRACES = "contracts/test_gate_b2_retries.py::test_the_trace_id_is_in_the_records_of_every_way_that_a_job_moves"
_CAUSES = (
    "contracts/test_reliability_events.py::"
    "test_the_cause_of_an_event_is_the_event_before_it_whatever_log_rows_lie_between"
)

MUTANTS = (
    Mutant(
        "look-locks-every-partition",
        "The ids of a statement that reads the log stay parameters",
        "postgres/statement.py",
        "body if _READS_PARTITIONS.search(body) else None",
        "None",
        (f"{_MANY}::test_no_plan_locks_more_than_a_few_partitions[60-ranges-generic]",),
    ),
    Mutant(
        "letter-locks-every-partition",
        "A dead letter looks for the way its job failed by a join alone",
        "postgres/queries/record_dead_letters.sql",
        "      and event.job_id = any (:ids::bigint[]) -- written into the text: the partitions of these jobs alone\n",
        "",
        (f"{_MANY}::test_no_plan_locks_more_than_a_few_partitions[60-ranges-custom]",),
    ),
    Mutant(
        "claim-of-any-number-of-ranges",
        "A claim takes jobs of any number of id ranges",
        "postgres/queries/templates/claim.template",
        "offset 8 limit 1",
        "offset 800 limit 1",
        (_LIVES,),
    ),
    Mutant(
        "batch-of-any-number-of-ranges",
        "A batch of verbs is sent in one statement, however many id ranges its jobs lie in",
        "postgres/ranges.py",
        "if unit not in units and len(units) == MAX_UNITS:",
        "if unit not in units and len(units) == 100 * MAX_UNITS:",
        (_LIVES,),
    ),
    Mutant(
        "job-beyond-the-ranges",
        "A job is made whose id has no range",
        "postgres/queries/enqueue_uniform.sql",
        "then id else nextval('tenure.no_range') end",
        "then id else id end",
        ("postgres/test_enqueue_whole.py::test_a_job_beyond_the_last_range_is_not_made",),
    ),
    Mutant(
        "keys-stay-behind-a-live-job",
        "Keys are forgotten only below the oldest id range",
        "postgres/queries/delete_old_keys.sql",
        "coalesce(lag(high) over (order by low), -9223372036854775808) as low, low as high",
        "-9223372036854775808 as low, min(low) over () as high",
        ("postgres/test_retire.py::test_keys_of_ranges_that_left_go_also_beside_one_long_lived_job",),
    ),
    Mutant(
        "finished-before-all-live",
        "A page goes on among finished jobs although live ones are left",
        "postgres/search.py",
        "        if looked == scan:\n            return found, Cursor(False, lowest)\n",
        "",
        ("postgres/test_listing.py::test_page_whose_bound_ends_among_live_jobs_shows_no_finished_one",),
    ),
    Mutant(
        "moved-jobs-told-as-lost",
        "A batch over many id ranges that meets a locked row is asked again as a whole",
        "postgres/move.py",
        "            if skip_locked or places[0] == first:\n",
        "            if True:\n",
        ("postgres/test_ranges.py::test_a_batch_over_many_ranges_that_meets_a_locked_row_says_what_it_moved",),
    ),
    Mutant(
        "report-ends-by-its-key",
        "A report with a key that another call used raises the database's error",
        "postgres/hold.py",
        "    if batch.keys is None or not (yield from find_answered(batch, [0])):\n",
        "    if True:\n",
        ("contracts/test_repeats.py::test_a_report_with_a_key_that_another_verb_used_is_a_conflict",),
    ),
    Mutant(
        "grants-in-one-transaction",
        "All partitions are given to their owner in one transaction",
        "postgres/migrate.py",
        "_execute(connection, [change for change, is_partition in found if not is_partition])\n    _execute",
        "_execute(connection, [change for change, is_partition in found if not is_partition])\n        _execute",
        (f"{_MANY}::test_grants_lock_one_partition_at_a_time[60-ranges]",),
    ),
    Mutant(
        "event-view-locks-every-partition",
        "A view of events looks for a job's trace id on the job's row",
        "postgres/views.py",
        "coalesce(e.trace_id, tenure.made_id('trace', e.job_id))",
        "coalesce((select trace_id from tenure.job_done where id = e.job_id), tenure.made_id('trace', e.job_id))",
        (f"{_VIEWS}[60-ranges-tenure_gate_b2.replay_records-= 7]",),
    ),
    Mutant(
        "trace-lost-by-the-short-way",
        "The log row of a plain success has no trace id",
        "postgres/queries/succeed.sql",
        "case when :logs_trace::boolean then trace_id end",
        "null",
        (f"{_TRACES}[given]",),
    ),
    Mutant(
        "changed-queue-is-a-cause",
        "An event names the log row of a changed queue as its cause",
        "postgres/queries/change_queue.sql",
        "        hidden = int4range(",
        "        hidden = job.hidden -- int4range(",
        (_CAUSES,),
    ),
    Mutant(
        "first-hidden-row-alone-is-skipped",
        "Of several log rows in a row that show as no event, only the last is skipped",
        "postgres/queries/change_queue.sql",
        "case when upper(job.hidden) = job.seq + 1 then lower(job.hidden) else job.seq + 1 end",
        "job.seq + 1",
        (_CAUSES,),
    ),
    Mutant(
        "ids-end-with-the-ranges",
        "The sequence of ids ends where the ranges end, and moving its end waits for open transactions",
        "postgres/migrations/0001_schema.sql",
        "    return made;\n",
        "    execute format('alter sequence tenure.job_id_seq maxvalue %s', ends - 1);\n    return made;\n",
        ("postgres/test_enqueue_whole.py::test_working_process_makes_ranges_ahead_beside_an_open_transaction",),
    ),
)
