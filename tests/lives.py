"""Jobs with their logs as they would be after some triggers, made without a database."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Self

from tenure.contracts import BUILT_IN
from tenure.contracts.declaration import HELD, Contract
from tenure.jobs.event import LogEntry
from tenure.jobs.job import Job
from tenure.jobs.why import Situation, explain_job, next_commands

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
ERROR = {"type": "TimeoutError", "message": "too slow", "code": "SLOW"}


def ago(seconds: float) -> datetime:
    """So many seconds before now."""
    return NOW - timedelta(seconds=seconds)


class Life:
    """A job and its log, moved along the paths of its contract, ten seconds a hop, the last of them just before now."""

    def __init__(self, contract: Contract, **row: Any) -> None:
        self.contract = contract
        self.state, self.role = contract.initial, "ready"
        self.log: list[LogEntry] = []
        self.row: dict[str, Any] = {
            **dict.fromkeys(Job._fields), "id": 7, "contract": contract.name, "version": contract.version,
            "queue": "mail", "type": "send", "tenant_id": "default", "priority": 5, "claims": 0, "raises": 0,
            "counter": contract.counter.initial, "max_attempts": contract.budget.default, "payload_json": "{}",
            "created_at": ago(1000), "due_at": ago(1000), "installation": "i", **row,
        }  # fmt: skip

    def go(
        self, trigger: str, actor: str = "w1", reason: str | None = None, facts: Any = None, at: datetime | None = None
    ) -> Self:
        """Take the path of a trigger."""
        path = self.contract.path(trigger, self.state)
        assert path is not None, f"{self.contract.name} has no {trigger} from {self.state}"
        ts = at or ago(500) + timedelta(seconds=10 * len(self.log))
        if trigger in ("claim", "reclaim"):
            lease = {"lease_owner": actor, "lease_expires_at": NOW + timedelta(seconds=20)}
            self.row |= {"claims": self.row["claims"] + 1, "started_at": ts, **lease}
        self.row["counter"] += trigger in self.contract.counter.on
        for hop in path.hops:
            self._write(trigger, True, hop.state, actor, reason, facts, ts)
            self.state, self.role, facts = hop.state, hop.role, None
            ts += timedelta(microseconds=1)
        if self.role not in HELD:
            self.row |= {"lease_owner": None, "lease_expires_at": None}
        if self.role == "done":
            self.row["finished_at"] = ts
        return self

    def fact(self, name: str, actor: str, reason: str | None = None) -> Self:
        """Write a fact that is no hop."""
        self._write(name, False, self.state, actor, reason, None, ago(5))
        return self

    def with_(self, **row: Any) -> Self:
        """Change the row."""
        self.row |= row
        return self

    def _write(
        self, trigger: str, hop: bool, to: str, actor: str, reason: str | None, facts: Any, ts: datetime
    ) -> None:
        row = self.row
        counts = (row["claims"], row["counter"], row["max_attempts"])
        self.log.append(
            LogEntry(row["id"], len(self.log) + 1, ts, hop, trigger, self.state, to, *counts, actor, reason, facts)
        )

    @property
    def job(self) -> Job:
        """The row."""
        return Job(**{**self.row, "state": self.state, "role": self.role, "updated_at": NOW})

    def told(self, **around: Any) -> str:
        """The answer, as one text."""
        return " ".join(explain_job(self.job, self.log, self.contract, NOW, Situation(**around)))

    def steps(self, **around: Any) -> list[str]:
        """The commands."""
        return next_commands(self.job, self.contract, Situation(**around))


def life(name: str, *triggers: str, **row: Any) -> Life:
    """A job of this contract that took these triggers."""
    made = Life(BUILT_IN[name], **row)
    for trigger in triggers:
        made.go(trigger)
    return made
