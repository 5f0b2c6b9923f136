"""Workers behind dispatchers that are killed, and behind a network that loses their answers: every task ends once."""

from __future__ import annotations

import asyncio
import random
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import pytest

from tenure.app import App
from tests.faults import program
from tests.faults.fleet import Fleet, ended_well, over, seen_by_witnesses, witness
from tests.harness import Harness
from tests.http.processes import dispatcher
from tests.http.unreliable import Network, network
from tests.worker.processes import QUICK, end
from tests.worker.working import until

pytestmark = [pytest.mark.serial, pytest.mark.timeout(600)]


#: Leases that run out by themselves where the answer to a claim was lost for good.
_LEASES = {**QUICK, **{name: "5000" for name in QUICK if name.endswith("LEASE_MS")}}
_HELD = "select count(*) from tenure.job where role = 'active'"


class Dispatchers:
    """Dispatchers that are processes of their own, behind one address."""

    def __init__(self, dsn: str, between: Network, environment: dict[str, str]) -> None:
        self._dsn, self._between, self._environment = dsn, between, environment
        self.processes: dict[str, subprocess.Popen[str]] = {}
        self.killed = 0

    async def begin(self) -> None:
        """Start one more; it is reachable when this comes back."""
        quiet = ("--log-level", "error")
        process, url = await asyncio.to_thread(dispatcher, self._dsn, *quiet, **self._environment)
        self.processes[url] = process
        self._between.leads_to(list(self.processes))

    def kill(self, url: str) -> None:
        """Kill −9."""
        end(self.processes.pop(url))
        self.killed += 1
        self._between.leads_to(list(self.processes))


@contextmanager
def dispatchers(dsn: str, between: Network, **environment: str) -> Iterator[Dispatchers]:
    """None at first; all that are left are killed at the end."""
    some = Dispatchers(dsn, between, environment)
    try:
        yield some
    finally:
        for process in some.processes.values():
            end(process)


async def enqueued(app: App, tasks: int, seconds: float) -> list[int]:
    """Tasks of the dispatcher's contract, and of others beside them, that take so long."""
    calls = [
        program.on_the_loop.options(contract="dispatcher" if n % 2 else "standard", max_attempts=50).call(seconds)
        for n in range(tasks)
    ]
    return list(await app.enqueue_many(calls))


@pytest.mark.req("S1-05", "S1-07", "S1-08")
@pytest.mark.parametrize(("tasks", "kills"), [(80, 3), pytest.param(500, 20, marks=pytest.mark.prove)])
async def test_dispatchers_killed_at_random_lose_no_task_and_overlap_none(
    app: App, dsn: str, db: Harness, tmp_path: Path, tasks: int, kills: int
) -> None:
    chance = random.Random(kills)
    witness(db)
    held: list[int] = []
    ids = await enqueued(app, tasks // 2, 0.3)  # before there is any dispatcher
    async with network(kills) as between:
        with dispatchers(dsn, between, **_LEASES) as some, Fleet(dsn, tmp_path, "--dispatcher", between.url) as fleet:
            await asyncio.gather(some.begin(), some.begin())
            for _ in range(2):
                fleet.begin("--concurrency", "6")
            n = 0
            # Between the look and the kill what was held may end: go on until the kills met enough.
            while n < kills or (sum(held) <= kills and n < 4 * kills):
                ids += await enqueued(app, -(-tasks // 2 // kills), 0.3)
                await until(lambda: db.value(_HELD) > 0, 60)
                await asyncio.sleep(chance.uniform(0, 0.3))
                held.append(db.value(_HELD))
                some.kill(chance.choice(list(some.processes)))
                if n == kills // 2:  # all of them: what goes on from here, goes on from the database alone
                    for url in list(some.processes):
                        some.kill(url)
                    await some.begin()
                await some.begin()
                n += 1
            took = await over(db, 150)
            await asyncio.to_thread(fleet.stop_all)  # the network runs on this loop
    triggers = await ended_well(db, ids)
    seen_by_witnesses(db)
    print(
        f"{len(ids)} tasks, {some.killed} dispatchers killed with {held} held, {dict(triggers)}; over in {took:.1f} s"
    )
    assert triggers["succeed"] == len(ids)
    assert some.killed > kills
    assert sum(held) > kills, "the kills met nothing"


@pytest.mark.req("S1-04")
@pytest.mark.parametrize("tasks", [50, pytest.param(500, marks=pytest.mark.prove)])
async def test_a_worker_whose_answers_are_lost_ends_every_task_once(
    app: App, dsn: str, db: Harness, tmp_path: Path, tasks: int
) -> None:
    witness(db)
    async with network(tasks, lost=0.3, reset=0.05, delayed=0.1) as between:
        with dispatchers(dsn, between, **_LEASES) as some, Fleet(dsn, tmp_path, "--dispatcher", between.url) as fleet:
            await asyncio.gather(some.begin(), some.begin())
            for _ in range(2):
                fleet.begin("--concurrency", "4")
            ids: list[int] = []
            # How many answers there are to be lost depends on how many jobs go together.
            while not ids or (between.did["lost"] <= 10 and len(ids) < 20 * tasks):
                ids += await enqueued(app, tasks, 0.01)
                took = await over(db, 150)
            await asyncio.to_thread(fleet.stop_all)  # the network runs on this loop
    triggers = await ended_well(db, ids)
    seen_by_witnesses(db)
    print(f"{len(ids)} tasks, the last of them over in {took:.1f} s, {dict(between.did)}, {dict(triggers)}")
    assert triggers["succeed"] == len(ids)
    assert between.did["lost"] > 10


class Dumb:
    """A worker that knows document 001's three calls and says each until it is answered."""

    def __init__(self, url: str, name: str) -> None:
        self._client, self._name = httpx2.AsyncClient(base_url=url, timeout=30), name
        self.tries: Counter[str] = Counter()

    async def run(self, task_ids: list[str]) -> None:
        """Claim, beat and complete each task that this worker gets."""
        async with self._client:
            for task_id in task_ids:
                key = {"Idempotency-Key": str(uuid4())}
                claim = await self._say("task-claim", {"task_id": task_id, "worker_id": self._name}, key)
                if claim["status"] != "Claimed":
                    continue
                proof = {"task_id": task_id, "attempt": claim["attempt"], "lease_token": claim["lease_token"]}
                await self._say("heartbeat", proof)
                outputs = [{"output_index": 0, "location": f"{task_id} by {self._name}"}]
                events = [{"cursor": task_id}]
                await self._say("task-complete", {**proof, "status": "Completed", "outputs": outputs, "events": events})

    async def _say(self, what: str, body: dict[str, Any], headers: dict[str, str] | None = None) -> Any:
        while True:
            self.tries[what] += 1
            try:
                answer = await self._client.post(f"/internal/{what}", json=body, headers=headers)
            except httpx2.HTTPError:
                await asyncio.sleep(0.01)
                continue
            assert answer.status_code == 200, answer.text
            return answer.json()


@pytest.mark.req("S1-04", "S1-54")
@pytest.mark.parametrize("tasks", [50, pytest.param(500, marks=pytest.mark.prove)])
async def test_dumb_workers_whose_answers_are_lost_store_outputs_and_events_once(
    app: App, dsn: str, db: Harness, tasks: int
) -> None:
    calls = (program.on_the_loop.options(contract="dispatcher").call(0.0) for _ in range(tasks))
    ids = list(await app.enqueue_many(calls))
    async with network(tasks, lost=0.3, reset=0.05, delayed=0.05) as between:
        with dispatchers(dsn, between) as some:  # with leases that nobody loses here, however slow the machine is
            await some.begin()
            workers = [Dumb(between.url, f"w{n}") for n in range(4)]
            orders = [random.Random(n).sample(list(map(str, ids)), tasks) for n in range(4)]
            await asyncio.gather(*(worker.run(order) for worker, order in zip(workers, orders, strict=True)))
            await until(lambda: db.value("select count(*) from tenure.job") == 0, 60)
    rows = db.sql("select task_id, status, attempt, outputs from tenure_dispatcher.tasks order by task_id")
    assert [(row["task_id"], row["status"], row["attempt"]) for row in rows] == [(n, "Completed", 1) for n in ids]
    assert all(row["outputs"][0]["location"].startswith(f"{row['task_id']} by w") for row in rows)
    emitted = db.sql("select job_id, body from tenure.emitted order by job_id")
    assert [(row["job_id"], row["body"]) for row in emitted] == [(n, {"cursor": str(n)}) for n in ids]
    triggers = await ended_well(db, ids)
    tries = sum((worker.tries for worker in workers), Counter())
    print(f"{tasks} tasks, {dict(between.did)}, calls {dict(tries)}, {dict(triggers)}")
    assert triggers["succeed"] == triggers["claim"] == tasks
    assert tries["task-complete"] > tasks
