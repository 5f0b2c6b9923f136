"""Schedules of a test: declared on its own store, made due by a clock that stands still."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, cast

import pytest

from tenure.jobs.job import NewJob
from tenure.postgres.store import Store
from tenure.schedules.declaration import Schedule, declare
from tenure.schedules.timing import timing
from tests.clock import StoppedClock
from tests.harness import Harness


def schedule(name: str = "report", job: NewJob | None = None, **given: Any) -> Schedule:
    """A schedule, by default every five minutes."""
    policies = {each: given.pop(each) for each in ("missed", "overlap") if each in given}
    when = timing(**(given if {"cron", "seconds", "hours"} & set(given) else {"minutes": 5} | given))
    return declare(name, job or NewJob("report", {"month": "May"}), when, **policies)


@dataclass
class Rows:
    """The rows of schedules, and the clock of the database."""

    db: Harness
    clock: StoppedClock

    def due(self, name: str = "report", late: timedelta = timedelta(0)) -> datetime:
        """Let it be the next due time of a schedule, or so much later; returns its fire time."""
        row = self.one(name)
        self.clock.set(row["next_at"] + late)
        return cast("datetime", row["fire_at"])

    def one(self, name: str = "report") -> dict[str, Any]:
        """The row of a schedule."""
        return self.db.one("select * from tenure.schedule where name = %s", name)

    def fires(self, name: str = "report") -> list[tuple[Any, ...]]:
        """(fire time, result, how many times) of each fire, oldest first."""
        rows = self.db.sql(
            "select f.fire_at, f.result, f.times from tenure.schedule_fire as f "
            "join tenure.schedule as s on s.id = schedule_id where s.name = %s order by 1",
            name,
        )
        return [tuple(row.values()) for row in rows]

    def jobs(self) -> list[dict[str, Any]]:
        """The live jobs."""
        return self.db.sql("select * from tenure.job order by id")

    def finish_jobs(self) -> None:
        """Let no job be live."""
        self.db.sql("delete from tenure.job")


@pytest.fixture
def rows(db: Harness, clock: StoppedClock) -> Rows:
    """The rows of this test's database."""
    return Rows(db, clock)


@pytest.fixture
async def store(clock: StoppedClock) -> AsyncIterator[Store]:
    """A store whose database has a clock that stands still; it is noon."""
    async with Store.open(clock.dsn) as opened:
        yield opened


@pytest.fixture
async def report(store: Store) -> Schedule:
    """A declared schedule named `report`."""
    made = schedule()
    assert await store.schedules.declare([made], application="shop", by="w1") == ["report"]
    return made
