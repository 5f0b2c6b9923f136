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
