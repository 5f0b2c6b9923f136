"""Each event of a current generation becomes a job of each subscribed task, once per input."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tenure.errors import BadInput, DatasetNotFound, StaleLease
from tenure.jobs.dataset import DatasetEvent, NewDataset, NewSubscription
from tenure.jobs.holder_call import HolderCall
from tenure.jobs.job import DatasetUse, NewJob
from tenure.jobs.unique import Unique
from tenure.postgres.store import Store
from tenure.upkeep import once
from tests.flow_nodes import claim_all
from tests.harness import Harness

PRICES = DatasetUse("prices")


async def subscribe(store: Store, *types: str, **more: Any) -> list[int]:
    await store.datasets.declare(NewDataset("prices"))
    return list(await store.datasets.subscribe([NewSubscription("prices", NewJob(one, **more)) for one in types]))


async def emit(store: Store, *cursors: Any, generation: int | None = None) -> None:
    """A completion that reports these events."""
    await store.datasets.declare(NewDataset("prices"))
    await store.enqueue(NewJob("source", writes=(PRICES,), queue="source"))
    (job,) = await store.claim("standard", worker="w", queues=["source"])
    events = [DatasetEvent("prices", generation, cursor=one) for one in cursors]
    await store.report_one("succeed", HolderCall(job.held, dataset_events=events))


def made(db: Harness) -> list[tuple[str, Any]]:
    """(type, cursor) of the jobs that events made."""
    rows = db.sql("select type, payload -> 'event' -> 'cursor' as cursor from tenure.job order by id")
    return [(row["type"], row["cursor"]) for row in rows]


@pytest.mark.req("S1-52")
async def test_events_become_jobs_of_each_subscriber(store: Store, db: Harness) -> None:
    dataset = (await store.datasets.declare(NewDataset("prices"))).dataset_uuid
    await emit(store, 0)  # before anybody is subscribed
    await subscribe(store, "index", "report", payload={"n": 1}, queue="q", priority=2, reads=(PRICES,))
    await emit(store, 1, 2)
    assert made(db) == []
    done = await store.datasets.route()
    assert (done.events, done.jobs, done.troubles) == (4, 4, {})
    assert sorted(made(db)) == [("index", 1), ("index", 2), ("report", 1), ("report", 2)]
    job = db.one("select * from tenure.job where type = 'index' and payload -> 'event' -> 'cursor' = '1'")
    assert job["payload"] == {
        "n": 1, "event": {"dataset": "prices", "dataset_uuid": str(dataset), "dataset_version": 1, "cursor": 1},
    }  # fmt: skip
    assert (job["queue"], job["priority"], job["created_by"]) == ("q", 2, "dataset:prices")
    assert [pin.generation for pin in await store.datasets.pins(job["id"])] == [1]
    assert db.value("select count(*) from tenure.dataset_delivery") == 0
    assert db.value("select count(*) from tenure.dataset_event where open <> 0 or routed_at is null") == 0
    assert (await store.datasets.route()).events == 0


@pytest.mark.req("S1-52")
async def test_an_input_runs_once_however_often_it_is_reported(store: Store, db: Harness) -> None:
    await subscribe(store, "index")
    await emit(store, 1, 1, 2)
    await store.datasets.route()
    await emit(store, 2, "2", 3)
    done = await store.datasets.route()
    assert (done.events, done.jobs) == (3, 2)
    assert sorted(map(str, made(db))) == ["('index', '2')", "('index', 1)", "('index', 2)", "('index', 3)"]


@pytest.mark.req("S1-52")
async def test_a_refused_completion_routes_nothing(store: Store, db: Harness) -> None:
    await subscribe(store, "index")
    await store.enqueue(NewJob("source", writes=(PRICES,)))
    (job,) = await claim_all(store)
    db.sql("update tenure.job set lease_token = gen_random_uuid()")
    with pytest.raises(StaleLease):
        await store.report_one("succeed", HolderCall(job.held, dataset_events=[DatasetEvent("prices", cursor=1)]))
    assert db.value("select count(*) from tenure.dataset_event") == 0
    assert (await store.datasets.route()).events == 0


@pytest.mark.req("S1-81")
async def test_events_of_a_generation_wait_until_it_is_current(store: Store, db: Harness) -> None:
    await subscribe(store, "index")
    await store.datasets.new_generation("prices")
    await store.datasets.new_generation("prices")
    await emit(store, 7, generation=2)
    await emit(store, 8, generation=3)
    assert (await store.datasets.route()).events == 0
    (subscription,) = await store.datasets.subscriptions()
    assert (subscription.waiting, subscription.type, subscription.dataset) == (2, "index", "prices")
    await store.datasets.cutover({"prices": 3}, actor="ada")
    assert (await store.datasets.route()).jobs == 1
    assert made(db) == [("index", 8)]
    await emit(store, 9, generation=3)
    await store.datasets.rollback(["prices"], actor="ada")
    assert (await store.datasets.route()).events == 0
    assert await store.datasets.forget_events() == 0
    # What was rolled back never becomes current again; generation 2 may.
    assert (await store.datasets.subscriptions())[0].waiting == 1


@pytest.mark.req("S1-52")
async def test_a_subscriber_that_fails_does_not_hold_the_others(store: Store, db: Harness) -> None:
    broken, _ = await subscribe(store, "broken", "index")
    db.sql("update tenure.dataset_subscription set contract = 'gone' where type = 'broken'")
    await emit(store, 1)
    done = await store.datasets.route()
    assert (done.events, list(done.troubles)) == (1, [broken])
    assert made(db) == [("index", 1)]
    reports = {report.part: report for report in await once(store)}
    assert reports["route events"] == ("route events", 0, None, None)  # it waits for its next attempt
    (first, _) = await store.datasets.subscriptions()
    assert (first.waiting, "gone" in str(first.last_error)) == (1, True)
    db.sql("update tenure.dataset_subscription set retry_at = now()")
    reports = {report.part: report for report in await once(store)}
    assert "broken" in str(reports["route events"].trouble) or "gone" in str(reports["route events"].trouble)
    await emit(store, 2)
    db.sql("update tenure.dataset_subscription set retry_at = now(), contract = 'standard' where type = 'broken'")
    assert (await store.datasets.route()).jobs == 3
    assert sorted(made(db)) == [("broken", 1), ("broken", 2), ("index", 1), ("index", 2)]
    assert [one.last_error for one in await store.datasets.subscriptions()] == [None, None]


async def test_routing_in_several_processes_makes_each_job_once(store: Store, db: Harness, dsn: str) -> None:
    await subscribe(store, *(f"t{n}" for n in range(5)))
    await emit(store, *range(50))
    async with Store.open(dsn) as other:
        reports = await asyncio.gather(*(one.datasets.route(10) for one in (store, other) * 20))
        while (await store.datasets.route()).events:
            pass
    assert sum(report.jobs for report in reports) <= 250
    assert len(set(made(db))) == len(made(db)) == 250


async def test_subscribing_again_changes_it_and_an_end_drops_what_waits(store: Store, db: Harness) -> None:
    ids = await subscribe(store, "index", "report")
    before = db.sql("select xmin::text, * from tenure.dataset_subscription order by id")
    assert await subscribe(store, "report", "index") == ids[::-1]
    assert db.sql("select xmin::text, * from tenure.dataset_subscription order by id") == before
    await store.datasets.subscribe(
        [NewSubscription("prices", NewJob("index", queue="other", unique=Unique("waiting", ("event",))), "event")],
        application="shop",
    )
    await emit(store, 1)
    assert await store.datasets.unsubscribe("prices", "report")
    assert not await store.datasets.unsubscribe("prices", "report")
    await store.datasets.route()
    assert db.one("select type, queue from tenure.job") == {"type": "index", "queue": "other"}
    (left,) = await store.datasets.subscriptions(dataset="prices", tenant_id="default")
    assert (left.application, left.waiting) == ("shop", 0)
    assert db.value("select count(*) from tenure.dataset_delivery") == 1
    await store.datasets.forget_events(0)
    assert db.value("select count(*) from tenure.dataset_delivery") == 0
    await store.datasets.forget_events(0)
    assert db.value("select count(*) from tenure.dataset_event") == 0


@pytest.mark.parametrize(
    ("more", "argument"),
    [({"payload": []}, "event"), ({"payload": {"event": 1}}, "event"), ({"key": "k"}, "event"), ({}, ""),
     ({"priority": 77}, "event")],
)  # fmt: skip
async def test_bad_subscriptions_are_refused(store: Store, more: dict[str, Any], argument: str) -> None:
    await store.datasets.declare(NewDataset("prices"))
    good = NewSubscription("prices", NewJob("good"))
    with pytest.raises(BadInput):
        await store.datasets.subscribe([good, NewSubscription("prices", NewJob("t", **more), argument)])
    with pytest.raises(DatasetNotFound):
        await store.datasets.subscribe([good, NewSubscription("no", NewJob("t"))])
    assert await store.datasets.subscriptions() == []
