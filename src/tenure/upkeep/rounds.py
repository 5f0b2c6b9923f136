"""One round of upkeep over all registered contracts, and what it did."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tenure.errors import Refused, TenureError
from tenure.outcome import Outcome
from tenure.postgres.store import Store

_DAY = 86_400.0


@dataclass(frozen=True, slots=True)
class Keep:
    """How long what is past is kept, in seconds."""

    payloads: float = 7 * _DAY
    keys: float = 30 * _DAY
    claims: float = 3_600.0
    jobs: float = 90 * _DAY


class Report(NamedTuple):
    """What one part of a round did: to how many, under which contract, and what stood in its way."""

    part: str
    did: int
    contract: str | None = None
    trouble: str | None = None


async def once(store: Store, keep: Keep | None = None) -> list[Report]:
    """Run every part once. A part that cannot (rights, a busy table) says so and does not stop the others."""
    return [report async for report in _parts(store, keep or Keep())]


async def _parts(store: Store, keep: Keep) -> AsyncIterator[Report]:
    yield await _counted("extend", store.extend_ranges())
    for contract in await store.contracts():
        yield await _moved("settle", contract, store.settle(contract))
        yield await _moved("reap", contract, store.reap(contract))
        yield await _moved("promote", contract, store.promote(contract))
    yield await _counted("forget payloads", store.history.forget_payloads(keep.payloads))
    yield await _counted("retire", store.history.retire_ranges(keep.jobs))
    yield await _counted("forget keys", store.history.forget_keys(keep.keys))  # after their jobs have left
    yield await _counted("forget claims", store.history.forget_claims(keep.claims))
    yield await _counted("vacuum", store.history.vacuum())


async def _counted(part: str, work: Awaitable[int]) -> Report:
    try:
        return Report(part, int(await work))
    except Exception as error:
        return Report(part, 0, trouble=trouble(error))


async def _moved(part: str, contract: str, work: Awaitable[list[Outcome]]) -> Report:
    try:
        return moved(part, contract, await work)
    except Exception as error:
        return Report(part, 0, contract, trouble(error))


def moved(part: str, contract: str, outcomes: Sequence[Outcome]) -> Report:
    """What became of the jobs that a part was at, as a report."""
    refused = [str(outcome) for outcome in outcomes if isinstance(outcome, Refused)]
    return Report(part, len(outcomes) - len(refused), contract, "; ".join(refused) or None)


def trouble(error: Exception) -> str:
    """An error in a report's words."""
    return f"{error.code if isinstance(error, TenureError) else type(error).__name__}: {error}"
