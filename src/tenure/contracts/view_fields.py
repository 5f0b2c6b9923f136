"""The fields that a contract's views and events may show. `docs/reference/view-fields.md` describes each.

`postgres/views.py` has the SQL of each field; tests keep both equal to this list.
"""

from __future__ import annotations

from collections.abc import Mapping

_JOB = frozenset({
    "id", "queue", "type", "tenant", "state", "counter", "claims", "limit", "priority", "payload", "due",
    "due_while_waiting", "due_until_run", "owner", "token", "lease_expires", "last_heartbeat", "first_started",
    "last_started", "finished", "succeeded", "created", "updated", "error", "final_error", "error_ts",
    "error_message", "error_code", "error_stack", "error_attempt", "error_limit", "error_terminal",
    "error_delay_ms", "error_due", "result", "key", "trace", "correlation", "origin_letter", "cancel_requested",
    "progress", "checkpoint",
})  # fmt: skip
_EVENT = frozenset({
    "id", "name", "payload", "seq", "job_id", "job_id_text", "ts", "ts_text", "trigger", "from_state", "to_state",
    "transition", "run", "actor", "counter", "claims", "limit", "terminal", "reason", "error", "delay_ms", "due",
    "correlation", "trace", "cause", "version",
})  # fmt: skip
_LETTER = frozenset({
    "id", "job_id", "tenant", "type", "reason", "stage", "error", "error_class", "error_code", "counter", "claims",
    "last_owner", "last_lease_expires", "payload", "context", "correlation", "trace", "status", "failed", "created",
    "updated",
})  # fmt: skip
_OUTBOX = frozenset({"id", "job_id", "body", "created", "published"})

#: Kind of rows → the fields that they have.
FIELDS: Mapping[str, frozenset[str]] = {
    "jobs": _JOB, "finished": _JOB, "events": _EVENT, "letters": _LETTER, "outbox": _OUTBOX,
}  # fmt: skip
