"""Bugs around the engine: the queue, the worker, the dispatcher's routes."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "misspelt-option-unexplained",
        "A misspelt option is refused without the name that was meant",
        "jobs/keyword_options.py",
        "similar = get_close_matches(name, known, 1)",
        "similar = list[str]()",
        ("app/test_options.py::test_an_option_that_does_not_exist_is_refused_with_what_to_write[every]",),
    ),
    Mutant(
        "run-at-beside-a-delay",
        "A task with a delay cannot be enqueued for a moment",
        "task.py",
        "        if (delay is None) != (run_at is None):",
        "        if False:",
        ("app/test_options.py::test_each_job_of_a_task_with_a_delay_waits",),
    ),
    Mutant(
        "failures-written-past-the-queue",
        "The worker beside the database and the dispatcher's routes write failures without `fail_task`",
        "queue.py",
        "return self._failures.report(call)",
        "return self._store.report_one(verb, call)",
        (
            "http/test_failures.py::test_without_fail_task_no_route_writes_a_failure[in_a_batch]",
            "worker/test_requirements_simple.py::test_without_fail_task_the_worker_itself_writes_nothing",
        ),
    ),
    Mutant(
        "retry-logged-with-another-time",
        "The worker logs another time than the one at which the queue lets the job run again",
        "worker/failure_log.py",
        "at {format_iso(outcome.due_at)}",
        "at {format_iso(outcome.at)}",
        (
            "worker/test_failure_log.py::test_retry_is_logged_once_with_the_rows_eta_to_the_microsecond[beside_the_database]",
        ),
    ),
    Mutant(
        "failed-attempt-not-logged",
        "The worker logs nothing of a failed attempt",
        "worker/reports.py",
        "    log_failure(running.job, failure, outcome, undo)\n",
        "",
        (
            "worker/test_failure_log.py::test_every_failed_attempt_is_logged_once_and_the_last_one_as_an_error[beside_the_database]",
        ),
    ),
    Mutant(
        "lost-answer-logged-without-its-time",
        "A retry of which the answer was lost is logged as an end",
        "worker/job_history.py",
        '"done" if due is None else "ready", last.claims,',
        '"done", last.claims,',
        ("worker/test_failure_log.py::test_retry_whose_answer_was_lost_is_logged_once_with_the_rows_eta",),
    ),
    Mutant(
        "claimed-task-without-config",
        "The answer to a claim of a task leaves out its config",
        "http/response.py",
        '"operator": one.type, "config": one.payload,',
        '"operator": one.type,',
        ("http/test_tasks.py::test_a_claimed_task_has_the_documents_fields_and_values",),
    ),
    Mutant(
        "claimed-task-without-its-end",
        "The answer to a claim of a task leaves out when the lease ends",
        "http/response.py",
        '"lease_token": str(one.lease_token), "lease_expires_at": _time(one.lease_expires_at),',
        '"lease_token": str(one.lease_token),',
        ("http/test_tasks.py::test_a_claimed_task_has_the_documents_fields_and_values",),
    ),
    Mutant(
        "completion-and-events-apart",
        "A completion and what is reported with it are written in two transactions",
        "postgres/hold.py",
        "outcomes: list[Outcome] = yield Atomic(_move_and_store(batch, stored, skip_locked=skip_locked))",
        "outcomes: list[Outcome] = yield from _move_and_store(batch, stored, skip_locked=skip_locked)",
        ("http/test_tasks.py::test_all_that_a_completion_writes_is_one_transaction[Completed-with-events]",),
    ),
)
