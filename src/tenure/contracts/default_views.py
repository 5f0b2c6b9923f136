"""The views and events of a contract that declares none.

They are stored with the contract when it is registered, and are part of its machine. A change here would therefore give
every contract that relies on them another machine under the same version, which `tenure migrate` refuses.
"""

from __future__ import annotations

from tenure.contracts.declaration import Contract, Event, View
from tenure.contracts.notation import event, view

_JOBS = view("jobs", "jobs",
    "id queue type tenant_id=tenant state attempt=counter max_attempts=limit priority payload due_at=due "
    "lease_owner=owner lease_expires_at=lease_expires started_at=last_started finished_at=finished "
    "created_at=created updated_at=updated last_error=error result idempotency_key=key trace_id=trace "
    "correlation_id=correlation"
)  # fmt: skip
_EVENTS = view("events", "events", "job_id seq ts type=name from_state to_state attempt=counter actor payload")
_DEAD_LETTERS = view("dead_letters", "letters",
    "id job_id tenant_id=tenant type reason_code=reason stage last_error=error attempts=counter last_owner "
    "correlation_id=correlation payload status created_at=created updated_at=updated"
)  # fmt: skip

#: Trigger → the keys of its event; any other has the reason alone, which is its own name where nobody gave one.
_KEYS = {
    "retry": "reason error delay_ms due_at=due",
    "snooze": "reason due_at=due",
    "hand_back": "reason due_at=due",
    **dict.fromkeys(
        ("exhaust", "fatal", "expire", "expire_at_cap", "dead_letter", "compensation_failed"), "reason error"
    ),
}


def default_views(contract: Contract) -> tuple[View, ...]:
    """The views `jobs` and `events`, and `dead_letters` where the contract has such."""
    return (_JOBS, _EVENTS) if contract.dead_letters.mode == "none" else (_JOBS, _EVENTS, _DEAD_LETTERS)


def default_events(contract: Contract) -> tuple[Event, ...]:
    """One event for each trigger and fact, with its name."""
    ends: dict[str, list[str]] = {}
    for path in contract.paths:
        on = f"{path.trigger}>{path.choice}" if path.choice else path.trigger
        if on not in ends.setdefault(path.trigger, []):
            ends[path.trigger].append(on)
    return tuple(
        event(name, " ".join(on), _KEYS.get(name, "reason"))
        for name, on in {**ends, **{fact: [fact] for fact in contract.facts}}.items()
    )
