"""Document 002: a lease is renewed at half of what remains of it; after a beat that failed, at half of the rest."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

import pytest

from tenure.app import App
from tenure.client.direct import DirectClient
from tenure.contracts import BUILT_IN
from tenure.errors import Unavailable
from tenure.jobs.holder_call import HolderCall
from tenure.jobs.job import Job
from tenure.jobs.outcome import Noted
from tenure.worker import heartbeat
from tenure.worker.running_job import RunLimits, RunningJob
from tests.harness import Harness
from tests.worker.rounds import Pulse
from tests.worker.working import LEASE_S, until, working


class Clock:
    """What a heart asks for the time and sleeps by; only sleeping moves it, so that two minutes are over at once."""

    def __init__(self, end: float) -> None:
        self.now, self.end = 1_000.0, 1_000.0 + end

    def monotonic(self) -> float:
        """The time."""
        return self.now

    def timeout(self, _: float) -> contextlib.nullcontext[None]:
        """As long as it takes."""
        return contextlib.nullcontext()

    async def sleep(self, seconds: float) -> None:
        """Let time pass; at the end nobody goes on."""
        self.now += seconds
        if self.now > self.end:
            raise asyncio.CancelledError


async def beats_of_a_lease(monkeypatch: pytest.MonkeyPatch, blocked: set[int]) -> list[float]:
    """When a heart beats for a lease of 30 seconds over two minutes, if these beats do not reach the database."""
    clock, beats = Clock(120), list[float]()
    monkeypatch.setattr(heartbeat, "time", clock)
    monkeypatch.setattr(heartbeat, "asyncio", clock)

    class Source:
        leases_run_on = False

        async def report(self, verb: str, calls: Sequence[HolderCall]) -> list[Noted]:
            beats.append(clock.now - 1_000.0)
            if len(beats) in blocked:
                raise Unavailable("no")
            return [Noted(call.held.id, None, False, True) for call in calls]

    beating = heartbeat.HeartbeatLoop()
    columns = dict.fromkeys(Job._fields) | {"id": 1, "claims": 1, "lease_token": uuid4(), "contract": "reliability"}
    job: Any = Job(**columns)  # type: ignore[arg-type]
    limits = RunLimits(None, BUILT_IN["reliability"], 30, True, 15, 600, first_heartbeat_s=15)
    beating.held.add(RunningJob(job, limits, clock.now, 600))
    source: Any = Source()
    with pytest.raises(asyncio.CancelledError):
        await beating.run(source)
    return beats


@pytest.mark.req("S2-27")
async def test_lease_of_thirty_seconds_is_renewed_every_fifteen(monkeypatch: pytest.MonkeyPatch) -> None:
    beats = await beats_of_a_lease(monkeypatch, set())
    assert len(beats) == 7
    assert all(15 <= after - before <= 15.2 for before, after in itertools.pairwise([0.0, *beats]))


@pytest.mark.req("S2-27")
async def test_renewal_that_is_blocked_is_tried_again_at_half_of_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    beats = await beats_of_a_lease(monkeypatch, {2, 3})
    gaps = [after - before for before, after in itertools.pairwise([0.0, *beats])]
    # Renewed at 15, lost at 30 with 15 left, lost with 7.5 left, renewed.
    assert gaps[:5] == pytest.approx([15, 15, 7.5, 3.75, 15], abs=0.25)


@pytest.mark.req("S2-27")
async def test_worker_that_could_not_renew_once_keeps_its_job(
    app: App, db: Harness, pulse: Pulse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "TICK_S", 0.001)
    report, beats, go = DirectClient.report, list[float](), asyncio.Event()

    async def blocked_once(self: DirectClient, verb: str, calls: Sequence[HolderCall]) -> list[Any]:
        if verb == "heartbeat":
            beats.append(pulse.now)
            if len(beats) == 2:
                raise Unavailable("the connection is blocked")
        return await report(self, verb, calls)

    monkeypatch.setattr(DirectClient, "report", blocked_once)

    @app.task(contract="dispatcher")
    async def long() -> str:
        await go.wait()
        return "done"

    async with working(app):
        ticket = await long.enqueue()
        await until(lambda: db.row(ticket.id)["role"] == "active")
        while len(beats) < 4:
            assert pulse.now < time.monotonic() + 4 * LEASE_S, "the heart stands still"
            pulse.passes(LEASE_S / 100)
            await until(pulse.another())
        go.set()
        assert await app.result(ticket, timeout=60) == "done"
    gaps = [after - before for before, after in itertools.pairwise(beats)]
    assert gaps == pytest.approx([LEASE_S / 2, LEASE_S / 4, LEASE_S / 2], abs=LEASE_S / 50)
    assert db.hops(ticket.id) == ["Queued->Running", "Running->Completed"]
