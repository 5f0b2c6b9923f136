"""The loops do by themselves what time asks for, once, whoever else runs them, and cost little meanwhile."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from tenure.contracts import BUILT_IN
from tenure.postgres.migrate import migrate
from tenure.postgres.store import Store
from tenure.upkeep import Periods, Upkeep
from tests.harness import Harness
from tests.postgres.test_statement_count import counting
from tests.upkeep.running import QUICK, Observed, expired, lines, ready, running, until
from tests.upkeep.test_upkeep import EVERYTHING, at_the_commit_point, everything_is_done, neglected
from tests.upkeep.test_upkeep import expired as died

#: Jobs with as many dead rows behind them as hinder a claim.
_FILL = """
insert into tenure.job (contract, version, state, role, max_attempts, type)
select 'standard', '1', 'queued', 'ready', 5, 't' from generate_series(1, 1500);
update tenure.job set progress = '1';
"""


class Rests:
    """The rests that loops have asked for, in seconds, by the task that rests."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: dict[asyncio.Task[Any] | None, list[float]] = {}
        monkeypatch.setattr("tenure.upkeep.loops.asyncio", self)

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    async def sleep(self, seconds: float) -> None:
        """Rest, and keep for how long."""
        self.asked.setdefault(asyncio.current_task(), []).append(seconds)
        await asyncio.sleep(seconds)


async def test_a_lease_that_ran_out_is_reaped_by_the_next_look_which_comes_within_a_second(
    store: Store, db: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    rests, loops = Rests(monkeypatch), Observed(store)
    async with running(loops):
        await until(lambda: loops.ended["look"] >= 1)  # the first look, which comes at once, is over
        for _ in range(3):
            ids, reaped = await expired(store, db), loops.ended["reap standard"]
            await loops.another("look")
            await until(lambda reaped=reaped: loops.ended["reap standard"] > reaped)  # type: ignore[misc]
            assert ready(db, ids)
    first, *between = rests.asked[loops.tasks["look"]]
    assert first == 0.0
    assert max(between) < 1.0


async def test_the_loops_do_everything_that_one_round_does(
    store: Store, db: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "tenure.upkeep")
    jobs = await neglected(store, db)
    loops = Upkeep(store, periods=QUICK)
    done: Counter[str] = Counter()
    for (part, _), did in EVERYTHING.items():
        done[part] += did
    async with running(loops):
        await until(lambda: loops.counts.items() >= done.items())
    everything_is_done(db, jobs)
    assert {part: did for part, did in loops.counts.items() if part not in ("vacuum", "group letters")} == done
    assert loops.troubles == {}
    assert lines(caplog, "reap standard") == ["reap standard: 1"]
    assert lines(caplog, "settle gate_b2") == ["settle gate_b2: 1"]
    assert lines(caplog, "look") == [], "what does nothing says nothing"


async def test_a_full_batch_goes_on_at_once(store: Store, db: Harness) -> None:
    ids = await expired(store, db, 2_500)
    loops = Upkeep(store, periods=Periods(look=600))  # it looks once
    async with running(loops):
        await until(lambda: loops.counts.get("reap") == 2_500)
    assert ready(db, ids)


async def test_loops_that_are_cancelled_end_whatever_they_are_at(store: Store) -> None:
    loops = Upkeep(store, periods=Periods(*(0.01,) * 6))
    for n in range(60):
        task = asyncio.create_task(loops.run())
        await asyncio.sleep(n / 1_000)
        task.cancel()
        assert await asyncio.wait([task], timeout=60) == ({task}, set()), "it goes on"


async def test_two_processes_side_by_side_do_each_thing_once(store: Store, db: Harness, dsn: str) -> None:
    ids = await expired(store, db, 300)
    pending = await at_the_commit_point(store, db)
    async with Store.open(dsn) as other:
        loops = [Observed(each, periods=QUICK) for each in (store, other)]
        async with running(*loops):
            for _ in range(5):
                ids += await expired(store, db, 50)
                await until(partial(ready, db, ids))
            await until(lambda: db.row(pending)["role"] == "done")
            # Whoever moved them has heard of it, and another would have moved them again.
            await until(lambda: sum(each.counts.get("reap", 0) for each in loops) >= len(ids))
            await until(lambda: any("settle" in each.counts for each in loops))
            for each in loops:
                await each.another("look", times=2)
    assert sum(each.counts.get("reap", 0) for each in loops) == len(ids)
    assert sum(each.counts.get("settle", 0) for each in loops) == 1
    hops = db.value("select count(*) from tenure.event where trigger = 'expire' and job_id = any(%s)", ids)
    assert hops == len(ids)
    assert [each.troubles for each in loops] == [{}, {}]
    db.log_is_sound(*ids, pending)


async def test_a_contract_that_is_registered_later_is_looked_after_too(store: Store, db: Harness, dsn: str) -> None:
    mine = replace(BUILT_IN["standard"], name="mine", views=())
    loops = Observed(store, periods=Periods(look=0.1))
    async with running(loops):
        await until(lambda: loops.ended["look"] >= 1)
        migrate(dsn, {**BUILT_IN, "mine": mine})
        async with Store.open(dsn) as other:
            ids = await expired(other, db, contract="mine")
        await until(lambda: ready(db, ids))


async def test_a_contract_that_reclaims_in_place_is_left_to_its_claims(store: Store, db: Harness) -> None:
    last = await died(store, db, "phase27")
    await expired(store, db, contract="phase27")
    assert (await store.watch.find_pending()).reap == {"phase27"}
    assert [outcome.job_id for outcome in await store.reap("phase27")] == [last]
    assert (await store.watch.find_pending()).reap == frozenset()


async def test_idle_loops_ask_about_two_questions_a_second(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    never = 1e9
    periods = Periods(extend=never, forget=never, retire=never, workers=never, expired=never)
    rests, loops = Rests(monkeypatch), Observed(store, periods=periods)
    async with running(loops):
        await until(lambda: min(loops.ended[part] for part in ("look", "extend", "cancel expired")) >= 1)
        with counting() as counted:
            before = loops.ended["look"]
            await loops.another("look", times=4)
            looks = loops.ended["look"] - before
    assert abs(counted.sent - looks) <= 1, "a look is one statement, and no other part asks anything"
    first, *between = rests.asked[loops.tasks["look"]]
    assert first == 0.0
    assert min(between) >= 0.4, "a look at most every 0.4 s"


@pytest.mark.pristine
async def test_the_hot_table_is_vacuumed_while_it_moves_and_left_alone_when_it_does_not(
    store: Store, db: Harness
) -> None:
    db.sql("alter table tenure.job set (autovacuum_enabled = false)")
    often = "select vacuum_count from pg_stat_user_tables where relid = 'tenure.job'::regclass"
    loops = Observed(store, periods=replace(QUICK, vacuum_few=3600))
    async with running(loops):
        await loops.another_report("look")
        await loops.another_report("vacuum")
        assert db.value(often) == 0, "nothing moved"
        for turn in (1, 2):
            db.sql(_FILL if turn == 1 else "update tenure.job set progress = '2'")
            db.sql("select pg_stat_force_next_flush()")  # a busy worker's statistics come every second
            await until(lambda turn=turn: loops.counts.get("vacuum", 0) == turn)  # type: ignore[misc]
            await loops.another_report("look")
            await loops.another_report("vacuum")
            assert db.value(often) == turn == loops.counts["vacuum"], "nothing moved since"
