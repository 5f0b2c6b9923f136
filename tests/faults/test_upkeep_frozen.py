"""A process that is frozen inside a transaction of upkeep: its rows are free again, and it goes on when it wakes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from psycopg.conninfo import make_conninfo

from tenure.jobs.outcome import Moved
from tenure.postgres.store import Store
from tests.harness import Harness
from tests.upkeep.running import expired, ready
from tests.worker.processes import ROOT
from tests.worker.working import until

pytestmark = [pytest.mark.serial, pytest.mark.timeout(300)]

_NAME = "frozen upkeep"


class Frozen:
    """The process of `frozen_upkeep.py`, and what it logged."""

    def __init__(self, dsn: str, log: Path) -> None:
        self._log = log
        address = make_conninfo(dsn, application_name=_NAME)
        command = [sys.executable, "-m", "tests.faults.frozen_upkeep", address, "1500"]
        with log.open("w") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, cwd=ROOT)

    def is_stopped(self) -> bool:
        assert self.process.poll() is None, self.said()
        stat = Path(f"/proc/{self.process.pid}/stat").read_text()
        return stat.rpartition(")")[2].split()[0] == "T"

    def said(self) -> str:
        return self._log.read_text()


@pytest.fixture
def frozen(dsn: str, tmp_path: Path) -> Iterator[Frozen]:
    """Upkeep in a process of its own, which freezes when it is about to reap."""
    running = Frozen(dsn, tmp_path / "log")
    yield running
    running.process.kill()
    running.process.wait()


async def test_upkeep_frozen_inside_a_transaction_lets_go_of_its_rows_and_goes_on_when_it_wakes(
    store: Store, db: Harness, frozen: Frozen
) -> None:
    ids = await expired(store, db, 20)
    await until(frozen.is_stopped)
    open_transaction = (
        "select count(*) from pg_stat_activity "
        "where application_name = %s and state = 'idle in transaction' and datname = current_database()"
    )
    reaped: list[int] = []
    while len(reaped) < len(ids):  # whoever is not frozen gets the rows, as soon as PostgreSQL has ended the session
        await until(lambda: db.value(open_transaction, _NAME) == 0, 30)
        reaped += [one.job_id for one in await store.reap("standard", 100) if isinstance(one, Moved)]
    assert sorted(reaped) == ids
    os.kill(frozen.process.pid, signal.SIGCONT)
    more = await expired(store, db, 5)
    await until(lambda: ready(db, more))
    assert re.search(r"WARNING .*ended a transaction that was idle", frozen.said()), frozen.said()
    assert "ERROR" not in frozen.said()
    db.log_is_sound(*ids, *more)
