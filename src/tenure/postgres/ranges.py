"""Id ranges: the partitions of `event` and `job_done`, and how a statement reads only a few of them.

PostgreSQL locks every partition that a statement may touch, and its lock table is small: 6,400 entries with default
settings, shared by all connections. History has hundreds of ranges. So a statement that reads history has its ids in
its text (see `statement.py`) and gets the ids of a few ranges at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tenure.jobs.validation import ID_UNIT, MAX_UNITS
from tenure.postgres.statement import Plan, Row, statement


def group_by_range(ids: Sequence[int]) -> Iterator[list[int]]:
    """Yield these ids, sorted, in groups that lie in a few ranges each."""
    group: list[int] = []
    units: set[int] = set()
    for job_id in sorted(set(ids)):
        unit = job_id // ID_UNIT
        if unit not in units and len(units) == MAX_UNITS:
            yield group
            group, units = [], set()
        units.add(unit)
        group.append(job_id)
    if group:
        yield group


def read_by_range(name: str, ids: Sequence[int], **values: Any) -> Plan[list[Row]]:
    """Run a statement that takes `ids` for a few ranges at a time; returns all its rows."""
    rows: list[Row] = []
    for group in group_by_range(ids):
        rows += yield statement(name, {**values, "ids": group})
    return rows


def list_ranges() -> Plan[list[tuple[int, int]]]:
    """Return the ranges (low, high) that exist and are not being dropped, oldest first."""
    rows: list[Row] = yield statement("list_ranges", {})
    return [(low, high) for low, high in rows]
