"""Routing: each event of a current generation becomes a job of each task that is subscribed to its dataset.

    a completion stores its events, and a delivery for each subscription
    route ─▶ lock a subscription ─▶ keep its dataset from being switched ─▶ take deliveries ─▶ make the jobs ─▶ commit

A delivery of a generation that is not current waits; upkeep deletes those whose generation never becomes current again.
Each subscription has transactions of its own, so one that fails does not hold the others: its deliveries stay, and are
tried again later. The key of a job is made of its task and of what the event says about its input.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple
from uuid import UUID

import psycopg

from tenure.errors import (
    UNREACHABLE,
    BadInput,
    DatasetNotFound,
    DuplicateJob,
    IdempotencyConflict,
    Refused,
    TenureError,
)
from tenure.jobs import validation
from tenure.jobs.dataset import MAX_SET, NewSubscription, Subscription
from tenure.jobs.job import DatasetUse, NewJob
from tenure.jobs.outcome import Enqueued
from tenure.jobs.unique import Unique
from tenure.postgres.engine import EngineUser
from tenure.postgres.enqueue import JobGroup, check_jobs, enqueue_plan
from tenure.postgres.notify import queues_to_wake
from tenure.postgres.registry import Registry
from tenure.postgres.statement import Atomic, Plan, statement
from tenure.postgres.stored_job import job_from_options, job_options

_LONGEST_ERROR: Final = 1_000


class RouteReport(NamedTuple):
    """A round of routing: events routed, jobs made, and why deliveries to a subscriber failed."""

    events: int
    jobs: int
    #: Subscription id → reason.
    troubles: Mapping[int, str]


class _Routed(NamedTuple):
    """What a transaction routed to one subscription."""

    events: int = 0
    made: Sequence[NewJob] = ()


class RoutingVerbs(EngineUser):
    """The verbs about events and subscriptions; part of `store.datasets`."""

    async def subscribe(
        self, subscriptions: Sequence[NewSubscription], *, application: str | None = None
    ) -> Sequence[int]:
        """Run these tasks for each event of their datasets from now on; one for each dataset, contract and type.

        Stores all of them or none; returns their ids in order.
        """
        validation.check_integer("number of subscriptions", len(subscriptions), 0, MAX_SET)
        if application is not None:
            validation.check_name("application", application)
        for subscription in subscriptions:
            await self._check(subscription)

        def subscribe() -> Plan[list[int]]:
            ids: list[int] = yield Atomic(_subscribe(subscriptions, application))
            return ids

        return await self._engine.run(subscribe)

    async def _check(self, new: NewSubscription) -> None:
        job = new.job
        validation.check_name("dataset", new.dataset)
        validation.check_name("type", new.argument)
        bound = await self._engine.bound_contract(job.contract, job.version)
        if not isinstance(job.payload, dict):
            raise BadInput("the payload of a subscription is no object that could take the event. Next: give an object")
        if new.argument in job.payload:
            raise BadInput(f"the payload of a subscription has {new.argument!r} too. Next: give it once")
        if job.key is not None:
            raise BadInput("the jobs of a subscription get their keys from their events. Next: leave key out")
        of_event = replace(job, payload={**job.payload, new.argument: {}})
        validation.check_new_job(bound.contract, of_event, self._max_bytes)

    async def unsubscribe(
        self, dataset: str, type: str, *, contract: str = "standard", tenant_id: str = "default"
    ) -> bool:
        """End a subscription; returns whether there was one. Events that wait for it are dropped."""
        validation.check_name("dataset", dataset)
        validation.check_name("type", type)
        validation.check_name("contract", contract)
        validation.check_name("tenant_id", tenant_id)
        values = {"dataset": dataset, "type": type, "contract": contract, "tenant_id": tenant_id}
        return bool(await self._engine.ask("delete_subscription", **values))

    async def subscriptions(
        self, *, dataset: str | None = None, tenant_id: str | None = None
    ) -> Sequence[Subscription]:
        """Return the subscriptions by dataset and type; at most 1,000."""
        for field, value in (("dataset", dataset), ("tenant_id", tenant_id)):
            if value is not None:
                validation.check_name(field, value)
        rows = await self._engine.ask("list_subscriptions", dataset=dataset, tenant_id=tenant_id, limit=1_000)
        return [Subscription._make(row) for row in rows]

    async def route(self, limit: int = 1_000) -> RouteReport:
        """Route events that no other process routes: make the jobs of their subscribers, each once per input.

        Takes at most `limit` events of each subscription.
        """
        validation.check_integer("limit", limit, 1, validation.MAX_BATCH)
        events, jobs = 0, 0
        troubles: dict[int, str] = {}
        for (subscription_id,) in await self._engine.ask("find_waiting_subscriptions"):
            plan = partial(_route, self._engine.registry, subscription_id, limit, self._max_bytes)
            try:
                done = await self._engine.run_and_extend_ranges(plan)
            except UNREACHABLE:
                raise
            except (TenureError, psycopg.Error) as error:
                troubles[subscription_id] = str(error)[:_LONGEST_ERROR]
                await self._engine.ask("mark_subscription", id=subscription_id, error=troubles[subscription_id])
                continue
            self._engine.wakeups.request(queues_to_wake(done.made))
            events += done.events
            jobs += len(done.made)
        return RouteReport(events, jobs, troubles)


def _subscribe(subscriptions: Sequence[NewSubscription], application: str | None) -> Plan[list[int]]:
    ids: dict[int, int] = {}
    # In one order, so that two processes that start together do not deadlock.
    order = sorted(range(len(subscriptions)), key=lambda n: _identity(subscriptions[n]))
    for n in order:
        new = subscriptions[n]
        tenant_id, dataset, contract, type_name = _identity(new)
        values = {
            "tenant_id": tenant_id, "dataset": dataset, "contract": contract, "type": type_name,
            "argument": new.argument, "application": application, "job": _stored(new.job),
        }  # fmt: skip
        rows = yield statement("put_subscription", values)
        if not rows:  # unchanged, or there is no such dataset
            rows = yield statement("list_subscriptions", {**values, "limit": 1})
        if not rows:
            raise DatasetNotFound(dataset)
        ids[n] = rows[0][0]
    return [ids[n] for n in range(len(subscriptions))]


def _identity(new: NewSubscription) -> tuple[str, str, str, str]:
    return new.job.tenant_id, new.dataset, new.job.contract, new.job.type


def _stored(job: NewJob) -> str:
    """The job of a subscription as it is stored."""
    unique = None if job.unique is None else job.unique._asdict()
    values = {"queue": job.queue, "payload": job.payload, "options": job_options(job), "unique": unique}
    return json.dumps(values, ensure_ascii=False)


def _route(registry: Registry, subscription_id: int, limit: int, max_bytes: int) -> Plan[_Routed]:
    done: _Routed = yield Atomic(_route_in_one(registry, subscription_id, limit, max_bytes))
    return done


class _Dataset(NamedTuple):
    """A dataset whose current generation does not change during the transaction."""

    tenant_id: str
    name: str
    uuid: UUID
    current_id: int
    number: int


def _route_in_one(registry: Registry, subscription_id: int, limit: int, max_bytes: int) -> Plan[_Routed]:
    rows = yield statement("lock_subscription", {"id": subscription_id})
    if not rows:
        return _Routed()
    ((_, dataset_id, contract, type_name, argument, failures, stored),) = rows
    dataset = _Dataset(*(yield statement("hold_dataset", {"id": dataset_id}))[0])
    values = {"id": subscription_id, "generation_id": dataset.current_id, "limit": limit}
    events = yield statement("take_deliveries", values)
    if not events:
        return _Routed()
    template = _job(contract, type_name, json.loads(stored), dataset)
    jobs = [_job_of_event(template, argument, dataset, json.loads(text)) for _, text in events]
    bound = yield from registry.bound_contract(contract, template.version)
    payloads = check_jobs(bound.contract, jobs, range(len(jobs)), max_bytes, alike=False)
    (answers,) = yield from enqueue_plan(
        [JobGroup(bound, jobs, payloads)], f"dataset:{dataset.name}", in_transaction=True
    )
    for answer in answers:
        # The job of this input exists, or another unique one stands for it.
        if isinstance(answer, Refused) and not isinstance(answer, IdempotencyConflict | DuplicateJob):
            raise answer
    yield statement("close_deliveries", {"ids": [event_id for event_id, _ in events]})
    if failures:
        yield statement("mark_subscription", {"id": subscription_id, "error": None})
    made = [
        job for job, answer in zip(jobs, answers, strict=True) if isinstance(answer, Enqueued) and answer.made
    ]  # fmt: skip
    return _Routed(len(events), made)


def _job(contract: str, type_name: str, stored: Mapping[str, Any], dataset: _Dataset) -> NewJob:
    """The job of a subscription; it reads the generation that the event is about, unless it names another one."""
    job = job_from_options(
        type_name, stored["payload"], contract, stored["queue"], dataset.tenant_id, stored["options"]
    )  # fmt: skip
    if (unique := stored["unique"]) is not None:
        job.unique = Unique(**{**unique, "by": None if unique["by"] is None else tuple(unique["by"])})
    reads = tuple(
        DatasetUse(use.name, dataset.number) if use.name == dataset.name and use.generation is None else use
        for use in job.reads
    )
    return replace(job, reads=reads)


def _job_of_event(template: NewJob, argument: str, dataset: _Dataset, about: dict[str, Any]) -> NewJob:
    event = {
        "dataset": dataset.name, "dataset_uuid": str(dataset.uuid), "dataset_version": dataset.number, **about,
    }  # fmt: skip
    identity = [template.contract, template.type, str(dataset.uuid), dataset.number, about]
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
    return replace(template, payload={**template.payload, argument: event}, key=f"dataset-event:{digest}")
