"""A process that is killed in the middle of a bulk requeue leaves nothing half done, and nothing is done twice."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import time

import psycopg
import pytest

from tenure.postgres.store import Store
from tests.faults import operation_program
from tests.harness import Harness
from tests.postgres.test_letter_groups import broken, fail

pytestmark = [pytest.mark.serial, pytest.mark.timeout(900)]

#: Copies of a dead letter, each of a finished job of its own.
_COPIES = """
with made as (
    insert into tenure.dead_letter (job_id, contract, tenant_id, type, reason_code, last_error, counter, claims,
                                    correlation_id, trace_id, payload, failed_at)
    select n, contract, tenant_id, type, reason_code, last_error, counter, claims, correlation_id, trace_id,
           jsonb_build_object('n', n), failed_at
    from tenure.dead_letter, generate_series(%s::bigint, %s::bigint) as n where dead_letter.id = %s
)
select setval('tenure.job_id_seq', %s)
"""


def begin(dsn: str, operation_id: int) -> subprocess.Popen[bytes]:
    """A process that works on the operation."""
    return subprocess.Popen([sys.executable, "-m", operation_program.__name__, dsn, str(operation_id)])


async def killed(store: Store, dsn: str, operation_id: int, share: int, chance: random.Random) -> int:
    """Begin a process that works on the operation, and kill it when about `share` items are done; returns how many."""
    process = begin(dsn, operation_id)
    try:
        before = (await store.operations.show(operation_id)).done
        while (done := (await store.operations.show(operation_id)).done) < max(share, before + 1):
            assert process.poll() is None
            await asyncio.sleep(0.01)
        await asyncio.sleep(chance.uniform(0, 0.05))
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()
    return done


@pytest.mark.parametrize(("kills", "letters"), [(2, 4_000), pytest.param(10, 100_000, marks=pytest.mark.prove)])
async def test_a_bulk_requeue_that_is_killed_requeues_exactly_the_previewed_once(
    store: Store, dsn: str, db: Harness, kills: int, letters: int
) -> None:
    (first,) = await fail(store, [broken("send")], type="t")
    db.sql(_COPIES, 10, letters + 8, first, letters + 8)
    db.sql("analyze tenure.dead_letter")
    operation = await store.operations.preview("dead_letters", "requeue", "status:open type:t", actor="ada")
    while not operation.collected:
        operation = await store.operations.collect(operation.id)
    assert operation.total == letters
    previewed = {row["item_id"] for row in db.sql("select item_id from tenure.operation_item")}
    later = await fail(store, [broken("send")], type="t")
    await store.letters.requeue(first, actor="bob")
    await store.operations.start(operation.id, actor="ada")
    chance, begun, killed_at = random.Random(kills), time.monotonic(), list[int]()
    # Until the last kill somebody has one of the items locked, so the operation cannot end before, however fast it is.
    with psycopg.connect(dsn) as holder:
        holder.execute("select from tenure.operation_item where item_id = %s for update", (max(previewed),))
        for number in range(1, kills + 1):
            killed_at.append(await killed(store, dsn, operation.id, letters // (kills + 1) * number, chance))
    process = begin(dsn, operation.id)
    try:
        await asyncio.to_thread(process.wait)
    finally:
        process.kill()
        process.wait()
    seconds = time.monotonic() - begun
    done = await store.operations.show(operation.id)
    assert (done.state, done.done, done.skipped, done.left) == ("done", letters - 1, {"REQUEUE_CONFLICT": 1}, 0)
    jobs = db.sql("select origin_letter, count(*) from tenure.job where created_by = 'ada' group by 1")
    assert {row["origin_letter"] for row in jobs} == previewed - {first}
    assert {row["count"] for row in jobs} == {1}
    assert (await store.letters.show(later[0])).status == "open"
    wrong = "select count(*) from tenure.dead_letter as l join tenure.operation_item as i on i.item_id = l.id "
    assert db.value(f"{wrong} where i.state = 'done' and l.requeued_as is distinct from i.made") == 0
    print(f"{letters:,} requeued in {seconds:.1f} s, {letters / seconds:,.0f}/s, killed at {killed_at}")
