"""Outputs are committed with the completion of their job, once, or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from tenure.contracts import BUILT_IN
from tenure.errors import BadInput, Busy, DatasetConflict, DatasetNotFound, IdempotencyConflict, Refused, StaleLease
from tenure.jobs.dataset import Append, DatasetEvent, NewDataset, Output, Pointer, Replace, row_keys
from tenure.jobs.holder_call import HolderCall
from tenure.jobs.job import DatasetUse, Job, NewJob
from tenure.jobs.outcome import Moved
from tenure.postgres import connect
from tenure.postgres.callers_transaction import CallersTransaction
from tenure.postgres.registry import Registry
from tenure.postgres.store import Store
from tests.flow_nodes import claim_all, fail
from tests.harness import Harness

PRICES = DatasetUse("prices")
ROWS = [{"id": "a", "v": 1}, {"id": "b", "v": 2}]
KEYS = row_keys(ROWS, "id")
ALL = Append("prices", ROWS, KEYS)


async def held_job(store: Store, contract: str = "standard", **more: Any) -> Job:
    """A held job that writes prices."""
    await store.datasets.declare(NewDataset("prices"))
    await store.enqueue(NewJob("t", contract=contract, writes=(PRICES,), **more))
    (job,) = await claim_all(store, contract)
    return job


async def complete(store: Store, job: Job, *outputs: Output, key: str | None = None, **more: Any) -> Moved:
    moved: Moved = await store.report_one("succeed", HolderCall(job.held, key, outputs=outputs, **more))
    return moved


async def values(store: Store, number: int = 1, scope: str | None = None, page: int = 1_000) -> list[Any]:
    """The rows of a generation of prices."""
    generation = await store.datasets.generation("prices", number)
    return [row.value async for row in store.datasets.rows(generation.id, scope, page=page)]


def traces(db: Harness) -> dict[str, int]:
    """How many rows the tables of datasets have that a completion writes."""
    names = ("row", "scope", "batch", "output", "event", "delivery")
    return {name: db.value(f"select count(*) from tenure.dataset_{name}") for name in names}


NOTHING = dict.fromkeys(("row", "scope", "batch", "output", "event", "delivery"), 0)


@pytest.mark.req("S1-09")
@pytest.mark.parametrize("contract", BUILT_IN)
async def test_appended_rows_are_added_once(store: Store, db: Harness, contract: str) -> None:
    first = await held_job(store, contract)
    await complete(store, first, ALL)
    second = await held_job(store, contract)
    more = [*ROWS, {"id": "c", "v": 3}]
    await complete(store, second, Append("prices", more, row_keys(more, "id")))
    assert await values(store) == more
    (output,) = await store.datasets.outputs(second.id)
    assert (output.kind, output.given, output.row_count, output.generation) == ("append", 3, 1, 1)


@pytest.mark.req("S1-09")
async def test_an_attempt_that_runs_again_adds_nothing(store: Store, db: Harness) -> None:
    job = await held_job(store)
    stage = await store.datasets.stage(job.held, "prices", ROWS, KEYS)
    db.expire(job.id)
    await store.reap("standard")
    db.due(job.id)
    (again,) = await claim_all(store)
    with pytest.raises(DatasetConflict, match="has staged no rows"):
        await complete(store, again, Append("prices", staged=stage))
    await complete(store, again, ALL)
    assert await values(store) == ROWS


@pytest.mark.req("S1-10")
@pytest.mark.parametrize("contract", BUILT_IN)
async def test_a_replace_replaces_exactly_its_scope(store: Store, contract: str) -> None:
    first = await held_job(store, contract)
    await complete(
        store, first, Replace("prices", "may", [1, 2, 3]), Replace("prices", "june", [9], ["z"]), ALL
    )  # fmt: skip
    second = await held_job(store, contract)
    await complete(store, second, Replace("prices", "may", [4]))
    assert await values(store) == [*ROWS, 9, 4]
    assert await values(store, scope="may") == [4]
    assert await values(store, scope="june") == [9]
    assert await values(store, scope="") == ROWS
    assert await values(store, scope="july") == []
    third = await held_job(store, contract)
    await complete(store, third, Replace("prices", "may"))
    assert await values(store, scope="may") == []


@pytest.mark.req("S1-10")
async def test_an_attempt_that_dies_leaves_the_old_content(store: Store, db: Harness) -> None:
    await complete(store, await held_job(store), Replace("prices", "may", [1, 2, 3]))
    job = await held_job(store)
    await store.datasets.stage(job.held, "prices", [7])
    db.expire(job.id)
    await store.reap("standard")
    assert await values(store) == [1, 2, 3]
    db.due(job.id)
    (again,) = await claim_all(store)
    staged = await store.datasets.stage(again.held, "prices", [8])
    assert await store.datasets.stage(again.held, "prices", [9], staged=staged) == staged
    assert await values(store) == [1, 2, 3]
    await complete(store, again, Replace("prices", "may", staged=staged))
    assert await values(store) == [8, 9]


async def test_pointers_say_where_the_data_is(store: Store) -> None:
    first = await held_job(store)
    await complete(store, first, Pointer("prices", "s3://old", "7", 3), Pointer("prices", "s3://may", scope="may"))
    second = await held_job(store)
    await complete(store, second, Pointer("prices", "s3://new"), Replace("prices", "may", [1]))
    generation = await store.datasets.generation("prices", 1)
    (pointer,) = await store.datasets.pointers(generation.id)
    assert (pointer.scope, pointer.location, pointer.cursor, pointer.row_count, pointer.job_id) == (
        "all", "s3://new", None, None, second.id,
    )  # fmt: skip
    assert await values(store) == [1]
    assert [one.location for one in await store.datasets.outputs(first.id)] == ["s3://old", "s3://may"]


@pytest.mark.req("S1-11")
@pytest.mark.parametrize("contract", BUILT_IN)
async def test_a_zombie_changes_nothing(store: Store, db: Harness, contract: str) -> None:
    await complete(store, await held_job(store, contract), Replace("prices", "may", [1]))
    before = traces(db)
    zombie = await held_job(store, contract)
    db.sql("update tenure.job set lease_token = gen_random_uuid(), claims = claims + 1")
    outputs = (ALL, Replace("prices", "may", [2]), Pointer("prices", "s3://x"))
    for given in (outputs, ()):
        with pytest.raises(StaleLease):
            await complete(store, zombie, *given, dataset_events=[DatasetEvent("prices", cursor="1")])
    with pytest.raises(StaleLease):
        await store.datasets.stage(zombie.held, "prices", [3])
    assert traces(db) == before
    assert await values(store) == [1]


async def test_an_output_to_another_dataset_keeps_the_job_running(store: Store, db: Harness) -> None:
    job = await held_job(store)
    await store.datasets.declare(NewDataset("rates"))
    outputs: Sequence[Output] = (Append("rates"), Append("no"), Replace("rates", "may"))
    for output in outputs:
        with pytest.raises(DatasetConflict, match="does not write"):
            await complete(store, job, ALL, output)
    for event in (DatasetEvent("rates", cursor=1), DatasetEvent("no", cursor=1), DatasetEvent("prices", 7, cursor=1)):
        with pytest.raises((DatasetConflict, DatasetNotFound)):
            await complete(store, job, ALL, dataset_events=[event])
    assert traces(db) == NOTHING
    assert db.row(job.id)["role"] == "active"
    await complete(store, job, ALL)


@pytest.mark.parametrize(
    "outputs",
    [
        [Append("prices", [1], [])], [Append("prices", [1, 2], ["a", "a"])], [Replace("prices", "")],
        [Replace("prices", "may"), Pointer("prices", "s3://x", scope="may")], [Append("prices", ["\x00"], ["a"])],
        [Append("prices", [1], ["a"], staged=1)], ["prices"], [Pointer("prices", "")],
    ],
)  # fmt: skip
async def test_bad_outputs_are_refused_before_anything_is_written(
    store: Store, db: Harness, outputs: Sequence[Any]
) -> None:
    job = await held_job(store)
    with pytest.raises(BadInput):
        await complete(store, job, *outputs)
    assert traces(db) == NOTHING


async def test_calls_with_outputs_in_a_batch_are_answered_one_by_one(store: Store, db: Harness) -> None:
    jobs = [await held_job(store) for _ in range(4)]
    db.sql("update tenure.job set lease_token = gen_random_uuid() where id = %s", jobs[2].id)
    outputs: list[Output] = [ALL, Append("rates", [1], ["a"]), ALL, Replace("prices", "may", [5])]
    answers = await store.report(
        "succeed", [HolderCall(job.held, outputs=[one]) for job, one in zip(jobs, outputs, strict=True)]
    )
    assert [type(one).__name__ for one in answers] == ["Moved", "DatasetConflict", "StaleLease", "Moved"]
    assert await values(store) == [*ROWS, 5]
    (answer,) = await store.report("succeed", [HolderCall(jobs[1].held, outputs=[outputs[1]])])
    assert isinstance(answer, Refused)


async def test_a_repeated_key_adds_nothing_and_another_output_conflicts(store: Store, db: Harness) -> None:
    job = await held_job(store)
    event = DatasetEvent("prices", cursor="1")
    first = await complete(store, job, ALL, key="k", dataset_events=[event])
    before = traces(db)
    assert await complete(store, job, ALL, key="k", dataset_events=[event]) == first
    for outputs, events in (([Append("prices", ROWS[:1], KEYS[:1])], [event]), ([ALL], [])):
        with pytest.raises(IdempotencyConflict):
            await complete(store, job, *outputs, key="k", dataset_events=events)
    assert traces(db) == before


async def test_a_failure_adds_nothing(store: Store, db: Harness) -> None:
    job = await held_job(store)
    await store.datasets.stage(job.held, "prices", ROWS, KEYS)
    await fail(store, job)
    assert await values(store) == []


async def test_rows_that_others_staged_are_not_taken(store: Store) -> None:
    one, other = await held_job(store), await held_job(store)
    staged = await store.datasets.stage(one.held, "prices", ROWS, KEYS)
    outputs: Sequence[Output] = (Append("prices", staged=staged), Replace("prices", "may", staged=staged))
    for output in outputs:
        with pytest.raises(DatasetConflict):
            await complete(store, other, output)
    with pytest.raises(DatasetConflict):
        await store.datasets.stage(other.held, "prices", [1], staged=staged)
    await complete(store, one, Append("prices", staged=staged))
    assert await values(store) == ROWS


async def test_staged_rows_are_counted(store: Store, db: Harness) -> None:
    job = await held_job(store)
    staged = await store.datasets.stage(job.held, "prices", ROWS, KEYS)
    await store.datasets.stage(job.held, "prices", [*ROWS, 7], [*KEYS, "z"], staged=staged)
    assert db.value("select rows from tenure.dataset_batch") == 3
    await complete(store, job, Replace("prices", "may", staged=staged))
    (output,) = await store.datasets.outputs(job.id)
    assert (output.kind, output.scope, output.row_count, output.given) == ("replace", "may", 3, 3)


async def test_pages_go_on_where_the_last_one_ended_whatever_was_replaced(store: Store) -> None:
    scopes = [Replace("prices", f"{n}", [[n, m] for m in range(n)]) for n in range(6)]
    await complete(store, await held_job(store), ALL, *scopes)
    expected = [*ROWS, *([n, m] for n in range(6) for m in range(n))]
    for page in (1, 2, 3, 5, 16, 17, 18, 1_000):
        assert await values(store, page=page) == expected
        assert await values(store, scope="4", page=page) == [[4, m] for m in range(4)]
    generation = await store.datasets.generation("prices", 1)
    begun = await store.datasets.page(generation.id, limit=14)
    assert begun.rows[-1].value == [5, 1]
    await complete(store, await held_job(store), Replace("prices", "5", ["new"]), Replace("prices", "6", ["six"]))
    rest = await store.datasets.page(generation.id, after=begun.next)
    assert [row.value for row in rest.rows] == [[5, 2], [5, 3], [5, 4], "six"]
    assert rest.next is None


async def test_rows_of_any_size_are_carried_in_parts(store: Store) -> None:
    text = "x" * 900_000
    job = await held_job(store)
    rows = [text + str(n) for n in range(40)]
    await complete(
        store, job, Append("prices", rows, [f"{39 - n:02}" for n in range(40)]), Replace("prices", "may", rows)
    )
    found = await values(store)
    assert [value[-2:].lstrip("x") for value in found] == [str(n) for n in [*reversed(range(40)), *range(40)]]


@pytest.mark.parametrize(
    ("given", "output"),
    [
        (Replace("prices", "may", [1]), Replace("prices", "may", [2])),
        (Append("prices", [1], ["a"]), Append("prices", [2], ["a"])),
    ],
)
async def test_a_completion_waits_for_an_open_one_that_writes_the_same(
    store: Store, dsn: str, monkeypatch: pytest.MonkeyPatch, given: Output, output: Output
) -> None:
    first, second = await held_job(store), await held_job(store)
    transaction = CallersTransaction(Registry(), 1_000_000, wake=False)
    monkeypatch.setattr(connect, "LOCK_TIMEOUT_MS", 100)
    async with Store.open(dsn) as impatient:
        with psycopg.connect(dsn) as connection:
            call = HolderCall(first.held, outputs=[given])
            transaction.run(connection, transaction.succeed(call), "complete_in")
            with pytest.raises(Busy):
                await complete(impatient, second, output)
            assert await values(store) == []
            connection.commit()
    assert await values(store) == [1]
    await complete(store, second, output)
    assert await values(store) == [2 if isinstance(output, Replace) else 1]


async def test_outputs_in_the_callers_transaction_end_with_it(store: Store, dsn: str, db: Harness) -> None:
    job = await held_job(store)
    transaction = CallersTransaction(Registry(), 1_000_000, wake=False)
    call = HolderCall(job.held, outputs=[ALL, Replace("prices", "may", [1])])
    with psycopg.connect(dsn) as connection:
        transaction.run(connection, transaction.succeed(call), "complete_in")
        connection.rollback()
        assert traces(db) == NOTHING
        transaction.run(connection, transaction.succeed(call), "complete_in")
        connection.commit()
    assert await values(store) == [*ROWS, 1]
    assert db.row(job.id)["role"] == "done"


@pytest.mark.req("S1-51", "S1-52")
async def test_events_are_stored_with_the_completion_and_say_what_they_are_about(store: Store, db: Harness) -> None:
    job = await held_job(store)
    dataset = await store.datasets.find("prices")
    await store.datasets.declare(NewDataset("theirs", tenant_id="acme"))
    foreign = (await store.datasets.find("theirs", tenant_id="acme")).uuid
    await store.datasets.new_generation("prices")
    events = [
        DatasetEvent("prices", cursor=7), DatasetEvent(dataset.uuid, 2, partition_key="may", start=1, end=2),
        DatasetEvent(uuid4(), 1, cursor="x"), DatasetEvent(foreign, 1, cursor="x"),
    ]  # fmt: skip
    await complete(store, job, dataset_events=events)
    rows = db.sql(
        "select g.number, e.input, e.job_id, e.open from tenure.dataset_event e "
        "join tenure.dataset_generation g on g.id = e.generation_id order by e.id"
    )
    assert [tuple(row.values()) for row in rows] == [
        (1, {"cursor": 7}, job.id, 0), (2, {"partition_key": "may", "start": 1, "end": 2}, job.id, 0),
    ]  # fmt: skip


async def test_staged_rows_that_are_sent_again_are_staged_once(store: Store, db: Harness) -> None:
    job = await held_job(store)
    stage = store.datasets.stage_rows
    number, count = await stage(job.held, "prices", ["a", "b"])
    assert count == 2
    assert await stage(job.held, "prices", ["c", "d"], staged=number, first=2) == (number, 4)
    assert await stage(job.held, "prices", ["c", "d"], staged=number, first=2) == (number, 4)
    assert await stage(job.held, "prices", ["d", "e"], staged=number, first=3) == (number, 5)
    assert await stage(job.held, "prices", [], staged=number) == (number, 5)
    with pytest.raises(DatasetConflict, match="5 rows are staged"):
        await stage(job.held, "prices", ["x"], staged=number, first=6)
    await complete(store, job, Replace("prices", "may", staged=number))
    assert await values(store) == ["a", "b", "c", "d", "e"]


async def test_a_cursor_of_another_generation_reads_nothing(store: Store, db: Harness) -> None:
    await complete(store, await held_job(store), Replace("prices", "may", [1, 2, 3]))
    page = await store.datasets.page((await store.datasets.generation("prices", 1)).id, limit=1)
    other = await store.datasets.declare(NewDataset("other", "acme"))
    with pytest.raises(BadInput, match="another generation"):
        await store.datasets.page(other.id, after=page.next)
    job = await held_job(store)
    staged = await store.datasets.stage(job.held, "prices", ["secret"])
    with pytest.raises(BadInput, match="another generation"):
        await store.datasets.page((await store.datasets.generation("prices", 1)).id, after=f'["may", {staged}, ""]')
