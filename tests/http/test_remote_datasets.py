"""Datasets through a dispatcher: the calls of the remote client, which are those of the store."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import pytest

from tenure.client import remote_datasets
from tenure.client.remote import RemoteClient
from tenure.client.remote_datasets import RemoteDatasets
from tenure.errors import BadInput, DatasetConflict, DatasetNotFound, StaleLease
from tenure.jobs.dataset import Append, DatasetEvent, NewDataset, NewSubscription, Output, Pointer, Replace
from tenure.jobs.holder_call import HolderCall
from tenure.jobs.job import DatasetUse, Job, NewJob
from tenure.jobs.live_worker import LiveWorker
from tenure.jobs.unique import Unique
from tenure.postgres.datasets.datasets import Datasets
from tenure.postgres.store import Store
from tests.harness import Harness

PRICES = DatasetUse("prices")
#: What upkeep does beside the database, and the forms with more answers.
_BESIDE = {"route", "finish_rollbacks", "retire_generations", "forget_rows", "forget_events", "pins_of", "stage_rows"}


@pytest.fixture
async def remote(url: str) -> AsyncIterator[RemoteClient]:
    """A client of a dispatcher on this database."""
    client = RemoteClient(url)
    yield client
    await client.close()


async def held(remote: RemoteClient) -> Job:
    """A held job that writes prices."""
    await remote.datasets.declare(NewDataset("prices"))
    await remote.enqueue(NewJob("t", reads=(PRICES,), writes=(PRICES,)))
    (job,) = await remote.claim("standard", LiveWorker("w", ("default",), ("standard",)), limit=1, claim_key=uuid4())
    return job


async def values(remote: RemoteClient, page: int = 1_000) -> list[object]:
    (generation,) = (await remote.datasets.current(["prices"])).values()
    return [row.value async for row in remote.datasets.rows(generation.id, page=page)]


def test_it_has_every_call_of_the_store_with_the_same_arguments() -> None:
    for name, there in inspect.getmembers(Datasets, inspect.isfunction):
        if not name.startswith("_") and name not in _BESIDE:
            here = getattr(RemoteDatasets, name)
            assert list(inspect.signature(here).parameters) == list(inspect.signature(there).parameters), name


async def test_every_call_answers_what_the_store_answers(remote: RemoteClient, store: Store) -> None:
    far, near = remote.datasets, store.datasets
    first = await far.declare(NewDataset("prices", "acme", {"v": 1}, keep=3))
    assert first == await near.declare(NewDataset("prices", "acme", {"v": 1}, keep=3))
    second = await far.declare(NewDataset("prices", "acme", {"v": 2}, keep=3))
    third = await far.new_generation("prices", tenant_id="acme")
    mine: Any = {"tenant_id": "acme"}
    assert [one.number for one in (first, second, third)] == [1, 2, 3]
    assert await far.generations("prices", **mine) == await near.generations("prices", **mine) == [third, second, first]
    assert await far.generations("prices", limit=1, before=3, **mine) == [second]
    assert await far.generation("prices", 2, **mine) == await far.by_id(second.id) == second
    assert await far.list() == await near.list() == [await far.find("prices", **mine)]
    assert await far.list(after=first.id) == []
    assert await far.of_flow(7) == []
    assert await far.current(["prices"], **mine) == await near.current(["prices"], **mine)
    switch = await far.cutover({"prices": 2}, actor="nobody", reason="why", **mine)
    assert await near.switches(**mine) == await far.switches(dataset="prices", **mine) == [switch]
    back = await far.rollback(["prices"], actor="nobody", **mine)
    assert (back.switch.undoes, back.switch.datasets) == (switch.id, ((("prices", 2, 1)),))
    assert [one.kind for one in await far.switches(limit=1, **mine)] == ["rollback"]
    assert await far.switches(before=back.switch.id, **mine) == [switch]
    for unknown in (
        far.find("no"), far.generation("prices", 9, **mine), far.by_id(99), far.current(["no"]), far.page(99),
        far.find("a/b"), far.cutover({"no": 1}, actor="x"),
    ):  # fmt: skip
        with pytest.raises(DatasetNotFound):
            await unknown
    with pytest.raises(DatasetConflict):
        await far.cutover({"prices": 2}, actor="x", **mine)


async def test_subscriptions_make_the_same_jobs(remote: RemoteClient, store: Store, db: Harness) -> None:
    job = NewJob(
        "index", {"n": 1}, queue="q", priority=2, delay_ms=5, expires_ms=60_000, reads=(PRICES,),
        unique=Unique("waiting", ("n", "event")), correlation_id="c",
    )  # fmt: skip
    await remote.datasets.declare(NewDataset("prices"))
    stored = list[object]()
    for datasets in (store.datasets, remote.datasets):
        await datasets.subscribe([NewSubscription("prices", job)], application="shop")
        stored.append(db.value("select job from tenure.dataset_subscription"))
    assert stored[0] == stored[1]
    assert await remote.datasets.subscriptions() == await store.datasets.subscriptions(dataset="prices")
    assert await remote.datasets.unsubscribe("prices", "index")
    assert not await remote.datasets.unsubscribe("prices", "index")
    for bad in (NewJob("t", key="k"), NewJob("t", payload=[1])):
        with pytest.raises(BadInput):
            await remote.datasets.subscribe([NewSubscription("prices", bad)])


@pytest.mark.req("S1-11", "S1-52")
async def test_a_completion_has_its_outputs_and_events(remote: RemoteClient, db: Harness) -> None:
    job = await held(remote)
    pins = await remote.datasets.pins(job.id)
    assert [(pin.mode, pin.generation) for pin in pins] == [("read", 1), ("write", 1)]
    outputs: list[Output] = [
        Append("prices", ["a"], ["k"]),
        Replace("prices", "may", [1, {"x": "é\u2028"}]),
        Pointer("prices", "s3://x"),
    ]
    events = [
        DatasetEvent("prices", cursor=7),
        DatasetEvent(pins[0].dataset_uuid, 1, partition_key="p", start=1, end=2),
    ]
    call = HolderCall(job.held, result=3, outputs=outputs, dataset_events=events)
    bad = HolderCall(job.held, outputs=[Append("others", [1], ["k"])])
    (refused,) = await remote.report("succeed", [bad])
    assert isinstance(refused, DatasetConflict)
    moved = await remote.call("succeed", call)
    assert moved.state == "succeeded"
    assert await values(remote, page=1) == ["a", 1, {"x": "é\u2028"}]
    assert [one.kind for one in await remote.datasets.outputs(job.id)] == ["append", "replace", "pointer"]
    (pointer,) = await remote.datasets.pointers(pins[0].generation_id)
    assert (pointer.location, pointer.job_id) == ("s3://x", job.id)
    assert db.value("select count(*) from tenure.dataset_event") == 2
    with pytest.raises(BadInput):
        await remote.report("succeed", [HolderCall(job.held, outputs=["none"])])  # type: ignore[list-item]


async def test_large_outputs_are_staged_before_the_completion(
    remote: RemoteClient, db: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_datasets, "_MAX_COMPLETION_BYTES", 100)
    monkeypatch.setattr(remote_datasets, "MAX_ROWS", 3)
    job = await held(remote)
    large = [f"{n}{'x' * 30}" for n in range(10)]
    outputs: list[Output] = [
        Replace("prices", "may", large),
        Append("prices", large, list(map(str, range(10)))),
        Replace("prices", "june", [1]),
    ]
    stale = HolderCall(job.held.__class__(job.id, 1, uuid4(), "standard", job.version), outputs=outputs)
    refused, moved = await remote.report("succeed", [stale, HolderCall(job.held, outputs=outputs)])
    assert isinstance(refused, StaleLease)
    assert moved.state == "succeeded"
    unread = "select count(*) from tenure.dataset_batch where state = 'unread'"
    assert db.value(unread) == 1  # of the append: its rows were staged, and copied
    assert await values(remote, page=4) == [*large, 1, *large]


async def test_rows_are_staged_in_parts_and_added_to(remote: RemoteClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_datasets, "MAX_ROWS", 2)
    job = await held(remote)
    staged = await remote.datasets.stage(job.held, "prices", list(range(5)))
    assert await remote.datasets.stage(job.held, "prices", [5, 6, 7], staged=staged) == staged
    keyed = await remote.datasets.stage(job.held, "prices", ["a", "b", "c"], ["a", "b", "c"])
    assert await remote.datasets.stage(job.held, "prices", ["c", "d"], ["c", "d"], staged=keyed) == keyed
    empty = await remote.datasets.stage(job.held, "prices", [])
    outputs: list[Output] = [
        Append("prices", staged=keyed),
        Replace("prices", "may", staged=staged),
        Replace("prices", "x", staged=empty),
    ]
    await remote.call("succeed", HolderCall(job.held, outputs=outputs))
    assert await values(remote) == ["a", "b", "c", "d", *range(8)]
