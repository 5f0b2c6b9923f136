"""What runs out while a success waits for its row has run out, by the short way too."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tenure.contracts import BUILT_IN
from tenure.errors import StaleLease
from tenure.outcome import Moved
from tests.postgres.short_way import STRICT
from tests.races.conftest import arena, file_arena, file_dsn
from tests.races.sessions import Arena, now

__all__ = ["arena", "file_arena", "file_dsn"]
pytestmark = [pytest.mark.serial, pytest.mark.core]

#: What is about to run out, and when it has.
RUNS_OUT = {
    "lease": ("lease_expires_at = now() + interval '250 ms'", "lease_expires_at < clock_timestamp()"),
    "beats": (
        "last_heartbeat_at = now() - interval '29.75 s', lease_expires_at = now() + interval '1 hour'",
        "last_heartbeat_at + interval '30 s' < clock_timestamp()",
    ),
}


@pytest.fixture
def strict(arena: Arena) -> Iterator[Arena]:
    """Sessions for which `standard` forfeits the lease of a late holder."""
    registry = arena.second.store._engine.registry
    now(arena.second.store.contracts())  # read from the database before one of them is replaced
    registry.add(STRICT)
    yield arena
    registry.add(BUILT_IN["standard"])


@pytest.mark.parametrize("what", list(RUNS_OUT))
def test_what_ran_out_during_the_wait_for_a_row_is_not_revived_by_the_short_way(strict: Arena, what: str) -> None:
    soon, over = RUNS_OUT[what]
    held = [strict.held("standard")[0] for _ in range(3)]
    strict.db.sql(f"update tenure.job set {soon} where id = %s", held[1].id)
    strict.first.begin()
    strict.first.lock(held[1].id)
    before = strict.db.fingerprint(held[1].id)
    waiting = strict.behind(lambda: now(strict.second.store.succeed_many(held)))
    assert not strict.db.value(f"select {over} from tenure.job where id = %s", held[1].id), "it was to run out later"
    give_up = time.monotonic() + 3
    while not strict.db.value(f"select {over} from tenure.job where id = %s", held[1].id):
        assert time.monotonic() < give_up
        time.sleep(0.01)
    strict.first.end("commit")
    assert [type(one) for one in waiting.result(5)] == [Moved, StaleLease, Moved]
    assert strict.db.fingerprint(held[1].id) == before
