"""What stands in the way of one part is said once, stops no other part, and is over when it is over."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

import pytest
from psycopg.conninfo import make_conninfo

from tenure.errors import CannotConnect, ConnectionLost
from tenure.postgres.migrate import migrate
from tenure.postgres.retention import Retention
from tenure.postgres.store import Store
from tenure.upkeep import Report, Upkeep
from tenure.upkeep.status_log import StatusLog
from tests.harness import Harness
from tests.upkeep.running import QUICK, Observed, expired, lines, ready, running, until
from tests.upkeep.test_upkeep import at_the_commit_point


@pytest.fixture
async def app(dsn: str) -> AsyncIterator[Store]:
    """A store of the role that applications use, which owns nothing."""
    migrate(dsn, grants=True)
    async with Store.open(make_conninfo(dsn, options="-c role=tenure_app")) as opened:
        yield opened


@pytest.fixture(autouse=True)
def heard(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """Everything that upkeep says."""
    caplog.set_level(logging.DEBUG, "tenure.upkeep")
    return caplog


async def test_missing_rights_are_said_once_and_stop_nobody(
    app: Store, store: Store, db: Harness, heard: pytest.LogCaptureFixture
) -> None:
    db.sql("revoke all on tenure.key from tenure_app")
    loops = Observed(app, periods=QUICK)
    async with running(loops):
        await until(lambda: {"forget keys", "retire"} <= set(loops.troubles))
        ids = await expired(store, db)
        await until(lambda: ready(db, ids))
        await loops.another("forget keys", "retire", times=3)  # they fail
        assert [len(lines(heard, part)) for part in ("forget keys", "retire")] == [1, 1]
        db.sql("grant select, insert, update, delete on tenure.key to tenure_app")
        await until(lambda: "forget keys" not in loops.troubles)
    (first, last) = lines(heard, "forget keys")
    assert first.startswith(
        "forget keys: E-NOT-PERMITTED: this role is not permitted to do that (permission denied for table key)"
    )
    assert last.startswith("forget keys: works again after ")
    assert "only the owner of the tables can drop ranges" in loops.troubles["retire"]


@pytest.mark.pristine
async def test_who_may_not_vacuum_says_so_once(
    app: Store, store: Store, db: Harness, heard: pytest.LogCaptureFixture
) -> None:
    loops = Observed(app, periods=QUICK)
    async with running(loops):
        ids = await expired(store, db, 20)
        await until(lambda: ready(db, ids))  # nobody has their rows from now on
        for turn in (1, 2, 3):
            db.sql("update tenure.job set progress = %s where id = any(%s)", str(turn), ids)
            db.sql("select pg_stat_force_next_flush()")
            await until(lambda turn=turn: loops.troubled["vacuum"] >= turn)  # type: ignore[misc]
    assert len(lines(heard, "vacuum")) == 1
    assert "only the owner of the tables can vacuum them" in loops.troubles["vacuum"]
    assert "vacuum" not in loops.counts


async def test_a_part_with_a_bug_is_told_with_its_traceback_and_the_others_go_on(
    store: Store, db: Harness, heard: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns: list[float] = []
    forget = Retention.forget_claims

    async def broken(self: Retention, keep_sec: float) -> int:
        turns.append(keep_sec)
        if len(turns) > 3:
            return await forget(self, keep_sec)
        raise RuntimeError(f"a bug, turn {len(turns)}")

    monkeypatch.setattr(Retention, "forget_claims", broken)
    async with running(Upkeep(store, periods=QUICK)):
        ids = await expired(store, db)
        await until(lambda: ready(db, ids))
        await until(lambda: len(lines(heard, "forget claims")) == 2)
    (record,) = [record for record in heard.records if record.levelno == logging.ERROR]
    assert record.getMessage() == "forget claims: RuntimeError: a bug, turn 1"
    assert record.exc_info


async def test_a_record_that_cannot_be_written_is_said_once_while_it_is_the_same(
    store: Store, db: Harness, heard: pytest.LogCaptureFixture
) -> None:
    pending = await at_the_commit_point(store, db)
    db.sql("alter table tenure.dead_letter add constraint no_paper check (contract <> 'gate_b2') not valid")
    loops = Observed(store, periods=QUICK)
    async with running(loops):
        await until(lambda: len(lines(heard, "settle gate_b2")) == 1)
        await loops.another("settle gate_b2")
        assert len(lines(heard, "settle gate_b2")) == 1
        db.sql("alter table tenure.dead_letter drop constraint no_paper")
        await until(lambda: db.row(pending)["role"] == "done")
    assert f"job {pending}: its record could not be written" in lines(heard, "settle gate_b2")[0]


def test_a_database_that_is_away_is_one_trouble_whatever_it_says(heard: pytest.LogCaptureFixture) -> None:
    status = StatusLog()
    for error in (ConnectionLost("gone; repeat"), CannotConnect("not yet; try"), ConnectionLost("gone again")):
        status.log_failure("reap standard", error)
    assert status.troubles == {"reap standard": "E-CONNECTION-LOST: gone again"}
    status.log_report(Report("reap", 2, "standard"))
    assert status.troubles == {}
    assert lines(heard, "reap standard")[:2] == [
        "reap standard: the database is away, trying again (E-CONNECTION-LOST: gone)",
        "reap standard: 2",
    ]
    assert len(heard.records) == 3
    assert status.counts == {"reap": 2}
