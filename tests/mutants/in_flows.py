"""Planted bugs in flows: a node that starts too early, twice or never, a failure that stops nothing, a blind audit."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_QUERIES = "postgres/queries/"
_AUDIT = "proof/test_flow_audit.py::test_"

MUTANTS = (
    Mutant(
        "audit-of-flows-by-their-own-counts",
        "The audit does not compare the counts of a flow with its nodes",
        "proof/flow_audit.py",
        "        if row != nodes:",
        "        if False:",
        (f"{_AUDIT}what_was_broken_is_named_and_nothing_else",),
    ),
    Mutant(
        "audit-of-flows-without-jobs",
        "The audit does not look for the job of a started node",
        _QUERIES + "audit_flow_nodes.sql",
        "case when live.id is null and ending.job_id is null then 'jobless'",
        "case when false then 'jobless'",
        (f"{_AUDIT}what_was_broken_is_named_and_nothing_else",),
    ),
    Mutant(
        "audit-of-flows-that-trusts-starts",
        "The audit does not compare the start of a node with the ends of its parents",
        _QUERIES + "audit_flow_nodes.sql",
        " or node.started_at < parent.last) then",
        ") then",
        (f"{_AUDIT}what_was_broken_is_named_and_nothing_else",),
    ),
    Mutant(
        "audit-takes-resumed-parents-for-late",
        "The audit reports a child that ran before its parent, whose failure was tolerated, was resumed",
        _QUERIES + "audit_flow_nodes.sql",
        "coalesce(on_failure, flow.on_failure) = 'continue' and job_id is distinct from id as may_be_late",
        "false as may_be_late",
        (f"{_AUDIT}flows_in_every_state_are_sound",),
    ),
    Mutant(
        "audit-of-jobs-without-nodes",
        "The audit does not compare a live job with the node that it runs",
        _QUERIES + "audit_jobs.sql",
        "where node.id = job.flow_node and node.job_id = job.id and node.state = 'started') then 'node' end",
        "where true) then 'node' end",
        (f"{_AUDIT}what_was_broken_is_named_and_nothing_else",),
    ),
    Mutant(
        "audit-of-young-ends",
        "The audit reports each end that was not taken into account yet",
        _QUERIES + "audit_flow_ends.sql",
        " - :minutes::integer * interval '1 minute'",
        " - :minutes::integer * interval '0 minutes'",
        (f"{_AUDIT}an_end_that_is_about_to_be_taken_is_sound",),
    ),
)
