"""The loops do by themselves what time asks for, once, whoever else runs them, and cost little meanwhile."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from dataclasses import replace
from functools import partial

import pytest

from tenure.contracts import BUILT_IN
from tenure.postgres.migrate import migrate
from tenure.postgres.store import Store
from tenure.upkeep import Pace, Upkeep
from tests.harness import Harness
from tests.postgres.test_statement_count import counting
from tests.test_upkeep import EVERYTHING, at_the_commit_point, everything_is_done, neglected
from tests.test_upkeep import expired as died
from tests.upkeep.running import QUICK, expired, lines, ready, running, until

#: Jobs with as many dead rows behind them as hinder a claim.
_FILL = """
insert into tenure.job (contract, version, state, role, max_attempts, type)
select 'standard', '1', 'queued', 'ready', 5, 't' from generate_series(1, 1500);
update tenure.job set progress = '1';
"""


async def test_a_lease_that_ran_out_is_reaped_within_a_second(store: Store, db: Harness) -> None:
    async with running(Upkeep(store)):
        await asyncio.sleep(0.3)  # the first look, which comes at once, is over
        late = [await until(partial(ready, db, await expired(store, db))) for _ in range(3)]
    print(f"reaped {', '.join(f'{seconds:.2f}' for seconds in late)} s after the lease had run out")
    assert max(late) < 1.0


async def test_the_loops_do_everything_that_one_round_does(
    store: Store, db: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tenure.upkeep")
    jobs = await neglected(store, db)
    loops = Upkeep(store, pace=QUICK)
    done: Counter[str] = Counter()
    for (part, _), did in EVERYTHING.items():
        done[part] += did
    async with running(loops):
        await until(lambda: loops.counts.items() >= done.items(), 30)
    everything_is_done(db, jobs)
    assert {part: did for part, did in loops.counts.items() if part != "vacuum"} == done
    assert loops.troubles == {}
    assert lines(caplog, "reap standard") == ["reap standard: 1"]
    assert lines(caplog, "settle gate_b2") == ["settle gate_b2: 1"]
    assert lines(caplog, "look") == [], "what does nothing says nothing"


async def test_a_full_batch_goes_on_at_once(store: Store, db: Harness) -> None:
    ids = await expired(store, db, 2_500)
    loops = Upkeep(store, pace=Pace(look=600))  # it looks once
    async with running(loops):
        await until(lambda: loops.counts.get("reap") == 2_500)
    assert ready(db, ids)


async def test_loops_that_are_cancelled_end_whatever_they_are_at(store: Store) -> None:
    loops = Upkeep(store, pace=Pace(*(0.01,) * 6))
    for n in range(60):
        task = asyncio.create_task(loops.run())
        await asyncio.sleep(n / 1_000)
        task.cancel()
        assert await asyncio.wait([task], timeout=5) == ({task}, set()), "it goes on"


async def test_two_processes_side_by_side_do_each_thing_once(store: Store, db: Harness, dsn: str) -> None:
    ids = await expired(store, db, 300)
    pending = await at_the_commit_point(store, db)
    async with Store.open(dsn) as other:
        loops = [Upkeep(each, pace=QUICK) for each in (store, other)]
        async with running(*loops):
            for _ in range(5):
                ids += await expired(store, db, 50)
                await until(partial(ready, db, ids))
            await until(lambda: db.row(pending)["role"] == "done")
            await asyncio.sleep(0.3)  # whoever moved them has heard of it, and another would have moved them again
    assert sum(each.counts.get("reap", 0) for each in loops) == len(ids)
    assert sum(each.counts.get("settle", 0) for each in loops) == 1
    hops = db.value("select count(*) from tenure.event where trigger = 'expire' and job_id = any(%s)", ids)
    assert hops == len(ids)
    assert [each.troubles for each in loops] == [{}, {}]
    db.log_is_sound(*ids, pending)


async def test_a_contract_that_is_registered_later_is_looked_after_too(store: Store, db: Harness, dsn: str) -> None:
    mine = replace(BUILT_IN["standard"], name="mine", views=())
    async with running(Upkeep(store, pace=Pace(look=0.1))):
        await asyncio.sleep(0.2)
        migrate(dsn, {**BUILT_IN, "mine": mine})
        async with Store.open(dsn) as other:
            ids = await expired(other, db, contract="mine")
        await until(lambda: ready(db, ids))


async def test_a_contract_that_reclaims_in_place_is_left_to_its_claims(store: Store, db: Harness) -> None:
    last = await died(store, db, "phase27")
    await expired(store, db, contract="phase27")
    assert (await store.watch.pressing()).reap == {"phase27"}
    assert [outcome.job_id for outcome in await store.reap("phase27")] == [last]
    assert (await store.watch.pressing()).reap == frozenset()


async def test_idle_loops_ask_about_two_questions_a_second(store: Store) -> None:
    async with running(Upkeep(store)):
        await asyncio.sleep(0.5)
        with counting() as counted:
            await asyncio.sleep(4)
    print(f"{counted.sent / 4:.2f} statements a second")
    assert 3 <= counted.sent <= 4 * 2.5 + 2, "a look at most every 0.4 s, and now and then another part"


@pytest.mark.pristine
async def test_the_hot_table_is_vacuumed_while_it_moves_and_left_alone_when_it_does_not(
    store: Store, db: Harness
) -> None:
    db.sql("alter table tenure.job set (autovacuum_enabled = false)")
    often = "select vacuum_count from pg_stat_user_tables where relid = 'tenure.job'::regclass"
    loops = Upkeep(store, pace=replace(QUICK, tidy=3600))
    async with running(loops):
        await asyncio.sleep(0.5)
        assert db.value(often) == 0, "nothing moved"
        for turn in (1, 2):
            db.sql(_FILL if turn == 1 else "update tenure.job set progress = '2'")
            db.sql("select pg_stat_force_next_flush()")  # a busy worker's statistics come every second
            await until(lambda turn=turn: loops.counts.get("vacuum", 0) == turn)  # type: ignore[misc]
            await asyncio.sleep(0.6)
            assert db.value(often) == turn == loops.counts["vacuum"], "nothing moved since"
