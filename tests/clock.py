"""A clock of PostgreSQL's that a test sets by hand: it stands still in between, however slow the machine is."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from psycopg.conninfo import make_conninfo

from tests.harness import Harness

MOMENT = datetime(2031, 5, 4, 12, tzinfo=UTC)
TICK = timedelta(microseconds=1)

#: A session that looks into `public` first finds this function in the place of PostgreSQL's own. It is volatile as
#: that one is, so a statement that is under way sees the time that was set meanwhile.
_CLOCK = """
create table public.moment (at timestamptz not null);
create function public.clock_timestamp() returns timestamptz language sql volatile
    return (select at from public.moment);
"""
SEARCH_PATH = "public,pg_catalog"


class StoppedClock:
    """The time that `clock_timestamp()` gives to sessions under `dsn`; all others have PostgreSQL's own."""

    def __init__(self, db: Harness, at: datetime = MOMENT) -> None:
        self._db = db
        self.dsn = make_conninfo(db.dsn, options=f"-c search_path={SEARCH_PATH}")
        db.sql(_CLOCK)
        db.sql("insert into public.moment values (%s)", at)

    def set(self, at: datetime) -> None:
        """Let it be this time from now on."""
        self._db.sql("update public.moment set at = %s", at)

    def remove(self) -> None:
        """Leave nothing of it in the database."""
        self._db.sql("drop function public.clock_timestamp(); drop table public.moment")
