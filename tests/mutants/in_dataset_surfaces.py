"""Bugs in datasets: rows that another one may read, that are added twice or lost, and what a rollback forgets."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_QUERIES = "postgres/queries/"
_OUTPUTS = "postgres/test_dataset_outputs.py::test_"
_HTTP = "http/test_datasets.py::test_"
_REMOTE = "http/test_remote_datasets.py::test_"

MUTANTS = (
    Mutant(
        "cursor-of-any-batch",
        "A cursor that a client made up reads the rows of any generation, also of another tenant",
        "postgres/datasets/datasets.py",
        "            if not known:",
        "            if False:",
        (f"{_OUTPUTS}a_cursor_of_another_generation_reads_nothing",),
    ),
    Mutant(
        "cursor-of-staged-rows",
        "A cursor that a client made up reads rows that are staged and not committed",
        _QUERIES + "check_batch.sql",
        " and state <> 'staged'",
        "",
        (f"{_OUTPUTS}a_cursor_of_another_generation_reads_nothing",),
    ),
    Mutant(
        "staged-again-at-the-end",
        "A part of staged rows that is sent again is added behind the first one",
        "postgres/datasets/outputs.py",
        "place_keys(before if part.first is None else part.first, count)",
        "place_keys(before, count)",
        (f"{_OUTPUTS}staged_rows_that_are_sent_again_are_staged_once",),
    ),
    Mutant(
        "staged-by-an-earlier-attempt",
        "A completion takes rows that an earlier attempt has staged",
        _QUERIES + "take_staged_batch.sql",
        "  and claims = :claims::integer and state",
        "  and claims <= :claims::integer and state",
        (f"{_OUTPUTS}an_attempt_that_runs_again_adds_nothing",),
    ),
    Mutant(
        "page-of-any-size",
        "A page of rows has all of them, however large they are",
        _QUERIES + "read_rows.sql",
        "where before < :max_bytes::bigint",
        "where true or before < :max_bytes::bigint",
        (f"{_HTTP}a_page_of_large_rows_ends_early_and_goes_on",),
    ),
    Mutant(
        "generation-of-any-tenant",
        "A key that is bound to a tenant reads the generations of others by their ids",
        "http/routes/datasets.py",
        "    if request.caller.tenant not in (None, found.tenant_id):",
        "    if False:",
        (f"{_HTTP}a_tenants_key_sees_and_changes_its_own_datasets_alone",),
    ),
    Mutant(
        "pointer-of-any-version",
        "A task of document 001 points to data of a version that it does not write",
        "http/routes/tasks.py",
        'if one.get("dataset_version", pin.generation) != pin.generation:',
        "if False:",
        (f"{_HTTP}a_completed_task_has_its_outputs_and_events_or_none",),
    ),
    Mutant(
        "large-outputs-in-one-request",
        "A worker behind a dispatcher sends large outputs with the completion, in a request that is refused",
        "client/remote_datasets.py",
        "if isinstance(output, Pointer) or size <= room:",
        "if True:",
        (f"{_REMOTE}large_outputs_are_staged_before_the_completion",),
    ),
    Mutant(
        "rollback-cancels-readers",
        "A rollback cancels jobs that only read what it leaves",
        _QUERIES + "list_waiting_writers.sql",
        "pin.writes and ",
        "",
        ("postgres/test_dataset_switches.py::test_a_rollback_cancels_what_waits_to_write_and_leaves_what_runs",),
    ),
    Mutant(
        "retention-drops-what-is-read",
        "A generation is dropped while a live job reads it",
        _QUERIES + "drop_generations.sql",
        "join tenure.job on job.id = pin.job_id",
        "join tenure.job on job.id = -pin.job_id",
        ("postgres/test_dataset_retention.py::test_what_a_live_job_or_a_flow_has_pinned_stays",),
    ),
)
