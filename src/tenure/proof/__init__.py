"""Proof: checks that the history in a database is one that its contracts allow.

    audit    folds every job's log through its contract's step function and compares it with the row, online
    replay   runs the five cases of document 004, or any recorded job, again through the public verbs

Both use the pure model in `tenure.model` (step, fold, explore), which needs no database.
"""

from tenure.proof.audit import AuditReport, Violation, audit

__all__ = ["AuditReport", "Violation", "audit"]
