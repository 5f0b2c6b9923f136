"""Response bodies of a dispatcher as values of the library. A missing or wrong field raises."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any
from uuid import UUID

from tenure.jobs.event import LogEntry
from tenure.jobs.job import Job
from tenure.jobs.outcome import Effect, Moved, Noted
from tenure.jobs.unserved import ServedTypes

_text = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
#: The jobs of one claim have one token.
_token = lru_cache(1_000)(UUID)

Body = Mapping[str, Any]


def claimed(body: Body) -> Job:
    """A claimed job, with the token of its lease."""
    return job(body["job"], _token(body["lease_token"]))


def job(body: Body, token: UUID | None = None) -> Job:
    """A job; its ids for tracing are those that it is shown with, made or given."""
    payload, error, result = body["payload"], body["last_error"], body["result"]
    checkpoint, pending, letter = body["checkpoint"], body["pending"], body["origin_letter"]
    created, updated = datetime.fromisoformat(body["created_at"]), datetime.fromisoformat(body["updated_at"])
    return Job(  # by position: it is the quickest, and a claim has up to a thousand
        int(body["id"]), body["contract"], body["version"], body["state"], body["role"], body["queue"], body["type"],
        body["tenant_id"], body["priority"], body["claims"], body["raises"], body["counter"], body["max_attempts"],
        _text(payload), body["lease_owner"], moment(body["lease_expires_at"]), moment(body["due_at"]), created, updated,
        moment(body["started_at"]), moment(body["finished_at"]), moment(body["cancel_requested_at"]), body["trace_id"],
        body["correlation_id"], body["idempotency_key"], None if letter is None else int(letter),
        None if error is None else _text(error), None if result is None else _text(result),
        None if checkpoint is None else _text(checkpoint), None if pending is None else _text(pending),
        moment(body.get("blocked_at")), token, "",
    )  # fmt: skip


def moved(body: Body) -> Moved:
    """A move that was made."""
    return Moved(
        int(body["id"]), body["trigger"], body["from_state"], body["state"], body["role"], body["claims"],
        body["counter"], datetime.fromisoformat(body["at"]), moment(body["due_at"]), body["delay_ms"],
        tuple(body["compensate"]),
    )  # fmt: skip


def noted(body: Body) -> Noted:
    """A note that was made."""
    return Noted(int(body["id"]), moment(body["lease_expires_at"]), body["cancel_requested"], body["renewed"])


def moved_or_noted(body: Body) -> Moved | Noted:
    """A move or a note, by the job's contract."""
    return moved(body) if "trigger" in body else noted(body)


def moved_or_none(body: Body) -> Moved | None:
    """A move; None if the contract lacks that step."""
    return moved(body) if "trigger" in body else None


def effect(body: Body) -> Effect:
    """An effect that is on record."""
    result = body["result"]
    return Effect(body["recorded"], None if result is None else _text(result))


def log_entry(body: Body) -> LogEntry:
    """A row of the log."""
    return LogEntry(
        int(body["job_id"]), body["seq"], datetime.fromisoformat(body["ts"]), body["hop"], body["trigger"],
        body["from_state"], body["to_state"], body["claims"], body["counter"], body["max_attempts"], body["actor"],
        body["reason"], body["facts"],
    )  # fmt: skip


def log_page(body: Body) -> tuple[list[LogEntry], str | None]:
    """A page of the log, and the cursor of the next one."""
    return [log_entry(one) for one in body["events"]], body.get("next")


def moment(text: str | None) -> datetime | None:
    """A time, or None."""
    return None if text is None else datetime.fromisoformat(text)


def served_types(body: Any) -> list[ServedTypes]:
    """The queues and types that live workers serve; unknown for a worker that only holds jobs."""
    return [
        ServedTypes(one["queues"], one["contracts"], one["types"])
        for one in body["workers"]
        if one["queues"] is not None
    ]
