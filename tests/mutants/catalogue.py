"""Every mutant, by where its bug is planted."""

from __future__ import annotations

from tests.mutants import (
    in_arguments,
    in_bulk,
    in_conformance,
    in_connections,
    in_contracts,
    in_counts,
    in_dataset_surfaces,
    in_datasets,
    in_decisions,
    in_flow_surfaces,
    in_flows,
    in_hosts,
    in_http,
    in_integrations,
    in_lanes,
    in_messages,
    in_model,
    in_move,
    in_operations,
    in_python,
    in_queries,
    in_ranges,
    in_schedules,
    in_succeed,
    in_surfaces,
    in_transactions,
    in_unique,
    in_visible,
    in_worker,
    in_workers,
)
from tests.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = tuple(
    mutant
    for part in (
        in_move,
        in_succeed,
        in_queries,
        in_ranges,
        in_connections,
        in_contracts,
        in_counts,
        in_decisions,
        in_python,
        in_arguments,
        in_worker,
        in_hosts,
        in_surfaces,
        in_http,
        in_bulk,
        in_integrations,
        in_lanes,
        in_model,
        in_workers,
        in_visible,
        in_transactions,
        in_schedules,
        in_unique,
        in_conformance,
        in_messages,
        in_operations,
        in_flows,
        in_flow_surfaces,
        in_datasets,
        in_dataset_surfaces,
    )
    for mutant in part.MUTANTS
)
