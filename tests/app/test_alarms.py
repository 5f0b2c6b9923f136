"""`app.alarms`: a program lists alarms, mutes them in somebody's name, and tests the sinks."""

from __future__ import annotations

import pytest

from tenure import App
from tenure.errors import BadInput
from tenure.jobs.job import NewJob
from tenure.postgres.store import Store
from tests.harness import Harness


async def test_a_program_lists_alarms_and_their_history(dsn: str, store: Store, db: Harness) -> None:
    async with App(dsn) as app:
        assert await app.alarms.list() == []
        await store.enqueue(NewJob("t", queue="mail"))
        db.sql("update tenure.job set due_at = now() - interval '6 min'")
        await store.alarms.evaluate(pause_s=0.0)
        (alarm,) = await app.alarms.list(kind="oldest-waiting")
        assert (alarm.severity, alarm.subject, alarm.cleared_at) == ("P2", "mail", None)
        assert await app.alarms.list(tenant="acme") == []
        db.sql("delete from tenure.job")
        await store.alarms.evaluate(pause_s=0.0)
        assert await app.alarms.list(kind="oldest-waiting") == []
        (over,) = await app.alarms.list(history=True, kind="oldest-waiting", limit=1)
        assert over.id == alarm.id
        assert over.cleared_at is not None


async def test_a_program_mutes_in_a_name_until_it_unmutes(dsn: str, db: Harness) -> None:
    async with App(dsn) as app:
        assert await app.alarms.test(actor="ben") is True
        assert await app.alarms.test(actor="ben") is False
        muted = await app.alarms.mute("test", seconds=60, subject="ben", reason="a release", actor="ann")
        row = db.one("select id, until, muted_by, reason, until - muted_at as span from tenure.alarm_mute")
        assert (row["id"], row["until"], row["muted_by"], row["reason"]) == (*muted, "ann", "a release")
        assert 59 <= row["span"].total_seconds() <= 61
        (alarm,) = await app.alarms.list()
        assert (alarm.kind, alarm.muted_by) == ("test", "ann")
        assert await app.alarms.unmute("test", actor="cyd") == 0, "the mute is about ben alone"
        assert await app.alarms.unmute("test", subject="ben", actor="cyd") == 1
        assert [one.muted_by for one in await app.alarms.list()] == [None]
        with pytest.raises(BadInput, match="tset"):
            await app.alarms.mute("tset")


async def test_a_program_behind_a_dispatcher_is_told_the_route() -> None:
    async with App(dispatcher_url="http://localhost:9", key="k") as app:
        with pytest.raises(BadInput, match="/api/v1/alarms"):
            await app.alarms.list()
