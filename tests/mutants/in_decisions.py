"""Bugs in decisions of people, and in contracts of one's own."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_TESTS = "contracts/test_decisions.py::"
_OWN = "app/test_own_contracts.py::"

MUTANTS = (
    Mutant(
        "decided-without-a-due-time",
        "A job that a person made ready has no due time, and so goes before all others",
        "postgres/queries/templates/operate.template",
        "else case when path.role = 'ready' and due_at is null then 0 end",
        "else null",
        (f"{_TESTS}test_a_decision_is_logged_with_who_and_why_and_makes_the_job_due",),
    ),
    Mutant(
        "decision-shown-as-a-failure",
        "A decision by which the job goes on is stored as its last error",
        "postgres/queries/templates/operate.template",
        "when chosen.trigger = any (:decisions::text[]) and path.role <> 'done' then null",
        "when chosen.trigger = any (:decisions::text[]) and path.role = 'done' then null",
        (f"{_TESTS}test_a_decision_is_logged_with_who_and_why_and_makes_the_job_due",),
    ),
    Mutant(
        "undecided-job-promoted",
        "Upkeep tries to make a job ready whose time has come, although a person decides",
        "postgres/queries/find_promotable.sql",
        "state = any (:promoted::text[])",
        "(state = any (:promoted::text[]) or due_at is not null)",
        (f"{_TESTS}test_upkeep_leaves_an_undecided_job_alone_although_its_time_has_come",),
    ),
    Mutant(
        "undecided-job-keeps-upkeep-busy",
        "Each look of upkeep finds a job whose time has come, although a person decides",
        "postgres/queries/read_upkeep_needs.sql",
        "and state = any (machine.promoted::text[])",
        "",
        (f"{_TESTS}test_upkeep_leaves_an_undecided_job_alone_although_its_time_has_come",),
    ),
    Mutant(
        "undecided-job-with-a-due-time",
        "A job that begins by waiting for a decision is due at once, when its batch differs",
        "postgres/queries/enqueue.sql",
        "case when :role::text = 'ready' then 0 end",
        "case when :role::text <> '' then 0 end",
        (f"{_TESTS}test_a_job_begins_in_the_waiting_state_without_a_due_time",),
    ),
    Mutant(
        "alike-undecided-jobs-with-a-due-time",
        "A job that begins by waiting for a decision is due at once, when its batch is alike",
        "postgres/queries/enqueue_uniform.sql",
        "case when :role::text = 'ready' then clock.t end",
        "case when :role::text <> '' then clock.t end",
        (f"{_TESTS}test_a_job_begins_in_the_waiting_state_without_a_due_time",),
    ),
    Mutant(
        "rerun-with-a-due-time",
        "A job that runs again has a due time while it waits for its decision",
        "postgres/queries/rerun_job.sql",
        "case when :role::text = 'ready' then clock_timestamp() end",
        "clock_timestamp()",
        (f"{_TESTS}test_a_job_that_runs_again_waits_for_its_decision_again",),
    ),
    Mutant(
        "requeued-letter-with-a-due-time",
        "A dead letter that runs again has a due time while it waits for its decision",
        "postgres/queries/requeue_dead_letter.sql",
        "case when :role::text = 'ready' then clock_timestamp() end",
        "clock_timestamp()",
        (f"{_TESTS}test_a_job_that_runs_again_waits_for_its_decision_again",),
    ),
    Mutant(
        "born-in-any-role",
        "The table accepts a job that begins as ready in a state that waits for a decision",
        "postgres/migrate.py",
        "f\"{_in('role', [role])} and {_in('state', known[role])}\"",
        "_in('state', known[role])",
        (f"{_TESTS}test_the_table_refuses_a_job_that_begins_beyond_its_decision",),
    ),
    Mutant(
        "own-views-forgotten",
        "A run of migrate rebuilds only the views of the contracts that it was given",
        "postgres/migrate.py",
        "_rebuild_views(connection, _newest_registered(connection))",
        "_rebuild_views(connection, contracts.values())",
        (f"{_OWN}test_migrate_without_the_contract_keeps_its_views_and_its_check",
         f"{_OWN}test_an_old_release_of_the_code_does_not_take_columns_from_the_views"),
    ),
    Mutant(
        "own-machine-not-compared",
        "An application uses a database that has another machine under its contract's version",
        "client/own_contracts.py",
        "if versions[contract.version] != contract.digest():",
        "if not versions[contract.version]:",
        (f"{_OWN}test_another_machine_under_the_same_version_is_refused",),
    ),
    Mutant(
        "jobs-of-unknown-contracts-accepted",
        "The table accepts a job of a contract that nobody registered",
        "postgres/migrate.py",
        "\"job\": f\"{_by_contract(live, otherwise='false')} \"",
        "\"job\": f\"{_by_contract(live, otherwise='true')} \"",
        ("postgres/test_conditions.py::test_every_condition_refuses_a_row",),
    ),
    Mutant(
        "old-checks-stay",
        "The CHECKs of tables stay beside the conditions of domains, and refuse what later contracts allow",
        "postgres/migrate.py",
        "    _drop_table_checks(connection)\n    return",
        "    return",
        ("postgres/test_conditions.py::test_a_database_that_is_migrated_refuses_the_same_rows",),
    ),
    Mutant(
        "condition-missing-for-a-time",
        "A migration that is interrupted leaves tables without their conditions",
        "postgres/migrations/0013_conditions.sql",
        "    drop constraint job_role_check;",
        "    drop constraint job_role_check,\n    drop constraint if exists job_state;",
        ("postgres/test_conditions.py::test_an_interrupted_migration_leaves_no_time_without_a_condition",),
    ),
)  # fmt: skip
