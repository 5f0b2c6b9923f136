"""What a dispatcher's JSON says, as the library's own values. Whatever is not there, or no such value, raises."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any
from uuid import UUID

from tenure.event import Logged
from tenure.job import Job
from tenure.outcome import Effect, Moved, Noted

_text = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
#: The jobs of one claim have one token.
_token = lru_cache(1_000)(UUID)

Told = Mapping[str, Any]


def claimed(told: Told) -> Job:
    """A job that was won, with the token of its lease."""
    return job(told["job"], _token(told["lease_token"]))


def job(told: Told, token: UUID | None = None) -> Job:
    """A job; its ids for tracing are those that it is shown with, made or given."""
    payload, error, result = told["payload"], told["last_error"], told["result"]
    checkpoint, pending = told["checkpoint"], told["pending"]
    created, updated = datetime.fromisoformat(told["created_at"]), datetime.fromisoformat(told["updated_at"])
    return Job(  # by position: it is the quickest, and a claim has up to a thousand
        int(told["id"]), told["contract"], told["version"], told["state"], told["role"], told["queue"], told["type"],
        told["tenant_id"], told["priority"], told["claims"], told["raises"], told["counter"], told["max_attempts"],
        _text(payload), told["lease_owner"], moment(told["lease_expires_at"]), moment(told["due_at"]), created, updated,
        moment(told["started_at"]), moment(told["finished_at"]), moment(told["cancel_requested_at"]), told["trace_id"],
        told["correlation_id"], told["idempotency_key"], _number(told["origin_letter"]),
        None if error is None else _text(error), None if result is None else _text(result),
        None if checkpoint is None else _text(checkpoint), None if pending is None else _text(pending),
        token, "",
    )  # fmt: skip


def moved(told: Told) -> Moved:
    """A move that was made."""
    return Moved(
        int(told["id"]), told["trigger"], told["from_state"], told["state"], told["role"], told["claims"],
        told["counter"], datetime.fromisoformat(told["at"]), moment(told["due_at"]), told["delay_ms"],
        tuple(told["compensate"]),
    )  # fmt: skip


def noted(told: Told) -> Noted:
    """A note that was made."""
    return Noted(int(told["id"]), moment(told["lease_expires_at"]), told["cancel_requested"], told["renewed"])


def moved_or_noted(told: Told) -> Moved | Noted:
    """Either of the two, as a job's contract has it."""
    return moved(told) if "trigger" in told else noted(told)


def moved_or_none(told: Told) -> Moved | None:
    """A move, where the contract has that step."""
    return moved(told) if "trigger" in told else None


def effect(told: Told) -> Effect:
    """An effect that is on record."""
    result = told["result"]
    return Effect(told["recorded"], None if result is None else _text(result))


def logged(told: Told) -> Logged:
    """A row of the log."""
    return Logged(
        int(told["job_id"]), told["seq"], datetime.fromisoformat(told["ts"]), told["hop"], told["trigger"],
        told["from_state"], told["to_state"], told["claims"], told["counter"], told["max_attempts"], told["actor"],
        told["reason"], told["facts"],
    )  # fmt: skip


def logged_page(told: Told) -> tuple[list[Logged], str | None]:
    """A part of the log, and where it goes on."""
    return [logged(one) for one in told["events"]], told.get("next")


def moment(text: str | None) -> datetime | None:
    """A time, where there is one."""
    return None if text is None else datetime.fromisoformat(text)


def _number(text: str | None) -> int | None:
    return None if text is None else int(text)
