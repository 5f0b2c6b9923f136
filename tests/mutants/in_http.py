"""Bugs in how the dispatcher refuses: codes, statuses, tenants, scopes."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_CODES = "http/test_gate_b2_codes.py"

MUTANTS = (
    Mutant(
        "missing-letter-is-a-conflict",
        "A dead letter that there is not is answered with 409",
        "http/error_response.py",
        '_NOT_FOUND = frozenset({"DLQ_ITEM_NOT_FOUND", ',
        "_NOT_FOUND = frozenset({",
        (f"{_CODES}::test_a_dead_letter_that_there_is_not_is_404_to_every_verb",),
    ),
    Mutant(
        "missing-job-is-a-conflict",
        "A job that there is not is answered with 409",
        "http/error_response.py",
        "((JobNotFound, FlowNotFound, ScheduleNotFound, DatasetNotFound, RouteNotFound), 404)",
        "((FlowNotFound, ScheduleNotFound, DatasetNotFound, RouteNotFound), 404)",
        (f"{_CODES}::test_a_job_that_there_is_not_and_a_cancel_that_the_document_has_not",),
    ),
    Mutant(
        "refusal-is-bad-input",
        "A refusal is answered with 422",
        "http/error_response.py",
        "(Refused, 409)",
        "(Refused, 422)",
        (
            f"{_CODES}::test_all_41_illegal_pairs_are_refused_with_409_and_the_documents_code",
            f"{_CODES}::test_a_second_requeue_and_a_late_discard_are_conflicts",
            f"{_CODES}::test_a_discard_by_fewer_than_two_people_wants_an_approval",
            f"{_CODES}::test_a_key_of_another_body_is_a_conflict_to_enqueue_and_to_a_decision",
        ),
    ),
    Mutant(
        "tenant-has-no-code",
        "Another tenant's job is refused without a code of its own",
        "http/error_response.py",
        '    code = "TENANT_SCOPE_VIOLATION"\n',
        "",
        (f"{_CODES}::test_another_tenants_job_or_dead_letter_is_a_scope_violation",),
    ),
    Mutant(
        "letter-of-any-tenant",
        "A key of one tenant decides about another's dead letter",
        "http/routes/dead_letters.py",
        "if who.tenant not in (None, letter.tenant_id):",
        "if False:",
        (f"{_CODES}::test_another_tenants_job_or_dead_letter_is_a_scope_violation",),
    ),
    Mutant(
        "any-key-operates",
        "A key does what its scopes do not allow",
        "http/authentication.py",
        'if wanted and "admin" not in self.scopes and self.scopes.isdisjoint(wanted):',
        "if wanted and not self.scopes:",
        (f"{_CODES}::test_what_a_key_may_not_do_is_forbidden",),
    ),
    Mutant(
        "approval-has-no-code",
        "A discard by one person is refused as if the letter were closed",
        "postgres/dead_letters.py",
        'code = "DLQ_DISCARD_CONFLICT" if refusal == "closed" else "APPROVAL_REQUIRED"',
        'code = "DLQ_DISCARD_CONFLICT"',
        (f"{_CODES}::test_a_discard_by_fewer_than_two_people_wants_an_approval",),
    ),
    Mutant(
        "datasets-of-each-claim-read-alone",
        "Each claim reads the datasets of its jobs by a statement of its own, which costs as much as the claim",
        "http/job_calls.py",
        "= Batcher(self._read_pins)",
        "= Batcher(self._read_pins, largest=1)",
        ("http/test_tasks.py::test_the_datasets_of_tasks_that_are_claimed_together_are_read_together",),
    ),
)
