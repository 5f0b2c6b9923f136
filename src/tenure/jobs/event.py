"""A log entry: one hop of one job, or a fact that its contract declares."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One log row. `seq` has no gaps and `ts` strictly rises within a job."""

    job_id: int
    seq: int
    ts: datetime
    hop: bool
    trigger: str
    from_state: str
    to_state: str
    claims: int
    counter: int
    max_attempts: int
    actor: str
    reason: str | None
    facts: Any
