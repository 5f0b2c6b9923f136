"""Proof: what a database says happened, held against what its contracts allow.

    audit    every job's log is folded through its contract's step function and compared with its row, online
    replay   the five cases of document 004, or any recorded job, run again through the public verbs

The model that both share (`tenure.step`, `tenure.fold`) and the explorer (`tenure.explore`) are domain: they need no
database.
"""

from tenure.proof.audit import Audited, Violation, audit

__all__ = ["Audited", "Violation", "audit"]
