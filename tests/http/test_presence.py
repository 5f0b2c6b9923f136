"""Remote workers are entered by their claims, all of a dispatcher's together, and are listed while they are idle."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Any

import httpx2
import pytest

import tenure
from tenure.app import App
from tenure.http.worker_presence import WorkerPresence
from tenure.jobs.job_type import JobType
from tenure.jobs.live_worker import LiveWorker
from tenure.postgres.store import Store
from tenure.settings import Settings
from tests.harness import Harness
from tests.http.conftest import serving
from tests.worker.working import until, working


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dispatchers that tell the database every 50 ms, and workers that say as often that they live."""
    for module in ("tenure.http.worker_presence", "tenure.worker.presence"):
        monkeypatch.setattr(f"{module}.EVERY_S", 0.05)
    # However slow the machine is, no write is given up.
    monkeypatch.setattr("tenure.http.worker_presence._PATIENCE_S", 60.0)
    monkeypatch.setattr("tenure.worker.presence._TIMEOUT_S", 60.0)


@pytest.fixture
def when_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A `Presence` that tells the database at its first note, and then only when a test lets it."""
    monkeypatch.setattr("tenure.http.worker_presence.EVERY_S", 600.0)
    monkeypatch.setattr("tenure.http.worker_presence._PATIENCE_S", 60.0)


#: How many wait for a lock in this database.
_WAITING = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
#: How many other sessions of this database are in a statement.
_AT_WORK = (
    "select count(*) from pg_stat_activity where state = 'active' and backend_type = 'client backend' "
    "and datname = current_database() and pid <> pg_backend_pid()"
)
#: Notes the transaction of each statement that writes live workers, also where it changes no row.
_TOLD = """
create table public.told (by xid8 primary key);
create function public.told() returns trigger language plpgsql as
    $$ begin insert into public.told values (pg_current_xact_id()) on conflict do nothing; return null; end $$;
create trigger told after insert or update on tenure.worker for each statement execute function public.told();
"""
FAR: dict[str, Any] = {"application": "shop", "version": "1.2", "host": "box", "pid": 7, "slots": 3}


def introduced(client: httpx2.Client, name: str = "far", **given: Any) -> None:
    """A worker says that it lives."""
    answer = client.put("/api/v1/workers", json={"worker_id": name, "types": ["send"], "worker": FAR, **given})
    assert (answer.status_code, answer.json()) == (200, {"worker_id": name})


def names(db: Harness) -> list[str]:
    """The workers that have a row."""
    return [row["name"] for row in db.sql("select name from tenure.worker order by name")]


@pytest.mark.usefixtures("soon")
async def test_a_remote_worker_that_never_had_a_job_stays_listed_and_leaves_when_it_stops(
    dsn: str, db: Harness
) -> None:
    with serving(dsn) as url:
        async with App(dispatcher_url=url, settings=Settings()) as app:

            @app.task(queue="mail", max_attempts=7)
            async def send() -> None: ...

            # A wake-up may be about anything, and makes a worker claim: without any it only looks what is due.
            async with working(app, name="far", concurrency=3, wakeups=False):
                await until(lambda: names(db) == ["far"])
                with httpx2.Client(base_url=url) as client:
                    (seen,) = client.get("/api/v1/workers").json()["workers"]
                first = db.one("select started_at, declares from tenure.worker")
                db.sql("update tenure.worker set last_seen_at = now() - interval '1 hour'")
                await until(lambda: db.value("select last_seen_at > now() - interval '1 minute' from tenure.worker"))
                assert db.value("select started_at from tenure.worker") == first["started_at"]
                db.sql("delete from tenure.worker")  # as upkeep does it to one that was frozen
                await until(lambda: names(db) == ["far"])
            assert names(db) == [], "it leaves at once"
    assert (seen["worker_id"], seen["queues"], seen["types"]) == ("far", ["mail"], ["send"])
    assert (seen["host"], seen["pid"], seen["version"]) == (socket.gethostname(), os.getpid(), tenure.__version__)
    assert (seen["application"], seen["slots"], seen["busy"], seen["held"]) == (__name__, 3, 0, 0)
    assert "standard" in seen["contracts"]
    assert seen["through"]
    assert first["declares"] == {"standard": {"send": {"max_attempts": 7, "renews": True}}}


@pytest.mark.usefixtures("soon")
async def test_a_remote_worker_says_how_busy_it_is(dsn: str, db: Harness) -> None:
    going = asyncio.Event()
    with serving(dsn) as url:
        async with App(dispatcher_url=url, settings=Settings()) as app:

            @app.task
            async def wait() -> None:
                await going.wait()

            async with working(app, name="far", concurrency=1):
                await wait.enqueue()
                await until(lambda: db.value("select max(busy) from tenure.worker") == 1)
                assert db.value("select loop_lag_s >= 0 from tenure.worker")
                db.sql("update tenure.worker set last_seen_at = now() - interval '1 hour'")  # without a free slot, too
                await until(lambda: db.value("select last_seen_at > now() - interval '1 minute' from tenure.worker"))
                going.set()
                await until(lambda: db.value("select busy from tenure.worker") == 0)


@pytest.mark.usefixtures("soon")
async def test_a_claim_that_tells_nothing_of_its_worker_leaves_what_is_known(dsn: str, db: Harness) -> None:
    with serving(dsn) as url, httpx2.Client(base_url=url) as client:
        asked = {"worker_id": "far", "queues": ["mail"], "types": ["send"]}
        client.post("/api/v1/claims", json={**asked, "worker": FAR})
        await until(lambda: names(db) == ["far"])
        client.post("/api/v1/claims", json=asked)  # as a worker's watchdog does it for a blocked event loop
        client.post("/api/v1/claims", json={"worker_id": "later"})  # told together with it, or after it
        await until(lambda: names(db) == ["far", "later"])
        row = db.one("select application, version, host, pid, slots from tenure.worker where name = 'far'")
        assert dict(row) == FAR


@pytest.mark.usefixtures("soon")
async def test_what_a_worker_says_of_itself_replaces_what_it_said_before(dsn: str, db: Harness) -> None:
    with serving(dsn) as url, httpx2.Client(base_url=url) as client:
        introduced(client, queues=["mail", "post"], contracts=["standard", "simple"], types=["receive", "send"])
        await until(lambda: names(db) == ["far"])
        introduced(client, queues=["post"], types=["send"])
        await until(lambda: db.value("select queues from tenure.worker") == ["post"])
        row = db.one("select contracts, types from tenure.worker")
        assert (row["contracts"], row["types"]) == (["standard"], ["send"])


@pytest.mark.usefixtures("soon")
async def test_a_worker_takes_no_other_row_away_when_it_leaves(dsn: str, store: Store, db: Harness) -> None:
    await store.workers.enter([LiveWorker("near", ("mail",), ("standard",), host="box", pid=7)])
    with serving(dsn) as url, httpx2.Client(base_url=url) as client:
        introduced(client)
        await until(lambda: names(db) == ["far", "near"])
        for name, pid in (("near", 7), ("far", 8)):  # one that has the database itself, and a successor
            asked = {"worker_id": name, "host": "box", "pid": pid}
            assert client.post("/api/v1/workers/leave", json=asked).status_code == 200
        assert names(db) == ["far", "near"]
        assert client.post("/api/v1/workers/leave", json={"worker_id": "far", "host": "box", "pid": 7}).is_success
        assert names(db) == ["near"]


@pytest.mark.usefixtures("when_told")
async def test_a_worker_that_left_through_another_dispatcher_is_not_entered_again(store: Store, db: Harness) -> None:
    here, elsewhere = WorkerPresence(store), WorkerPresence(store)
    far = LiveWorker("far", ("mail",), ("standard",), host="box", pid=7)
    here.record(far, unbound=True, complete=True)
    await until(lambda: names(db) == ["far"])
    here.record(far, unbound=True, complete=True)
    await elsewhere.leave(far)
    await here._try_write()
    assert names(db) == []
    here.record(far, unbound=True, complete=True)  # it lives after all
    await here._try_write()
    assert names(db) == ["far"]
    await here.stop()


@pytest.mark.usefixtures("when_told")
async def test_a_worker_that_leaves_while_it_is_entered_stays_away(patient_store: Store, db: Harness) -> None:
    here = WorkerPresence(patient_store)
    far = LiveWorker("far", ("mail",), ("standard",), host="box", pid=7)
    # Another session looks: in one transaction pg_stat_activity shows no session that began after the first look.
    with Harness(db.dsn) as other, other.connection.transaction(force_rollback=True):
        other.sql("insert into tenure.worker (name, queues, contracts) values ('far', '{}', '{}')")
        here.record(far, unbound=True, complete=True)
        await until(lambda: db.value(_WAITING) == 1)  # it waits for the row of that name; a delete would not
        leaving = asyncio.create_task(here.leave(far))
        await until(lambda: bool(here._lock._waiters) or leaving.done())  # a leave without its turn ends here
    await leaving
    await until(lambda: db.value(_AT_WORK) == 0)  # the entering is over, too
    assert names(db) == []
    await here.stop()


@pytest.mark.usefixtures("soon")
async def test_a_worker_whose_texts_cannot_be_stored_keeps_no_other_one_off_the_list(
    dsn: str, store: Store, db: Harness
) -> None:
    here = WorkerPresence(store)
    for name, host in (("odd", "bo\x00x"), ("plain", "box")):  # in another encoding many a character is like this one
        here.record(LiveWorker(name, ("mail",), ("standard",), host=host, pid=7), unbound=True)
    await until(lambda: names(db) == ["plain"])
    await here.stop()
    odd = {**FAR, "host": "bo\x00x"}
    with serving(dsn) as url, httpx2.Client(base_url=url) as client:
        for answer in (
            client.post("/api/v1/claims", json={"worker_id": "odd", "worker": odd}),
            client.post("/api/v1/claims", json={"worker_id": "odd", "queues": ["a\x00b"]}),
            client.put("/api/v1/workers", json={"worker_id": "odd", "worker": odd}),
            client.post("/api/v1/workers/leave", json={"worker_id": "odd", "host": "bo\x00x"}),
        ):
            assert (answer.status_code, answer.json()["error"]["code"]) == (422, "E-BAD-INPUT")
        introduced(client)
        await until(lambda: names(db) == ["far", "plain"])


@pytest.mark.usefixtures("soon")
async def test_a_remote_worker_is_entered_by_its_claims_and_listed_while_idle(dsn: str, db: Harness) -> None:
    with serving(dsn) as url:
        async with App(dispatcher_url=url, settings=Settings()) as app:

            @app.task(queue="mail", max_attempts=7)
            async def send() -> None: ...

            async with working(app, name="far", concurrency=3):
                await send.enqueue()  # a worker claims where something is due
                await until(lambda: db.value("select count(*) from tenure.worker") == 1)
                with httpx2.Client(base_url=url) as client:
                    (seen,) = client.get("/api/v1/workers").json()["workers"]
        assert (seen["worker_id"], seen["queues"], seen["slots"]) == ("far", ["mail"], 3)
        assert seen["application"] == __name__
        assert seen["through"]
        assert seen["pid"]


@pytest.mark.usefixtures("soon")
async def test_any_client_that_claims_is_entered_and_its_claims_are_joined(dsn: str, db: Harness) -> None:
    with serving(dsn) as url, httpx2.Client(base_url=url) as client:
        for queues in (["mail"], ["post"]):
            asked = {"worker_id": "curl", "queues": queues, "types": ["send"]}
            assert client.post("/api/v1/claims", json=asked).status_code == 200
        await until(lambda: db.sql("select queues from tenure.worker where 'post' = any (queues)") != [])
        row = db.one("select name, queues, types, contracts, pid from tenure.worker")
        assert (row["name"], row["queues"], row["types"]) == ("curl", ["mail", "post"], ["send"])
        assert (row["contracts"], row["pid"]) == (["standard"], None)
        assert client.post("/api/v1/claims", json={"worker_id": "curl"}).status_code == 200
        await until(lambda: db.value("select types is null from tenure.worker"))


@pytest.mark.usefixtures("when_told")
async def test_many_claims_cost_one_statement(dsn: str, db: Harness) -> None:
    db.sql(_TOLD)
    with serving(dsn) as url, httpx2.Client(base_url=url) as client:
        for n in range(50):
            assert client.post("/api/v1/claims", json={"worker_id": f"w{n % 5}"}).is_success
        await until(lambda: names(db) != [])
    assert db.value("select count(*) from public.told") == 1


async def test_a_claim_keeps_to_the_options_that_it_brings(dsn: str, store: Store, db: Harness) -> None:
    await store.types.declare([JobType("send", lease_ttl_sec=100)])
    with serving(dsn) as url, httpx2.Client(base_url=url) as client:
        own = {"type": "send", "contract": "standard", "lease_ttl_sec": 50}
        asked: list[tuple[dict[str, object], int]] = [
            ({}, 100_000), ({"options": []}, 30_000), ({"options": [own]}, 50_000),
        ]  # fmt: skip
        for given, lease_ms in asked:
            client.post("/api/v1/jobs", json={"type": "send"})
            (won,) = client.post("/api/v1/claims", json={"worker_id": "w", **given}).json()["claims"]
            assert db.row(int(won["job"]["id"]))["lease_ms"] == lease_ms
        bad = {"options": [{"type": "send", "contract": "standard", "lease_ttl_sec": 0.001}]}
        assert client.post("/api/v1/claims", json={"worker_id": "w", **bad}).status_code == 422


async def test_a_job_is_moved_to_another_queue_over_http(dsn: str, db: Harness) -> None:
    with serving(dsn) as url, httpx2.Client(base_url=url) as client:
        made = client.post("/api/v1/jobs", json={"type": "send", "queue": "mial"}).json()["id"]
        asked = {"queue": "mail", "reason": "misspelt"}
        answer = client.post(f"/api/v1/jobs/{made}/move", json=asked)
        assert answer.json() == {"id": made, "queue": "mail", "before": "mial", "changed": True}
        client.post("/api/v1/claims", json={"worker_id": "w", "queues": ["mail"]})
        assert client.post(f"/api/v1/jobs/{made}/move", json={"queue": "post"}).status_code == 409
        assert db.row(int(made))["queue"] == "mail"


async def test_a_claim_does_not_forget_the_schedules_of_its_worker(store: Store, db: Harness) -> None:
    far = LiveWorker("far", ("mail",), ("standard",), application="shop", schedules={"report": "f1"})
    await store.workers.enter([far])
    claimed = LiveWorker(
        "far", ("mail",), ("standard",), application="shop"
    )  # as a dispatcher that just started has it
    await store.workers.enter([claimed])
    assert db.value("select schedules from tenure.worker") == {"report": "f1"}
    await store.workers.enter([LiveWorker("far", ("mail",), ("standard",), application="shop", schedules={})])
    assert db.value("select schedules from tenure.worker") == {}
