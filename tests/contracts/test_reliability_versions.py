"""Document 002, versions: 1.1 adds optional fields, states and types, and readers of version 1 go on reading."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import httpx2
import pytest

import tenure
from tenure.app import App
from tenure.client.remote import RemoteClient
from tenure.contracts.declaration import Contract, Event, View
from tenure.contracts.notation import path
from tenure.contracts.versions import breaking_changes
from tenure.errors import ContractChanged
from tenure.postgres.migrate import migrate
from tenure.postgres.store import Store
from tenure.proof.audit import audit
from tenure.settings import Settings
from tests.contracts.reliability import RELIABILITY, TRANSIENT, make, running
from tests.harness import Harness
from tests.http.conftest import serving
from tests.http.stub import Asked, stub
from tests.worker.working import until, working

#: What a reader of version 1 knows of events: the document's minimal schema, and the keys of payloads.
NINE = "id, job_id, type, ts, actor, correlation_id, cause, payload, version"
KEYS = {event.name: set(event.keys) for event in RELIABILITY.events}


def next_version() -> Contract:
    """Version 1.1: a state to wait in, two events, a column, and keys that only some events have."""
    states = {**RELIABILITY.states, "paused": ("waiting",)}
    more = (path("hand_back", "running > paused", due="given"), path("promote", "paused > queued", due="keep"))
    events = [
        replace(event, keys={**event.keys, "due_at": "due"}, optional=("due_at",)) for event in RELIABILITY.events
    ]
    events += [Event("job_paused", ("hand_back",), {"reason": "reason"}), Event("job_resumed", ("promote",), {})]
    views = [
        View(view.name, view.rows, {**view.columns, "row_seq": "seq"}) if view.rows == "events" else view
        for view in RELIABILITY.views
    ]
    return replace(
        RELIABILITY, version="1.1", states=states, paths=(*RELIABILITY.paths, *more), events=tuple(events),
        views=tuple(views),
    )  # fmt: skip


async def lived(store: Store, db: Harness) -> int:
    """A job of version 1.1 that was paused, resumed, requeued, and succeeded."""
    job_id = await make(store)
    await store.hand_back((await running(store)).held, reason="lunch")
    assert db.row(job_id)["state"] == "paused"
    db.due(job_id)
    await store.promote("reliability")
    await store.fail((await running(store)).held, TRANSIENT)
    db.due(job_id)
    await store.succeed((await running(store)).held)
    return job_id


@pytest.mark.req("S2-62")
async def test_a_reader_of_version_1_reads_the_events_of_version_1_1(store: Store, dsn: str, db: Harness) -> None:
    old = await make(store)
    await store.fail((await running(store)).held, TRANSIENT)
    db.sql("update tenure.job set due_at = now() + interval '1 hour' where id = %s", old)
    before = db.sql(f"select {NINE} from tenure_reliability.job_events where job_id = %s order by ts", old)
    assert list(breaking_changes(RELIABILITY, next_version())) == []
    migrate(dsn, {"reliability": next_version()})
    async with Store.open(dsn) as newer:
        new = await lived(newer, db)
        # What version 1 wrote is shown as it was; only where the row has a value is there a key more.
        after = db.sql(f"select {NINE} from tenure_reliability.job_events where job_id = %s order by ts", old)
        assert [{**row, "payload": set(row["payload"]) - {"due_at"}} for row in after] == [
            {**row, "payload": set(row["payload"])} for row in before
        ]
        assert ["due_at" in row["payload"] for row in after] == [False, False, True]
        told = db.sql(f"select {NINE} from tenure_reliability.job_events where job_id = %s order by ts, id", new)
        assert [row["type"] for row in told] == [
            "job_claimed", "job_started", "job_paused", "job_resumed", "job_claimed", "job_started", "job_requeued",
            "job_claimed", "job_started", "job_succeeded",
        ]  # fmt: skip
        # Every event of a type that version 1 knows has the keys that version 1 promised.
        assert all(set(row["payload"]) >= KEYS.get(row["type"], set()) for row in told)
        # The library's own readers, whose built-in contract is version 1: the log and the audit.
        assert RELIABILITY.version == "1"
        assert [row.to_state for row in await newer.events(new) if row.hop][2:4] == ["paused", "queued"]
        report = await audit(newer)
        assert (report.violations, report.jobs) == ([], 2)
        db.due(old)
        await make(newer)
    # A process that began under version 1 goes on with jobs of both versions, as soon as it has read the new one.
    jobs = [await running(store)]
    store._engine._next_registry_read = 0.0  # half a minute later
    assert await store.claim("reliability", worker="w1") == []  # finds nothing, and looks what is registered
    jobs.append(await running(store))
    assert {job.version for job in jobs} == {"1", "1.1"}
    for job in jobs:
        assert (await store.succeed(job.held)).state == "succeeded"


def with_unknown_fields(told: Any) -> Any:
    """The same JSON as a later version might send it: with fields that nobody here knows, everywhere but in values."""
    values = ("payload", "result", "declaration", "checkpoint", "last_error", "facts", "record", "effects", "pending")
    if isinstance(told, list):
        return [with_unknown_fields(one) for one in told]
    if not isinstance(told, dict):
        return told
    known = {key: value if key in values else with_unknown_fields(value) for key, value in told.items()}
    return {**known, "x_new": {"of": "1.1"}, "a_new_time": None}


@pytest.mark.req("S2-62")
async def test_a_worker_of_version_1_understands_answers_with_fields_and_states_that_it_does_not_know(
    dsn: str, db: Harness
) -> None:
    migrate(dsn, {"reliability": next_version()})
    async with Store.open(dsn) as store:
        strange = await lived(store, db)
    with serving(dsn) as url, httpx2.Client(base_url=url, timeout=30) as dispatcher:

        def relayed(asked: Asked) -> Any:
            target = f"{asked.path}?{asked.query}" if asked.query else asked.path
            answer = dispatcher.request(asked.method, target, json=asked.body)
            return answer.status_code, with_unknown_fields(answer.json())

        async with stub(relayed) as relay:
            remote = RemoteClient(relay.url)
            try:
                plain = RemoteClient(url)
                assert await remote.log(strange) == await plain.log(strange)
                assert await remote.job(strange) == await plain.job(strange)
                assert "paused" in {row.to_state for row in await remote.log(strange)}
                await plain.close()
            finally:
                await remote.close()
            async with App(dispatcher_url=relay.url, settings=Settings()) as app:

                @app.task(contract="reliability", max_attempts=2)
                async def index(ctx: tenure.Context) -> str:
                    await ctx.checkpoint({"page": 1})
                    if ctx.attempt == 1:
                        raise tenure.TransientError("busy")
                    return await ctx.effect("charge", lambda: "receipt")

                async with working(app, wakeups=False) as worker:
                    ticket = await index.enqueue()
                    await until(lambda: worker.counts["retried"] == 1)
                    db.due(ticket.id)
                    assert await app.result(ticket, timeout=30) == "receipt"
    assert db.row(ticket.id)["version"] == "1.1"


@pytest.mark.req("S2-62")
def test_a_version_that_requires_a_new_field_or_takes_one_away_is_not_registered(dsn: str, db: Harness) -> None:
    (first, *others) = RELIABILITY.events
    required = replace(first, keys={**first.keys, "due_at": "due"})
    renamed = replace(first, keys={("why" if key == "reason" else key): field for key, field in first.keys.items()})
    retyped = replace(first, keys={**first.keys, "attempt": "claims"})
    registered = "select count(*) from tenure.contract where name = 'reliability'"
    for event, why in ((required, "requires the new key due_at"), (renamed, "lost or renamed"), (retyped, "lost or")):
        with pytest.raises(ContractChanged, match=why):
            migrate(dsn, {"reliability": replace(RELIABILITY, version="1.1", events=(event, *others))})
        assert db.value(registered) == 1
    optional = replace(required, optional=("due_at",))
    migrate(dsn, {"reliability": replace(RELIABILITY, version="1.1", events=(optional, *others))})
    assert db.value(registered) == 2
