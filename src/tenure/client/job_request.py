"""A new job as the fields of a request to a dispatcher."""

from __future__ import annotations

from datetime import UTC
from typing import Any

from tenure.errors import BadInput
from tenure.jobs import validation
from tenure.jobs.dataset_json import use_to_json
from tenure.jobs.job import NewJob


def job_fields(job: NewJob, max_bytes: int) -> tuple[dict[str, Any], str]:
    """The fields of a new job without its key, tenant and uniqueness, and its payload as JSON text.

    Refuses what cannot be sent.
    """
    if job.version is not None:
        raise BadInput("the dispatcher chooses the version of a contract. Next: leave version out")
    payload = validation.to_json("payload", job.payload, max_bytes)
    if job.run_at is not None and job.run_at.tzinfo is None:
        raise BadInput(f"run_at must be a datetime with a time zone, not {job.run_at!r}")
    run_at = None if job.run_at is None else validation.to_utc("run_at", job.run_at).astimezone(UTC).isoformat()
    fields = {"type": job.type, "contract": job.contract, "queue": job.queue, "priority": job.priority}
    optional = {
        "max_attempts": job.max_attempts, "run_at": run_at, "notify": None if job.notify else False,
        "delay_seconds": None if job.delay_ms is None else job.delay_ms / 1_000,
        "trace_id": job.trace_id, "correlation_id": job.correlation_id,
        "reads": list(map(use_to_json, job.reads)) or None, "writes": list(map(use_to_json, job.writes)) or None,
        "expires_seconds": None if job.expires_ms is None else job.expires_ms / 1_000,
        "expires_at": job.expires_at and validation.to_utc("expires", job.expires_at).isoformat(),
    }  # fmt: skip
    return {**fields, **{name: value for name, value in optional.items() if value is not None}}, payload


def tenant_field(tenant_id: str) -> dict[str, str]:
    """The tenant of a request; without it the dispatcher takes the tenant of the API key."""
    return {} if tenant_id == "default" else {"tenant_id": tenant_id}
