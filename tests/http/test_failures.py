"""Every failure that a client reports to the dispatcher is written by `AsyncTaskQueue.fail_task` alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tenure import AsyncTaskQueue
from tenure.app import App
from tenure.jobs.holder_call import HolderCall
from tenure.jobs.job import Held
from tenure.jobs.outcome import Moved
from tenure.postgres.store import Store
from tenure.queue import Decision
from tenure.settings import Settings
from tests.harness import Harness
from tests.http.conftest import Caller, proof
from tests.worker.working import until, working

Reports = list[tuple[int, int]]
#: Reports the failure of these jobs, which the caller holds.
Surface = Callable[[Caller, Sequence[dict[str, Any]]], None]


def one_by_one(http: Caller, claims: Sequence[dict[str, Any]]) -> None:
    for claim in claims:
        http.post(f"/api/v1/jobs/{claim['job']['id']}/fail", proof(claim, error={"message": "boom"}))


def one_by_one_with_keys(http: Caller, claims: Sequence[dict[str, Any]]) -> None:
    for claim in claims:
        body = proof(claim, error={"message": "boom"}, idempotency_key=f"fail:{claim['claims']}")
        first = http.post(f"/api/v1/jobs/{claim['job']['id']}/fail", body)
        assert first["id"] == claim["job"]["id"]


def in_a_batch(http: Caller, claims: Sequence[dict[str, Any]]) -> None:
    finishes = [
        {"id": claim["job"]["id"], **proof(claim), "verb": "fail", "error": {"message": "boom"}} for claim in claims
    ]
    assert len(http.post("/api/v1/finishes", {"finishes": finishes})["answers"]) == len(claims)


def as_a_task(http: Caller, claims: Sequence[dict[str, Any]]) -> None:
    _complete(http, claims, events=None)


def as_a_task_with_events(http: Caller, claims: Sequence[dict[str, Any]]) -> None:
    _complete(http, claims, events=[{"cursor": 1}])


def _complete(http: Caller, claims: Sequence[dict[str, Any]], events: list[Any] | None) -> None:
    for claim in claims:
        job = claim["job"]
        body = {"task_id": job["id"], "attempt": job["counter"], "lease_token": claim["lease_token"]}
        http.post("/internal/task-complete", {**body, "status": "Failed", "events": events})


def by_rehearsal(http: Caller, claims: Sequence[dict[str, Any]]) -> None:
    for claim in claims:
        http.post(f"/api/v1/internal/jobs/{claim['job']['id']}/run?transient_fail=true")


surfaces = pytest.mark.parametrize(
    "surface",
    [one_by_one, one_by_one_with_keys, in_a_batch, as_a_task, as_a_task_with_events, by_rehearsal],
    ids=lambda surface: str(surface.__name__),
)


@pytest.fixture
def reported(monkeypatch: pytest.MonkeyPatch) -> Reports:
    """The id and the claim of every failure that went through `fail_task`."""
    seen: Reports = []
    fail_task = AsyncTaskQueue.fail_task

    async def counted(self: AsyncTaskQueue, task: Any, error: Any, **given: Any) -> Decision:
        seen.append((task.id, task.claims))
        return await fail_task(self, task, error, **given)

    monkeypatch.setattr(AsyncTaskQueue, "fail_task", counted)
    return seen


def statuses(db: Harness) -> list[str]:
    return [row["status"] for row in db.sql("select status from tenure_simple.tasks order by id")]


@pytest.mark.req("S3-24")
@surfaces
def test_failure_that_is_retried_and_failure_that_is_final_go_through_fail_task(
    http: Caller, db: Harness, reported: Reports, surface: Surface
) -> None:
    ids = [int(http.enqueued("simple", max_attempts=2)) for _ in range(3)]
    surface(http, http.claimed("simple"))
    assert sorted(reported) == [(job_id, 1) for job_id in ids]
    assert statuses(db) == ["PENDING"] * 3
    db.due(*ids)
    surface(http, http.claimed("simple"))
    assert sorted(reported) == sorted((job_id, claims) for job_id in ids for claims in (1, 2))
    assert statuses(db) == ["FAILED"] * 3
    db.log_is_sound(*ids)


@pytest.mark.req("S3-24")
@surfaces
def test_without_fail_task_no_route_writes_a_failure(
    http: Caller, db: Harness, monkeypatch: pytest.MonkeyPatch, surface: Surface
) -> None:
    asked: list[Held] = []

    async def nothing(self: AsyncTaskQueue, task: Held, error: Any, **_: Any) -> Decision:
        asked.append(task)
        at = db.value("select clock_timestamp()")
        return Decision.of(Moved(task.id, "retry", "RUNNING", "PENDING", "ready", task.claims, 1, at, at, 0))

    monkeypatch.setattr(AsyncTaskQueue, "fail_task", nothing)
    ids = [int(http.enqueued("simple")) for _ in range(3)]
    claims = http.claimed("simple")
    before = db.fingerprint(*ids)
    surface(http, claims)
    assert sorted(held.id for held in asked) == ids
    assert db.fingerprint(*ids) == before
    assert statuses(db) == ["RUNNING"] * 3
    assert db.value("select count(*) from tenure.emitted") == 0


@pytest.mark.req("S3-24")
async def test_worker_through_a_dispatcher_reports_every_failure_through_fail_task(
    url: str, db: Harness, reported: Reports
) -> None:
    async with App(dispatcher_url=url, settings=Settings()) as app:

        @app.task(contract="simple", max_attempts=2)
        async def fail() -> None:
            raise ValueError("odd")

        async with working(app) as worker:
            ticket = await fail.enqueue()
            await until(lambda: worker.counts["retried"] == 1)
            db.due(ticket.id)
            await until(lambda: worker.counts["failed"] == 1)
    assert reported == [(ticket.id, 1), (ticket.id, 2)]
    assert statuses(db) == ["FAILED"]


def test_failures_of_a_batch_are_one_statement_for_each_contract(
    http: Caller, db: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: list[list[str]] = []
    report = Store.report

    async def counted(self: Store, verb: str, calls: Sequence[HolderCall]) -> list[Any]:
        if verb == "fail":
            batches.append([call.held.contract for call in calls])
        return await report(self, verb, calls)

    monkeypatch.setattr(Store, "report", counted)
    for contract in ("simple", "standard"):
        for _ in range(8):
            http.enqueued(contract)
    in_a_batch(http, [*http.claimed("simple"), *http.claimed("standard")])
    assert sorted(batches) == [["simple"] * 8, ["standard"] * 8]
    assert db.value("select count(*) from tenure.job where claims = 1 and lease_token is null") == 16


def test_a_failure_with_its_key_again_gets_the_first_answer(http: Caller, db: Harness) -> None:
    job_id = http.enqueued("simple")
    (claim,) = http.claimed("simple")
    path, body = f"/api/v1/jobs/{job_id}/fail", proof(claim, error={"message": "boom"}, idempotency_key="once")
    first = http.post(path, body)
    before = db.fingerprint(int(job_id))
    assert http.post(path, body) == first
    other = {**body, "error": {"message": "bang"}}
    http.refused(path, other, 409, "IDEMPOTENCY_CONFLICT")
    assert db.fingerprint(int(job_id)) == before
    assert (first["trigger"], first["will_retry"]) == ("retry", True)
