"""Every mutant, by where its bug is planted."""

from __future__ import annotations

from tests.mutants import (
    in_contracts,
    in_http,
    in_model,
    in_move,
    in_python,
    in_queries,
    in_succeed,
    in_surfaces,
    in_worker,
)
from tests.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = tuple(
    mutant
    for part in (in_move, in_succeed, in_queries, in_contracts, in_python, in_worker, in_surfaces, in_http, in_model)
    for mutant in part.MUTANTS
)
