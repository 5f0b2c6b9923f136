"""Bugs in the model of a contract: `step.py`, `fold.py`, `explore.py`."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_LIFE = "model/test_step.py::test_a_life_goes_through_its_contracts_states"
_WRITTEN = "proof/test_written_histories.py::test_postgresql_follows_the_model_through_a_written_history"

MUTANTS = (
    Mutant(
        "model-without-a-fence",
        "In the model any holder of any claim is heard",
        "model/step.py",
        "return not job.held or proof != job.claims or forfeited",
        "return not job.held or forfeited",
        (
            "model/test_step.py::test_what_may_not_be_is_refused[standard-claim lapse reap claim late:succeed-stale]",
            "model/test_explore.py::test_every_promise_holds_in_every_reachable_history[phase27]",
        ),
    ),
    Mutant(
        "model-takes-live-leases",
        "In the model a lease is taken before it ran out",
        "model/step.py",
        'if trigger == "reclaim" and (not job.expired or not in_budget(contract, job) or job.cancelling):',
        'if trigger == "reclaim" and (not in_budget(contract, job) or job.cancelling):',
        (
            "model/test_step.py::test_what_may_not_be_is_refused[phase27-claim claim-invalid]",
            "model/test_explore.py::test_every_promise_holds_in_every_reachable_history[phase27]",
        ),
    ),
    Mutant(
        "model-retries-for-ever",
        "In the model a failure is tried again after the budget is spent",
        "model/step.py",
        'elif trigger == "retry" and not in_budget(contract, job):',
        "elif False:",
        (
            f"{_LIFE}[standard-claim fail ripen claim fail-queued running queued running dead]",
            "model/test_explore.py::test_every_promise_holds_in_every_reachable_history[phase27]",
        ),
    ),
    Mutant(
        "fold-takes-any-row",
        "A log row that says other numbers than the step folds all the same",
        "model/fold.py",
        "if rows[at] != expected:",
        "if rows[at].to_state != expected.to_state:",
        (
            "model/test_fold.py::test_a_counter_that_is_off_by_one_is_named",
            "model/test_fold.py::test_a_log_with_one_wrong_word_or_number_is_found_at_that_row",
        ),
    ),
    Mutant(
        "fold-ends-anywhere",
        "A log that ends inside a path folds",
        "model/fold.py",
        'return Fault(at, f"the log ends inside the path of {expected.trigger}: {expected.to_state} is missing")',
        "break",
        ("model/test_fold.py::test_a_log_that_ends_inside_a_path_is_named",),
    ),
    Mutant(
        "explorer-without-late-holders",
        "The explorer lets nobody speak who has lost the job",
        "model/explore.py",
        "if proof and proof not in world.proofs[:n]:",
        "if proof == world.job.claims and proof not in world.proofs[:n]:",
        ("model/test_explore.py::test_a_late_worker_keeps_its_name_and_its_claim_in_a_story",),
    ),
    Mutant(
        "explorer-waits-for-an-operator",
        "The explorer counts on somebody to come and end a job that is stuck",
        "model/explore.py",
        'if move.who in ("time", "upkeep") or',
        'if move.who in ("time", "upkeep", "operator") or',
        ("model/test_explore.py::test_a_broken_contract_gives_the_shortest_counterexample",),
    ),
    Mutant(
        "model-forgets-a-hop",
        "In the model a lost soft-cancelled job is queued again",
        "model/step.py",
        '    if job.cancelling:\n        return "cancel"\n    return "expire" if in_budget',
        '    return "expire" if in_budget',
        (
            "model/test_step.py::test_after_a_soft_cancel_every_way_back_leads_to_cancelled[lapse reap]",
            f"{_WRITTEN}[a soft-cancelled job that is lost is cancelled]",
        ),
    ),
    Mutant(
        "model-asks-an-assigned-job",
        "In the model a soft cancel of a job that has not started is a request to its holder",
        "model/step.py",
        'if action.to == "hard" or not (job.role == "active" or compensates_first):',
        'if action.to == "hard" or not (job.role in HELD or compensates_first):',
        (
            "model/test_step.py::test_a_soft_cancel_of_a_job_that_has_not_started_waits_only_for_effects_to_be_undone",
            f"{_WRITTEN}[an assigned job is cancelled at once]",
        ),
    ),
    Mutant(
        "model-forgets-the-finisher",
        "In the model nobody knows whose call ended a job that was settled",
        "model/step.py",
        'by_holder = action.verb in HOLDER_ACTIONS or (job.role == "settling" and job.held)',
        "by_holder = action.verb in HOLDER_ACTIONS",
        (
            "model/test_step.py::test_what_may_not_be_is_refused[gate_b2-claim fail:fatal settle succeed-finished]",
            f"{_WRITTEN}[a failed job refuses its last holder]",
        ),
    ),
    Mutant(
        "fact-of-another-count",
        "A fact's counter is not compared with the job's",
        "model/fold.py",
        "if row != expected:",
        "if row.claims != expected.claims:",
        ("proof/test_audit.py::test_what_was_broken_is_named_and_nothing_else[a fact of another count]",),
    ),
    Mutant(
        "audit-trusts-the-row",
        "The audit does not compare the row with its log",
        "proof/audit.py",
        "        if row != log:\n",
        "        if False:\n",
        ("proof/test_audit.py::test_what_was_broken_is_named_and_nothing_else[the claims]",),
    ),
)
