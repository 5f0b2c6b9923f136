"""The publisher of wake-ups, with a real HTTP server of message queues."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta

import pytest

from tenure.jobs.job import Failure, Held, Job, NewJob
from tenure.postgres.store import Store
from tenure.settings import Settings
from tenure.upkeep import Upkeep
from tenure.upkeep.publisher import Publisher
from tests.harness import Harness
from tests.message_queues import MessageServer, message_server

REWAKE_MS = 60_000


@pytest.fixture(scope="module")
def sqs() -> Iterator[MessageServer]:
    """A server of message queues."""
    with message_server() as server:
        yield server


@pytest.fixture
def url(sqs: MessageServer) -> str:
    """The address of a queue of the server."""
    return sqs.make_queue()


@asynccontextmanager
async def publisher_of(store: Store, *, round_s: float = 60.0, **urls: str) -> AsyncIterator[Publisher]:
    """A publisher whose queues are registered; the test runs its rounds."""
    publisher = Publisher(store, urls, rewake_ms=REWAKE_MS, round_s=round_s)
    async with publisher.connected():
        await publisher.register()
        yield publisher


async def make(store: Store, count: int = 1, **options: object) -> list[int]:
    """Make tasks; returns their ids."""
    jobs = [NewJob("extract", contract="dispatcher", **options) for _ in range(count)]  # type: ignore[arg-type]
    return [made.job_id for made in await store.enqueue_many(jobs)]  # type: ignore[misc]


async def take(store: Store, job_id: int) -> Held:
    """Claim this task."""
    (job,) = await store.claim_by_id([job_id], worker="w", contract="dispatcher")
    assert isinstance(job, Job)
    return job.held


@pytest.mark.req("S1-13")
async def test_a_message_is_the_pointer_to_the_task_and_nothing_else(
    store: Store, sqs: MessageServer, url: str
) -> None:
    async with publisher_of(store, default=url) as publisher:
        (job_id,) = await make(store)
        assert (await publisher.publish()).did == 1
    (body,) = sqs.take_all(url)
    assert json.loads(body) == {"task_id": str(job_id)}


async def test_each_wake_up_goes_to_the_queue_of_its_job_once(store: Store, sqs: MessageServer) -> None:
    mail, reports = sqs.make_queue(), sqs.make_queue()
    async with publisher_of(store, mail=mail, reports=reports) as publisher:
        mails, others = await make(store, 25, queue="mail"), await make(store, 3, queue="reports")
        await make(store, 2, queue="elsewhere")
        assert (await publisher.publish()).did == 28
        assert (await publisher.publish()).did == 0
    assert sorted(sqs.tasks(mail)) == mails
    assert sorted(sqs.tasks(reports)) == others


async def test_other_contracts_and_queues_that_are_not_published_write_nothing(
    store: Store, db: Harness, sqs: MessageServer, url: str
) -> None:
    async with publisher_of(store, default=url) as publisher:
        await store.enqueue(NewJob("extract"))
        await make(store, queue="elsewhere")
        assert (await publisher.publish()).did == 0
    assert db.value("select count(*) from tenure.outbox") == 0


async def test_a_delayed_task_is_published_when_it_is_due(
    store: Store, db: Harness, sqs: MessageServer, url: str
) -> None:
    async with publisher_of(store, default=url) as publisher:
        (job_id,) = await make(store, delay_ms=3_600_000)
        assert (await publisher.publish()).did == 0
        db.sql("update tenure.outbox set publish_at = clock_timestamp()")
        assert (await publisher.publish()).did == 1
    assert sqs.tasks(url) == [job_id]


async def test_two_publishers_at_once_send_each_message_once(store: Store, sqs: MessageServer, url: str) -> None:
    async with publisher_of(store, default=url) as one, publisher_of(store, default=url) as other:
        ids = await make(store, 60)
        await asyncio.gather(*(publisher.publish() for publisher in (one, other, one, other)))
    assert sorted(sqs.tasks(url)) == ids


async def test_a_wake_up_that_a_dead_publisher_took_is_published_after_its_hold(
    store: Store, db: Harness, sqs: MessageServer, url: str
) -> None:
    async with publisher_of(store, default=url) as publisher:
        (job_id,) = await make(store)
        assert [taken.job_id for taken in await store.outbox.take(["default"], limit=10, hold_s=60)] == [job_id]
        assert (await publisher.publish()).did == 0, "it is another publisher's for a minute"
        db.sql("update tenure.outbox set publish_at = clock_timestamp()")
        assert (await publisher.publish()).did == 1
    assert sqs.tasks(url) == [job_id]


async def test_a_queue_that_does_not_answer_is_tried_again_and_holds_up_no_other(
    store: Store, db: Harness, sqs: MessageServer, url: str
) -> None:
    missing = f"{sqs.address}/123456789012/missing"
    async with publisher_of(store, default=url, mail=missing) as publisher:
        (lost,), (sent,) = await make(store, queue="mail"), await make(store)
        report = await publisher.publish()
        assert (report.did, sqs.tasks(url)) == (1, [sent])
        assert report.trouble is not None
        assert missing in report.trouble
        (pending,) = await store.outbox.list()
        assert (pending.job_id, pending.tries) == (lost, 1)
        assert missing in str(pending.last_error)
        assert pending.publish_at > db.value("select clock_timestamp()")
        assert await store.outbox.retry() == 1
        sqs.client.create_queue(QueueName="missing")
        assert (await publisher.publish()).did == 1
        assert sqs.tasks(missing) == [lost]
        assert await store.outbox.list() == []
    sqs.client.delete_queue(QueueUrl=missing)


@asynccontextmanager
async def silent_queue() -> AsyncIterator[str]:
    """The address of a queue whose server accepts connections and never answers."""
    writers: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _, writer: writers.append(writer), "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/123456789012/silent"
    finally:
        for writer in writers:
            writer.close()
        server.close()


async def test_rounds_go_on_with_the_other_queues_while_one_does_not_answer(
    store: Store, sqs: MessageServer, url: str
) -> None:
    async with silent_queue() as silent, publisher_of(store, round_s=0.5, default=url, mail=silent) as publisher:
        await make(store, 150, queue="mail")
        for _ in range(2):
            (job_id,) = await make(store)
            found: list[int] = []
            while not found:
                # The silent queue keeps its calls for longer.
                ended, _ = await asyncio.wait({asyncio.create_task(publisher.publish())}, timeout=20)
                assert ended, "the round waits for the silent queue"
                found = sqs.tasks(url)
            assert found == [job_id]
        assert [queue.due for queue in await store.outbox.queues()] == [0, 150]


async def test_a_queue_that_takes_nothing_is_left_for_the_round_after_one_batch(
    store: Store, db: Harness, sqs: MessageServer
) -> None:
    async with publisher_of(store, mail=f"{sqs.address}/123456789012/missing") as publisher:
        await make(store, 250, queue="mail")
        await publisher.publish()
    assert db.value("select count(*) from tenure.outbox where tries > 0") == 100


async def test_a_round_ends_while_more_wake_ups_of_a_queue_become_due(
    store: Store, sqs: MessageServer, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.upkeep.publisher._BATCH", 2)
    monkeypatch.setattr("tenure.upkeep.publisher._BATCHES", 3)
    async with publisher_of(store, default=url) as publisher:
        await make(store, 8)
        assert (await publisher.publish()).did == 6
        await publisher.wait(3_600)  # no wait before the next round
        assert (await publisher.publish()).did == 2


@pytest.mark.req("S1-71")
async def test_a_task_that_still_waits_long_after_its_message_gets_another_one(
    store: Store, db: Harness, sqs: MessageServer, url: str
) -> None:
    async with publisher_of(store, default=url) as publisher:
        waiting, taken, late = await make(store, 3)
        await publisher.publish()
        await take(store, taken)
        sqs.purge(url)
        assert (await publisher.renew()).did == 0, "the time is not over"
        db.sql("update tenure.outbox set check_at = clock_timestamp() where job_id <> %s", late)
        assert (await publisher.renew()).did == 1
        assert (await publisher.renew()).did == 0, "once"
        await publisher.publish()
        assert sqs.tasks(url) == [waiting]
    assert db.value("select count(*) from tenure.outbox where job_id = %s", waiting) == 2


async def test_no_message_is_sent_while_a_queue_is_paused_and_one_for_each_task_when_it_is_resumed(
    store: Store, db: Harness, sqs: MessageServer, url: str
) -> None:
    mail = sqs.make_queue()
    async with publisher_of(store, default=url, mail=mail) as publisher:
        (announced,), (other,) = await make(store), await make(store, queue="mail")
        await publisher.publish()
        sqs.purge(url)
        await store.queues.pause("default", actor="ada")
        (made,) = await make(store)
        for _ in range(3):
            db.sql("update tenure.outbox set check_at = clock_timestamp() where check_at is not null")
            await publisher.renew()
            await publisher.publish()
        assert sqs.take_all(url) == []
        assert sqs.tasks(mail) == [other] * 4, "the other queue goes on"
        assert db.value("select count(*) from tenure.outbox where job_id = %s", announced) == 2, "not one a round"
        db.sql("update tenure.outbox set due_at = due_at - interval '1 hour' where published_at is null")
        paused, going = await store.outbox.queues()
        assert (paused.is_paused, paused.due, paused.oldest_s) == (True, 2, None)
        assert (going.is_paused, going.due) == (False, 0)
        await store.queues.resume("default", actor="ada")
        (resumed, _) = await store.outbox.queues()
        assert not resumed.is_paused
        assert resumed.oldest_s is not None
        assert resumed.oldest_s < 60, "late since the end of the pause"
        assert (await publisher.publish()).did == 2
        assert publisher.lag_s < 60
    assert sorted(sqs.tasks(url)) == [announced, made]


async def test_a_quarantined_task_is_woken_again_when_it_is_released(
    store: Store, db: Harness, sqs: MessageServer, url: str
) -> None:
    async with publisher_of(store, default=url) as publisher:
        (job_id,) = await make(store)
        await publisher.publish()
        sqs.purge(url)
        db.sql("update tenure.job set quarantined_at = clock_timestamp(), quarantine_reason = 'strange'")
        db.sql("update tenure.outbox set check_at = clock_timestamp() where check_at is not null")
        assert (await publisher.renew()).did == 0
        db.sql("update tenure.job set quarantined_at = null, quarantine_reason = null")
        assert (await publisher.renew()).did == 0, "the time is not over"
        db.sql("update tenure.outbox set check_at = clock_timestamp() where check_at is not null")
        assert (await publisher.renew()).did == 1
        await publisher.publish()
    assert sqs.tasks(url) == [job_id]


async def test_tasks_from_before_the_queue_was_published_are_woken_too(
    store: Store, db: Harness, sqs: MessageServer, url: str
) -> None:
    ids = await make(store, 5)
    await store.enqueue(NewJob("extract"))
    await take(store, ids[0])
    async with publisher_of(store, default=url) as publisher:
        await publisher.register()
        await publisher.publish()
    assert sorted(sqs.tasks(url)) == ids[1:]


async def test_a_task_that_was_not_to_be_seen_when_its_queue_was_published_is_woken_later(
    store: Store, db: Harness, sqs: MessageServer, url: str
) -> None:
    async with publisher_of(store, default=url) as publisher:
        (woken,), (unseen,) = await make(store), await make(store)
        db.sql("delete from tenure.outbox where job_id = %s", unseen)
        await publisher.register()
        await publisher.publish()
        assert sqs.tasks(url) == [woken]
        soon = db.value("select fill_again_at - added_at from tenure.published_queue")
        assert soon < timedelta(minutes=6)
        db.sql("update tenure.published_queue set fill_again_at = clock_timestamp()")
        await publisher.register()
        await publisher.publish()
        assert sqs.tasks(url) == [unseen], "and no second message for the other one"
        db.sql("delete from tenure.outbox")
        await publisher.register()
        assert (await publisher.publish()).did == 0, "not before an hour is over"
        later = db.value("select fill_again_at - seen_at from tenure.published_queue")
        assert timedelta(minutes=59) < later <= timedelta(hours=1)


async def test_a_task_that_is_moved_to_a_published_queue_is_woken_there(
    store: Store, sqs: MessageServer, url: str
) -> None:
    async with publisher_of(store, mail=url) as publisher:
        (job_id,) = await make(store)
        await store.change_queue([job_id], "mail", actor="ada")
        await publisher.publish()
    assert sqs.tasks(url) == [job_id]


@pytest.mark.req("S1-84")
async def test_a_task_that_always_fails_is_woken_for_each_of_its_attempts(
    store: Store, db: Harness, sqs: MessageServer, url: str
) -> None:
    async with publisher_of(store, default=url) as publisher:
        (job_id,) = await make(store, max_attempts=3)
        for attempt in (1, 2, 3):
            await publisher.publish()
            assert sqs.tasks(url) == [job_id], attempt
            held = await take(store, job_id)
            await store.fail(held, Failure("boom", "OperatorError"))
            if attempt < 3:
                db.due(job_id)
                await store.promote("dispatcher")
        assert (await publisher.publish()).did == 0
    hops = db.sql("select from_state, to_state from tenure.event where job_id = %s and hop order by seq", job_id)
    again = [("Queued", "Running"), ("Running", "Failed"), ("Failed", "Queued")]
    assert [(hop["from_state"], hop["to_state"]) for hop in hops] == [*again, *again, *again[:2]]
    shown = db.one("select status, attempt from tenure_dispatcher.tasks where task_id = %s", job_id)
    assert shown == {"status": "Failed", "attempt": 3}


async def test_published_wake_ups_leave_after_a_while_and_a_forgotten_queue_is_unpublished(
    store: Store, db: Harness, sqs: MessageServer, url: str
) -> None:
    async with publisher_of(store, default=url) as publisher:
        await make(store, 2)
        await publisher.publish()
        db.sql("update tenure.outbox set published_at = clock_timestamp() - interval '2 hours'")
        assert await store.outbox.forget(3_600) == 0, "they are checked first"
        db.sql("update tenure.outbox set check_at = null where id = (select min(id) from tenure.outbox)")
        assert await store.outbox.forget(3_600) == 1
        assert await store.outbox.unpublish(60) == []
        db.sql("update tenure.published_queue set seen_at = clock_timestamp() - interval '2 minutes'")
        assert await store.outbox.unpublish(60) == ["default"]
        await make(store)
        assert (await publisher.publish()).did == 0


async def test_all_old_and_unwanted_wake_ups_leave_however_many_there_are(store: Store, db: Harness, url: str) -> None:
    insert = "insert into tenure.outbox (job_id, contract, queue, published_at) select n, 'dispatcher', %s, "
    async with publisher_of(store, default=url):
        db.sql(insert + "now() - interval '2 hours' from generate_series(1, 10001) as n", "default")
        assert await store.outbox.forget(3_600) == 10_001
        db.sql(insert + "null from generate_series(1, 10001) as n", "left")
        db.sql(insert + "null from generate_series(1, 3) as n", "default")
        assert await store.outbox.unpublish(60) == []
        left = db.sql("select queue, count(*) from tenure.outbox group by queue")
        assert [(row["queue"], row["count"]) for row in left] == [("default", 3)]


async def test_the_loops_of_upkeep_publish_what_a_new_job_wrote(
    dsn: str, store: Store, sqs: MessageServer, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "tenure.upkeep")
    settings = replace(Settings.load({}), sqs_queues={"default": url})
    async with Store.open(dsn, connections=8) as own:
        running = asyncio.create_task(Upkeep.configured(own, settings, dsn).run())
        try:
            while not await store.outbox.queues():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            (job_id,) = await make(store)
            found: list[int] = []
            while not found:
                assert not running.done()
                await asyncio.sleep(0.01)
                found = sqs.tasks(url)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
    assert found == [job_id]


async def test_a_queue_is_new_to_the_first_publisher_alone(store: Store) -> None:
    urls = {"default": "https://queue.example/1/default", "mail": "https://queue.example/1/mail"}
    assert await store.outbox.publish(urls) == ["default", "mail"]
    assert await store.outbox.publish(urls) == []
