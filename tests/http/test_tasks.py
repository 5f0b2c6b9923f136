"""Document 001's own endpoints: task-claim, heartbeat, task-complete, as the document and its siblings say them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import httpx2
import psycopg
import pytest

from tenure.contracts import BUILT_IN
from tenure.http.job_calls import JobCalls
from tenure.jobs.formats import format_iso
from tenure.jobs.job import NewJob
from tenure.postgres.store import Store
from tests.harness import Harness
from tests.http.conftest import Caller, serving
from tests.postgres.test_unloggable import of_a_later_release

OUTPUTS = [{"output_index": 0, "dataset_uuid": str(uuid4()), "location": "s3://a/ß", "row_count": 7, "cursor": None}]
LEASE = timedelta(milliseconds=BUILT_IN["dispatcher"].lease.default_ms)
_WAITING = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
EVENTS = [{"dataset_uuid": str(uuid4()), "dataset_version": 3, "cursor": n} for n in range(3)]


def claimed(http: Caller, task_id: str) -> dict[str, Any]:
    """A task that is this worker's now: what it shows from now on."""
    answer = http.post("/internal/task-claim", {"task_id": task_id, "worker_id": "w1"})
    assert answer["status"] == "Claimed", answer
    return {"task_id": task_id, "attempt": answer["attempt"], "lease_token": answer["lease_token"]}


def reason(http: Caller, task_id: str) -> str:
    """Why a task is not to be had."""
    answer = http.post("/internal/task-claim", {"task_id": task_id, "worker_id": "w2"})
    assert set(answer) == {"status", "reason"}
    assert answer["status"] == "NotClaimed"
    return str(answer["reason"])


def task(db: Harness, task_id: str) -> dict[str, Any]:
    return db.one("select * from tenure_dispatcher.tasks where task_id = %s", int(task_id))


def emitted(db: Harness, task_id: str) -> list[Any]:
    return [
        row["body"] for row in db.sql("select body from tenure.emitted where job_id = %s order by id", int(task_id))
    ]


@pytest.mark.req("S1-83", "S1-30")
def test_a_claimed_task_has_the_documents_fields_and_values(http: Caller, db: Harness) -> None:
    config = {"url": "x", "parts": [1, None, "ß"]}
    made = {"queue": "etl", "type": "extract", "max_attempts": 4, "trace_id": "trace:1", "correlation_id": "run:7"}
    task_id = http.enqueued("dispatcher", payload=config, **made)
    answer = http.post("/internal/task-claim", {"task_id": task_id, "worker_id": "w7"})
    row = task(db, task_id)
    assert (row["status"], row["worker_id"]) == ("Running", "w7")
    assert answer == {
        "status": "Claimed",
        "attempt": 1,
        "lease_token": str(row["lease_token"]),
        "lease_expires_at": format_iso(row["lease_expires_at"]),
        "lease_seconds": LEASE.total_seconds(),
        "claims": 1,
        "task": {
            "task_id": task_id,
            "attempt": 1,
            "job": {"dag_name": None, "name": "extract"},
            "operator": "extract",
            "config": config,
            "inputs": [],
            "datasets": [],
            "max_attempts": 4,
            "queue": "etl",
            "tenant_id": "default",
            "trace_id": "trace:1",
            "correlation_id": "run:7",
            "created_at": format_iso(row["created_at"]),
        },
    }


@pytest.mark.req("S1-30")
def test_task_claim_answers_with_the_lease_and_the_task_or_with_the_reason(http: Caller, db: Harness) -> None:
    task_id = http.enqueued("dispatcher", payload={"url": "x"}, queue="etl")
    answer = http.post("/internal/task-claim", {"task_id": task_id, "worker_id": "w7"})
    documented = {"status", "attempt", "lease_token", "lease_expires_at", "task"}
    assert set(answer) == documented | {"claims", "lease_seconds"}
    assert (answer["status"], answer["attempt"]) == ("Claimed", 1)
    shown = task(db, task_id)
    assert (shown["worker_id"], str(shown["lease_token"])) == ("w7", answer["lease_token"])
    assert (answer["task"]["task_id"], answer["task"]["config"], answer["task"]["queue"]) == (
        task_id,
        {"url": "x"},
        "etl",
    )
    assert reason(http, task_id) == "AlreadyRunning"
    assert [reason(http, unknown) for unknown in ("999999", "no-number", "0", "9" * 30)] == ["NotFound"] * 4
    for body in ({"task_id": task_id}, {"worker_id": "w"}, {}, {"task_id": task_id, "worker_id": ""}):
        http.refused("/internal/task-claim", body, 422, "E-BAD-INPUT")


@pytest.mark.req("S1-31")
async def test_the_datasets_of_tasks_that_are_claimed_together_are_read_together(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Sequence[int]] = []
    pins_of = type(store.datasets).pins_of

    async def noted(self: Any, job_ids: Sequence[int]) -> Any:
        read.append(job_ids)
        return await pins_of(self, job_ids)

    monkeypatch.setattr(type(store.datasets), "pins_of", noted)
    await store.enqueue_many([NewJob("extract", contract="dispatcher")] * 20)
    jobs = await store.claim("dispatcher", worker="w", limit=20)
    calls = JobCalls(store)
    assert await asyncio.gather(*(calls.pins([job]) for job in jobs)) == [{}] * 20
    assert sorted(job_id for ids in read for job_id in ids) == sorted(job.id for job in jobs)
    assert len(read) <= 2
    await calls.identities(job.id for job in jobs)
    assert await calls.pins(jobs) == {}
    assert len(read) <= 2, "jobs that are known to have none cost no statement"


def test_of_64_task_claims_at_once_one_is_claimed(url: str, http: Caller, db: Harness) -> None:
    task_id = http.enqueued("dispatcher")

    async def ask() -> list[dict[str, Any]]:
        async with httpx2.AsyncClient(base_url=url, timeout=30) as client:
            calls = [
                client.post("/internal/task-claim", json={"task_id": task_id, "worker_id": f"w{n}"}) for n in range(64)
            ]
            return [response.json() for response in await asyncio.gather(*calls)]

    answers = asyncio.run(ask())
    won = [answer for answer in answers if answer["status"] == "Claimed"]
    assert len(won) == 1
    assert [answer["reason"] for answer in answers if answer not in won] == ["AlreadyRunning"] * 63
    assert str(task(db, task_id)["lease_token"]) == won[0]["lease_token"]
    assert db.hops(int(task_id)) == ["Queued->Running"]


@pytest.mark.req("S1-34", "S1-35", "S1-36", "S1-37")
async def test_a_task_that_is_not_queued_is_refused_with_its_reason(http: Caller, store: Store, db: Harness) -> None:
    running, completed, canceled, failed, later = (http.enqueued("dispatcher") for _ in range(5))
    claimed(http, running)
    http.post(
        "/internal/task-complete", {**claimed(http, completed), "status": "Completed", "outputs": [], "events": []}
    )
    http.post(f"/api/v1/jobs/{canceled}/cancel", {"mode": "hard"})
    http.post("/internal/task-complete", {**claimed(http, failed), "status": "Failed", "outputs": [], "events": []})
    db.sql("update tenure.job set due_at = clock_timestamp() + interval '1 hour' where id = %s", int(later))
    before = db.fingerprint(*map(int, (running, completed, canceled, failed, later)))
    reasons = [reason(http, task_id) for task_id in (running, completed, canceled, failed, later)]
    assert reasons == ["AlreadyRunning", "Completed", "Canceled", "Failed", "NotDue"]
    assert db.fingerprint(*map(int, (running, completed, canceled, failed, later))) == before
    db.due(int(failed))
    before = db.fingerprint(int(failed))
    assert reason(http, failed) == "Failed"
    assert db.fingerprint(int(failed)) == before
    await store.promote("dispatcher")
    assert claimed(http, failed)["attempt"] == 2


async def test_a_task_of_a_paused_queue_is_not_claimed_before_it_is_resumed(
    http: Caller, store: Store, db: Harness
) -> None:
    held, waits = (http.enqueued("dispatcher") for _ in range(2))
    claim, key = {"task_id": held, "worker_id": "w1"}, {"Idempotency-Key": str(uuid4())}
    first = http.client.post("/internal/task-claim", json=claim, headers=key).json()
    queue = db.row(int(waits))["queue"]
    await store.queues.pause(queue, actor="ada")
    before = db.fingerprint(int(held), int(waits))
    assert reason(http, waits) == "QueuePaused"
    assert http.client.post("/internal/task-claim", json=claim, headers=key).json() == first
    assert db.fingerprint(int(held), int(waits)) == before
    await store.queues.resume(queue, actor="ada")
    assert claimed(http, waits)["attempt"] == 1


def test_a_task_that_expired_before_it_began_is_canceled_for_its_worker(http: Caller, db: Harness) -> None:
    task_id = http.enqueued("dispatcher")
    db.sql("update tenure.job set expires_at = clock_timestamp() where id = %s", int(task_id))
    before = db.fingerprint(int(task_id))
    assert reason(http, task_id) == "Canceled"
    assert db.fingerprint(int(task_id)) == before


async def test_a_paused_tasks_locked_row_is_waited_for_and_it_is_not_claimed(
    http: Caller, store: Store, db: Harness
) -> None:
    task_id = http.enqueued("dispatcher")
    await store.queues.pause(db.row(int(task_id))["queue"], actor="ada")
    with ThreadPoolExecutor(1) as pool, psycopg.connect(db.dsn) as other:
        other.execute("select from tenure.job where id = %s for update", [task_id])
        asking = pool.submit(reason, http, task_id)
        while not db.value(_WAITING):  # the batch skips a locked row; the call that follows waits for it
            assert not asking.done()
        other.rollback()
        assert asking.result() == "QueuePaused"


def test_a_worker_that_does_not_know_a_tasks_type_is_told_so_and_takes_nothing(http: Caller, db: Harness) -> None:
    task_id = http.enqueued("dispatcher")
    kind = db.row(int(task_id))["type"]
    before = db.fingerprint(int(task_id))
    asked = {"task_id": task_id, "worker_id": "w1"}
    for types in (["other"], [f"{kind}s", kind[:-1] or "x"], []):
        answer = http.post("/internal/task-claim", {**asked, "types": types})
        assert answer == {"status": "NotClaimed", "reason": "UnknownType"}
    assert db.fingerprint(int(task_id)) == before
    assert http.post("/internal/task-claim", {**asked, "types": ["other", kind]})["status"] == "Claimed"


def test_a_task_of_a_version_that_the_dispatcher_cannot_read_is_not_claimed(http: Caller, db: Harness) -> None:
    task_id = http.enqueued("dispatcher")
    of_a_later_release(db, int(task_id), "dispatcher")
    before = db.fingerprint(int(task_id))
    assert reason(http, task_id) == "UnknownVersion"
    assert db.fingerprint(int(task_id)) == before


@pytest.mark.req("S1-04")
def test_a_claim_repeated_with_its_key_gets_the_same_answer(http: Caller, db: Harness) -> None:
    task_id, key = http.enqueued("dispatcher"), str(uuid4())
    asked = {"task_id": task_id, "worker_id": "w1"}

    def ask(key: str) -> httpx2.Response:
        return http.client.post("/internal/task-claim", json=asked, headers={"Idempotency-Key": key})

    with ThreadPoolExecutor(8) as pool:
        answers = [answer.json() for answer in pool.map(ask, [key] * 8)]
    assert answers == [answers[0]] * 8
    assert (answers[0]["status"], answers[0]["lease_token"]) == ("Claimed", key)
    assert db.row(int(task_id))["claims"] == 1
    http.post("/internal/task-complete", {"task_id": task_id, "attempt": 1, "lease_token": key, "status": "Completed"})
    assert ask(key).json() == {"status": "NotClaimed", "reason": "LeaseLost"}
    for bad in ("no-uuid", "6ba7b810-9dad-11d1-80b4-00c04fd430c8", ""):
        assert ask(bad).status_code == 422


@pytest.mark.req("S1-41", "S1-43", "S1-44")
def test_a_heartbeat_extends_the_lease_of_the_current_attempt_alone(http: Caller, db: Harness) -> None:
    task_id = http.enqueued("dispatcher")
    held = claimed(http, task_id)
    db.sql("update tenure.job set lease_expires_at = lease_expires_at - interval '60 s' where id = %s", int(task_id))
    earliest = db.value("select clock_timestamp()") + LEASE
    answer = http.post("/internal/heartbeat", held)
    assert set(answer) == {"lease_expires_at", "cancel_requested"}
    extended = task(db, task_id)["lease_expires_at"]
    assert earliest <= extended <= db.value("select clock_timestamp()") + LEASE
    assert datetime.fromisoformat(answer["lease_expires_at"]) == extended
    for missing in held:
        http.refused("/internal/heartbeat", {k: v for k, v in held.items() if k != missing}, 422, "E-BAD-INPUT")
    still = db.fingerprint(int(task_id))
    for wrong in ({"lease_token": str(uuid4())}, {"attempt": 2}, {"attempt": 0}):
        http.refused("/internal/heartbeat", {**held, **wrong}, 409, "LEASE_CONFLICT")
    assert db.fingerprint(int(task_id)) == still
    http.post("/internal/task-complete", {**held, "status": "Completed"})
    http.refused("/internal/heartbeat", held, 409, "INVALID_TRANSITION")
    http.refused("/internal/heartbeat", {**held, "task_id": "999999"}, 404, "JOB_NOT_FOUND")


@pytest.mark.req("S1-46")
def test_task_complete_takes_the_documents_six_keys(http: Caller, db: Harness) -> None:
    task_id = http.enqueued("dispatcher")
    held = claimed(http, task_id)
    body = {
        "task_id": task_id, "attempt": held["attempt"], "lease_token": held["lease_token"], "status": "Completed",
        "outputs": OUTPUTS, "events": EVENTS,
    }  # fmt: skip
    before = db.fingerprint(int(task_id))
    for missing in ("task_id", "attempt", "lease_token", "status"):
        part = {key: value for key, value in body.items() if key != missing}
        http.refused("/internal/task-complete", part, 422, "E-BAD-INPUT")
    http.refused("/internal/task-complete", {**body, "result": 1}, 422, "E-BAD-INPUT")
    assert (db.fingerprint(int(task_id)), emitted(db, task_id)) == (before, [])
    assert http.post("/internal/task-complete", body) == {"status": "Completed", "next_retry_at": None}


@pytest.mark.req("S1-51")
def test_outputs_and_events_are_stored_with_the_completion(http: Caller, db: Harness) -> None:
    task_id = http.enqueued("dispatcher")
    assert task(db, task_id)["outputs"] is None
    body = {**claimed(http, task_id), "status": "Completed", "outputs": OUTPUTS, "events": EVENTS}
    assert http.post("/internal/task-complete", body) == {"status": "Completed", "next_retry_at": None}
    shown = task(db, task_id)
    assert (shown["status"], shown["outputs"], emitted(db, task_id)) == ("Completed", OUTPUTS, EVENTS)
    db.log_is_sound(int(task_id))


@pytest.mark.req("S1-11")
@pytest.mark.parametrize("events", [EVENTS, []], ids=["with-events", "without-events"])
@pytest.mark.parametrize("status", ["Completed", "Failed", "Canceled"])
def test_all_that_a_completion_writes_is_one_transaction(
    http: Caller, db: Harness, status: str, events: list[Any]
) -> None:
    task_id = http.enqueued("dispatcher")
    held = claimed(http, task_id)
    seq = db.row(int(task_id))["seq"]
    http.post("/internal/task-complete", {**held, "status": status, "outputs": OUTPUTS, "events": events})
    wrote = """
        select 'row' as what, xmin::text from tenure.job where id = %s
        union all select 'row', xmin::text from tenure.job_done where id = %s
        union all select 'log', xmin::text from tenure.event where job_id = %s and seq > %s
        union all select 'event', xmin::text from tenure.emitted where job_id = %s
        union all select 'wake-up', xmin::text from tenure.outbox where job_id = %s
    """
    number = int(task_id)
    rows = db.sql(wrote, number, number, number, seq, number, number)
    assert sorted(row["what"] for row in rows) == sorted(["row", "log", *["event"] * len(events)])
    assert len({row["xmin"] for row in rows}) == 1
    assert task(db, task_id)["outputs"] == (OUTPUTS if status == "Completed" else None)


@pytest.mark.req("S1-11")
def test_completion_whose_events_cannot_be_written_did_not_happen(http: Caller, db: Harness) -> None:
    task_id = http.enqueued("dispatcher")
    body = {**claimed(http, task_id), "status": "Completed", "outputs": OUTPUTS, "events": EVENTS}
    db.sql(
        "create function public.refuse() returns trigger language plpgsql as $$ begin raise 'no room'; end $$;"
        "create trigger refuse before insert on tenure.emitted for each row execute function public.refuse()"
    )
    before = db.fingerprint(int(task_id))
    assert http.client.post("/internal/task-complete", json=body).status_code >= 500
    assert (db.fingerprint(int(task_id)), emitted(db, task_id)) == (before, [])
    shown = task(db, task_id)
    assert (shown["status"], shown["outputs"], shown["completed_at"]) == ("Running", None, None)
    db.sql("drop trigger refuse on tenure.emitted")
    assert http.post("/internal/task-complete", body)["status"] == "Completed"
    assert (task(db, task_id)["outputs"], emitted(db, task_id)) == (OUTPUTS, EVENTS)


@pytest.mark.req("S1-11")
async def test_zombie_that_completes_with_outputs_changes_no_output(http: Caller, store: Store, db: Harness) -> None:
    task_id = http.enqueued("dispatcher")
    zombie = claimed(http, task_id)
    db.expire(int(task_id))
    await _again(store, db, int(task_id))
    current = claimed(http, task_id)
    late = {**zombie, "status": "Completed", "outputs": [{"output_index": 9}], "events": [{"cursor": 9}]}
    before = db.fingerprint(int(task_id))
    http.refused("/internal/task-complete", late, 409, "LEASE_CONFLICT")
    assert (db.fingerprint(int(task_id)), emitted(db, task_id)) == (before, [])
    assert task(db, task_id)["outputs"] is None
    http.post("/internal/task-complete", {**current, "status": "Completed", "outputs": OUTPUTS, "events": EVENTS})
    before = db.fingerprint(int(task_id))
    http.refused("/internal/task-complete", late, 409, "LEASE_CONFLICT")
    assert db.fingerprint(int(task_id)) == before
    assert (task(db, task_id)["outputs"], emitted(db, task_id)) == (OUTPUTS, EVENTS)


@pytest.mark.req("S1-06", "S1-47", "S1-48", "S1-49")
async def test_a_stale_completion_stores_neither_outputs_nor_events(http: Caller, store: Store, db: Harness) -> None:
    task_id = http.enqueued("dispatcher")
    zombie = claimed(http, task_id)
    db.expire(int(task_id))
    await _again(store, db, int(task_id))
    current = claimed(http, task_id)
    assert (zombie["attempt"], current["attempt"]) == (1, 2)
    before = db.fingerprint(int(task_id)), db.value("select count(*) from tenure.emitted")
    wrong = [
        zombie,
        {**current, "attempt": 1},
        {**current, "attempt": 3},
        {**current, "lease_token": zombie["lease_token"]},
        {**zombie, "attempt": 2},
    ]
    for body in wrong:
        for events in (EVENTS, []):
            full = {**body, "status": "Completed", "outputs": OUTPUTS, "events": events}
            http.refused("/internal/task-complete", full, 409, "LEASE_CONFLICT")
    assert (db.fingerprint(int(task_id)), db.value("select count(*) from tenure.emitted")) == before
    http.post("/internal/task-complete", {**current, "status": "Completed", "outputs": [], "events": []})
    assert (task(db, task_id)["status"], emitted(db, task_id)) == ("Completed", [])


async def _again(store: Store, db: Harness, task_id: int) -> None:
    """The lease ran out: the reaper closes it, and the reconciler queues the next attempt."""
    await store.reap("dispatcher")
    db.due(task_id)
    await store.promote("dispatcher")


@pytest.mark.req("S1-54")
def test_the_same_completion_again_gets_the_same_answer_and_another_is_refused(
    dsn: str, http: Caller, db: Harness
) -> None:
    for events in (EVENTS, []):
        task_id = http.enqueued("dispatcher")
        body = {**claimed(http, task_id), "status": "Completed", "outputs": OUTPUTS, "events": events}
        first = http.post("/internal/task-complete", body)
        before = db.fingerprint(int(task_id)), emitted(db, task_id)
        with serving(dsn) as another, httpx2.Client(base_url=another, timeout=30) as client:  # remembers nothing
            for caller in (http, Caller(client)):
                assert caller.post("/internal/task-complete", body) == first
                caller.refused("/internal/task-complete", {**body, "outputs": []}, 409, "IDEMPOTENCY_CONFLICT")
                caller.refused("/internal/task-complete", {**body, "status": "Failed"}, 409, "IDEMPOTENCY_CONFLICT")
        assert (db.fingerprint(int(task_id)), emitted(db, task_id)) == before


@pytest.mark.req("S1-50")
def test_a_completion_is_completed_failed_or_canceled_and_nothing_else(http: Caller, db: Harness) -> None:
    ended = {}
    for status in ("Completed", "Failed", "Canceled"):
        task_id = http.enqueued("dispatcher")
        answer = http.post(
            "/internal/task-complete", {**claimed(http, task_id), "status": status, "outputs": [], "events": []}
        )
        ended[status] = (answer["status"], task(db, task_id)["status"], answer["next_retry_at"] is not None)
    assert ended == {
        "Completed": ("Completed", "Completed", False),
        "Failed": ("Failed", "Failed", True),
        "Canceled": ("Canceled", "Canceled", False),
    }
    held = claimed(http, http.enqueued("dispatcher"))
    before = db.fingerprint(int(held["task_id"]))
    for odd in ("completed", "Succeeded", "Queued", "Running", "Cancelled", "", None, 7, ["Failed"]):
        http.refused("/internal/task-complete", {**held, "status": odd}, 422, "E-BAD-INPUT")
    assert db.fingerprint(int(held["task_id"])) == before


@pytest.mark.req("S1-15")
def test_nothing_that_a_worker_sends_sets_attempts_or_delays(http: Caller, db: Harness) -> None:
    task_id = http.enqueued("dispatcher")
    held = claimed(http, task_id)
    before = db.fingerprint(int(task_id))
    wishes: list[dict[str, Any]] = [
        {"retry_after": 0}, {"next_retry_at": "2030-01-01T00:00:00Z"}, {"max_attempts": 99}, {"delay_ms": 1},
        {"retryable": True},
    ]  # fmt: skip
    for wish in wishes:
        http.refused("/internal/task-complete", {**held, "status": "Failed", **wish}, 422, "E-BAD-INPUT")
        http.refused("/internal/heartbeat", {**held, **wish}, 422, "E-BAD-INPUT")
        http.refused("/internal/task-claim", {"task_id": task_id, "worker_id": "w", **wish}, 422, "E-BAD-INPUT")
    assert db.fingerprint(int(task_id)) == before
    answer = http.post("/internal/task-complete", {**held, "status": "Failed", "error_message": "disk full"})
    shown = task(db, task_id)
    delay = db.value(
        "select extract(epoch from due_at - updated_at)::float from tenure.job where id = %s", int(task_id)
    )
    assert 15 <= delay <= 45  # the policy's own
    assert (shown["attempt"], shown["max_attempts"], shown["error_message"]) == (1, 3, "disk full")
    assert answer["next_retry_at"] is not None


@pytest.mark.req("S1-53")
async def test_a_late_completion_counts_until_the_lease_was_taken(http: Caller, store: Store, db: Harness) -> None:
    late, reaped = (claimed(http, http.enqueued("dispatcher")) for _ in range(2))
    db.expire(int(late["task_id"]), int(reaped["task_id"]))
    done = {"status": "Completed", "outputs": OUTPUTS, "events": EVENTS}
    assert http.post("/internal/task-complete", {**late, **done})["status"] == "Completed"
    await store.reap("dispatcher")
    http.refused("/internal/task-complete", {**reaped, **done}, 409, "LEASE_CONFLICT")
    assert (emitted(db, late["task_id"]), emitted(db, reaped["task_id"])) == (EVENTS, [])


def test_a_claim_answers_what_the_ordinary_routes_of_a_holder_need(http: Caller, db: Harness) -> None:
    task_id = http.enqueued("dispatcher", payload={"n": 7})
    body = {"task_id": task_id, "worker_id": "w1", "job": True}
    answer = http.post("/internal/task-claim", body)
    assert (answer["job"]["id"], answer["job"]["payload"], answer["job"]["claims"]) == (task_id, {"n": 7}, 1)
    shown = {name: answer[name] for name in ("claims", "lease_token")}
    http.post(f"/api/v1/jobs/{task_id}/checkpoint", {**shown, "value": {"page": 7}})
    assert db.row(int(task_id))["checkpoint"] == {"page": 7}


def test_a_failed_completion_may_have_all_facts(http: Caller, db: Harness) -> None:
    shown = claimed(http, task_id := http.enqueued("dispatcher"))
    error = {"message": "out of paper", "type": "PrinterError", "code": "E7", "stack": "line 1", "stage": "output"}
    http.post("/internal/task-complete", {**shown, "status": "Failed", "error_message": "short", "error": error})
    stored = db.row(int(task_id))["last_error"]
    assert {name: stored[name] for name in error} == error
