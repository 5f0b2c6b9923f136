"""Operations on many jobs: exactly the previewed ones, each once, whoever works, aborts, resumes or interferes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tenure.errors import BadInput, Busy, Refused
from tenure.jobs.job import Failure, Job, NewJob
from tenure.jobs.operation import Operation
from tenure.postgres import operation_batches
from tenure.postgres.store import Store
from tests.harness import Harness
from tests.postgres.test_letter_groups import broken, fail


async def jobs(store: Store, number: int = 5, contract: str = "standard", **job: Any) -> list[int]:
    """Queued jobs."""
    made = await store.enqueue_many([NewJob(job.get("type", "t"), {"n": n, "user": {"id": n}}, contract,
                                            queue=job.get("queue", "default")) for n in range(number)])  # fmt: skip
    return [one.job_id for one in made if one.job_id is not None]


async def claimed(store: Store, job_id: int, contract: str = "standard") -> Job:
    """A job that is claimed."""
    (job,) = await store.claim_by_id([job_id], worker="w", contract=contract)
    assert isinstance(job, Job)
    return job


async def retrying(store: Store, db: Harness, contract: str = "standard") -> int:
    """A job that waits for its retry."""
    (job_id,) = await jobs(store, 1, contract)
    job = await claimed(store, job_id, contract)
    await store.fail(job.held, Failure("odd", retryable=True))
    db.sql("update tenure.job set due_at = clock_timestamp() + interval '1 hour' where id = %s", job_id)
    return job_id


async def run(store: Store, kind: str, verb: str, query: str, actor: str = "ada", **options: Any) -> Operation:
    """A whole operation."""
    operation = await store.operations.preview(kind, verb, query, actor=actor, **options)
    if operation.state == "done":  # nothing matches
        return operation
    await store.operations.start(operation.id, actor=actor)
    await store.operations.work()
    return await store.operations.show(operation.id)


async def ends(store: Store, operation: Operation) -> dict[int, str | None]:
    """What became of each item: its code, or None if it is done."""
    items = await store.operations.items(operation.id, limit=1_000)
    assert {item.state for item in items} <= {"done", "skipped"}
    return {item.item_id: item.code for item in items}


async def test_exactly_the_previewed_jobs_are_cancelled_and_changed_ones_are_skipped(store: Store, db: Harness) -> None:
    ids = await jobs(store, 6)
    other = await jobs(store, 1, type="other")
    preview = await store.operations.preview("jobs", "cancel", "type:t", actor="ada", reason="a bad release")
    assert (preview.state, preview.total, preview.collected, preview.left) == ("preview", 6, True, 6)
    later = await jobs(store, 1)
    await claimed(store, ids[0])
    await store.cancel(ids[1], actor="bob")
    await store.change_queue([ids[2]], "slow", actor="bob")
    assert (await store.operations.work()).items == 0, "a preview does not run"
    await store.operations.start(preview.id, actor="eve")
    assert (await store.operations.work()).items == 6
    done = await store.operations.show(preview.id)
    assert (done.state, done.done, done.skipped, done.left) == ("done", 3, {"CHANGED": 3}, 0)
    assert await ends(store, done) == {**dict.fromkeys(ids[:3], "CHANGED"), **dict.fromkeys(ids[3:])}
    states = {job.id: job.state for job in await store.jobs([*ids, *other, *later])}
    assert [states[one] for one in (*ids, *other, *later)] == [
        "running", "cancelled", "queued", "cancelled", "cancelled", "cancelled", "queued", "queued"
    ]  # fmt: skip
    (row,) = db.log(ids[5])
    assert (row["actor"], row["reason"]) == ("eve", f"operation {preview.id}: a bad release")
    db.log_is_sound(*ids)
    with pytest.raises(Refused, match="started before"):
        await store.operations.start(preview.id, actor="ada")


async def test_letters_are_requeued_once_with_another_payload(store: Store, db: Harness) -> None:
    letters = await fail(store, [broken("send", n) for n in range(4)])
    preview = await store.operations.preview(
        "dead_letters", "requeue", "type:mail.send", actor="ada", changes=[[["user", "id"], 7], [["n"], "x"]]
    )
    await store.letters.requeue(letters[0], actor="bob")
    await store.operations.start(preview.id, actor="ada")
    await store.operations.work()
    done = await store.operations.show(preview.id)
    assert (done.done, done.skipped) == (3, {"REQUEUE_CONFLICT": 1}), "run again already is counted apart"
    made = {item.item_id: item.made for item in await store.operations.items(done.id, state="done")}
    for letter in letters[1:]:
        shown = await store.letters.show(letter)
        assert (shown.status, shown.requeued_as, shown.requeued_by) == ("requeued", made[letter], "ada")
        (job,) = await store.jobs([made[letter] or 0])
        assert (job.payload, job.origin_letter, job.state) == ({"n": "x", "user": {"id": 7}}, letter, "queued")
    assert db.value("select count(*) from tenure.job") == 4
    again = await run(store, "dead_letters", "requeue", "type:mail.send")
    assert again.total == 0


async def test_finished_jobs_are_run_again_once_through_their_letter_if_they_have_one(
    store: Store, db: Harness
) -> None:
    ids = await jobs(store, 3)
    for job_id in ids[:2]:
        await store.succeed((await claimed(store, job_id)).held)
    (letter,) = await fail(store, [broken("send")], type="t")
    done = await run(store, "jobs", "requeue", "type:t", payload={"all": "new"})
    assert (done.total, done.done) == (3, 3)
    dead = (await store.letters.show(letter)).job_id
    assert (await store.letters.show(letter)).status == "requeued"
    for job_id in (*ids[:2], dead):
        again, _ = await store.reruns(job_id)
        (job,) = await store.jobs([again or 0])
        assert job.payload == {"all": "new"}
    second = await run(store, "jobs", "requeue", "type:t")
    assert (second.total, second.run_again) == (0, 3)


async def test_waiting_jobs_are_moved_to_another_queue(store: Store) -> None:
    ids = await jobs(store, 3)
    await claimed(store, ids[0])
    done = await run(store, "jobs", "move", "type:t", queue="slow")
    assert (done.total, done.done) == (2, 2)
    assert [job.queue for job in await store.jobs(ids)] == ["default", "slow", "slow"]


@pytest.mark.req("S3-08")
async def test_a_retry_comes_now_unless_the_contract_forbids_it(store: Store, db: Harness) -> None:
    ids = {
        contract: await retrying(store, db, contract) for contract in ("standard", "gate_b2", "dispatcher", "simple")
    }
    before = db.row(ids["simple"])["due_at"]
    fresh = (await store.enqueue(NewJob("t", delay_ms=60_000))).job_id
    done = await run(store, "jobs", "retry_now", "type:t", reason="the mail server is back")
    assert (done.total, done.done, done.skipped) == (4, 3, {"EARLY_RETRY": 1})
    assert fresh not in await ends(store, done), "a job that never ran waits for no retry"
    (never,) = await store.retry_now([fresh or 0], actor="ada")
    assert isinstance(never, Refused)
    assert never.reason_code == "NOT_RETRYING"
    assert db.row(ids["simple"])["due_at"] == before
    for contract in ("standard", "gate_b2", "dispatcher"):
        assert db.value("select due_at <= clock_timestamp() from tenure.job where id = %s", ids[contract])
        last = db.log(ids[contract])[-1]
        assert (last["trigger"], last["hop"], last["actor"]) == ("retried_now", False, "ada")
        assert last["reason"] == f"operation {done.id}: the mail server is back"
    db.log_is_sound(*ids.values())
    codes = [str(getattr(one, "reason_code", one)) for one in await store.retry_now(list(ids.values()), actor="ada")]
    assert codes == ["ALREADY_DUE", "ALREADY_DUE", "ALREADY_DUE", "EARLY_RETRY"]
    assert db.row(ids["simple"])["due_at"] == before


@pytest.mark.req("S4-32")
async def test_many_discards_need_two_people_where_the_contract_says_so(store: Store, db: Harness) -> None:
    letters = await fail(store, [broken("send", n) for n in range(3)], "gate_b2")
    alone = await fail(store, [broken("send")])
    asked = await run(store, "dead_letters", "discard", "reason:permanent_error", "ada", reason="spam")
    asked = await run(store, "dead_letters", "discard", "contract:gate_b2", "ada", reason="spam")
    assert (asked.total, asked.done) == (3, 3)
    assert {(await store.letters.show(one)).status for one in letters} == {"open"}
    assert {(await store.letters.show(one)).status for one in alone} == {"discarded"}
    same = await run(store, "dead_letters", "approve", "contract:gate_b2", " ADA ")
    assert (same.done, same.skipped) == (0, {"APPROVAL_REQUIRED": 3})
    approved = await run(store, "dead_letters", "approve", "contract:gate_b2", "bob")
    assert (approved.total, approved.done) == (3, 3)
    for one in letters:
        letter = await store.letters.show(one)
        assert (letter.status, letter.discard_asked_by, letter.discard_approved_by, letter.discard_reason) == (
            "discarded", "ada", "bob", "spam"
        )  # fmt: skip


async def test_what_the_database_refuses_stops_no_other_item(store: Store, db: Harness) -> None:
    letters = await fail(store, [broken("send", n) for n in range(4)])
    db.sql("update tenure.dead_letter set payload = '[1]' where id = %s", letters[1])
    db.sql("update tenure.dead_letter set payload = null where id = %s", letters[2])
    done = await run(store, "dead_letters", "requeue", "", changes=[[["n", "deep"], 1]])
    assert done.state == "done"
    assert await ends(store, done) == dict.fromkeys(letters, "NOT_POSSIBLE") | {letters[2]: "NO_PAYLOAD"}
    done = await run(store, "dead_letters", "requeue", "", changes=[[["x", "deep"], 1]])
    assert await ends(store, done) == {
        letters[0]: None, letters[1]: "NOT_POSSIBLE", letters[2]: "NO_PAYLOAD", letters[3]: None
    }  # fmt: skip


async def test_the_item_that_was_refused_is_left_out_and_no_other(
    store: Store, db: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    letters = await fail(store, [broken("send", n) for n in range(3)])
    db.sql("update tenure.dead_letter set payload = '[1]' where id = %s", letters[0])
    skip = operation_batches._skip

    async def another_process_works_on_it(*call: Any) -> operation_batches.Batch:
        with db.connection.transaction():
            db.sql("select from tenure.operation_item where item_id = %s for update", letters[0])
            return await skip(*call)

    monkeypatch.setattr(operation_batches, "_skip", another_process_works_on_it)
    operation = await store.operations.preview("dead_letters", "requeue", "", actor="ada", changes=[[["x"], 1]])
    await store.operations.start(operation.id, actor="ada")
    assert (await store.operations.work()).items == 2
    monkeypatch.setattr(operation_batches, "_skip", skip)
    await store.operations.work()
    assert await ends(store, operation) == {letters[0]: "NOT_POSSIBLE", letters[1]: None, letters[2]: None}


async def test_nothing_is_left_out_behind_an_abort(store: Store, db: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    letters = await fail(store, [broken("send")])
    db.sql("update tenure.dead_letter set payload = '[1]' where id = %s", letters[0])
    skip = operation_batches._skip

    async def behind_an_abort(*call: Any) -> operation_batches.Batch:
        await store.operations.abort(operation.id, actor="bob")
        return await skip(*call)

    monkeypatch.setattr(operation_batches, "_skip", behind_an_abort)
    operation = await store.operations.preview("dead_letters", "requeue", "", actor="ada", changes=[[["x"], 1]])
    await store.operations.start(operation.id, actor="ada")
    await store.operations.work()
    assert [item.state for item in await store.operations.items(operation.id)] == ["waiting"]


async def test_items_of_a_contract_that_is_unknown_here_stop_no_other(store: Store, db: Harness) -> None:
    letters = await fail(store, [broken("send", n) for n in range(3)])
    db.sql("update tenure.dead_letter set contract = 'later' where id = %s", letters[0])
    done = await run(store, "dead_letters", "requeue", "")
    assert await ends(store, done) == {letters[0]: "UNKNOWN_VERSION", letters[1]: None, letters[2]: None}
    done = await run(store, "dead_letters", "discard", "", reason="spam")
    assert await ends(store, done) == {letters[0]: "UNKNOWN_VERSION"}


async def test_an_operation_that_fails_stops_no_other(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    await jobs(store, 2)
    run_batch = operation_batches.run_batch

    async def locked(engine: Any, operation_id: int, *rest: Any) -> operation_batches.Batch:
        if operation_id == first.id:
            raise Busy(None)
        return await run_batch(engine, operation_id, *rest)

    monkeypatch.setattr("tenure.postgres.operations.run_batch", locked)
    first, second = [await store.operations.preview("jobs", "cancel", "type:t", actor="ada") for _ in range(2)]
    for operation in first, second:
        await store.operations.start(operation.id, actor="ada")
    worked = await store.operations.work()
    assert worked.items == 2
    assert [trouble.partition(":")[0] for trouble in worked.troubles] == [f"operation {first.id}"]
    with pytest.raises(Busy):
        await store.operations.work(first.id)


async def test_a_limit_of_speed_holds_for_all_processes_together(store: Store, db: Harness) -> None:
    ids = await jobs(store, 7)
    operation = await store.operations.preview("jobs", "cancel", "type:t", actor="ada", per_second=2)
    await store.operations.start(operation.id, actor="ada")
    worked = await asyncio.gather(*(store.operations.work() for _ in range(3)))
    assert sum(one.items for one in worked) <= 6, "two now, and what may be caught up for a second"
    done = db.value("select count(*) from tenure.job_done")
    assert db.value("select next_at > clock_timestamp() from tenure.operation")
    assert (await store.operations.work()).items == 0
    db.sql("update tenure.operation set next_at = clock_timestamp()")
    assert (await store.operations.work(batches=1)).items == 2
    assert db.value("select count(*) from tenure.job_done") == done + 2
    for _ in ids:
        db.sql("update tenure.operation set next_at = clock_timestamp()")
        await store.operations.work()
    assert (await store.operations.show(operation.id)).state == "done"


async def test_several_processes_an_abort_and_a_resume_do_each_item_once(store: Store, db: Harness) -> None:
    letters = await fail(store, [broken("send", n) for n in range(60)])
    operation = await store.operations.preview("dead_letters", "requeue", "", actor="ada")
    await store.operations.start(operation.id, actor="ada")
    workers = [asyncio.create_task(store.operations.work(size=3)) for _ in range(3)]
    while not await asyncio.to_thread(db.value, "select count(*) from tenure.operation_batch"):
        pass
    aborted = await store.operations.abort(operation.id, actor="bob")
    made = db.value("select count(*) from tenure.job")
    assert (aborted.state, aborted.aborted_by, aborted.done, aborted.left) == ("aborted", "bob", made, 60 - made)
    await asyncio.gather(*workers)
    await store.operations.work()
    assert db.value("select count(*) from tenure.job") == made, "nothing is done after the abort"
    with pytest.raises(Refused, match="does not run"):
        await store.operations.abort(operation.id, actor="bob")
    await store.operations.resume(operation.id, actor="eve")
    await asyncio.gather(*(store.operations.work(size=4) for _ in range(3)))
    await store.operations.work()
    done = await store.operations.show(operation.id)
    assert (done.state, done.done, done.started_by, done.aborted_by) == ("done", 60, "eve", None)
    assert db.value("select count(distinct origin_letter) from tenure.job") == 60 == len(letters)
    assert db.value("select count(*) from tenure.job") == 60


async def test_a_locked_job_is_left_for_later(store: Store, db: Harness) -> None:
    ids = await jobs(store, 3)
    operation = await store.operations.preview("jobs", "cancel", "type:t", actor="ada")
    await store.operations.start(operation.id, actor="ada")
    with db.connection.transaction():
        db.sql("select from tenure.job where id = %s for update", ids[1])
        assert (await store.operations.work()).items == 2
        assert (await store.operations.show(operation.id)).state == "running"
    assert (await store.operations.work()).items == 1
    assert (await store.operations.show(operation.id)).state == "done"


async def test_a_preview_of_many_rows_is_collected_in_parts(
    store: Store, db: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.postgres.operations._PAGE", 2)
    monkeypatch.setattr("tenure.postgres.operations._PAGES", 2)
    ids = await jobs(store, 7)
    operation = await store.operations.preview("jobs", "cancel", "type:t", actor="ada")
    assert (operation.total, operation.collected) == (4, False)
    with pytest.raises(Refused, match="not complete"):
        await store.operations.start(operation.id, actor="ada")
    operation = await store.operations.collect(operation.id)
    assert (operation.total, operation.collected) == (7, True)
    assert [item.item_id for item in await store.operations.items(operation.id)] == ids


async def test_old_operations_and_previews_are_deleted(store: Store, db: Harness) -> None:
    await jobs(store, 3)
    done = await run(store, "jobs", "cancel", "type:t")
    await jobs(store, 2)
    preview = await store.operations.preview("jobs", "cancel", "type:t", actor="ada")
    await store.operations.forget(3_600)
    assert [one.id for one in await store.operations.list()] == [preview.id, done.id]
    db.sql(
        "update tenure.operation "
        "set ended_at = ended_at - interval '2 hours', created_at = created_at - interval '2 days'"
    )
    await store.operations.forget(3_600)
    assert await store.operations.list() == []
    assert db.value("select count(*) from tenure.operation_item") == 0
    with pytest.raises(Refused, match=f"no operation {done.id}"):
        await store.operations.show(done.id)


@pytest.mark.parametrize(
    ("kind", "verb", "options", "why"),
    [
        ("tasks", "cancel", {}, "about jobs or dead_letters"), ("jobs", "discard", {}, "cancel, requeue, move"),
        ("jobs", "move", {}, "needs a queue"), ("jobs", "cancel", {"queue": "x"}, "takes no queue"),
        ("jobs", "cancel", {"mode": "nicely"}, "soft or hard"), ("dead_letters", "discard", {}, "needs a reason"),
        ("jobs", "requeue", {"changes": [["", 1]]}, "pairs of a path"), ("jobs", "cancel", {"per_second": 0}, "within"),
        ("jobs", "requeue", {"changes": [[["a"], 1]], "payload": {}}, "not both"),
        ("jobs", "cancel", {"query": "nope"}, "'nope' at character 1"),
        ("dead_letters", "requeue", {"query": "status:discarded"}, "only open dead letters"),
    ],
)  # fmt: skip
async def test_an_operation_that_cannot_be_meant_is_refused(
    store: Store, kind: str, verb: str, options: dict[str, Any], why: str
) -> None:
    with pytest.raises(BadInput, match=why):
        await store.operations.preview(kind, verb, options.pop("query", ""), actor="ada", **options)


async def test_an_operation_of_a_tenant_touches_no_other(store: Store) -> None:
    mine = await fail(store, [broken("send")], tenant="acme")
    await fail(store, [broken("send")], tenant="zeta")
    operation = await store.operations.preview("dead_letters", "requeue", "", actor="ada", tenant_id="acme")
    assert [item.item_id for item in await store.operations.items(operation.id)] == mine
    with pytest.raises(BadInput, match="bound to 'acme'"):
        await store.operations.preview("dead_letters", "requeue", "tenant:zeta", actor="ada", tenant_id="acme")
    assert [one.id for one in await store.operations.list(tenant_id="acme")] == [operation.id]
    with pytest.raises(Refused, match="there is no operation"):
        await store.operations.show(operation.id, tenant_id="zeta")
