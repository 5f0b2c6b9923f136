"""Contract `phase27`: a task is completed once, by its holder alone, in one transaction with its event."""

from __future__ import annotations

import pytest

from tenure.errors import InvalidTransition, Refused, StaleLease
from tenure.postgres.store import Store
from tests.contracts.phase27 import (
    BOOM,
    events,
    fail_times,
    forged,
    made,
    no_event_can_be_written,
    payloads,
    take,
    task,
)
from tests.harness import Harness
from tests.holder_calls import calls

pytestmark = pytest.mark.core


@pytest.mark.req("S0-34")
async def test_success_completes_the_task_and_releases_it_in_the_transaction_of_its_event(
    store: Store, db: Harness
) -> None:
    task_id = await made(store)
    db.spy()
    held = (await take(store)).held
    assert task(db, task_id)["completed_at"] is None
    earliest = db.value("select clock_timestamp()")
    await store.succeed(held, {"answer": 42})
    row = task(db, task_id)
    assert (row["status"], row["locked_by"], row["lock_expires_at"]) == ("completed", None, None)
    assert earliest < row["completed_at"] < db.value("select clock_timestamp()")
    assert row["completed_at"] == events(db, task_id)[-1]["ts"]
    assert row["result"] == {"answer": 42}
    wrote = db.one(
        "select d.xmin::text as row, e.xmin::text as event "
        "from tenure.job_done d join tenure.event e on e.job_id = d.id and e.trigger = 'succeed' where d.id = %s",
        task_id,
    )
    spied = db.seen(task_id)[-1]
    assert (spied.old, spied.new) == ("running", "completed")
    assert wrote["row"] == wrote["event"] == str(spied.txid % 2**32)


@pytest.mark.req("S0-34", "S0-50")
@pytest.mark.parametrize("call", ["succeed", "fail"])
async def test_an_end_that_cannot_write_its_event_leaves_everything_as_it_was(
    store: Store, db: Harness, call: str
) -> None:
    task_id = await made(store)
    held = (await take(store)).held
    before = db.fingerprint(task_id)
    with no_event_can_be_written(db):
        with pytest.raises(Refused, match="no event today"):
            await (store.succeed(held) if call == "succeed" else store.fail(held, BOOM))
        assert db.fingerprint(task_id) == before
    await (store.succeed(held) if call == "succeed" else store.fail(held, BOOM))
    assert task(db, task_id)["status"] == ("completed" if call == "succeed" else "queued")


@pytest.mark.req("S0-35")
async def test_task_completed_has_exactly_its_five_keys(store: Store, db: Harness) -> None:
    task_id = await made(store)
    await fail_times(store, db, task_id, 1)
    await store.succeed((await take(store, "w2")).held, "result")
    (payload,) = payloads(db, task_id, "task.completed")
    assert payload.keys() == {"ts", "task_id", "run_id", "actor", "attempt"}
    assert (payload["task_id"], payload["actor"], payload["attempt"]) == (str(task_id), "w2", 2)


@pytest.mark.req("S0-36")
async def test_only_the_current_holder_can_complete(store: Store, db: Harness) -> None:
    failed, retried, running, unclaimed = [await made(store, max_attempts=n) for n in (1, 5, 5, 5)]
    ended, former, current = (await take(store)).held, (await take(store)).held, (await take(store)).held
    await store.report("fail", calls([ended, former], failures=[BOOM, BOOM]))
    assert [task(db, each)["status"] for each in (failed, retried, running, unclaimed)] == [
        "failed", "queued", "running", "queued",
    ]  # fmt: skip
    before = db.fingerprint(failed, retried, running, unclaimed)
    with pytest.raises(InvalidTransition):
        await store.succeed(ended)
    strangers = [
        former,  # requeued by this very holder
        forged(unclaimed, 0),
        forged(unclaimed, 1),
        forged(running, current.claims),  # the right attempt without the lease
        forged(running, current.claims - 1, current.token),
        forged(running, current.claims + 1, current.token),
        forged(failed, 1),
    ]
    for held in strangers:
        with pytest.raises(StaleLease):
            await store.succeed(held)
    assert db.fingerprint(failed, retried, running, unclaimed) == before
    assert (await store.succeed(current)).state == "completed"


@pytest.mark.req("S0-37")
async def test_a_task_ends_exactly_once(store: Store, db: Harness) -> None:
    good, bad, lost = [await made(store, max_attempts=n) for n in (3, 1, 1)]
    completing, failing = (await take(store)).held, (await take(store)).held
    await take(store)
    db.expire(lost)
    await store.succeed(completing)
    await store.fail(failing, BOOM)
    assert len(await store.reap("phase27")) == 1
    for held in (completing, failing):
        for call in (store.succeed(held), store.fail(held, BOOM)):
            with pytest.raises(InvalidTransition):
                await call
    assert await store.reap("phase27") == []
    ends = db.sql(
        "select task_id, count(*) as n from tenure_phase27.task_events where kind = 'task.completed' "
        "or kind = 'task.failed' and (payload ->> 'terminal')::boolean group by task_id order by task_id"
    )
    assert [(row["task_id"], row["n"]) for row in ends] == [(good, 1), (bad, 1), (lost, 1)]
