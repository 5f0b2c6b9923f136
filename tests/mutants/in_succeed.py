"""Bugs in the short ways: `postgres/queries/succeed.sql`, the marks of a claim, jobs that are taken to be alike."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_SUCCEED = "postgres/queries/succeed.sql"
_ONE_PASS = "postgres/queries/succeed_in_one_pass.sql"
_INTAKE = "jobs/validation.py"
_STATES = "postgres/test_short_way.py::test_of_every_state_the_short_way_says_and_does_what_the_gate_does"
_DURING = (
    "postgres/test_short_way_waits.py::test_what_ran_out_during_the_wait_for_a_row_is_not_revived_by_the_short_way"
)
_DIFFERS = "postgres/test_enqueue_alike.py::test_a_job_that_differs_in_anything_else_is_made_as_it_was_asked_for"
_WAITED = "postgres/test_short_way_waits.py::test_a_success_in_one_pass_decides_by_the_row_that_it_waited_for"
_BEATS = """
          or tenure.heartbeats_missed(
              held.last_heartbeat_at, coalesce(held.heartbeat_ms, :heartbeat_ms::integer), :missed::integer, t)"""

MUTANTS = (
    Mutant(
        "success-by-any-token",
        "The short way does not look at the holder's token",
        _SUCCEED,
        "tenure.is_holder(job.claims, job.lease_token, call.claims, call.token)",
        "job.claims = call.claims",
        (f"{_STATES}[strict]",),
    ),
    Mutant(
        "success-of-an-earlier-claim",
        "The short way does not look at the claim's number",
        _SUCCEED,
        "tenure.is_holder(job.claims, job.lease_token, call.claims, call.token)",
        "job.lease_token = call.token",
        (f"{_STATES}[strict]",),
    ),
    Mutant(
        "success-after-forfeit",
        "The short way ends a job well whose lease ran out and is forfeited",
        _SUCCEED,
        "tenure.lease_expired(held.lease_expires_at, t)\n          or ",
        "",
        (f"{_STATES}[strict]",),
    ),
    Mutant(
        "success-after-missed-beats",
        "The short way ends a job well whose holder missed its beats",
        _SUCCEED,
        _BEATS,
        "",
        (f"{_STATES}[strict]",),
    ),
    Mutant(
        "beats-of-the-contract",
        "The short way counts missed beats by the contract's interval where the job's type has its own",
        _SUCCEED,
        "coalesce(held.heartbeat_ms, :heartbeat_ms::integer)",
        ":heartbeat_ms::integer",
        (f"{_STATES}[strict]",),
    ),
    Mutant(
        "short-way-for-the-late-everywhere",
        "The short way leaves late holders to the gate although expiry forfeits nothing",
        "postgres/queries/succeed_in_flow.sql",
        "and not (:forfeits::boolean and (",
        "and not ((",
        ("postgres/test_short_way.py::test_holders_that_are_late_but_have_forfeited_nothing_need_no_gate[in a flow]",),
    ),
    Mutant(
        "short-way-while-undoing",
        "The short way ends a job well that has failed and whose effects are being undone",
        _SUCCEED,
        "pending is null and ",
        "",
        (f"{_STATES}[strict]",),
    ),
    Mutant(
        "short-way-with-effects",
        "The short way takes a job whose effects the gate would note in the log",
        _SUCCEED,
        " and undoable is null",
        "",
        (f"{_STATES}[strict]",),
    ),
    Mutant(
        "success-from-anywhere",
        "The short way does not look at the state from which the job would succeed",
        _SUCCEED,
        " and state = any (:path_source::text[])",
        "",
        (f"{_STATES}[strict]",),
    ),
    Mutant(
        "success-under-any-version",
        "The short way moves a job of another version of its contract",
        _SUCCEED,
        "contract = :contract::text and version = :version::text and state",
        "contract = :contract::text and state",
        (f"{_STATES}[strict]",),
    ),
    Mutant(
        "success-under-any-contract",
        "The short way moves a job of another contract",
        _SUCCEED,
        "contract = :contract::text and version = :version::text and state",
        "version = :version::text and state",
        (f"{_STATES}[strict]",),
    ),
    Mutant(
        "success-by-an-old-clock",
        "The short way reads the clock before it waits for the row: what ran out meanwhile counts as alive",
        _SUCCEED,
        "clock_timestamp() as t\n        from locked",
        "now() as t\n        from locked",
        (f"{_DURING}[lease-over]", f"{_DURING}[beats-over]"),
    ),
    Mutant(
        "success-without-a-lock",
        "The short way judges a row that it has not locked",
        _SUCCEED,
        "flow_node is null\n        for update\n",
        "flow_node is null\n",
        (f"{_DURING}[lease-over]",),
    ),
    Mutant(
        "success-not-logged",
        "The short way writes no log row",
        _SUCCEED,
        "    from deleted\n),\ntallied",
        "    from deleted\n    where false\n),\ntallied",
        (f"{_STATES}[strict]",),
    ),
    Mutant(
        "success-logged-back-in-time",
        "The short way logs by the clock although that stepped back",
        _SUCCEED,
        "greatest(t, held.updated_at + interval '1 microsecond') as ts",
        "t as ts",
        (f"{_STATES}[strict]",),
    ),
    Mutant(
        "result-lost",
        "The short way forgets the result",
        _SUCCEED,
        "last_error, given, progress",
        "last_error, null::jsonb, progress",
        (f"{_STATES}[strict]",),
    ),
    Mutant(
        "results-mixed-up",
        "The short way gives the results of a batch to its jobs in the order in which they were named",
        "postgres/move.py",
        "_at(batch.results, places)",
        "_at(batch.results, range(len(places)))",
        ("postgres/test_short_way.py::test_each_job_of_a_batch_gets_its_own_result",),
    ),
    Mutant(
        "mark-passed-by",
        "`>` for `>=`: what is due at the very moment of the mark is not looked at",
        "postgres/queries/templates/claim_lanes.part",
        "coalesce(due_at, '-infinity') >= lane.since"
        "\n          and (lease_expires_at is null or tenure.lease_expired(lease_expires_at, clock.t))"
        "\n          --any_tenant: and (wanted.tenant is null or tenant_id = wanted.tenant)"
        "\n          --of_tenant: and tenant_id = wanted.tenant and tenant_id <> 'default' --",
        "coalesce(due_at, '-infinity') > lane.since"
        "\n          and (lease_expires_at is null or tenure.lease_expired(lease_expires_at, clock.t))"
        "\n          --any_tenant: and (wanted.tenant is null or tenant_id = wanted.tenant)"
        "\n          --of_tenant: and tenant_id = wanted.tenant and tenant_id <> 'default' --",
        ("postgres/test_marked_claims.py::test_jobs_that_are_due_at_the_moment_of_the_mark_come_next",),
    ),
    Mutant(
        "alike-of-any-tenant",
        "Jobs of several tenants count as alike, and all go to the first one's",
        _INTAKE,
        " and job.tenant_id == tenant",
        "",
        (f"{_DIFFERS}[4-tenant_id]",),
    ),
    Mutant(
        "alike-whenever-due",
        "A job that is to wait counts as alike, and is due at once",
        _INTAKE,
        " and job.delay_ms is None",
        "",
        (f"{_DIFFERS}[2-delay_ms]",),
    ),
    Mutant(
        "alike-with-a-key",
        "A job with a key counts as alike, and is made again by each repeat",
        _INTAKE,
        " and job.key is None",
        "",
        (f"{_DIFFERS}[0-key]",),
    ),
    Mutant(
        "one-pass-by-any-token",
        "A success in one pass does not look at the holder's token",
        _ONE_PASS,
        "tenure.is_holder(job.claims, job.lease_token, call.claims, call.token)",
        "job.claims = call.claims",
        (f"{_STATES}[standard]",),
    ),
    Mutant(
        "one-pass-of-an-earlier-claim",
        "A success in one pass does not look at the claim's number",
        _ONE_PASS,
        "tenure.is_holder(job.claims, job.lease_token, call.claims, call.token)",
        "job.lease_token = call.token",
        (f"{_STATES}[standard]",),
    ),
    Mutant(
        "one-pass-in-any-state",
        "A success in one pass ends a job in any state",
        _ONE_PASS,
        " and job.state = any (:path_source::text[])",
        "",
        (f"{_STATES}[standard]",),
    ),
    Mutant(
        "one-pass-with-effects-to-undo",
        "A success in one pass ends a job whose effects are being undone",
        _ONE_PASS,
        "job.pending is null and job.undoable is null",
        "true",
        (f"{_STATES}[standard]",),
    ),
    Mutant(
        "one-pass-dated-before-the-wait",
        "A success in one pass reads the clock before it waits for the row",
        _ONE_PASS,
        "greatest(clock_timestamp(), job.updated_at",
        "greatest((select clock_timestamp()), job.updated_at",
        (f"{_WAITED}[nothing]",),
    ),
    Mutant(
        "one-pass-where-time-decides",
        "A success whose lease may have run out is decided without a lock",
        "postgres/move.py",
        'return "succeed" if forfeits else "succeed_in_one_pass"',
        'return "succeed_in_one_pass"',
        (f"{_STATES}[strict]", f"{_DURING}[lease-over]"),
    ),
)
