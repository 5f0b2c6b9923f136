"""The call was committed and its answer was lost: repeated with its key, it is told what it did, and does nothing more.

The server waits for a standby that does not exist, after it has committed and before it answers: there its backend is
killed. Only the victim's connection asks for that wait.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest
from psycopg.conninfo import make_conninfo

from tenure.contracts import BUILT_IN
from tenure.errors import ConnectionLost
from tenure.jobs.job import NewJob
from tenure.jobs.outcome import Moved
from tenure.postgres.migrate import migrate
from tenure.postgres.store import Store
from tests.conftest import OwnCluster
from tests.contracts.repeats import KEYED, everything, hold, new_job, refusal_of, say
from tests.faults.kills import VICTIM
from tests.harness import Harness

pytestmark = [pytest.mark.serial, pytest.mark.timeout(600)]

_SETTINGS = {
    "fsync": "off", "max_connections": "50", "shared_buffers": "64MB", "synchronous_standby_names": "nobody",
    "synchronous_commit": "local",
}  # fmt: skip

Ask = Callable[[Store], Awaitable[Any]]


@pytest.fixture(scope="module")
def waiting_dsn(own_cluster: OwnCluster) -> Iterator[str]:
    """A server of this file's own, on which whoever asks for it waits forever between commit and answer."""
    with own_cluster(**_SETTINGS) as own:
        migrate(own.dsn)
        yield own.dsn


@pytest.fixture
def db(waiting_dsn: str) -> Iterator[Harness]:
    """The test's own eyes on that server."""
    with Harness(waiting_dsn) as harness:
        yield harness


@pytest.fixture
async def store(waiting_dsn: str) -> AsyncIterator[Store]:
    """A store that is answered at once."""
    async with Store.open(waiting_dsn) as opened:
        yield opened


async def lose_the_answer(dsn: str, db: Harness, ask: Ask) -> None:
    """Make the call, and kill its backend when it has committed and is about to answer."""
    kill = (
        "select pg_terminate_backend(pid) from pg_stat_activity where application_name = %s and wait_event = 'SyncRep'"
    )
    address = make_conninfo(dsn, application_name=VICTIM, options="-c synchronous_commit=on")
    async with Store.open(address, connections=1) as victim:
        await victim.contracts()  # connected, and the registry read
        calling = asyncio.ensure_future(ask(victim))
        give_up = time.monotonic() + 60
        while not db.sql(kill, VICTIM):
            assert not calling.done(), f"answered without a commit: {calling.result()!r}"
            assert time.monotonic() < give_up, "the call never committed"
            await asyncio.sleep(0.002)
        with pytest.raises(ConnectionLost, match="repeat it with the same key"):
            await calling


async def repeated(store: Store, db: Harness, ask: Ask) -> Any:
    """The answer to the repeat and to every other one, none of which writes anything."""
    before = everything(db)
    first = await ask(store)
    assert await ask(store) == first
    assert everything(db) == before
    return first


@pytest.mark.parametrize("contract", BUILT_IN)
async def test_a_holder_whose_answer_was_lost_is_told_it_by_its_key(
    store: Store, db: Harness, waiting_dsn: str, contract: str
) -> None:
    for verb in KEYED[contract]:
        job = await hold(store, contract, verb)
        logged = len(db.log(job.id))
        await lose_the_answer(waiting_dsn, db, lambda victim, verb=verb, job=job: say(victim, verb, job.held, "k"))  # type: ignore[misc]
        (event,) = [event for event in db.log(job.id)[logged:] if event["request_key"] == "k"]
        if (contract, verb) == ("gate_b2", "end"):
            assert db.row(job.id)["state"] == "dlq_pending", "cut off between its two transactions"
            assert [type(one) for one in await store.settle("gate_b2")] == [Moved]
        answer = await repeated(store, db, lambda asked, verb=verb, job=job: say(asked, verb, job.held, "k"))  # type: ignore[misc]
        row = db.row(job.id)
        if isinstance(answer, Moved):
            assert (answer.trigger, answer.from_state, answer.at) == (
                event["trigger"], event["from_state"], event["ts"],
            ), verb  # fmt: skip
            assert (answer.state, answer.role, answer.counter) == (row["state"], row["role"], row["counter"]), verb
            assert answer.due_at == (row["due_at"] if answer.delay_ms is not None else None), verb
        else:
            assert answer.lease_expires_at == row["lease_expires_at"]
        if verb != "heartbeat":
            await refusal_of(say(store, verb, job.held))
        db.log_is_sound(job.id)


async def test_a_gate_b2_holder_cut_off_at_the_commit_point_ends_the_job_by_repeating(
    store: Store, db: Harness, waiting_dsn: str
) -> None:
    job = await hold(store, "gate_b2")
    await lose_the_answer(waiting_dsn, db, lambda victim: say(victim, "end", job.held, "k"))
    assert db.row(job.id)["state"] == "dlq_pending"
    told = await say(store, "end", job.held, "k")
    assert (told.state, told.role, db.row(job.id)["state"]) == ("failed", "done", "failed")
    assert await repeated(store, db, lambda asked: say(asked, "end", job.held, "k")) == told
    assert db.value("select count(*) from tenure_gate_b2.dlq_items where job_id = %s", job.id) == 1


async def test_an_operator_whose_answer_was_lost_is_told_it_by_its_key(
    store: Store, db: Harness, waiting_dsn: str
) -> None:
    cancelled, asked, moved, aside, taken, done, dead = [await hold(store, "standard") for _ in range(7)]
    waiting = await store.enqueue(new_job("standard"))
    await store.succeed(done.held)
    await store.dead_letter(dead.id, reason_code="timeout", actor="policy")
    item = await hold(store, "gate_b2")
    await store.dead_letter(item.id, reason_code="timeout", actor="policy")
    letter = (await store.letters.of_job(item.id)).id
    calls: dict[str, Ask] = {
        "enqueue": lambda at: at.enqueue(NewJob("t", key="enqueue")),
        "cancel": lambda at: at.cancel(cancelled.id, mode="hard", actor="ada", key="cancel"),
        "ask": lambda at: at.cancel(asked.id, actor="ada", key="ask"),
        "transition": lambda at: at.transition(moved.id, "succeeded", actor="ada", key="transition"),
        "claim": lambda at: at.transition(waiting.job_id, "running", actor="ada", key="claim"),
        "dead_letter": lambda at: at.dead_letter(aside.id, reason_code="x", actor="ada", key="dead_letter"),
        "requeue": lambda at: at.requeue(done.id, actor="ada", key="requeue"),
        "letter": lambda at: at.requeue(dead.id, actor="ada", key="letter"),
        "discard": lambda at: at.letters.request_discard(letter, person="ada", reason="no use", key="discard"),
        "approve": lambda at: at.letters.approve_discard(letter, person="bob", key="approve"),
    }
    answers: dict[str, Any] = {}
    for name, ask in calls.items():
        before = everything(db)
        await lose_the_answer(waiting_dsn, db, ask)
        assert everything(db) != before, name
        if name == "claim":  # cut off between its two transactions: the key is spent, and the repeat makes the claim
            await ask(store)
        answers[name] = await repeated(store, db, ask)
    assert answers["enqueue"].made is False
    states = [(answers[name].job_id, answers[name].state) for name in ("cancel", "transition", "dead_letter")]
    assert states == [(cancelled.id, "cancelled"), (moved.id, "succeeded"), (aside.id, "dead")]
    assert answers["ask"].cancel_requested
    assert (answers["claim"].id, answers["claim"].claims) == (waiting.job_id, 1)
    assert [db.row(answers[name])["state"] for name in ("requeue", "letter")] == ["queued", "queued"]
    assert (answers["discard"].status, answers["approve"].status) == ("open", "discarded")
    assert (await store.succeed(taken.held)).state == "succeeded", "who was not asked for is left alone"
    db.log_is_sound(cancelled.id, asked.id, moved.id, aside.id, waiting.job_id)
