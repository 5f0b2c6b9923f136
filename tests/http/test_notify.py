"""A caller over HTTP may say that nobody is to be told of its job."""

from __future__ import annotations

from tenure.client.remote import RemoteClient
from tenure.jobs.job import NewJob
from tests.harness import Harness


async def test_a_job_that_asks_for_no_notify_wakes_nobody(url: str, db: Harness) -> None:
    db.sql("listen tenure")
    remote = RemoteClient(url)
    try:
        await remote.enqueue(NewJob("t", queue="quiet", notify=False))
        await remote.enqueue(NewJob("t", queue="quiet", key="k", notify=False))
        await remote.enqueue(NewJob("t", queue="loud"))
    finally:
        await remote.close()
    heard = db.connection.notifies(timeout=60)
    assert next(note.payload for note in heard if not note.payload.startswith("?")) == "standard:loud"
    heard.close()
    assert db.value("select count(*) from tenure.job where queue = 'quiet'") == 2
