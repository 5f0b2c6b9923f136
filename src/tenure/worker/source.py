"""Where a worker's jobs come from and where its words go: beside PostgreSQL, or across HTTP."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Protocol
from uuid import UUID

from tenure.contract import Contract
from tenure.errors import Refused, TenureError
from tenure.event import Logged
from tenure.job import Failure, Held, Job
from tenure.outcome import Effect, Moved, Noted
from tenure.queue import Decision


class JobSource(Protocol):
    """The verbs that a worker says. What is refused is raised; batches answer for each job."""

    #: Whether others may take a job while this source is away: then a lease that was not renewed in time is lost.
    leases_run_on: bool

    async def contracts(self) -> Mapping[str, Contract]:
        """Every registered contract by name."""

    async def due(self, contracts: Sequence[str], queues: Sequence[str]) -> list[str]:
        """Which of these contracts have something to claim from these queues now."""

    async def claim(
        self,
        contract: str,
        queues: Sequence[str],
        *,
        worker: str,
        limit: int,
        claim_key: UUID,
        types: Sequence[str] | None = None,
    ) -> list[Job]:
        """Take due jobs, of these types or of any; asked again with the same key, the same ones."""

    async def strangers(
        self, contracts: Sequence[str], queues: Sequence[str], known: Sequence[str], *, worker: str
    ) -> list[tuple[int, str]]:
        """Due jobs of types that are not known here, id and type; those that waited an hour for somebody are ended."""

    def start(self, held: Held) -> Awaitable[Moved | None]:
        """Say that the handler begins."""

    async def succeed(self, held: Sequence[Held], results: Sequence[Any]) -> Sequence[Moved | TenureError]:
        """End jobs well, each with its result."""

    async def fail(self, held: Held, failure: Failure) -> Decision:
        """Report a failure; what was decided."""

    def snooze(self, held: Held, delay_ms: int) -> Awaitable[Moved]:
        """Put a job off."""

    async def hand_back(
        self, held: Sequence[Held], delay_ms: int, reason: str | None
    ) -> Sequence[Moved | Noted | TenureError]:
        """Give jobs back unfinished."""

    async def cancelled(self, held: Held, reason: str | None) -> Moved:
        """End a job as cancelled."""

    async def heartbeat(self, held: Sequence[Held]) -> list[Noted | Refused]:
        """Say that the work goes on."""

    async def progress(self, held: Held, value: Any) -> Noted:
        """Show how far the work is."""

    async def checkpoint(self, held: Held, value: Any) -> Noted:
        """Save what the next attempt shall begin with."""

    async def effects(self, job_id: int) -> dict[str, Any]:
        """The nodes that have had their effect, with what came of each."""

    async def effect(self, held: Held, node: str, result: Any, *, compensable: bool) -> Effect:
        """Record that a node has had its effect."""

    async def undone(self, held: Held, node: str) -> None:
        """Record that a node's effect is undone."""

    async def compensated(self, held: Held) -> Moved:
        """End a job whose effects are undone."""

    async def compensation_failed(self, held: Held, failure: Failure) -> Moved:
        """Set a job aside whose effects could not be undone."""

    async def log(self, job_id: int) -> list[Logged]:
        """What happened to a job so far."""

    async def close(self) -> None:
        """Let what is under way end, and the connections go."""
