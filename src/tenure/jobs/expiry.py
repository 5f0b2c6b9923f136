"""Expiry: a job that has not begun in time is cancelled, by its contract's own cancel path, with the reason `expired`.

A job has begun when it was claimed once. From then on it does not expire: not while it runs, and not while it waits for
a retry.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final

from tenure.contracts.declaration import Contract
from tenure.errors import BadInput

#: The reason in the log of a job that was cancelled because it had not begun in time.
EXPIRED: Final = "expired"
#: How an application says it: seconds or a timedelta after the enqueue, or a time.
Expires = float | timedelta | datetime
_MAX_MS: Final = 10 * 366 * 86_400_000


def parse_expires(value: Expires | None) -> tuple[datetime | None, int | None]:
    """Return the time, or the milliseconds after the enqueue, at which the job expires."""
    given: Any = value
    if given is None:
        return None, None
    if isinstance(given, datetime):
        return given, None
    seconds = given.total_seconds() if isinstance(given, timedelta) else given
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or abs(seconds) > _MAX_MS:
        raise BadInput(f"expires must be a number of seconds, a timedelta or a datetime, not {value!r}")
    return None, round(seconds * 1_000)


def check_expiry(
    contract: Contract,
    expires_at: datetime | None,
    expires_ms: int | None,
    run_at: datetime | None,
    delay_ms: int | None,
) -> None:
    """Refuse an expiry that is no time, that lies before the due time, or that the contract cannot carry out."""
    at: Any = expires_at  # callers without a type checker may pass anything
    span: Any = expires_ms
    if expires_at is not None:
        if expires_ms is not None:
            raise BadInput("give either expires_at or expires_ms, not both")
        if not isinstance(at, datetime) or at.tzinfo is None:
            raise BadInput(f"expires must be a datetime with a time zone, not {expires_at!r}")
        try:
            at.astimezone(UTC)
        except OverflowError:
            raise BadInput(f"expires is {expires_at}, which cannot be written in UTC") from None
    if expires_ms is not None:
        if isinstance(span, bool) or not isinstance(span, int) or not 1 <= span <= _MAX_MS:
            raise BadInput("expires must be at least a millisecond and at most ten years")
        if delay_ms is not None and expires_ms <= delay_ms:
            raise BadInput("the job would expire before it is due. Next: let it expire after its delay")
    if expires_at is not None and run_at is not None and expires_at <= run_at:
        raise BadInput("the job would expire before it is due. Next: let it expire after run_at")
    if lacking := [state for state in unbegun_states(contract) if contract.path("cancel", state) is None]:
        raise BadInput(
            f"a job that expires is cancelled, and contract {contract.name} has no cancel from {lacking[0]}. "
            "Next: leave expires out, or use a contract with such a path"
        )


def unbegun_states(contract: Contract) -> tuple[str, ...]:
    """Return the states in which a job can be that was never claimed: reached from the first one without a claim."""
    found = [contract.initial]
    for state in found:
        for path in contract.paths:
            leads_on = path.trigger not in ("claim", "reclaim") and state in path.sources and path.end.role != "done"
            if leads_on and path.end.state not in found:
                found.append(path.end.state)
    return tuple(found)
