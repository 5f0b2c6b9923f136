"""Callers that name the same jobs in any order lock them in one: whoever waits holds nothing that another waits for."""

from __future__ import annotations

from uuid import uuid4

import pytest

from tenure.errors import Refused
from tenure.jobs.job import Job, NewJob
from tenure.jobs.outcome import Enqueued, Moved, Noted
from tests.races.sessions import Arena, now

pytestmark = pytest.mark.core


@pytest.mark.parametrize("verb", ["claim_by_id", "cancel"])
def test_a_batch_that_waits_for_its_first_job_has_locked_none_of_the_others(arena: Arena, verb: str) -> None:
    made = sorted(arena.made("standard")[0] for _ in range(3))
    arena.first.begin()
    arena.first.lock(made[0])
    store = arena.second.store
    named = made[::-1]

    def call() -> list[Job | Moved | Noted | Refused]:
        if verb == "claim_by_id":
            return [*now(store.claim_by_id(named, worker="second", contract="standard"))]
        return [*now(store.cancel_many(named, actor="ada"))]

    answer = arena.behind(call)
    free = arena.db.sql("select id from tenure.job where id = any (%s) for update skip locked", made)
    assert {row["id"] for row in free} == set(made[1:])
    arena.first.end("rollback")
    got = answer.result(60)
    assert [each.id if isinstance(each, Job) else each.job_id for each in got] == named


def test_a_batch_that_waits_for_its_first_key_has_spent_none_of_the_others(arena: Arena) -> None:
    stem = uuid4().hex
    low, high = NewJob("t", key=f"{stem}-1"), NewJob("t", key=f"{stem}-2")
    arena.first.begin()
    arena.first.enqueue(low)
    answer = arena.behind(lambda: arena.second.enqueue(high, low))
    with arena.db.connection.transaction(force_rollback=True):
        arena.db.sql(
            "set local lock_timeout = '500ms'"
        )  # for a key that the waiter has spent we would wait in a circle
        arena.db.sql(
            "insert into tenure.key (tenant_id, key, verb, hash) values (%s, %s, 'test', '')", high.tenant_id, high.key
        )
    arena.first.end("commit")
    made = answer.result(60)
    assert [isinstance(each, Enqueued) and each.made for each in made] == [True, False]
