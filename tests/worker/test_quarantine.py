"""What a dead worker left runs alone, few at a time; what waits for its turn is held meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest

from tenure.postgres.store import Store
from tenure.worker import execute
from tests.harness import Harness
from tests.worker import program
from tests.worker.rounds import Pulse
from tests.worker.working import LEASE_S, steady, until, working


@pytest.mark.prove
async def test_a_job_that_waits_for_its_turn_to_run_alone_keeps_its_lease(
    dsn: str, store: Store, db: Harness, pulse: Pulse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execute, "_ALONE_AT_ONCE", 1)
    gate = tmp_path / "gate"
    async with steady(dsn) as app:
        app.tasks["hold"] = program.hold
        first = await app._enqueue(program.hold.call(str(gate)).job)
        # Their limit is shorter than they wait: it is to end handlers, and not those that wait for one.
        limited = program.hold.options(timeout=LEASE_S)
        ids = [first.id, *await app.enqueue_many(limited.call(str(gate)) for _ in range(8))]
        assert len(await store.claim(worker="dead", limit=9)) == 9
        db.expire(*ids)
        await store.reap("standard")
        db.due(*ids)
        async with working(app, queues=["default"]) as worker:
            await until(lambda: db.value("select count(*) from tenure.job where role = 'active'") == 9)
            for _ in range(6):
                await pulse.half_a_lease(db, ids)
            gate.touch()
            await until(lambda: worker.counts["succeeded"] + worker.counts["lost"] >= 9)
    assert dict(worker.counts) == {"claimed": 9, "succeeded": 9}
    assert {row["claims"] for row in db.sql("select claims from tenure.job_done")} == {2}
