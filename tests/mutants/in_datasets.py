"""Bugs of datasets: what handlers read and add to them, and what completions store."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_QUERIES: Final = "postgres/queries/"
_APP: Final = "app/test_datasets.py::test_"
_WORKER: Final = "worker/test_datasets.py::test_"
_OUTPUTS: Final = "postgres/test_dataset_outputs.py::test_"

MUTANTS = (
    Mutant(
        "pins-of-a-task-forgotten",
        "A job is made without the datasets that its task declares",
        "task.py",
        "expires_at, expires_ms, given.reads, writes,",
        "expires_at, expires_ms, (), (),",
        (f"{_APP}every_way_to_make_a_job_pins_its_datasets",),
    ),
    Mutant(
        "shape-forgotten",
        "Jobs of code with a changed shape write the generation of the old one",
        "app_datasets.py",
        "use = use._replace(shape_json=check_dataset(declared))",
        "use = use._replace(shape_json=None)",
        (f"{_APP}a_changed_shape_is_a_new_generation_and_the_old_one_reads_as_before",),
    ),
    Mutant(
        "declaration-of-others-overwritten",
        "A program that only writes a dataset changes what others have declared",
        "app_datasets.py",
        "await client.datasets.find(name, tenant_id=tenant)",
        "raise DatasetNotFound(name)",
        (f"{_APP}what_code_declares_is_stored_at_the_first_use_for_each_tenant",),
    ),
    Mutant(
        "outputs-lost-on-the-way",
        "The worker reports a success without its outputs and events",
        "worker/reports.py",
        "return HolderCall(running.held, result=returned.result, outputs=outputs, dataset_events=events)",
        "return HolderCall(running.held, result=returned.result, outputs=outputs[:0], dataset_events=events[:0])",
        (f"{_WORKER}upkeep_of_a_worker_routes_events", f"{_WORKER}rows_that_a_second_run_appends_again_are_there_once"),
    ),
    Mutant(
        "outputs-not-in-the-handlers-transaction",
        "A job that ends in its handler's own transaction loses its outputs",
        "worker/handler.py",
        "        call.outputs, call.dataset_events = additions\n",
        "        pass\n",
        (f"{_WORKER}outputs_of_a_handlers_own_transaction_end_with_it",),
    ),
    Mutant(
        "wrong-output-tried-again",
        "A job whose output is refused stays held until its lease ends, and runs again",
        "worker/reports.py",
        "_WRONG_OUTPUTS = (DatasetConflict, DatasetNotFound)",
        "_WRONG_OUTPUTS = (DatasetNotFound,)",
        (f"{_WORKER}an_output_that_can_never_be_stored_fails_the_job_for_good[of-another-dataset]",),
    ),
    Mutant(
        "rest-of-large-outputs-not-sent",
        "Rows that are collected after a part was sent are refused at the end",
        "dataset.py",
        "                if rows.staged is not None:\n",
        "                if rows.staged is None:\n",
        (f"{_WORKER}rows_are_stored_as_json_has_them_and_those_of_several_calls_go_together",),
    ),
    Mutant(
        "event-of-another-generation-read",
        "The job of an event reads no pinned generation of its dataset",
        "app_datasets.py",
        "        reads = (DatasetUse(dataset), *reads)\n",
        "        reads = (*reads,)\n",
        (f"{_WORKER}events_run_the_subscribed_tasks_once_for_each_input",),
    ),
    Mutant(
        "appended-row-overwritten",
        "An append exchanges a row that the generation has",
        _QUERIES + "append_rows.sql",
        "on conflict (batch_id, key) do nothing",
        "on conflict (batch_id, key) do update set value = excluded.value",
        (f"{_WORKER}rows_that_a_second_run_appends_again_are_there_once",),
    ),
    Mutant(
        "staged-rows-of-another-attempt-taken",
        "A completion takes rows that an earlier attempt has staged",
        _QUERIES + "take_staged_batch.sql",
        "and claims = :claims::integer",
        "and claims <= :claims::integer",
        (f"{_OUTPUTS}an_attempt_that_runs_again_adds_nothing",),
    ),
    Mutant(
        "replace-of-every-scope",
        "A replace takes the place of all scopes of its generation",
        _QUERIES + "put_scope.sql",
        "and scope = :scope::text",
        "and scope <= :scope::text",
        (f"{_OUTPUTS}a_replace_replaces_exactly_its_scope",),
    ),
)
