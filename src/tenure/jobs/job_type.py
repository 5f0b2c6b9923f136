"""A job type: numbers and a policy for one type of job that override its contract."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tenure.contracts.declaration import Contract
from tenure.errors import BadInput
from tenure.jobs import validation


@dataclass(frozen=True, slots=True)
class JobType:
    """Numbers per contract and type; None means the contract's value. A job's own limit wins over all."""

    type: str
    contract: str = "standard"
    #: How long a claim lasts, within the contract's range.
    lease_ttl_sec: float | None = None
    #: The heartbeat interval of its holder, within the contract's range.
    heartbeat_sec: float | None = None
    #: How long the work may take. If longer than the lease, the lease must be renewed.
    sla_sec: float | None = None
    #: Whether heartbeats renew the lease.
    renews: bool = True
    max_attempts: int | None = None
    backoff_base_ms: int | None = None
    backoff_cap_ms: int | None = None
    #: The final state of a job whose budget is spent, if the contract gives a choice.
    on_exhausted: str | None = None


def check_job_type(contract: Contract, declared: JobType) -> None:
    """Refuse a job type that its contract cannot honour; reports every fault at once."""
    validation.check_name("type", declared.type)
    faults = list(_number_faults(contract, declared))
    faults += [] if faults else _sla_faults(contract, declared)  # compares numbers, so they must be valid
    renews: object = declared.renews
    if not isinstance(renews, bool):
        faults.append(f"renews is {renews!r}; it must be True or False")
    ends = contract.choices("exhaust")
    if declared.on_exhausted is not None and declared.on_exhausted not in ends:
        choice = f"one of {', '.join(ends)}" if ends else "not to be chosen under this contract"
        faults.append(f"on_exhausted is {choice}, not {declared.on_exhausted!r}")
    if faults:
        raise BadInput(f"job type {declared.type} of contract {contract.name}: {'; '.join(faults)}")


def claim_numbers(contract: Contract, declared: Iterable[JobType]) -> dict[str, Sequence[object]]:
    """Return the numbers that the claimer's own code declares for its types, as a claim writes them on the rows."""
    numbers: dict[str, Sequence[object]] = {}
    chooses = bool(contract.choices("exhaust"))
    for one in declared:
        if one.contract == contract.name:
            check_job_type(contract, one)
            numbers[one.type] = [
                _milliseconds(one.lease_ttl_sec), _milliseconds(one.heartbeat_sec), one.backoff_base_ms,
                one.backoff_cap_ms, one.renews, *([one.on_exhausted] if chooses else []),
            ]  # fmt: skip
    return numbers


def _milliseconds(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1_000)


def _number_faults(contract: Contract, declared: JobType) -> Iterable[str]:
    whole: tuple[tuple[str, object, int, int], ...]
    lease, budget = contract.lease, contract.budget
    yield from _second_faults("lease_ttl_sec", declared.lease_ttl_sec, lease.minimum_ms, lease.maximum_ms)
    beat = lease.heartbeat
    if beat:
        yield from _second_faults("heartbeat_sec", declared.heartbeat_sec, beat.minimum_ms, beat.maximum_ms)
    elif declared.heartbeat_sec is not None:
        yield "heartbeat_sec: the contract has no heartbeat of its own; heartbeats renew the lease"
    yield from _second_faults("sla_sec", declared.sla_sec, 1, 366 * 86_400_000)
    whole = (
        ("max_attempts", declared.max_attempts, budget.minimum, budget.maximum),
        ("backoff_base_ms", declared.backoff_base_ms, 1, 86_400_000),
        ("backoff_cap_ms", declared.backoff_cap_ms, 1, 604_800_000),
    )
    for name, value, low, high in whole:
        if value is not None and not (type(value) is int and low <= value <= high):
            yield f"{name} is {value!r}; it must be a whole number within {low}..{high}"


def _second_faults(name: str, value: object, low_ms: int, high_ms: int) -> Iterable[str]:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low_ms <= value * 1000 <= high_ms:
        yield f"{name} is {value!r}; it must be within {low_ms / 1000:g}..{high_ms / 1000:g} seconds"


def _sla_faults(contract: Contract, declared: JobType) -> Iterable[str]:
    lease = contract.lease.default_ms / 1000 if declared.lease_ttl_sec is None else declared.lease_ttl_sec
    if declared.sla_sec is not None and not declared.renews and declared.sla_sec > lease:
        yield f"the work may take {declared.sla_sec:g} s, longer than its lease of {lease:g} s, and nothing renews it"
