"""Bugs in claims by type: lanes and their merge, jobs that cannot be logged, turns of contracts, unknown types."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_LANES = "postgres/migrations/0001_schema.sql"
_CLAIM = "postgres/queries/templates/claim.template"
_FETCH = "worker/claim_loop.py"
_ORDER = "postgres/test_claims_by_type.py::test_the_order_among_known_types_is_priority_then_due_time_then_id"

MUTANTS = (
    Mutant(
        "foreign-types-claimed",
        "A worker claims jobs of every type",
        "client/direct.py",
        "[claimer], types=worker.types, cursor",
        "[claimer], types=None, cursor",
        ("worker/test_hardship.py::test_unknown_task_is_not_claimed_under_any_contract",),
    ),
    Mutant(
        "lane-capped-for-good",
        "A lane whose keys are all among the first is read no further",
        _LANES,
        "if head.taken = caps[head.n] and head.last < remaining then",
        "if head.taken > caps[head.n] and head.last < remaining then",
        (_ORDER,),
    ),
    Mutant(
        "lanes-left-out-by-name",
        "Of more lanes than jobs are wanted, the first by name are looked at",
        _LANES,
        "order by lane.due, lane.id",
        "order by lane.n",
        (_ORDER,),
    ),
    Mutant(
        "lanes-one-after-the-other",
        "Jobs of one priority come lane by lane",
        _CLAIM,
        "order by part, due, id --",
        "order by part --",
        (_ORDER,),
    ),
    Mutant(
        "foreign-backlog-walked-over",
        "A claim reads every job of a foreign type that stands before its own",
        _LANES,
        "                t := known[k + 1];\n",
        "                t := head.type; v := head.version; s := head.due; i := head.id + 1;\n",
        ("postgres/test_claims_by_type.py::test_a_claim_does_not_walk_over_a_backlog_of_foreign_types[100000]",),
    ),
    Mutant(
        "locked-not-made-up-for",
        "A claim that met locked jobs comes back with less than is free",
        _CLAIM,
        " or exists (select from lane where counted))",
        ")",
        ("postgres/test_claims_by_type.py::test_what_others_have_locked_is_made_up_for_by_what_is_free",),
    ),
    Mutant(
        "later-version-claimed",
        "A worker claims jobs of a version of their contract that it cannot settle",
        _LANES,
        "if versions[j] = head.version and head.due <= at then",
        "if head.due <= at then",
        ("postgres/test_unloggable.py::test_a_worker_claims_only_versions_that_it_can_settle",),
    ),
    Mutant(
        "broken-log-quarantines-all",
        "Where nothing can be logged, every job is left out of claims",
        "postgres/quarantine.py",
        "        else:\n            return True\n    return False",
        "        else:\n            return True\n    return True",
        ("postgres/test_unloggable.py::test_where_nothing_can_be_logged_no_job_is_left_out",),
    ),
    Mutant(
        "later-version-claimed-by-id",
        "A claim by id takes a job of a version of its contract that the caller cannot settle",
        "postgres/queries/templates/claim_by_id.template",
        "               when not is_readable then 'version'\n",
        "",
        (
            "postgres/test_unloggable.py::test_a_claim_by_id_refuses_a_version_that_its_caller_cannot_settle",
            "http/test_tasks.py::test_a_task_of_a_version_that_the_dispatcher_cannot_read_is_not_claimed",
        ),
    ),
    Mutant(
        "new-version-not-claimed-by-id",
        "A version that was registered since the start is refused by claims by id",
        "postgres/claim.py",
        "            await run(registry.load)\n",
        "",
        ("postgres/test_unloggable.py::test_a_version_that_was_registered_meanwhile_is_claimed_by_id_at_once",),
    ),
    Mutant(
        "unreadable-due-time-stored",
        "A due time that clients cannot read is stored, and fails every claim that meets it",
        "postgres/migrate.py",
        "\"and due_at >= '0001-01-02 00:00+00' and due_at < '9999-12-31 00:00+00'\"",
        "\"and (due_at is null or due_at <= 'infinity')\"",
        ("postgres/test_unloggable.py::test_a_due_time_that_no_client_can_read_is_refused[-infinity]",),
    ),
    Mutant(
        "one-job-stops-the-end-of-unknown-ones",
        "A job of an unknown type that cannot be ended keeps the others from it",
        "upkeep/unknown_types.py",
        "            except UNREACHABLE:\n                raise\n",
        "            except Exception:\n                raise\n",
        ("worker/test_unknown.py::test_a_job_that_cannot_be_ended_does_not_keep_others[refused by the database]",),
    ),
    Mutant(
        "lone-bad-job-taken-for-a-broken-log",
        "Where none of the first jobs can be logged, the log is thought to be at fault",
        "postgres/quarantine.py",
        "for plan in (_log_test_row(bound), *(_rehearse(bound, versions, [job_id]) for job_id in samples)):",
        "for plan in [_rehearse(bound, versions, [job_id]) for job_id in samples]:",
        (
            "postgres/test_unloggable.py::test_a_lone_job_that_cannot_be_logged_is_left_out_and_counted[standard]",
            "postgres/test_unloggable.py::test_a_good_job_runs_behind_150_that_cannot_be_logged",
        ),
    ),
    Mutant(
        "quarantine-outlives-a-claim",
        "A job that was claimed by its id stays left out of claims",
        "postgres/queries/templates/claim_by_id.template",
        "lease_owner = decided.owner, quarantined_at = null, quarantine_reason = null,",
        "lease_owner = decided.owner,",
        ("postgres/test_unloggable.py::test_any_move_ends_a_quarantine",),
    ),
    Mutant(
        "reaped-together-or-not-at-all",
        "One lost job that cannot be logged stops the reaping of the others",
        "postgres/upkeep_verbs.py",
        "            if not is_row_error(error):\n                raise\n",
        "            raise\n",
        ("postgres/test_unloggable.py::test_one_lost_job_that_cannot_be_logged_does_not_stop_the_reaping_of_others",),
    ),
    Mutant(
        "contract-without-a-turn",
        "The contract that was asked last is asked first again",
        _FETCH,
        "        del self._turns[contract]\n        self._turns[contract] = None  # behind the others\n",
        "        self._turns = {contract: None} | self._turns\n",
        ("worker/test_contracts_in_turn.py::test_a_trickle_of_one_contract_does_not_starve_another",),
    ),
    Mutant(
        "type-of-a-task-not-asked",
        "A worker gets a task of a type that it does not know",
        "http/routes/tasks.py",
        ".type not in body.types:",
        ".type in ():",
        ("http/test_tasks.py::test_a_worker_that_does_not_know_a_tasks_type_is_told_so_and_takes_nothing",),
    ),
    Mutant(
        "namespace-left-out",
        "The tasks of an application with a name are stored under bare names",
        "app_tasks.py",
        'f"{self.name}.{own_name}"',
        'f"{own_name}"',
        ("app/test_namespace.py::test_a_named_app_enqueues_finds_and_runs_its_tasks_under_its_name",),
    ),
    Mutant(
        "restart-costs-a-backlog",
        "Old jobs of a type are ended as soon as no worker knows it",
        "upkeep/unknown_types.py",
        "if now - since >= self._end_after_s]",
        "if now >= since]",
        ("worker/test_unknown.py::test_what_no_live_worker_knew_for_as_long_as_was_set_is_ended",),
    ),
    Mutant(
        "task-that-nobody-may-end",
        "A task whose contract has no cancel cannot be failed by a person",
        "contracts/declaration.py",
        '"promote", "retry", "exhaust")',
        '"promote", "retry")',
        ("contracts/test_phase27_stuck.py::test_an_operator_may_end_it",),
    ),
    Mutant(
        "claim-stops-at-locked-jobs",
        "A claim whose chosen jobs are locked by others does not look into lower lanes",
        "postgres/queries/templates/claim.template",
        "(select count(*) from lane) >= (select :limit::bigint) or exists (select from lane where counted)",
        "false",
        ("postgres/test_claims_by_type.py::test_a_claim_looks_below_jobs_that_others_have_locked['a'-None]",),
    ),
    Mutant(
        "unloggable-job-fails-its-batch",
        "A job whose move cannot be logged fails the others of its batch",
        "postgres/move.py",
        "            if not is_row_error(error):\n                raise\n            yield from _move_loggable(",
        "            if is_row_error(error):\n                raise\n            yield from _move_loggable(",
        (
            "postgres/test_unloggable.py::"
            "test_a_batch_with_a_job_that_cannot_be_logged_refuses_that_job_alone[fail-standard]",
        ),
    ),
)
