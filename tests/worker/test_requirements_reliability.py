"""Document 002 through the real worker: soft and hard cancel, effects once, traces, payloads that do not fit."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

import tenure
from tenure.app import App
from tenure.errors import LeaseConflictError
from tenure.jobs.job import Held, Job, NewJob
from tenure.jobs.outcome import Moved, Noted
from tenure.middleware import Middleware
from tenure.postgres.store import Store
from tests.harness import Harness
from tests.worker import charging, program
from tests.worker.processes import is_frozen, says, steady_worker
from tests.worker.rounds import Pulse
from tests.worker.working import quick, until, working


@pytest.mark.req("S2-38")
async def test_soft_cancel_is_seen_at_the_next_heartbeat_and_the_handler_ends_gracefully(
    app: App, db: Harness, pulse: Pulse
) -> None:
    began, seen = asyncio.Event(), asyncio.Event()

    @app.task(contract="reliability", heartbeat=10)
    async def index(ctx: tenure.Context) -> tenure.Cancel:
        began.set()
        while not ctx.cancelled:  # noqa: ASYNC110 (a handler looks when it comes to it)
            await asyncio.sleep(0.02)
        seen.set()
        await ctx.checkpoint({"page": 7})
        return tenure.Cancel("asked to")

    async with working(app, wakeups=False) as running:  # the heartbeat alone must bring it
        ticket = await index.enqueue()
        await began.wait()
        await app.cancel(ticket, reason="not needed", actor="ada")
        row = db.one("select status, cancel_requested_at from tenure_reliability.jobs where job_id = %s", ticket.id)
        assert row["status"] == "running"
        assert row["cancel_requested_at"] is not None
        beats = running._heartbeats.sent
        pulse.passes(10)
        await asyncio.wait_for(seen.wait(), 60)
        assert running._heartbeats.sent == beats + 1
        await until(lambda: db.row(ticket.id)["state"] == "cancelled")
    assert db.row(ticket.id)["checkpoint"] == {"page": 7}
    events = "select type from tenure_reliability.job_events where job_id = %s and type = 'job_cancelled'"
    assert len(db.sql(events, ticket.id)) == 1


@pytest.mark.req("S2-38")
async def test_soft_cancelled_job_whose_worker_dies_is_cancelled_and_not_queued(
    app: App, dsn: str, store: Store, db: Harness
) -> None:
    ticket = await app._enqueue(program.nap.options(contract="reliability").call(600.0).job)
    with steady_worker(dsn) as process:
        await until(lambda: db.row(ticket.id)["state"] == "running")
        await app.cancel(ticket)
        process.kill()
        process.wait()
    db.expire(ticket.id)
    assert await store.reap("reliability")
    assert db.hops(ticket.id)[-1] == "running->cancelled"


class Cancels(Middleware):
    """Cancels each job that its worker has claimed and not started yet."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.answers: list[Moved | Noted] = []

    async def claim(self, jobs: Sequence[Job]) -> None:
        """Cancel them softly."""
        self.answers += [await self.store.cancel(job.id, mode="soft", actor="ada") for job in jobs]


@pytest.mark.req("S2-40")
async def test_soft_cancel_of_an_assigned_job_ends_it_before_its_worker_runs_the_handler(
    dsn: str, store: Store, db: Harness
) -> None:
    cancels, runs = Cancels(store), list[int]()
    async with quick(dsn, middleware=[cancels]) as app:

        @app.task(contract="reliability")
        async def index() -> None:
            runs.append(1)

        async with working(app) as worker:
            ticket = await index.enqueue()
            await until(lambda: worker.counts["cancelled"] == 1)
    (moved,) = cancels.answers
    assert isinstance(moved, Moved)
    assert (moved.from_state, moved.state) == ("assigned", "cancelled")
    assert runs == []
    assert db.hops(ticket.id) == ["queued->assigned", "assigned->cancelled"]


@pytest.mark.req("S2-39")
async def test_hard_cancel_interrupts_the_handler_and_refuses_what_it_says_later(
    app: App, store: Store, db: Harness
) -> None:
    began, held, ended = asyncio.Event(), list[Held](), list[str]()

    @app.task(contract="reliability")
    async def index(ctx: tenure.Context) -> None:
        held.append(ctx.job.held)
        began.set()
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            ended.append("interrupted")
            with pytest.raises(LeaseConflictError):
                await asyncio.shield(ctx.checkpoint({"late": True}))
            ended.append("refused")
            raise

    async with working(app) as worker:
        ticket = await index.enqueue()
        await began.wait()
        await app.cancel(ticket, mode="hard", reason="now", actor="ada")
        assert db.row(ticket.id)["state"] == "cancelled"  # in the cancel's own transaction
        before = db.fingerprint(ticket.id)
        with pytest.raises(LeaseConflictError):
            await store.succeed(held[0], "late")
        await until(lambda: worker.counts["cancelled"] == 1)
    assert ended == ["interrupted", "refused"]
    assert db.fingerprint(ticket.id) == before
    assert (db.row(ticket.id)["result"], db.row(ticket.id)["checkpoint"]) == (None, None)


@pytest.mark.req("S2-32")
async def test_effect_of_a_frozen_worker_is_not_had_again_by_the_next(
    app: App, dsn: str, store: Store, db: Harness, tmp_path: Path
) -> None:
    book = tmp_path / "book"
    ticket = await app._enqueue(charging.charge.call(str(book)).job)
    with steady_worker(dsn, "--no-upkeep", app="tests.worker.charging:app") as frozen:
        await until(lambda: db.value("select count(*) from tenure.effect") == 1)
        await until(lambda: is_frozen(frozen))
        db.expire(ticket.id)
        assert await store.reap("reliability")
        with steady_worker(dsn, app="tests.worker.charging:app"):
            assert await app.result(ticket, timeout=60) == f"receipt of {ticket.id}:1"
        before = db.fingerprint(ticket.id)
        os.kill(frozen.pid, signal.SIGCONT)
        await says(frozen, "refused")
    assert db.fingerprint(ticket.id) == before
    assert book.read_text().splitlines() == [f"receipt of {ticket.id}:1"]


class _Stub(BaseHTTPRequestHandler):
    """The next service: keeps the headers of what it is asked."""

    heard: list[dict[str, str]]

    def do_GET(self) -> None:
        """Answer, and keep the headers."""
        self.heard.append({name.lower(): value for name, value in self.headers.items()})
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@contextmanager
def next_service() -> Iterator[tuple[str, list[dict[str, str]]]]:
    """A service of somebody else's: its address, and the headers that it was sent."""
    heard: list[dict[str, str]] = []
    server = HTTPServer(("127.0.0.1", 0), type("Stub", (_Stub,), {"heard": heard}))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/", heard
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.req("S2-58")
async def test_trace_and_correlation_reach_the_handler_the_next_service_every_event_and_the_dead_letter(
    app: App, db: Harness
) -> None:
    trace, matter = "0af7651916cd43dd8448eb211c80319c", "order 7"
    known: list[tuple[str, str]] = []
    with next_service() as (address, heard):

        @app.task(contract="reliability", max_attempts=3)
        def index(ctx: tenure.Context) -> None:
            known.append((ctx.trace_id, ctx.correlation_id))
            urllib.request.urlopen(urllib.request.Request(address, headers=ctx.headers()), timeout=60).close()
            ctx.effect_sync("charge", lambda: "receipt")
            if ctx.attempt == 1:
                raise tenure.TransientError("busy")
            raise tenure.ValidationError("no such page")

        async with working(app):
            ticket = await index.options(trace_id=trace, correlation_id=matter).enqueue()
            await until(lambda: db.row(ticket.id)["role"] == "done")
    assert known == [(trace, matter)] * 2
    assert [(one["x-trace-id"], one["x-correlation-id"]) for one in heard] == [(trace, matter)] * 2
    assert all(one["traceparent"].split("-")[1] == trace for one in heard)
    events = db.sql("select * from tenure_reliability.job_events where job_id = %s order by id", ticket.id)
    kinds = ["job_claimed", "job_started", "job_requeued", "job_claimed", "job_started", "job_dead_lettered"]
    assert [event["type"] for event in events] == kinds
    assert {(event["trace_id"], event["correlation_id"]) for event in events} == {(trace, matter)}
    assert {event["payload"]["trace_id"] for event in events} == {trace}
    letter = db.one("select * from tenure_reliability.dead_letters where job_id = %s", ticket.id)
    assert (letter["correlation_id"], letter["trace_id"]) == (matter, trace)


@pytest.mark.req("S2-13")
@pytest.mark.parametrize(
    ("payload", "reason"),
    [([1, 2], "parse_error"), ({"page": "seven"}, "validation_failed"), ({}, "validation_failed")],
)
async def test_payload_that_the_handler_cannot_take_is_set_aside_without_a_run(
    app: App, store: Store, db: Harness, payload: object, reason: str
) -> None:
    ran: list[int] = []

    @app.task(contract="reliability")
    async def index(page: int) -> None:
        ran.append(page)

    made = await store.enqueue(NewJob("index", payload, contract="reliability"))
    async with working(app):
        await until(lambda: db.row(made.job_id)["role"] == "done")
    letter = db.one("select * from tenure_reliability.dead_letters where job_id = %s", made.job_id)
    assert (letter["reason_code"], letter["stage"]) == (reason, "input")
    # What is checked before the start needs none: the job never ran.
    assert db.hops(made.job_id) == ["queued->assigned", "assigned->dead_lettered"]
    assert ran == []


@pytest.mark.req("S2-01")
async def test_four_kinds_of_workers_tasks_each_have_their_own_lease_and_attempts(app: App, db: Harness) -> None:
    wanted = {"indexing": (30, 1), "research": (60, 2), "execution": (90, 3), "quality": (120, 4)}
    runs: dict[str, list[float]] = {name: [] for name in wanted}

    def declare(name: str, lease: int, attempts: int) -> Any:
        @app.task(name=name, contract="reliability", lease=lease, max_attempts=attempts, backoff_base=0.001)
        async def work(ctx: tenure.Context) -> None:
            assert ctx.job.lease_expires_at is not None
            assert ctx.job.started_at is not None
            runs[name].append((ctx.job.lease_expires_at - ctx.job.started_at).total_seconds())
            raise tenure.TransientError("busy")

        return work

    tasks = [declare(name, *numbers) for name, numbers in wanted.items()]
    async with working(app) as worker:
        tickets = [await task.enqueue() for task in tasks]
        await until(lambda: worker.counts["failed"] == 4)
    assert {name: (round(leases[0]), len(leases)) for name, leases in runs.items()} == wanted
    assert {db.row(ticket.id)["state"] for ticket in tickets} == {"dead_lettered"}
