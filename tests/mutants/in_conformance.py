"""Bugs in the conformance kit: faults of workers and servers that it does not notice, or gives another name."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_WORKERS = "conformance/test_worker_kit.py::test_a_broken_worker_is_named_for_its_fault"

MUTANTS = (
    Mutant(
        "late-completion-unnoticed",
        "The kit does not notice a completion after a lost lease",
        "conformance/worker_rules.py",
        "if report.verb in FINAL_VERBS and (report.verb, report.facts) not in sent:",
        "if False:",
        (_WORKERS,),
    ),
    Mutant(
        "unclaimed-work-unnoticed",
        "The kit does not notice that a worker works without a claim",
        "conformance/worker_rules.py",
        "if hold not in won:",
        "if False:",
        (_WORKERS,),
    ),
    Mutant(
        "second-result-unnoticed",
        "The kit takes a second completion with another result for a repeat",
        "conformance/worker_rules.py",
        "if (first.verb, first.facts) != (second.verb, second.facts):",
        "if first.verb != second.verb:",
        (_WORKERS,),
    ),
    Mutant(
        "accepted-call-unnoticed",
        "The kit does not say that a server accepted a call that it must refuse",
        "conformance/server_probe.py",
        "if response.status_code in (200, 201):",
        "if False:",
        ("conformance/test_server_kit.py::test_a_server_with_a_planted_bug_is_named_for_it",),
    ),
)
