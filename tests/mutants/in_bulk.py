"""Bugs in operations on many jobs or dead letters."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_BATCHES = "postgres/operation_batches.py"
_QUERIES = "postgres/queries/"
_REQUEUES = "postgres/operation_requeues.py"
_OPERATIONS = "postgres/test_operations.py::"
_AGAIN = "postgres/test_operations_again.py::"

MUTANTS = (
    Mutant(
        "operation-on-what-changed",
        "An operation changes a job that is no longer as it was previewed",
        _BATCHES,
        "        if now == seen[job_id]:\n",
        "        if now:\n",
        (f"{_OPERATIONS}test_exactly_the_previewed_jobs_are_cancelled_and_changed_ones_are_skipped",),
    ),
    Mutant(
        "operation-on-decided-letters",
        "An operation counts a dead letter that was decided meanwhile as its own",
        _BATCHES,
        "for row in locked if row[3] != seen[row[0]]}",
        "for row in locked if row[3] is None}",
        (f"{_AGAIN}test_a_letter_whose_discard_was_asked_behind_the_preview_is_not_run_again",),
    ),
    Mutant(
        "operation-goes-on-after-the-abort",
        "An abort does not wait for batches that run",
        "postgres/operations.py",
        '        await self._engine.ask("await_operation_batches", id=operation_id)\n',
        "",
        (f"{_OPERATIONS}test_several_processes_an_abort_and_a_resume_do_each_item_once",),
    ),
    Mutant(
        "operation-ends-with-items-left",
        "An operation is done while another process has items of it",
        _QUERIES + "end_operation.sql",
        "\n  and not exists (select from tenure.operation_item where operation_id = :id::bigint and state = 'waiting')",
        "",
        (f"{_OPERATIONS}test_a_locked_job_is_left_for_later",),
    ),
    Mutant(
        "operation-without-its-limit",
        "A limit of speed is not kept",
        _QUERIES + "delay_operation.sql",
        ":done::bigint / per_second",
        "0 * :done::bigint / per_second",
        (f"{_OPERATIONS}test_a_limit_of_speed_holds_for_all_processes_together",),
    ),
    Mutant(
        "operation-reads-all-items",
        "Each batch of an operation reads all of its items that wait",
        _QUERIES + "end_operation_items.sql",
        "operation_item.operation_id = any (array[item.operation_id]) and item_id = any (array[item.id])\n"
        "      and operation_item.state = any (array[item.before])",
        "operation_item.operation_id = :id::bigint and item_id = item.id and operation_item.state = 'waiting'",
        ("postgres/test_operation_plans.py::test_a_batch_reads_the_rows_of_its_items_alone",),
    ),
    Mutant(
        "search-reads-all-letters",
        "A page of dead letters reads as many as a page may read, though it is full before",
        _QUERIES + "search_dead_letters.sql",
        "where (select count(*) from page) < :limit::bigint",
        "",
        ("postgres/test_operation_plans.py::test_a_batch_reads_the_rows_of_its_items_alone",),
    ),
    Mutant(
        "operation-locks-many-ranges",
        "One batch of an operation works on jobs of all id ranges",
        _BATCHES,
        "        taken = taken[: len(together)]\n",
        "",
        (
            "postgres/test_many_ranges.py::test_operations_on_jobs_of_many_ranges_lock_a_few_partitions_at_a_time[60-ranges]",
        ),
    ),
    Mutant(
        "preview-of-what-was-run-again",
        "A preview offers jobs that were run again already",
        "postgres/operations.py",
        '        elif verb == "requeue" and fits:\n',
        "        elif not fits:\n",
        (f"{_AGAIN}test_a_second_path_to_repaired_jobs_offers_none_and_says_who_ran_them_again",),
    ),
    Mutant(
        "repeat-of-what-was-not-previewed",
        "An operation repeats a job that was run again once more behind its preview",
        _REQUEUES,
        "if str(newest[job_id]) != seen[item]}",
        "if not newest[job_id]}",
        (f"{_AGAIN}test_an_operation_repeats_each_chain_of_jobs_once",),
    ),
    Mutant(
        "repeat-locks-many-ranges",
        "One batch of an operation repeats jobs of all id ranges",
        _REQUEUES,
        "    together = next(group_by_range(list(items)), [])\n",
        "    together = list(items)\n",
        (f"{_AGAIN}test_a_repeat_leaves_jobs_of_further_ranges_to_further_batches",),
    ),
    Mutant(
        "requeue-with-another-meaning-of-its-key",
        "A requeue answers with the job of a repeat that had the same key",
        "postgres/reruns.py",
        ', *(["again"] if again else [])',
        "",
        (f"{_AGAIN}test_again_runs_the_newest_run_and_only_when_it_has_finished",),
    ),
    Mutant(
        "preview-started-while-it-is-deleted",
        "A preview whose items are being deleted can be started",
        _QUERIES + "close_preview.sql",
        ", collected = false",
        "",
        (f"{_AGAIN}test_a_preview_that_is_being_deleted_is_never_started",),
    ),
    Mutant(
        "preview-of-too-many-stays",
        "A preview that is refused for its size stays",
        "postgres/operations.py",
        "                await self._delete_preview(operation_id, operation.created_by)\n                raise",
        "                raise",
        (f"{_AGAIN}test_a_preview_of_too_many_items_leaves_nothing",),
    ),
    Mutant(
        "preview-goes-back",
        "A page that a second process adds late takes a complete preview back",
        _QUERIES + "add_operation_items.sql",
        " and not collected and cursor is not distinct from :before::text",
        " and (true or :before::text is null)",
        (f"{_AGAIN}test_a_late_page_of_a_second_process_changes_no_preview",),
    ),
    Mutant(
        "new-jobs-all-well",
        "A requeue of many counts new jobs that died again as succeeded",
        "postgres/operation_outcome.py",
        "state in bound.contract.successes()",
        'role == "done"',
        (f"{_AGAIN}test_the_new_jobs_are_counted_by_their_states_now",),
    ),
    Mutant(
        "new-jobs-counted-in-part",
        "A count of the first new jobs of an operation says that it is complete",
        "postgres/operation_outcome.py",
        "        complete = False\n",
        "        complete = True\n",
        (f"{_AGAIN}test_only_the_first_pages_of_many_new_jobs_are_counted",),
    ),
)
