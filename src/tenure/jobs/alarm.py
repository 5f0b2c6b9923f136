"""Alarms: conditions that people shall know of. Values only; `postgres/alarms.py` looks for them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple

Priority = Literal["P1", "P2", "P3"]

#: Every kind of alarm: how urgent it is, and what it means.
ALARMS: Final[Mapping[str, tuple[Priority, str]]] = {
    "invalid-transitions": ("P1", "moves of a tenant's jobs of one type are refused, one after the other"),
    "retrying-share": ("P2", "a large share of a tenant's live jobs waits for a retry"),
    "dlq-pending-growth": ("P2", "more jobs of a tenant than usual enter the state before a dead letter"),
    "dead-letters-growing": ("P2", "more jobs of a tenant than usual become dead letters"),
    "oldest-waiting": ("P2", "a due job of a queue waits for long"),
    "no-worker": ("P2", "jobs wait in a queue that no live worker serves"),
    "worker-silent": ("P2", "a worker is not seen any more and did not stop"),
    "type-unknown": ("P2", "jobs wait whose type no live worker of their queue knows"),
    "reaper-behind": ("P2", "expired leases are not closed"),
    "xmin-pinned": ("P2", "an old transaction keeps dead rows, and claims get slower"),
    "outbox-behind": ("P2", "wake-ups for message queues are not published"),
    "ranges-running-out": ("P1", "few ids are left for which the log and the history have partitions"),
    "test": ("P3", "somebody tests the sinks"),
}


@dataclass(frozen=True, slots=True)
class AlarmLimits:
    """The thresholds of alarms."""

    #: The share of live jobs that wait for a retry, for how long it must be above, and from how many live jobs on.
    retrying_share: float = 0.2
    retrying_for_s: float = 300.0
    retrying_least: int = 10
    #: Entries of one tenant within the window: at least this number, and this factor of the usual number.
    dlq_entries: int = 10
    dlq_factor: float = 3.0
    dlq_window_s: float = 600.0
    #: Refused moves of one tenant and type within the window, with no legal one after the first.
    invalid_transitions: int = 5
    invalid_window_s: float = 60.0
    oldest_waiting_s: float = 300.0
    unserved_s: float = 60.0
    #: Expired leases and unpublished wake-ups.
    behind_s: float = 60.0
    snapshot_s: float = 900.0
    ranges_ahead: int = 2


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition that holds now."""

    kind: str
    summary: str
    next: str
    value: float
    threshold: float
    tenant: str = ""
    subject: str = ""
    #: How long it must hold before the alarm fires.
    hold_s: float = 0.0
    details: Mapping[str, Any] | None = None


class Alarm(NamedTuple):
    """An alarm that has fired."""

    id: int
    kind: str
    #: None: it is not about one tenant, or about nothing in particular.
    tenant_id: str | None
    subject: str | None
    severity: Priority
    since: datetime
    fired_at: datetime
    seen_at: datetime
    #: None: it still holds.
    cleared_at: datetime | None
    value: float
    threshold: float
    summary: str
    next: str
    details: str
    muted_by: str | None = None
    muted_until: datetime | None = None
    mute_reason: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The fields that JSON shows."""
        return {**self._asdict(), "id": str(self.id), "details": json.loads(self.details)}


class Notice(NamedTuple):
    """What a sink is sent of an alarm: that it fired, or that it cleared."""

    change: Literal["fired", "cleared"]
    tries: int
    alarm: Alarm

    @property
    def id(self) -> str:
        """The same for each attempt to send it, so that a receiver can leave out repetitions."""
        return f"alarm-{self.alarm.id}-{self.change}"
