"""One client does not slow down or block another: not by floods, disconnects, guessed keys or large jobs."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any
from uuid import uuid4

import httpx2
import psycopg
import pytest

from tenure.errors import Busy, StaleLease
from tenure.http import authentication, long_poll
from tenure.http import job_calls as desks
from tenure.http.authentication import Keyring
from tenure.http.dispatcher import Dispatcher
from tenure.http.job_calls import JobCalls
from tenure.http.long_poll import ClaimFilter, ClaimGroup
from tenure.jobs.api_key import hash_key
from tenure.jobs.holder_call import HolderCall
from tenure.jobs.job import Held, NewJob
from tenure.jobs.outcome import Noted
from tenure.postgres.claim import Claimer
from tenure.postgres.store import Store
from tenure.settings import Settings
from tests.harness import Harness, lock_out
from tests.http.conftest import Caller, new_key, proof, serving
from tests.http.test_serve import HINDERED
from tests.worker.working import until

ADMIN = "tenure_" + "b" * 43


async def test_a_thousand_words_of_one_job_stall_nobody_elses(store: Store) -> None:
    made = [await store.enqueue(NewJob("t")) for _ in range(2)]
    good = (await store.claim(worker="w", limit=2))[1]
    bad = HolderCall(Held(made[0].job_id, 1, uuid4(), "standard", good.version))
    desk = JobCalls(store)
    flood = [desk.report("heartbeat", bad) for _ in range(1_000)]
    noted = await desk.report("heartbeat", HolderCall(good.held))
    answered = sum(one.done() for one in flood)
    assert isinstance(noted, Noted)
    assert answered < 10
    refused = await asyncio.gather(*flood, return_exceptions=True)
    assert {type(one) for one in refused} == {StaleLease}
    assert desk._unanswered == {}


async def test_words_of_one_job_are_heard_in_the_order_in_which_they_were_said(store: Store) -> None:
    await store.enqueue(NewJob("t"))
    (job,) = await store.claim(worker="w")
    desk = JobCalls(store)
    words = [desk.report(verb, HolderCall(job.held)) for verb in ("start", "heartbeat", "heartbeat", "succeed")]
    *_, ended = await asyncio.gather(*words)
    assert ended.state == "succeeded"


async def test_one_who_finds_its_row_locked_is_answered_when_it_is_free(
    store: Store, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As often as it takes until the row is free, however slow this machine is.
    monkeypatch.setattr(desks, "_PAUSES_S", (0.01,) * 10_000)
    monkeypatch.setattr(desks, "_QUICK_S", 60)
    await store.enqueue(NewJob("t"))
    (job,) = await store.claim(worker="w")
    desk, call, tries, report = JobCalls(store), HolderCall(job.held), list[int](), JobCalls.report

    def counted(self: JobCalls, verb: str, call: HolderCall) -> asyncio.Future[Any]:
        tries.append(1)
        return report(self, verb, call)

    monkeypatch.setattr(JobCalls, "report", counted)
    async with await psycopg.AsyncConnection.connect(dsn) as other:
        await other.execute("select from tenure.job for update")
        with pytest.raises(Busy):
            await desk.report("heartbeat", call)
        tries.clear()
        beat = asyncio.create_task(desk.report_patiently("heartbeat", call))
        await until(lambda: len(tries) > 1, 60)  # it was refused, and asks again
        await other.rollback()
        assert isinstance(await beat, Noted)


async def test_who_left_before_its_claim_began_takes_no_job(
    patient_store: Store, dsn: str, db: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_poll, "_CHECK_CLIENT_S", 0)  # every claim counts as one that waited for long
    made = [await patient_store.enqueue(NewJob("t")) for _ in range(2)]
    line = ClaimGroup(patient_store, ClaimFilter("standard", ("default",)))

    async def is_gone() -> bool:
        return True

    async def is_there() -> bool:
        return False

    async with await psycopg.AsyncConnection.connect(dsn) as other:
        await other.execute("lock table tenure.job in access exclusive mode")
        claims = [asyncio.create_task(line.claim(Claimer("first"), 0, is_there))]
        await until(lambda: db.value(HINDERED) == 1, 60)  # it is under way; the others wait behind it
        claims += [
            asyncio.create_task(line.claim(Claimer(name), 0, gone))
            for name, gone in (("gone", is_gone), ("there", is_there))
        ]
        await until(lambda: line._claims == 3, 60)
        await other.rollback()
        won = await asyncio.gather(*claims)
    assert [[job.id for job in jobs] for jobs in won] == [[made[0].job_id], [], [made[1].job_id]]
    assert {row["lease_owner"] for row in db.sql("select lease_owner from tenure.job")} == {"first", "there"}


async def test_texts_that_are_no_keys_make_nobody_forget_a_key(
    store: Store, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authentication, "_MAX_KEYS", 5)
    monkeypatch.setattr(authentication, "_MAX_REFUSED", 5)
    monkeypatch.setattr(authentication, "_CACHE_S", 60)
    text = await asyncio.to_thread(new_key, dsn, "mine", "work")
    ring, asked = Keyring(store), list[bytes]()
    find = store.keys.find

    async def seen(hashed: bytes) -> object:
        asked.append(hashed)
        return await find(hashed)

    monkeypatch.setattr(store.keys, "find", seen)
    for guess in (text, *(f"tenure_{n:043}" for n in range(20)), text):
        await ring._find(hash_key(guess), has_key_form=True)
    assert len(asked) == 21
    assert (len(ring._callers), len(ring._refused)) == (1, 5)


def test_a_text_that_cannot_be_a_key_is_not_looked_for(dsn: str) -> None:
    with serving(dsn, admin_key=ADMIN) as url, pytest.MonkeyPatch.context() as patch:
        patch.setattr("tenure.postgres.api_keys.ApiKeys.find", None)
        for text in ("tenure_short", "tenure_" + "x" * 4_000, "other" * 10):
            answer = httpx2.get(f"{url}/api/v1/jobs", headers={"Authorization": f"Bearer {text}"}, timeout=30)
            assert answer.status_code == 401


@pytest.mark.parametrize("who", ["TENURE_ADMIN_KEY", "key nobody"])
def test_a_key_that_names_nobody_discards_nothing(dsn: str, who: str) -> None:
    key = ADMIN if who == "TENURE_ADMIN_KEY" else new_key(dsn, "nobody", "admin")
    with serving(dsn, admin_key=ADMIN) as url:
        http = Caller(httpx2.Client(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=30))
        job_id = http.enqueued()
        http.post(f"/api/v1/jobs/{job_id}/dead-letter", {"reason_code": "policy"})
        (letter,) = http.get("/api/v1/dlq/items")["items"]
        path = f"/api/v1/dlq/items/{letter['dlq_id']}"
        for verb, body in (("discard", {"reason": "r", "person": "Ann"}), ("approve", {"person": "Ben"})):
            told = http.refused(f"{path}/{verb}", body, 403, "AUTH_FORBIDDEN")
            assert told["message"] == f"a person must decide this, and {who} names none"
        assert http.get(path)["status"] == "open"
        http.client.close()


def test_numbers_count_for_what_postgresql_writes(http: Caller, db: Harness) -> None:
    body = {"type": "t", "payload": [1e308] * 10_000}  # 60 kB here, and three megabytes there
    http.refused("/api/v1/jobs", body, 413, "E-PAYLOAD-TOO-LARGE")
    http.refused("/api/v1/jobs", {**body, "payload": [1e-300] * 10_000}, 413, "E-PAYLOAD-TOO-LARGE")
    kept = ['"1e+99999999', 5e-7]  # the one is a text, and the other small
    assert http.get(f"/api/v1/jobs/{http.enqueued(payload=kept)}")["payload"] == kept
    assert db.value("select count(*) from tenure.job") == 1


def test_a_page_of_large_dead_letters_ends_early_and_goes_on(http: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenure.http.routes.dead_letters._MAX_CHARACTERS", 10_000)
    monkeypatch.setattr("tenure.http.routes.dead_letters._FIRST_READ", 2)
    for _ in range(9):
        job_id = http.enqueued(payload={"text": "x" * 3_000})
        http.post(f"/api/v1/jobs/{job_id}/dead-letter", {"reason_code": "policy"})
    seen, cursor, pages = list[str](), None, 0
    while pages == 0 or cursor:
        page = http.get("/api/v1/dlq/items", limit=8, **({"cursor": cursor} if cursor else {}))
        seen += [item["dlq_id"] for item in page["items"]]
        cursor, pages = page["next"], pages + 1
    assert (len(seen), len(set(seen)), seen) == (9, 9, sorted(seen, key=int, reverse=True))
    assert pages == 2


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/v1/jobs/batch", {"jobs": [{"type": "t"}]}),
        ("/api/v1/claims", {"worker_id": "w"}),
        ("/api/v1/finishes", {"finishes": [{"id": "1", "claims": 1, "lease_token": str(uuid4()), "verb": "succeed"}]}),
        ("/api/v1/starts", {"starts": [{"id": "1", "claims": 1, "lease_token": str(uuid4())}]}),
    ],
)
def test_a_key_that_would_not_be_heeded_is_refused(http: Caller, db: Harness, path: str, body: object) -> None:
    told = http.post(path, body, status=422, **{"Idempotency-Key": "k"})["error"]
    assert "has no effect here" in told["message"]
    assert db.value("select count(*) from tenure.job") == 0


def test_an_empty_key_is_refused(http: Caller, db: Harness) -> None:
    http.post("/api/v1/jobs", {"type": "t"}, status=422, **{"Idempotency-Key": ""})
    assert db.value("select count(*) from tenure.job") == 0


def test_a_job_has_the_trace_of_its_request(http: Caller) -> None:
    trace = "0af7651916cd43dd8448eb211c80319c"
    parent = f"00-{trace}-b7ad6b7169203331-01"
    for body, expected in (({}, trace), ({"trace_id": "mine"}, "mine")):
        made = http.post("/api/v1/jobs", {"type": "t", **body}, status=201, traceparent=parent)
        assert http.get(f"/api/v1/jobs/{made['id']}")["trace_id"] == expected
    answer = http.client.post("/api/v1/jobs/batch", json={"jobs": [{"type": "t"}]}, headers={"X-Trace-Id": "abc"})
    (made,) = answer.json()["jobs"]
    assert http.get(f"/api/v1/jobs/{made['id']}")["trace_id"] == "abc"
    assert http.get(f"/api/v1/jobs/{http.enqueued()}")["trace_id"] not in (trace, "abc", None)


def test_a_hint_names_a_route_and_no_command(http: Caller) -> None:
    job_id = http.enqueued()
    (claim,) = http.claimed()
    http.post(f"/api/v1/jobs/{job_id}/succeed", proof(claim))
    told = http.refused(f"/api/v1/jobs/{job_id}/succeed", proof(claim), 409, "INVALID_TRANSITION")
    assert told["hint"] == f"GET /api/v1/jobs/{job_id}/events"


def test_each_request_is_a_line_when_all_is_told(http: Caller, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "tenure.http"):
        http.post("/api/v1/jobs", {"type": "t"}, status=201, **{"X-Trace-Id": "abc"})
        http.client.get("/api/v1/jobs/7")
    told = [record.getMessage() for record in caplog.records if record.levelname == "DEBUG"]
    assert [line.partition(" in ")[0] for line in told] == ["POST '/api/v1/jobs' 201", "GET '/api/v1/jobs/7' 404"]
    assert told[0].endswith(" ms, loopback, trace abc")


def test_before_its_database_is_there_it_is_alive_and_not_ready(dsn: str) -> None:
    lock_out(dsn, out=True)
    try:
        one = Dispatcher(dsn, Settings())
        began = threading.Thread(target=lambda: asyncio.run(one.run(signals=False)))
        began.start()
        try:
            with httpx2.Client(base_url=one.url, timeout=60) as client:
                assert client.get("/healthz").json() == {"status": "ok"}
                for path in ("/readyz", "/api/v1/jobs", "/nowhere"):
                    answer = client.get(path)
                    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "E-CANNOT-CONNECT")
                    assert answer.headers["retry-after"]
                    assert answer.headers["x-trace-id"] == answer.json()["trace_id"]
                lock_out(dsn, out=False)
                while client.get("/readyz").status_code != 200:
                    pass
                assert client.get("/api/v1/jobs").status_code == 200
        finally:
            one.stop()
            began.join(60)
        assert not began.is_alive()
    finally:
        lock_out(dsn, out=False)
