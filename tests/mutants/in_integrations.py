"""Bugs in what joins other frameworks: `integrations/`."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_TASKS = "integrations/test_django_tasks.py"
_DJANGO = "integrations/django"

MUTANTS = (
    Mutant(
        "django-without-a-transaction",
        "Outside of `atomic` a task of Django is not given a transaction",
        f"{_DJANGO}/backend.py",
        "with nullcontext() if connection.in_atomic_block else transaction.atomic(using=database):",
        "with nullcontext():",
        (f"{_TASKS}::test_a_job_exists_when_its_transaction_commits_and_not_when_it_is_rolled_back",),
    ),
    Mutant(
        "django-connections-left-open",
        "Django's connections stay open in the threads of a worker",
        f"{_DJANGO}/connection.py",
        "    reset_queries()\n    close_old_connections()\n",
        "    reset_queries()\n",
        (f"{_TASKS}::test_connections_are_closed_after_a_run",),
    ),
    Mutant(
        "finished-although-retried",
        "`task_finished` is sent for an attempt that is retried",
        f"{_DJANGO}/execution.py",
        'isinstance(outcome, Refused) or outcome.role != "done":',
        "isinstance(outcome, Refused):",
        (f"{_TASKS}::test_signals_are_sent_at_enqueue_start_and_end_and_not_for_an_attempt_that_is_retried",),
    ),
    Mutant(
        "django-priorities-upside-down",
        "A priority just above the default is no higher than the default",
        f"{_DJANGO}/result.py",
        "5 - -(-priority // 20)",
        "5 - priority // 20",
        (f"{_TASKS}::test_ten_priorities_of_tenure_keep_the_order_of_the_frameworks",),
    ),
    Mutant(
        "queues-of-the-settings-not-claimed",
        "A worker of a Django project claims only from the queues that its tasks declare",
        f"{_DJANGO}/project.py",
        "dict.fromkeys([*named, *",
        "dict.fromkeys([*",
        (f"{_TASKS}::test_the_workers_queues_are_those_of_the_settings_in_their_order_then_those_of_the_tasks",),
    ),
    Mutant(
        "handler-without-a-home",
        "The process that runs one job alone cannot find a Django project's task",
        f"{_DJANGO}/project.py",
        "        handler.__module__, handler.__qualname__ = __name__, _home(self.database, full_name)\n",
        "        handler.__qualname__ = _home(self.database, full_name)\n",
        ("integrations/test_django_processes.py::test_a_backend_whose_tasks_have_processes_of_their_own",),
    ),
    Mutant(
        "options-of-the-first-backend",
        "`task.using(backend=…)` keeps the options of the task's own backend",
        f"{_DJANGO}/backend.py",
        "        of_job = {name: options[name] for name in _OF_A_JOB if name in options}\n",
        "        of_job = {}\n",
        (f"{_TASKS}::test_another_backend_on_the_same_database_has_its_own_options",),
    ),
    Mutant(
        "signals-of-the-server-taken",
        "The worker inside of FastAPI takes the signals of the server",
        "integrations/fastapi.py",
        "worker.run(handle_signals=False)",
        "worker.run()",
        (
            "integrations/test_fastapi.py::test_the_worker_runs_inside_the_applications_own_lifespan_and_leaves_signals_alone",
        ),
    ),
)
