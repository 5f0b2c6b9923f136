"""A schedule under the lock of its row. Everything that changes or fires a schedule locks it first."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

from tenure.postgres.statement import Atomic, Plan, Row, statement
from tenure.schedules.declaration import Schedule, from_json
from tenure.schedules.timing import Timing

T = TypeVar("T")


class LockedSchedule(NamedTuple):
    """A schedule under its lock, and the time of the database's clock there."""

    id: int
    application: str
    name: str
    tenant_id: str
    in_code: bool
    declaration: Any
    fingerprint: str
    earlier: Sequence[str]
    declared_by: str | None
    declared_at: datetime
    fire_at: datetime | None
    next_at: datetime | None
    last_job_id: int | None
    paused_at: datetime | None
    paused_by: str | None
    pause_reason: str | None
    withdrawn_at: datetime | None
    now: datetime

    @property
    def schedule(self) -> Schedule:
        """What is declared."""
        return from_json(self.name, self.declaration)

    @property
    def key(self) -> str:
        """What its jitter depends on."""
        return f"{self.application}/{self.name}"

    @property
    def timing(self) -> Timing:
        """When it fires."""
        return self.schedule.timing


def lock(application: str, name: str) -> Plan[LockedSchedule | None]:
    """Lock a schedule; None if there is none."""
    rows: list[Row] = yield statement("lock_schedule", {"application": application, "name": name})
    return LockedSchedule._make(rows[0]) if rows else None


def atomically(plan: Plan[T]) -> Plan[T]:
    """All steps of a plan in one transaction."""
    answer: T = yield Atomic(plan)
    return answer
