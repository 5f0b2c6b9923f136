"""Workers that messages wake, where messages get lost and workers and dispatchers are killed: no task is lost."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tenure.app import App
from tests.faults import program
from tests.faults.fleet import Fleet, ended_well, over, seen_by_witnesses, witness
from tests.faults.test_dispatchers_killed import Dispatchers, dispatchers
from tests.harness import Harness
from tests.http.unreliable import network
from tests.message_queues import MessageServer, message_server
from tests.worker.processes import QUICK
from tests.worker.working import until

pytestmark = [pytest.mark.serial, pytest.mark.timeout(600)]

#: Leases that no test outlives, and a look for lost messages every second.
NUMBERS = {
    **QUICK, **{name: "120000" for name in QUICK if name.endswith("LEASE_MS")}, "TENURE_DISPATCHER_REWAKE_MS": "1000",
}  # fmt: skip


@pytest.fixture(scope="module")
def sqs() -> Iterator[MessageServer]:
    """A server of message queues."""
    with message_server() as server:
        yield server


@pytest.fixture
def queue(sqs: MessageServer) -> Iterator[str]:
    """The address of a queue that hides messages for ten seconds."""
    yield sqs.make_queue(VisibilityTimeout="10")
    sqs.post.chance = None


def sent(sqs: MessageServer, queue: str) -> list[int]:
    """The tasks that were announced, in order, whether the messages arrived or not."""
    batches = sqs.asked("SendMessageBatch", queue)
    return [int(json.loads(one["MessageBody"])["task_id"]) for batch in batches for one in batch["Entries"]]


async def enqueued(app: App, tasks: int, seconds: float) -> list[int]:
    """Tasks of which half fail at first."""
    kinds = (program.on_the_loop, program.unlucky_at_first)
    calls = [kinds[n % 2].options(contract="dispatcher", max_attempts=50).call(seconds) for n in range(tasks)]
    return list(await app.enqueue_many(calls))


async def executed_once_each(db: Harness, ids: list[int]) -> None:
    """Assert that these tasks are Completed, with one execution for each of their attempts, never two at once."""
    triggers = await ended_well(db, ids)
    seen_by_witnesses(db)
    assert triggers["succeed"] == len(ids)
    assert db.value("select count(*) from public.run where not alone") == 0
    attempts = db.value("select sum(attempt) from tenure_dispatcher.tasks")
    assert db.value("select count(*) from public.run") == attempts >= len(ids)


@pytest.mark.req("S1-03", "S1-17", "S1-76", "S1-79")
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize(("tasks", "workers"), [(30, 2), pytest.param(500, 8, marks=pytest.mark.prove)])
async def test_messages_lost_doubled_late_and_in_any_order_lose_no_task_and_double_none(
    app: App, dsn: str, db: Harness, tmp_path: Path, sqs: MessageServer, queue: str, tasks: int, workers: int
) -> None:
    witness(db)
    sqs.post.chance = random.Random(tasks)
    # The more tasks wait, the more of the messages are for tasks whose first message is only late.
    numbers = {**NUMBERS, "TENURE_DISPATCHER_REWAKE_MS": str(max(1_000, 10 * tasks))}
    async with network(tasks) as between:
        options = ("--dispatcher", between.url, "--sqs", queue)
        with (
            dispatchers(dsn, between, TENURE_SQS_QUEUES=f"default={queue}", **numbers) as some,
            Fleet(dsn, tmp_path, *options, **NUMBERS) as fleet,
        ):
            await asyncio.gather(some.begin(), some.begin())  # each with upkeep: two publishers, two reconcilers
            for _ in range(workers):
                fleet.begin("--concurrency", "6")
            ids = await enqueued(app, tasks, 0.1)
            await over(db, 900)
            await asyncio.to_thread(fleet.stop_all)
    await executed_once_each(db, ids)
    assert set(sent(sqs, queue)) == set(ids), "every task was announced, and nothing else"


@pytest.mark.req("S1-59")
async def test_a_killed_workers_task_is_queued_again_by_the_reaper_and_a_fresh_message_names_it(
    app: App, dsn: str, db: Harness, tmp_path: Path, sqs: MessageServer, queue: str
) -> None:
    witness(db)
    async with network(59) as between:
        options = ("--dispatcher", between.url, "--sqs", queue)
        with (
            dispatchers(dsn, between, TENURE_SQS_QUEUES=f"default={queue}", **NUMBERS) as some,
            Fleet(dsn, tmp_path, *options, **NUMBERS) as fleet,
        ):
            await some.begin()
            first = fleet.begin()
            task_id = (await app._enqueue(program.gated.options(contract="dispatcher").call("gate").job)).id
            await until(lambda: db.value("select count(*) from public.run") == 1)
            announced = len(sent(sqs, queue))
            fleet.kill(first)
            db.expire(task_id)
            await until(lambda: db.hops(task_id)[-1] == "Failed->Queued")
            await until(lambda: len(sent(sqs, queue)) > announced)
            fleet.open("gate", 2)
            fleet.begin()
            await over(db, 100)
            await asyncio.to_thread(fleet.stop_all)
    again = ["Running->Failed", "Failed->Queued", "Queued->Running"]
    assert db.hops(task_id) == ["Queued->Running", *again, "Running->Completed"]
    assert set(sent(sqs, queue)) == {task_id}


@pytest.mark.req("S1-76", "S1-85")
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("kills", [3, pytest.param(200, marks=pytest.mark.prove)])
async def test_dispatchers_killed_between_a_change_and_its_message_leave_every_task_to_be_woken(
    app: App, dsn: str, db: Harness, tmp_path: Path, sqs: MessageServer, queue: str, kills: int
) -> None:
    chance = random.Random(kills)
    witness(db)
    ids: list[int] = []
    # A claim whose answer is lost for good costs a lease. The more tasks wait, the more messages a look for lost ones
    # adds, and the tests' server takes some dozens a second.
    rewake_ms = max(1_000, 150 * kills)
    numbers = {**NUMBERS, "TENURE_DISPATCHER_LEASE_MS": "5000", "TENURE_DISPATCHER_REWAKE_MS": str(rewake_ms)}
    async with network(kills) as between:
        options = ("--dispatcher", between.url, "--sqs", queue)
        with (
            dispatchers(dsn, between, TENURE_SQS_QUEUES=f"default={queue}", **numbers) as some,
            Fleet(dsn, tmp_path, *options, **numbers) as fleet,
        ):
            await some.begin()
            await until(lambda: db.value("select count(*) from tenure.published_queue") == 1)
            fleet.begin("--concurrency", "6")
            for turn in range(kills):
                ids += await enqueued(app, 4, 0.05)  # each writes its task and its wake-up; half of them fail, and wait
                await asyncio.sleep(chance.uniform(0, 0.1))
                await _kill_all(some)
                if turn == kills // 2:
                    sqs.purge(queue)
                await some.begin()
            await over(db, 600, lambda: db.sql(_HOLDS_ARE_OVER))
            await asyncio.to_thread(fleet.stop_all)
    assert some.killed == kills
    assert set(sent(sqs, queue)) <= set(ids), "a message points to no task"
    triggers = await ended_well(db, ids)
    seen_by_witnesses(db)
    assert triggers["succeed"] == len(ids)


#: A publisher that is killed keeps what it took for a minute.
_HOLDS_ARE_OVER = """
update tenure.outbox set publish_at = clock_timestamp()
where published_at is null and publish_at > clock_timestamp() + interval '10 s'
"""


async def _kill_all(some: Dispatchers) -> None:
    for url in list(some.processes):
        await asyncio.to_thread(some.kill, url)
