"""Bugs in what pages and lists read: scans, lost matches, reads that are not shared."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_QUERIES = "postgres/queries/"
_SEARCH = "postgres/search.py"
_LISTING = "postgres/test_listing.py::"
_PAGES = f"{_LISTING}test_pages_of_dead_jobs_follow_each_other_without_gap_or_repeat"
_PLANS = "dashboard/test_read_plans.py::test_reads_of_pages_and_lists_scan_no_growing_table_and_lock_few_ranges"
_SHARED = "dashboard/test_live.py::test_fifty_open_pages_send_the_statements_of_one_for_each_tenant_and_scope"

MUTANTS = (
    Mutant(
        "dead-jobs-skipped-between-pages",
        "A search of dead jobs goes on behind letters whose jobs it has not read",
        _SEARCH,
        "    if len(ids) == most:\n        return found, Cursor(True, ids[-1])\n",
        "",
        (_PAGES,),
    ),
    Mutant(
        "letters-of-other-causes",
        "A cause with very many letters finds the jobs of all causes",
        _QUERIES + "find_jobs_of_letters.sql",
        "where cause.letter_id = looked.id and cause.fingerprint = :group::text",
        "where cause.letter_id = looked.id",
        (f"{_LISTING}test_cause_with_very_many_letters_is_walked_by_jobs",),
    ),
    Mutant(
        "held-jobs-among-all",
        "Held jobs are looked for among the newest jobs, not along their index",
        _SEARCH,
        "        if where.held is None:\n            looked,",
        "        if True:\n            looked,",
        (f"{_LISTING}test_held_and_dead_jobs_are_found_at_once_behind_many_others",),
    ),
    Mutant(
        "letter-by-either-id",
        "A dead letter is read by either of two ids in one condition, which no index serves",
        _QUERIES + "read_dead_letter.sql",
        "select * from tenure.dead_letter where id = :id::bigint\n    union all\n"
        "    select * from tenure.dead_letter where job_id = :job_id::bigint",
        "select * from tenure.dead_letter where id = :id::bigint or job_id = :job_id::bigint",
        (_PLANS,),
    ),
    Mutant(
        "log-of-all-ranges",
        "The log of a job is read by an id that the planner does not see, so every range is locked",
        _QUERIES + "read_log.sql",
        "where job_id = :id::bigint",
        "where job_id = (select :id::bigint)",
        (_PLANS,),
    ),
    Mutant(
        "pages-read-apart",
        "Each open page reads for itself",
        "dashboard/shared_reads.py",
        "if shared is None or (shared.task.done()",
        "if shared is shared or (shared.task.done()",
        (_SHARED,),
    ),
    Mutant(
        "sessions-read-apart",
        "Each open page of a browser looks its session up for itself",
        "dashboard/visitor.py",
        "await self._found.get(hashed, lambda: self._store.sessions.find(hashed), _CACHE_S)",
        "await self._store.sessions.find(hashed)",
        (_SHARED,),
    ),
)
