"""`tenure.AsyncTaskQueue` as such: when it connects, under which contracts it works, and what it refuses."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tenure import AsyncTaskQueue
from tenure.contracts import BUILT_IN
from tenure.errors import BadInput, CannotConnect, Refused, StaleLease, UnknownContract
from tenure.jobs.job import Failure
from tenure.postgres.store import Store
from tenure.queue import Decision, TaskResult, TaskRow
from tests.harness import Harness

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "queue.md"

#: Every contract takes this failure for one that may pass.
TRANSIENT = Failure("no answer", type="TransientError")

of_each_contract = pytest.mark.parametrize("contract", sorted(BUILT_IN))


def connections(db: Harness) -> int:
    """How many of the engine's connections this test's database has."""
    found = db.value(
        "select count(*) from pg_stat_activity where datname = current_database() and application_name = 'tenure'"
    )
    return int(found)


async def taken(queue: AsyncTaskQueue) -> TaskRow:
    task = await queue.dequeue("w1")
    assert task is not None
    return task


def begun(contract: str) -> str:
    """The state in which a handler runs."""
    return next(state for state, roles in BUILT_IN[contract].states.items() if "active" in roles)


def test_making_a_queue_and_naming_its_class_load_no_driver() -> None:
    program = (
        "import json, sys, tenure\nqueue = tenure.AsyncTaskQueue('postgresql://nobody@nowhere/none')\n"
        "print(json.dumps([name for name in sys.modules if name.startswith('psycopg')]))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []


async def test_it_connects_at_first_use_once_and_not_after_its_close(
    dsn: str, db: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    connect = Store.connect

    async def counted(source: str, **options: Any) -> Store:
        made.append(source)
        return await connect(source, **options)

    monkeypatch.setattr(Store, "connect", counted)
    queue = AsyncTaskQueue(dsn, connections=1)
    async with queue as entered:
        assert entered is queue
        assert connections(db) == 0
        assert await asyncio.gather(*(queue.dequeue("w1") for _ in range(8))) == [None] * 8
        assert (connections(db), made) == (1, [dsn])
    give_up = time.monotonic() + 60
    while connections(db) > 0:
        assert time.monotonic() < give_up, "the connection stays"
        await asyncio.sleep(0.01)
    with pytest.raises(BadInput, match="this queue is closed"):
        await queue.dequeue("w1")
    await queue.close()
    await AsyncTaskQueue(dsn).close()


async def test_a_first_use_that_could_not_connect_says_why_and_may_be_repeated(dsn: str) -> None:
    async with AsyncTaskQueue("postgresql://nobody@127.0.0.1:1/none") as nowhere:
        for _ in range(2):
            with pytest.raises(CannotConnect):
                await nowhere.enqueue("send")
    async with AsyncTaskQueue(dsn, contract="no such contract") as unknown:
        with pytest.raises(UnknownContract, match="no such contract"):
            await unknown.dequeue("w1")


@of_each_contract
async def test_a_task_of_every_contract_fails_is_tried_again_and_ends_well(
    dsn: str, db: Harness, contract: str
) -> None:
    async with AsyncTaskQueue(dsn, contract=contract) as queue:
        task_id = await queue.enqueue("send", {"to": "ada"})
        first = await taken(queue)
        assert (first.id, first.status, first.attempts) == (task_id, begun(contract), 1)
        assert db.row(task_id)["role"] == "active"
        said = await queue.fail_task(first, TRANSIENT, retry=True)
        assert (said.will_retry, said.attempts, said.eta) == (True, 1, db.row(task_id)["due_at"])
        assert said.eta is not None
        assert said.eta > said.failed_at
        assert (said.status, await queue.get_result(task_id)) == (db.row(task_id)["state"], None)
        with pytest.raises(StaleLease):
            await queue.complete_task(first)
        await made_ready(db, contract, task_id)
        second = await taken(queue)
        assert (second.id, second.attempts, second.status) == (task_id, 2, begun(contract))
        await queue.complete_task(second, {"ok": True})
        result = await queue.get_result(task_id)
    assert result is not None
    assert (result.status in BUILT_IN[contract].successes(), result.result, result.error) == (True, {"ok": True}, None)
    assert (result.attempts, result.last_attempt_at) == (2, second.last_attempt_at)
    assert result.finished_at == db.row(task_id)["finished_at"]
    db.log_is_sound(task_id)


async def made_ready(db: Harness, contract: str, task_id: int) -> None:
    """Let the eta pass, and upkeep do what the contract leaves to it."""
    db.due(task_id)
    async with Store.open(db.dsn) as upkeep:
        await upkeep.promote(contract)


@of_each_contract
async def test_a_task_of_every_contract_that_always_fails_runs_as_often_as_its_budget_says(
    dsn: str, db: Harness, contract: str
) -> None:
    budget = BUILT_IN[contract].budget
    async with AsyncTaskQueue(dsn, contract=contract) as queue:
        task_id = await queue.enqueue("send", max_retries=max(2, budget.minimum))
        said: list[Decision] = []
        while not said or said[-1].will_retry:
            await made_ready(db, contract, task_id)
            said.append(await queue.fail_task(await taken(queue), TRANSIENT, retry=True))
        result = await queue.get_result(task_id)
    executions = budget.executions(max(2, budget.minimum))
    assert [answer.attempts for answer in said] == list(range(1, executions + 1))
    assert (said[-1].eta, said[-1].delay_ms) == (None, None)
    assert result is not None
    assert (result.status, result.attempts) == (said[-1].status, executions)
    assert result.error is not None
    assert result.error["message"] == "no answer"


async def test_dequeue_begins_the_work_where_a_contract_tells_a_claim_from_it(dsn: str, db: Harness) -> None:
    async with AsyncTaskQueue(dsn, contract="reliability") as queue:
        task_id = await queue.enqueue("index")
        key = "0e0c3c52-0a52-4d0e-a9d6-0f8f6f1d2b11"
        task = await queue.dequeue("w1", claim_key=key)
        assert task is not None
        assert db.hops(task_id) == ["queued->assigned", "assigned->running"]
        assert await queue.get_task(task_id) == task
        again = await queue.dequeue("w1", claim_key=key)
        assert again == task
        assert len(db.hops(task_id)) == 2


async def test_what_another_contract_says_of_an_error_is_followed(dsn: str) -> None:
    async with AsyncTaskQueue(dsn, contract="standard") as queue:
        for retry in (None, True, False):
            await queue.enqueue("send")
            said = await queue.fail_task(await taken(queue), ValueError("boom"), retry=retry)
            assert (said.will_retry, said.status) == ((True, "queued") if retry is not False else (False, "dead"))


async def test_a_queue_is_of_one_contract(dsn: str, db: Harness) -> None:
    async with AsyncTaskQueue(dsn) as simple, AsyncTaskQueue(dsn, contract="standard") as standard:
        task_id = await standard.enqueue("send")
        assert await simple.dequeue("w1") is None
        task = await taken(standard)
        before = db.fingerprint(task_id)
        for call in (
            simple.complete_task(task), simple.fail_task(task, "boom"), simple.heartbeat(task),
            simple.cancel_task(task_id), simple.get_result(task_id), simple.get_task(task_id),
        ):  # fmt: skip
            with pytest.raises(Refused, match="is under contract standard") as refusal:
                await call
            assert refusal.value.reason_code == "WRONG_CONTRACT"
    assert db.fingerprint(task_id) == before


async def test_a_dequeue_without_a_name_is_this_process(dsn: str) -> None:
    async with AsyncTaskQueue(dsn) as queue:
        await queue.enqueue("send")
        task = await queue.dequeue()
        assert task is not None
        assert task.worker is not None
        host, _, process = task.worker.rpartition(":")
        assert host
        assert process.isdigit()


Call = Callable[[AsyncTaskQueue], Coroutine[Any, Any, Any]]


@pytest.mark.parametrize(
    "call",
    [
        lambda queue: queue.enqueue("send", delay="5"),
        lambda queue: queue.enqueue("send", delay=float("nan")),
        lambda queue: queue.enqueue("send", delay=float("inf")),
        lambda queue: queue.enqueue("send", delay=10**400),
        lambda queue: queue.enqueue("send", delay=True),
        lambda queue: queue.enqueue("send", delay=-1),
        lambda queue: queue.enqueue("send", delay=timedelta.max),
        lambda queue: queue.enqueue("send", max_retries=-1),
        lambda queue: queue.enqueue("", {}),
        lambda queue: queue.dequeue("w1", lease=0.5),
        lambda queue: queue.dequeue_many(0, "w1"),
        lambda queue: queue.dequeue("w1", "default"),
        lambda queue: queue.get_result(True),
        lambda queue: queue.get_result("1"),
        lambda queue: queue.fail_task("1", "boom"),
        lambda queue: queue.complete_task(1),
    ],
)
async def test_bad_input_is_refused_by_type_and_nothing_is_written(dsn: str, db: Harness, call: Call) -> None:
    async with AsyncTaskQueue(dsn) as queue:
        with pytest.raises(BadInput):
            await call(queue)
    assert db.value("select count(*) from tenure_simple.tasks") == 0


async def test_a_failure_that_is_none_is_refused_and_the_task_stays_held(dsn: str, db: Harness) -> None:
    async with AsyncTaskQueue(dsn) as queue:
        await queue.enqueue("send")
        task = await taken(queue)
        before = db.fingerprint(task.id)
        for error, retry in ((7, None), ("boom", "no"), ("boom", 2)):
            with pytest.raises(BadInput):
                await queue.fail_task(task, error, retry=retry)  # type: ignore[arg-type]
        assert db.fingerprint(task.id) == before


def test_every_method_and_field_of_the_queue_is_documented() -> None:
    text = PAGE.read_text(encoding="utf-8")
    methods = [name for name in vars(AsyncTaskQueue) if not name.startswith("_")]
    assert {"enqueue", "fail_task", "get_result"} <= set(methods)
    assert [name for name in methods if f"`{name}(" not in text] == []
    for kind in (TaskRow, Decision, TaskResult):
        (row,) = [line for line in text.splitlines() if line.startswith(f"| `{kind.__name__}`")]
        assert [field.name for field in fields(kind) if f"`{field.name}`" not in row] == []
