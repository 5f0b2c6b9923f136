"""The clock of a real server is moved under the loops, by libfaketime: a living holder keeps its job."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tenure.embedded import Cluster
from tenure.jobs.job import Failure, NewJob
from tenure.postgres.migrate import migrate
from tenure.postgres.store import Store
from tenure.upkeep import Upkeep
from tests.faults.clock import FAKETIME, faked, set_ahead
from tests.harness import Harness
from tests.upkeep.running import expired, ready, running, until

pytestmark = [
    pytest.mark.serial,
    pytest.mark.skipif(
        FAKETIME is None and "TENURE_REQUIRE" not in os.environ,
        reason="needs Debian's libfaketime to move a server's clock",
    ),
]


@dataclass(frozen=True)
class Moved:
    """A server whose clock can be moved."""

    dsn: str
    offset: Path

    def jump(self, seconds: int) -> None:
        """Let the server's clock be so many seconds ahead of ours, from now on."""
        set_ahead(self.offset, seconds)


@pytest.fixture
def moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Moved]:
    """A server of this test's own, with a clock of its own; this process keeps ours."""
    offset = tmp_path / "offset"
    environment = faked(offset)
    cluster = Cluster(tmp_path / "cluster", settings={"fsync": "off", "shared_buffers": "64MB"})
    Moved("", offset).jump(0)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with cluster:
        for name in environment:
            monkeypatch.delenv(name)
        migrate(cluster.dsn)
        yield Moved(cluster.dsn, offset)


#: Longer than the test can take, and shorter than the clock jumps.
_LEASES = {"standard": {"lease_ms": 600_000}}


async def looks(db: Harness, worker: Store) -> None:
    """Wait until a round of upkeep has passed: it makes a job ready that had to wait."""
    made = await worker.enqueue(NewJob("t", contract="dispatcher"))
    (job,) = await worker.claim("dispatcher", worker="w")
    await worker.fail(job.held, Failure("no luck"))
    db.due(made.job_id)
    await until(lambda: ready(db, [made.job_id]), 60)
    (job,) = await worker.claim("dispatcher", worker="w")
    await worker.succeed(job.held)


async def test_an_hour_ahead_takes_no_job_from_a_holder_that_beats(
    moved: Moved, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tenure.upkeep")
    async with Store.open(moved.dsn, numbers=_LEASES) as store, Store.open(moved.dsn, numbers=_LEASES) as worker:
        loops = Upkeep(store)
        with Harness(moved.dsn) as db:
            await worker.enqueue(NewJob("t"))
            (job,) = await worker.claim(worker="w")
            async with running(loops):
                await looks(db, worker)
                before = db.value("select clock_timestamp()")
                moved.jump(3_600)
                await until(lambda: loops.jumps == 1, 60)
                assert (db.value("select clock_timestamp()") - before).total_seconds() > 3_500, (
                    "the clock was not moved"
                )
                for _ in range(3):  # looks that find the lease run out
                    await looks(db, worker)
                assert db.row(job.id)["lease_owner"] == "w"
                await worker.heartbeat(job.held)
                ids = await expired(worker, db)
                db.sql("update tenure.job set lease_ms = 100 where id = any(%s)", ids)
                await until(lambda: ready(db, ids), 60)  # reaping goes on
            assert (await worker.succeed(job.held)).state == "succeeded"
            assert db.hops(job.id) == ["queued->running", "running->succeeded"]
    assert re.search(r"the database's clock jumped ahead by 3(5|6)\d\d", caplog.text)
