"""Routing: each event of a current generation becomes a job of each task that is subscribed to its dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tenure.jobs.dataset import NewSubscription, Subscription
from tenure.postgres.engine import EngineUser


class RouteReport(NamedTuple):
    """A round of routing: events routed, jobs made, and why deliveries to a subscriber failed."""

    events: int
    jobs: int
    #: Subscription id → reason.
    troubles: Mapping[int, str]


class RoutingVerbs(EngineUser):
    """The verbs about events and subscriptions; part of `store.datasets`."""

    async def subscribe(
        self, subscriptions: Sequence[NewSubscription], *, application: str | None = None
    ) -> Sequence[int]:
        """Run these tasks for each event of their datasets from now on; one for each dataset, contract and type."""
        raise NotImplementedError

    async def unsubscribe(
        self, dataset: str, type: str, *, contract: str = "standard", tenant_id: str = "default"
    ) -> bool:
        """End a subscription; returns whether there was one. Events that wait for it are dropped."""
        raise NotImplementedError

    async def subscriptions(
        self, *, dataset: str | None = None, tenant_id: str | None = None
    ) -> Sequence[Subscription]:
        """Return the subscriptions by dataset and type; at most 1,000."""
        raise NotImplementedError

    async def route(self, limit: int = 1_000) -> RouteReport:
        """Route events that no other process routes: make the jobs of their subscribers, each once per input."""
        raise NotImplementedError
