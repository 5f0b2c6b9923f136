"""Bugs in what an engineer on call is told: workers that are gone, alarms, counts, searches, and next commands."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_COUNT = "cli/test_jobs_count.py::"
_WORKERS = "cli/test_workers.py::test_workers_that_are_gone_or_silent_are_named_and_shown"

MUTANTS = (
    Mutant(
        "statistics-of-unknown-contracts",
        "A process that only reads statistics counts no dead letters",
        "postgres/counts.py",
        "        await self._engine.refresh()  # the contracts tell which moves lead to dead letters\n",
        "",
        ("postgres/test_counts.py::test_a_new_process_counts_each_way_into_the_dead_letters",),
    ),
    Mutant(
        "lost-worker-forgotten",
        "A worker that is not seen any more leaves no trace",
        "postgres/queries/delete_dead_workers.sql",
        "application, release, queues, 'lost' from gone\n",
        "application, release, queues, 'lost' from gone where false\n",
        (_WORKERS,),
    ),
    Mutant(
        "replaced-worker-forgotten",
        "A worker whose name another process has taken leaves no trace",
        "postgres/queries/upsert_workers.sql",
        "and (old.pid, old.host) is distinct from (given.pid, given.host)\n",
        "and (old.pid, old.host) is not distinct from (given.pid, given.host)\n",
        (_WORKERS,),
    ),
    Mutant(
        "alarm-clears-too-early",
        "An alarm says that it clears before enough of its entries are out of the window",
        "postgres/alarms.py",
        "        if rest >= threshold:\n",
        "        if rest > 0:\n",
        ("upkeep/test_alarms.py::test_an_alarm_about_entries_clears_when_the_minute_is_over_that_made_them_too_many",),
    ),
    Mutant(
        "listed-as-live-and-as-finished",
        "A job that ends between two reads is listed twice",
        "postgres/search.py",
        "for job in _summaries(rows) if job.id not in known)",
        "for job in _summaries(rows))",
        (_COUNT + "test_a_job_that_ends_between_two_reads_is_listed_once",),
    ),
    Mutant(
        "finished-jobs-of-any-worker",
        "A search by worker finds finished jobs of other workers",
        "postgres/queries/find_finished.sql",
        "and trigger in ('claim', 'reclaim') and actor = :worker::text\n",
        "and trigger in ('claim', 'reclaim') and actor = coalesce(actor, :worker::text)\n",
        (_COUNT + "test_jobs_are_found_by_worker_and_run_time",),
    ),
    Mutant(
        "search-by-worker-unbounded",
        "A search by worker reads as many rows as one by columns alone",
        "postgres/search.py",
        'for name in ("error", "payload_paths", "worker"))',
        'for name in ("error", "payload_paths"))',
        (_COUNT + "test_a_search_by_worker_reads_a_bounded_number_of_rows",),
    ),
    Mutant(
        "second-run-of-what-ended-well",
        "A job that ended well is suggested to be run again",
        "jobs/why.py",
        "    return [log] if job.state in contract.successes() else [log, ",
        "    return [log, ",
        ("jobs/test_why_ends.py::test_a_success_says_who_finished_it_and_how_long_it_took",),
    ),
)
