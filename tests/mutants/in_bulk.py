"""Bugs in operations on many jobs or dead letters."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_BATCHES = "postgres/operation_batches.py"
_QUERIES = "postgres/queries/"
_OPERATIONS = "postgres/test_operations.py::"

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
        (f"{_OPERATIONS}test_letters_are_requeued_once_with_another_payload",),
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
)
