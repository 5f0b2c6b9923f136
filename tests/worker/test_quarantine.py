"""What a dead worker left runs alone, few at a time; what waits for its turn is held meanwhile."""

from __future__ import annotations

import pytest

from tenure.postgres.store import Store
from tenure.worker import execute
from tests.faults import program
from tests.harness import Harness
from tests.worker.working import quick, until, working


@pytest.mark.prove
async def test_a_job_that_waits_for_its_turn_to_run_alone_keeps_its_lease(
    dsn: str, store: Store, db: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execute, "_ALONE_AT_ONCE", 1)
    async with quick(dsn) as app:
        app.tasks["unseen"] = program.unseen
        # The limit is short: it is to end handlers, and not those that wait for one.
        ids = await app.enqueue_many(program.unseen.options(timeout=2.5).call(0.8) for _ in range(9))
        assert len(await store.claim(worker="dead", limit=9)) == 9
        db.expire(*ids)
        await store.reap("standard")
        db.due(*ids)
        async with working(app, queues=["default"]) as worker:
            await until(lambda: worker.counts["succeeded"] + worker.counts["lost"] >= 9, 40)
    assert dict(worker.counts) == {"claimed": 9, "succeeded": 9}
    assert {row["claims"] for row in db.sql("select claims from tenure.job_done")} == {2}
