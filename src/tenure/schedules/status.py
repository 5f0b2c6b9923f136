"""A stored schedule as it is now: its next fire, its last one, and why it does not fire."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple
from zoneinfo import ZoneInfo

from tenure.jobs.formats import elapsed, format_time
from tenure.schedules.declaration import Schedule

#: A schedule that is due for longer than this is not fired by any process.
OVERDUE_S: Final = 10.0


class Fire(NamedTuple):
    """What happened at a fire time, or at `times` missed ones from `fire_at` to `last_at`."""

    fire_at: datetime
    last_at: datetime
    #: When it was decided.
    at: datetime
    times: int
    job_id: int | None
    by_hand: bool
    #: enqueued, skipped or failed.
    result: str
    #: Why there is no job; of a fire by hand, who asked for it.
    reason: str | None

    def to_json(self) -> dict[str, Any]:
        """Return it for programs."""
        return {**self._asdict(), "job_id": None if self.job_id is None else str(self.job_id)}


@dataclass(frozen=True, slots=True)
class StoredSchedule:
    """A schedule as the database has it, at the moment `now`."""

    id: int
    application: str
    tenant_id: str
    #: Declared by the application's code; False: made at run time.
    in_code: bool
    schedule: Schedule
    declared_by: str | None
    declared_at: datetime
    #: The next fire time, and when it is due with its jitter; None: there is none.
    fire_at: datetime | None
    next_at: datetime | None
    paused_at: datetime | None
    paused_by: str | None
    pause_reason: str | None
    withdrawn_at: datetime | None
    now: datetime
    last_fire: Fire | None

    @property
    def name(self) -> str:
        """Its name, unique in its application."""
        return self.schedule.name

    @property
    def full_name(self) -> str:
        """The application and the name."""
        return f"{self.application}/{self.name}"

    @property
    def state(self) -> str:
        """active, paused, withdrawn, overdue or finished."""
        if self.withdrawn_at is not None:
            return "withdrawn"
        if self.paused_at is not None:
            return "paused"
        if self.next_at is None:
            return "finished"
        return "overdue" if (self.now - self.next_at).total_seconds() > OVERDUE_S else "active"

    @property
    def trouble(self) -> str | None:
        """Why it does not fire, or why its last fire made no job; None: all is well."""
        last = self.last_fire
        if self.withdrawn_at is not None:
            return f"no live worker's code declares it since {format_time(self.withdrawn_at, self.now)}"
        if self.paused_at is not None:
            reason = f": {self.pause_reason}" if self.pause_reason else ""
            return f"paused by {self.paused_by} since {format_time(self.paused_at, self.now)}{reason}"
        if self.next_at is None:
            return "it has no further fire time"
        if self.state == "overdue":
            return f"due for {elapsed(self.next_at, self.now)}, and no upkeep fires it. Next: start tenure upkeep"
        return None if last is None or last.result == "enqueued" else f"last fire {last.result}: {last.reason}"

    def upcoming(self, count: int) -> list[datetime]:
        """Return its next fire times, without jitter."""
        if self.fire_at is None or count < 1:
            return []
        return [self.fire_at, *self.schedule.timing.upcoming(self.fire_at, count - 1)]

    def next_to_json(self, count: int) -> list[dict[str, Any]]:
        """Return its next fire times for programs: in UTC, in its zone, and with jitter."""
        timing = self.schedule.timing
        return [
            {"fire_at": at, "local": at.astimezone(ZoneInfo(timing.tz)).isoformat(),
             "due_at": timing.due_at(self.full_name, at)}
            for at in self.upcoming(count)
        ]  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        """Return it for programs."""
        return {
            "id": str(self.id), "name": self.name, "application": self.application, "tenant_id": self.tenant_id,
            "state": self.state, "trouble": self.trouble, "in_code": self.in_code, **self.schedule.to_json(),
            "declared_by": self.declared_by, "declared_at": self.declared_at, "fire_at": self.fire_at,
            "next_at": self.next_at, "paused_at": self.paused_at, "paused_by": self.paused_by,
            "pause_reason": self.pause_reason, "withdrawn_at": self.withdrawn_at, "now": self.now,
            "last_fire": self.last_fire and self.last_fire.to_json(),
        }  # fmt: skip
