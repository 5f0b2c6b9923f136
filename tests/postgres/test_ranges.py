"""No job exists whose id has no place: ranges are made ahead, and an enqueue beyond the last one makes more."""

from __future__ import annotations

import asyncio

import pytest

from tenure.errors import Busy
from tenure.jobs.job import Failure, NewJob
from tenure.jobs.outcome import Enqueued, Moved
from tenure.jobs.validation import ID_UNIT
from tenure.postgres.store import Store
from tests.harness import Harness, at_once
from tests.holder_calls import calls

pytestmark = pytest.mark.core

WIDTH = 1_048_576


def ranges(db: Harness) -> list[tuple[int, int]]:
    """The ranges that were made, in order."""
    return [(row["low"], row["high"]) for row in db.sql("select low, high from tenure.range order by low")]


def partitions(db: Harness, table: str) -> dict[str, str]:
    """The partitions of a table, and what each holds."""
    rows = db.sql(
        "select inhrelid::regclass::text as name, pg_get_expr(c.relpartbound, c.oid) as bounds "
        "from pg_inherits join pg_class c on c.oid = inhrelid where inhparent = %s::regclass", f"tenure.{table}",
    )  # fmt: skip
    return {row["name"]: row["bounds"] for row in rows}


def last_id(db: Harness) -> int:
    """The last id that has a range."""
    return ranges(db)[-1][1] - 1


def ranges_are_whole(db: Harness) -> None:
    """Assert that the ranges touch, that each has one partition in both tables, and that no id lies beyond them."""
    made = ranges(db)
    assert made == [(n * WIDTH, (n + 1) * WIDTH) for n in range(len(made))]
    for table in ("job_done", "event"):
        assert partitions(db, table) == {
            f"tenure.{table}_{low // WIDTH}": f"FOR VALUES FROM ('{low}') TO ('{high}')" for low, high in made
        }
    assert db.value("select coalesce(max(id), 0) from tenure.job") <= last_id(db)


def nearly_used_up(db: Harness, left: int) -> int:
    """Leave this many ids; the last one."""
    end = last_id(db)
    db.sql("select setval('tenure.job_id_seq', %s)", end - left)
    return end


def test_ranges_exist_ahead(db: Harness) -> None:
    assert len(ranges(db)) > 4
    ranges_are_whole(db)


@pytest.mark.parametrize("key", [None, "k"])
async def test_jobs_live_a_whole_life_across_the_border(store: Store, db: Harness, key: str | None) -> None:
    end = nearly_used_up(db, 2)
    ids = [(await store.enqueue(NewJob("t", key=key and f"{key}{n}"))).job_id for n in range(4)]
    assert ids[:2] == [end - 1, end]
    assert all(made > end for made in ids[2:])
    ranges_are_whole(db)
    won = await store.claim(worker="w", limit=10)
    assert sorted(job.id for job in won) == ids
    first, *others, last = [job.held for job in sorted(won, key=lambda job: job.id)]
    assert (await store.fail(first, Failure("no"))).state == "queued"
    assert {outcome.job_id for outcome in await store.report("succeed", calls(others))} == set(ids[1:-1])
    assert (await store.fail(last, Failure("no", type="PermanentError"))).state == "dead"
    db.log_is_sound(*ids)
    for table, column in (("event", "job_id"), ("job_done", "id")):
        places = db.sql(f"select tableoid::regclass::text as place, {column} as id from tenure.{table}")
        assert all(place["place"] == f"tenure.{table}_{place['id'] // WIDTH}" for place in places)
        assert len({place["place"] for place in places}) == 2


async def test_batch_that_crosses_the_border_is_made_whole(store: Store, db: Harness) -> None:
    nearly_used_up(db, 3)
    made = await store.enqueue_many([NewJob("t", {"n": n}) for n in range(10)])
    ids = [one.job_id for one in made if isinstance(one, Enqueued)]
    payloads = {row["id"]: row["payload"] for row in db.sql("select id, payload from tenure.job")}
    assert [payloads[job_id] for job_id in ids] == [{"n": n} for n in range(10)]
    assert len(payloads) == 10
    ranges_are_whole(db)


async def test_many_callers_meet_the_border_at_once(store: Store, db: Harness, dsn: str) -> None:
    nearly_used_up(db, 3)

    async def one() -> list[int]:
        async with Store.open(dsn) as opened:
            return [(await opened.enqueue(NewJob("t"))).job_id for _ in range(3)]

    made = await asyncio.gather(*(one() for _ in range(8)))
    assert len({job_id for ids in made for job_id in ids}) == 24
    ranges_are_whole(db)


def test_many_extend_at_once_and_each_range_is_made_once(db: Harness, dsn: str) -> None:
    before = len(ranges(db))

    def extend(_: int) -> int:
        with Harness(dsn) as other:
            return int(other.value("select tenure.extend_ranges(9)"))

    made = at_once(8, extend)
    assert sorted(made) == [0] * 7 + [5]
    assert len(ranges(db)) == before + 5
    ranges_are_whole(db)


async def test_extending_waits_for_no_open_transaction(store: Store, db: Harness, dsn: str) -> None:
    await store.enqueue(NewJob("t"))
    (job,) = await store.claim(worker="w")
    await store.succeed(job.held)
    with Harness(dsn) as other, other.connection.transaction():
        other.sql("select count(*) from tenure.event")
        other.sql("insert into tenure.job_done (id, contract, version, state, role, type, max_attempts) "
                  "values (7, 'standard', '1', 'dead', 'done', 't', 1)")  # fmt: skip
        assert await store.extend_ranges(6) == 2
    ranges_are_whole(db)


async def test_ids_taken_by_hand_do_not_outrun_the_ranges(store: Store, db: Harness) -> None:
    db.sql("select setval('tenure.job_id_seq', %s)", 3 * WIDTH)
    assert await store.extend_ranges() == 3
    assert ranges(db)[-1][1] == 8 * WIDTH
    ranges_are_whole(db)


def test_new_ranges_are_about_a_day_of_ids_wide(db: Harness) -> None:
    """Where four million jobs a day are made, ranges grow by steps to four million ids. They shrink as slowly."""
    unit = ID_UNIT

    def extended(ids_a_day: int) -> list[int]:
        end = last_id(db) + 1
        db.sql(
            "update tenure.range set made_at = clock_timestamp() - interval '1 day', given = %s",
            end - 1 - ids_a_day,
        )  # fmt: skip
        db.sql("select setval('tenure.job_id_seq', %s)", end - 1)
        db.sql("select tenure.extend_ranges(1)")
        return [(high - low) // unit for low, high in ranges(db) if low >= end]

    assert [extended(4 * unit) for _ in range(3)] == [[2], [4], [4]]
    assert [extended(2**40) for _ in range(6)] == [[8], [16], [32], [64], [128], [128]]
    assert [extended(1) for _ in range(2)] == [[64], [32]]


async def test_a_batch_over_many_ranges_that_meets_a_locked_row_says_what_it_moved(
    db: Harness, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.postgres.connect.LOCK_TIMEOUT_MS", 300)
    held = []
    async with Store.open(dsn) as store:
        for n in range(10):
            db.sql("select setval('tenure.job_id_seq', %s)", max(1, n * ID_UNIT))
            await store.extend_ranges(4)
            await store.enqueue(NewJob("t"))
            held += [job.held for job in await store.claim(worker="w")]
        with Harness(dsn) as other, other.connection.transaction(force_rollback=True):
            other.sql("select id from tenure.job where id = %s for update", held[-1].id)
            outcomes = await store.report("fail", calls(held, failures=[Failure("no", retryable=True)] * 10))
    assert [type(outcome) for outcome in outcomes] == [Moved] * 9 + [Busy]
