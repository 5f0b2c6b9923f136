"""Document 004 through the real worker: the cases RP-001 to RP-005, execution keys, and workers that are killed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import tenure
from tenure.app import App
from tenure.client.direct import DirectClient
from tenure.errors import ConnectionLost, Refused
from tenure.jobs.job import Held, Job
from tenure.middleware import Middleware
from tenure.postgres.store import Store
from tests.contracts.gate_b2 import DEAD, RETRY, TRANSIENT, shown
from tests.harness import Harness
from tests.worker import program
from tests.worker.killing import run_and_kill
from tests.worker.processes import steady_worker
from tests.worker.working import steady, until, working

INVALID = "WF_STATE_TRANSITION_INVALID"


class Told(Middleware):
    """Keeps what the worker was told of its jobs' ends."""

    def __init__(self) -> None:
        self.ends: list[Any] = []

    async def finish(self, job: Job, became: Any) -> None:
        """Keep it."""
        self.ends.append(became)


@pytest.mark.parametrize(
    ("failures", "path", "end"),
    [
        pytest.param(0, ["running->succeeded"], "succeeded", marks=pytest.mark.req("S4-36"), id="RP-001"),
        pytest.param(1, [*RETRY, "running->succeeded"], "succeeded", marks=pytest.mark.req("S4-37"), id="RP-002"),
        pytest.param(3, [*RETRY * 3, "running->succeeded"], "succeeded", marks=pytest.mark.req("S4-38"), id="RP-003"),
        pytest.param(4, [*RETRY * 3, *DEAD], "failed", marks=pytest.mark.req("S4-39"), id="RP-004"),
    ],
)
async def test_worker_takes_a_job_the_way_the_replay_case_says(
    app: App, db: Harness, failures: int, path: list[str], end: str
) -> None:
    runs: list[int] = []

    @app.task(contract="gate_b2")
    async def settle() -> str:
        runs.append(1)
        if len(runs) <= failures:
            raise tenure.TransientError("the other side did not answer")
        return "settled"

    db.spy()
    async with working(app):
        ticket = await settle.enqueue()
        await until(lambda: db.row(ticket.id)["state"] == end)
    assert db.hops(ticket.id) == ["queued->running", *path]
    # The spy sees what commits together as one change: from dlq_pending to failed.
    seen = [hop for hop in db.hops(ticket.id) if hop != "dlq_pending->dlq_recorded"]
    assert [f"{hop.old or 'queued'}->{hop.new}" for hop in db.seen(ticket.id)] == [
        hop.replace("dlq_recorded", "dlq_pending") for hop in seen
    ]
    row = shown(db, ticket.id)
    assert (row["status"], row["retry_count"], len(runs)) == (end, min(failures, 3), min(failures + 1, 4))
    letters = db.sql("select dlq_id from tenure_gate_b2.dlq_items where job_id = %s", ticket.id)
    assert len(letters) == (1 if end == "failed" else 0)


@pytest.mark.req("S4-40")
@pytest.mark.parametrize("second", ["succeeds", "fails"])
async def test_second_terminal_write_of_a_worker_is_refused_in_the_documents_word(
    dsn: str, store: Store, db: Harness, second: str
) -> None:
    told, taken, go = Told(), list[Held](), asyncio.Event()
    async with steady(dsn, middleware=[told]) as app:

        @app.task(contract="gate_b2")
        async def settle(ctx: tenure.Context) -> str:
            taken.append(ctx.job.held)
            await go.wait()
            if second == "fails":
                raise tenure.TransientError("too late")
            return "again"

        async with working(app) as worker:
            ticket = await settle.enqueue()
            await until(lambda: bool(taken))
            await store.succeed(taken[0], "first")
            before = db.fingerprint(ticket.id)
            go.set()
            await until(lambda: worker.counts["refused"] + worker.counts["lost"] == 1)
        for call in (store.succeed(taken[0], "first"), store.fail(taken[0], TRANSIENT)):
            with pytest.raises(Refused) as refusal:
                await call
            assert refusal.value.reason_code == INVALID
        for state in ("succeeded", "failed", "running", "retrying"):
            with pytest.raises(Refused) as refusal:
                await store.transition(ticket.id, state, actor="operator")
            assert refusal.value.reason_code == INVALID
    assert db.fingerprint(ticket.id) == before
    assert shown(db, ticket.id)["status"] == "succeeded"
    (refused,) = told.ends
    assert isinstance(refused, Refused)
    assert refused.reason_code == INVALID


@pytest.mark.req("S4-25")
async def test_each_execution_has_the_key_of_its_retry_and_a_redelivered_one_the_same(
    app: App, db: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys: list[str] = []

    @app.task(contract="gate_b2")
    async def settle(ctx: tenure.Context) -> None:
        keys.append(ctx.execution_key)
        raise tenure.TransientError("busy")

    claim, lost = DirectClient.claim, list[list[str]]()

    async def claim_whose_answer_is_lost(self: DirectClient, contract: str, *rest: Any, **given: Any) -> list[Job]:
        jobs = await claim(self, contract, *rest, **given)
        if jobs and len(lost) <= len(keys):  # the first answer of each execution never arrives
            lost.append([f"{job.id}:{job.counter}" for job in jobs])
            raise ConnectionLost("the line went dead")
        return jobs

    monkeypatch.setattr(DirectClient, "claim", claim_whose_answer_is_lost)
    async with working(app):
        ticket = await settle.enqueue()
        await until(lambda: db.row(ticket.id)["state"] == "failed")
    assert keys == [f"{ticket.id}:{retry}" for retry in range(4)]
    assert lost == [[key] for key in keys]
    assert db.row(ticket.id)["claims"] == 4


@pytest.mark.req("S4-57")
@pytest.mark.timeout(300)  # five processes begin, one after the other
async def test_job_whose_worker_is_killed_in_each_execution_ends_in_the_dead_letters_after_four(
    app: App, dsn: str, db: Harness
) -> None:
    ticket = await app._enqueue(program.nap.options(contract="gate_b2").call(600.0).job)
    await run_and_kill(dsn, db, ticket.id, times=4)
    with steady_worker(dsn):
        await until(lambda: db.row(ticket.id)["state"] == "failed")
    assert db.hops(ticket.id) == ["queued->running", *RETRY * 3, *DEAD]
    item = db.one("select * from tenure_gate_b2.dlq_items where job_id = %s", ticket.id)
    assert item["error_code"] == "WORKER_LOST"
    assert shown(db, ticket.id)["retry_count"] == 3
