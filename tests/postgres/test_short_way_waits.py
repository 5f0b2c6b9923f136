"""What runs out while a success waits for its row has run out, by the short way too."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest

from tenure.contracts import BUILT_IN
from tenure.errors import StaleLease
from tenure.jobs.outcome import Moved
from tests.clock import MOMENT, TICK, StoppedClock
from tests.holder_calls import calls
from tests.postgres.short_way import STRICT
from tests.races.conftest import arena, clock, file_arena, file_dsn
from tests.races.sessions import Arena, now

__all__ = ["arena", "clock", "file_arena", "file_dsn"]
pytestmark = pytest.mark.core

#: What runs out a second after the clock's first moment.
RUNS_OUT = {
    "lease": "lease_expires_at = %(over)s",
    "beats": "last_heartbeat_at = %(over)s - interval '30 s', lease_expires_at = %(over)s + interval '1 hour'",
}
OVER = MOMENT + timedelta(seconds=1)


@pytest.fixture
def strict(arena: Arena) -> Iterator[Arena]:
    """Sessions for which `standard` forfeits the lease of a late holder."""
    registry = arena.second.store._engine.registry
    now(arena.second.store.contracts())  # read from the database before one of them is replaced
    registry.add(STRICT)
    yield arena
    registry.add(BUILT_IN["standard"])


@pytest.mark.parametrize("ends", [OVER, OVER + TICK], ids=["just in time", "over"])
@pytest.mark.parametrize("what", list(RUNS_OUT))
def test_what_ran_out_during_the_wait_for_a_row_is_not_revived_by_the_short_way(
    strict: Arena, clock: StoppedClock, what: str, ends: datetime
) -> None:
    held = [strict.held("standard")[0] for _ in range(3)]
    change = f"update tenure.job set {RUNS_OUT[what]} where id = %(id)s"
    strict.db.connection.execute(change.encode(), {"over": OVER, "id": held[1].id})
    strict.first.begin()
    strict.first.lock(held[1].id)
    before = strict.db.fingerprint(held[1].id)
    waiting = strict.behind(lambda: now(strict.second.store.report("succeed", calls(held))))
    clock.set(ends)
    strict.first.end("commit")
    late = StaleLease if ends > OVER else Moved
    assert [type(one) for one in waiting.result(60)] == [Moved, late, Moved]
    assert (strict.db.fingerprint(held[1].id) == before) is (late is StaleLease)


# ------------------------------------------------------- where a lease is valid until it is taken: in one pass

#: What another transaction does to the row while a success waits for it, and whether the success is refused then.
MEANWHILE = {
    "nothing": ("", False),
    "renewed": ("lease_expires_at = lease_expires_at + interval '1 minute', last_heartbeat_at = started_at", False),
    "cancel requested": ("cancel_requested_at = started_at, progress = '7'", False),
    "taken": ("lease_token = gen_random_uuid(), claims = claims + 1", True),
    "taken back": ("state = 'queued', role = 'ready', lease_token = null, lease_expires_at = null", True),
    "effects to undo": ("undoable = true", False),
}


@pytest.mark.parametrize("what", list(MEANWHILE))
def test_a_success_in_one_pass_decides_by_the_row_that_it_waited_for(
    arena: Arena, clock: StoppedClock, what: str
) -> None:
    held = [arena.held("standard")[0] for _ in range(3)]
    change, is_refused = MEANWHILE[what]
    arena.db.sql("update tenure.job set lease_expires_at = %s where id = %s", OVER, held[1].id)
    arena.first.begin()
    arena.first.lock(held[1].id)
    if change:
        arena.first.sql(f"update tenure.job set {change} where id = %s", held[1].id)
    (before,) = arena.first.sql("select * from tenure.job where id = %s", held[1].id)
    waiting = arena.behind(lambda: now(arena.second.store.report("succeed", calls(held))))
    clock.set(OVER + TICK)  # the lease runs out during the wait, and nobody has taken it
    arena.first.end("commit")
    assert [type(one) for one in waiting.result(60)] == [Moved, StaleLease if is_refused else Moved, Moved]
    after = arena.db.row(held[1].id)
    if is_refused:
        assert after == before
        return
    assert after["finished_at"] == after["updated_at"] == OVER + TICK, "the time is read when the row is locked"
    kept = ("seq", "claims", "lease_token", "last_heartbeat_at", "cancel_requested_at", "progress")
    assert {name: after[name] for name in kept} == {name: before[name] for name in kept} | {"seq": before["seq"] + 1}
    log = arena.db.sql("select trigger, ts from tenure.event where job_id = %s order by seq", held[1].id)
    assert [row["trigger"] for row in log] == ["claim", "succeed"]
    assert log[-1]["ts"] == OVER + TICK


def test_a_row_whose_change_was_rolled_back_is_decided_by_what_it_was(arena: Arena) -> None:
    (held, *_) = arena.held("standard")
    arena.first.begin()
    arena.first.sql("update tenure.job set lease_token = gen_random_uuid() where id = %s", held.id)
    waiting = arena.behind(lambda: now(arena.second.store.report("succeed", calls([held]))))
    arena.first.end("rollback")
    assert [type(one) for one in waiting.result(60)] == [Moved]
