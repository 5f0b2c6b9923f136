"""Jobs that were run again already: left out of previews, skipped by operations, and repeated only on purpose."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from tenure.errors import BadInput, IdempotencyConflict, JobNotFound, Refused, RunAgainAlready
from tenure.jobs.job import Failure
from tenure.jobs.operation_summary import Found, add_found, top
from tenure.jobs.search import parse
from tenure.postgres import operation_requeues
from tenure.postgres.store import Store
from tests.harness import Harness
from tests.postgres.test_letter_groups import broken, fail
from tests.postgres.test_operations import claimed, ends, jobs, run


async def succeeded(store: Store, number: int) -> list[int]:
    """Jobs that have succeeded."""
    ids = await jobs(store, number)
    for job_id in ids:
        await store.succeed((await claimed(store, job_id)).held)
    return ids


async def finish(store: Store, *ids: int) -> None:
    """Let these jobs succeed."""
    for job_id in ids:
        await store.succeed((await claimed(store, job_id)).held)


async def test_a_second_path_to_repaired_jobs_offers_none_and_says_who_ran_them_again(
    store: Store, db: Harness
) -> None:
    letters = await fail(store, [broken("send", n) for n in range(4)], type="t")
    first = await run(store, "dead_letters", "requeue", "")
    assert first.done == 4
    dead = [(await store.letters.show(letter)).job_id for letter in letters]
    again = await store.operations.preview("jobs", "requeue", "state:dead type:t", actor="bob")
    newest = (await store.letters.show(letters[-1])).requeued_as
    assert (again.state, again.total, again.run_again) == ("done", 0, 4)
    left_out = again.summary["run_again"]
    assert (left_out["operation"], len(left_out["samples"])) == (str(first.id), 3)
    assert {"id": str(dead[-1]), "requeued_as": str(newest)} in left_out["samples"]
    assert [one.id for one in await store.operations.list()] == [first.id], "a preview of nothing is not stored"
    assert db.value("select count(*) from tenure.job") == 4


async def test_a_job_that_is_run_again_behind_the_preview_is_skipped_apart_from_the_changed(
    store: Store, db: Harness
) -> None:
    plain = await succeeded(store, 2)
    (letter,) = await fail(store, [broken("send")], type="t")
    dead = (await store.letters.show(letter)).job_id
    preview = await store.operations.preview("jobs", "requeue", "type:t", actor="ada")
    assert preview.total == 3
    made = [await store.requeue(job_id, actor="bob") for job_id in (plain[0], dead)]
    await store.operations.start(preview.id, actor="ada")
    await store.operations.work()
    assert await ends(store, preview) == {plain[0]: "REQUEUE_CONFLICT", plain[1]: None, dead: "REQUEUE_CONFLICT"}
    whys = [item.why or "" for item in await store.operations.items(preview.id, state="skipped")]
    assert [f"already run again as job {one};" in why for one, why in zip(made, whys, strict=True)] == [True, True]
    assert db.value("select count(*) from tenure.job") == 3


@pytest.mark.parametrize("with_letter", [False, True])
async def test_again_runs_the_newest_run_and_only_when_it_has_finished(
    store: Store, db: Harness, with_letter: bool
) -> None:
    if with_letter:
        (letter,) = await fail(store, [broken("send")])
        old = (await store.letters.show(letter)).job_id
    else:
        (old,) = await succeeded(store, 1)
    first = await store.requeue(old, actor="ada")
    with pytest.raises(RunAgainAlready, match="--again") as refusal:
        await store.requeue(old, actor="bob")
    assert refusal.value.requeued_as == first
    with pytest.raises(Refused, match=f"job {first} is not finished"):
        await store.requeue(old, actor="bob", again=True)
    await finish(store, first)
    second = await store.requeue(old, actor="bob", again=True, key="k")
    assert await store.reruns(second) == (None, first), "the new job points back to the one before"
    assert await store.requeue(old, actor="bob", again=True, key="k") == second, "a repeated call repeats its answer"
    with pytest.raises(IdempotencyConflict):
        await store.requeue(old, actor="bob", key="k")
    await finish(store, second)
    if with_letter:
        third = await store.letters.requeue(letter, actor="bob", again=True)
        assert await store.reruns(third) == (None, second)
        with pytest.raises(Refused, match="is not finished"):
            await store.letters.requeue(letter, actor="bob", again=True)
    assert db.value("select count(*) from tenure.job") == int(with_letter)
    with pytest.raises(BadInput, match="again must be"):
        await store.requeue(old, actor="bob", again="yes")  # type: ignore[arg-type]


async def test_again_of_a_run_that_is_no_longer_stored_is_refused(store: Store, db: Harness) -> None:
    (old,) = await succeeded(store, 1)
    first = await store.requeue(old, actor="ada")
    db.sql("delete from tenure.job where id = %s", first)
    with pytest.raises(JobNotFound, match=f"{first}"):
        await store.requeue(old, actor="ada", again=True)


async def test_eight_repeats_at_once_make_one_job(store: Store, db: Harness) -> None:
    (old,) = await succeeded(store, 1)
    await finish(store, await store.requeue(old, actor="ada"))
    answers = await asyncio.gather(*(store.requeue(old, actor="ada", again=True) for _ in range(8)),
                                   return_exceptions=True)  # fmt: skip
    assert len([one for one in answers if isinstance(one, int)]) == 1
    assert {getattr(one, "reason_code", "") for one in answers if not isinstance(one, int)} <= {
        "REQUEUE_CONFLICT", "NOT_FINISHED"
    }  # fmt: skip
    assert db.value("select count(*) from tenure.job") == 1


@pytest.mark.parametrize("kind", ["jobs", "dead_letters"])
async def test_an_operation_repeats_each_chain_of_jobs_once(store: Store, db: Harness, kind: str) -> None:
    letters = await fail(store, [broken("send", n) for n in range(4)], type="t")
    dead = [(await store.letters.show(letter)).job_id for letter in letters]
    made = [await store.requeue(job_id, actor="ada") for job_id in dead[:3]]
    await finish(store, *made[:2])  # the third has not finished, and the fourth was never run again
    preview = await store.operations.preview(kind, "requeue", "type:t", actor="ada", again=True)
    # A search for jobs finds the second runs beside the first, which lead to the same.
    assert (preview.total, preview.run_again) == (6 if kind == "jobs" else 4, 0)
    later = await store.requeue(dead[1], actor="bob", again=True)  # behind the preview
    await store.operations.start(preview.id, actor="ada")
    await store.operations.work()
    done = await store.operations.show(preview.id)
    changed = {"jobs": 3, "dead_letters": 1}[kind]
    assert (done.done, done.skipped) == (2, {"CHANGED": changed, "NOT_FINISHED": 1})
    again, _ = await store.reruns(made[0])
    assert again is not None
    assert await store.reruns(made[1]) == (later, dead[1])
    assert db.value("select count(*) from tenure.job") == 4, "the third, the repeat, the fourth and the one behind"


async def test_only_again_finds_letters_that_were_requeued(store: Store) -> None:
    (letter,) = await fail(store, [broken("send")])
    made = await store.letters.requeue(letter, actor="ada")
    assert (await store.operations.preview("dead_letters", "requeue", "", actor="ada")).total == 0
    with pytest.raises(BadInput, match="only open dead letters"):
        await store.operations.preview("dead_letters", "requeue", "status:requeued", actor="ada")
    await finish(store, made)
    done = await run(store, "dead_letters", "requeue", "status:requeued", again=True)
    assert (done.total, done.done, done.options) == (1, 1, {"again": True})


async def test_a_discarded_letter_is_not_run_again_by_a_repeat(store: Store, db: Harness) -> None:
    (letter,) = await fail(store, [broken("send")])
    preview = await store.operations.preview("dead_letters", "requeue", "", actor="ada", again=True)
    await store.letters.request_discard(letter, person="ada", reason="spam")
    await store.operations.start(preview.id, actor="ada")
    await store.operations.work()
    assert await ends(store, preview) == {letter: "DLQ_REQUEUE_CONFLICT"}
    assert (await store.operations.preview("dead_letters", "requeue", "", actor="ada", again=True)).total == 0
    with pytest.raises(Refused, match="discarded already"):
        await store.letters.requeue(letter, actor="ada", again=True)
    assert db.value("select count(*) from tenure.job") == 0


async def test_a_repeat_leaves_jobs_of_further_ranges_to_further_batches(
    store: Store, db: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    letters = await fail(store, [broken("send", n) for n in range(3)])
    await finish(store, *[await store.letters.requeue(letter, actor="ada") for letter in letters])
    preview = await store.operations.preview("dead_letters", "requeue", "", actor="ada", again=True)
    await store.operations.start(preview.id, actor="ada")
    monkeypatch.setattr(operation_requeues, "group_by_range", lambda ids: iter([[one] for one in ids]))
    assert [(await store.operations.work()).items for _ in letters] == [1, 1, 1]
    assert (await store.operations.show(preview.id)).done == 3


async def test_an_aborted_preview_is_deleted_with_its_items(store: Store, db: Harness) -> None:
    await jobs(store, 3)
    preview = await store.operations.preview("jobs", "cancel", "type:t", actor="ada")
    aborted = await store.operations.abort(preview.id, actor="bob")
    assert (aborted.state, aborted.aborted_by, aborted.started_at) == ("aborted", "bob", None)
    assert await store.operations.list() == []
    assert db.value("select count(*) from tenure.operation_item") == 0
    for call in (store.operations.start, store.operations.resume, store.operations.abort):
        with pytest.raises(Refused, match="there is no operation"):
            await call(preview.id, actor="ada")


async def test_a_preview_that_is_being_deleted_is_never_started(
    store: Store, db: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    await jobs(store, 3)
    preview = await store.operations.preview("jobs", "cancel", "type:t", actor="ada")

    async def crash(*_call: Any) -> int:
        raise RuntimeError

    with monkeypatch.context() as patched:
        patched.setattr(type(store.operations), "_forget", crash)
        with pytest.raises(RuntimeError):
            await store.operations.abort(preview.id, actor="bob")
    for call in (store.operations.start, store.operations.resume):
        with pytest.raises(Refused, match="cannot be started"):
            await call(preview.id, actor="ada")
    assert (await store.operations.collect(preview.id)).state == "aborted"
    await store.operations.forget(3_600)
    assert db.value("select (select count(*) from tenure.operation) + count(*) from tenure.operation_item") == 0


async def test_a_preview_of_too_many_items_leaves_nothing(
    store: Store, db: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.postgres.operations._PAGE", 2)
    monkeypatch.setattr("tenure.postgres.operations.MAX_ITEMS", 3)
    await jobs(store, 5)
    with pytest.raises(BadInput, match="more than 3 items"):
        await store.operations.preview("jobs", "cancel", "type:t", actor="ada")
    assert db.value("select (select count(*) from tenure.operation) + count(*) from tenure.operation_item") == 0


async def test_a_late_page_of_a_second_process_changes_no_preview(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.postgres.operations._PAGE", 2)
    monkeypatch.setattr("tenure.postgres.operations._PAGES", 1)
    await jobs(store, 6)
    operations = store.operations
    stale = await operations.preview("jobs", "cancel", "type:t", actor="ada")
    page = await operations._find(parse(stale.query), "cancel", {}, stale.cursor)
    for _ in range(2):
        complete = await operations.collect(stale.id)
    assert (complete.total, complete.collected, complete.summary["types"]) == (6, True, {"t": 6})
    await operations._add(stale, page)
    assert await operations.show(stale.id) == complete


async def test_a_letter_whose_discard_was_asked_behind_the_preview_is_not_run_again(store: Store, db: Harness) -> None:
    (letter,) = await fail(store, [broken("send")], "gate_b2")
    preview = await store.operations.preview("dead_letters", "requeue", "", actor="ada")
    await store.letters.request_discard(letter, person="bob", reason="spam")
    await store.operations.start(preview.id, actor="ada")
    await store.operations.work()
    assert await ends(store, preview) == {letter: "CHANGED"}
    assert db.value("select count(*) from tenure.job") == 0


async def test_a_summary_counts_by_tenant_type_and_error_with_three_examples(store: Store, db: Harness) -> None:
    letters = await fail(store, [broken("send", n) for n in range(4)], type="t", tenant="acme")
    letters += await fail(store, [Failure("late", type="Timeout", code="T1", retryable=False)], type="u", tenant="zeta")
    first, last = db.sql("select min(created_at) as at from tenure.dead_letter union all select max(created_at) "
                         "from tenure.dead_letter")  # fmt: skip
    for kind in ("dead_letters", "jobs"):
        preview = await store.operations.preview(kind, "requeue", "", actor="ada")
        summary = preview.summary
        assert (summary["tenants"], summary["types"]) == ({"acme": 4, "zeta": 1}, {"t": 4, "u": 1})
        assert summary["errors"] == {"PermanentError [Broken]": 4, "Timeout [T1]": 1}
        assert [one["type"] for one in summary["samples"]] == ["u", "t", "t"]
        assert summary["samples"][0]["error"] == "Timeout [T1]: late"
        if kind == "dead_letters":
            assert (summary["first_at"], summary["last_at"]) == (first["at"].isoformat(), last["at"].isoformat())


def test_a_summary_has_a_bounded_size_and_counts_the_rest_together() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    found = [Found(n, "dead", f"tenant {n % 150}", "t", now, None) for n in range(300)]
    summary = add_found(add_found({}, found), found)
    assert (len(summary["tenants"]), summary["types"], len(summary["samples"])) == (100, {"t": 600}, 3)
    assert top(summary["tenants"], 600, 2) == [("tenant 0", 4), ("tenant 1", 4), ("others", 592)]
    assert top(summary["types"], 600) == [("t", 600)]


async def test_the_new_jobs_are_counted_by_their_states_now(store: Store, db: Harness) -> None:
    letters = await fail(store, [broken("send", n) for n in range(5)])
    preview = await store.operations.preview("dead_letters", "requeue", "", actor="ada")
    assert await store.operations.made(preview.id) is None
    await store.operations.start(preview.id, actor="ada")
    await store.operations.work()
    made = [item.made or 0 for item in await store.operations.items(preview.id)]
    begun = await store.operations.made(preview.id)
    assert begun is not None
    assert (begun.unfinished, begun.succeeded) == (len(letters), 0)
    await finish(store, *made[:2])
    await store.fail((await claimed(store, made[2])).held, Failure("again", retryable=False))
    await claimed(store, made[3])
    db.sql("delete from tenure.job where id = %s", made[4])
    now = await store.operations.made(preview.id)
    assert now is not None
    assert now.states == {"succeeded": 2, "dead": 1, "running": 1}
    assert (now.succeeded, now.failed, now.failed_states, now.unfinished, now.gone) == (2, 1, ["dead"], 1, 1)
    assert now.complete
    states = [item.made_state for item in await store.operations.items(preview.id)]
    assert states == ["succeeded", "succeeded", "dead", "running", None]


async def test_only_the_first_pages_of_many_new_jobs_are_counted(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    await fail(store, [broken("send", n) for n in range(5)])
    done = await run(store, "dead_letters", "requeue", "")
    monkeypatch.setattr("tenure.postgres.operation_outcome._PAGE", 2)
    for pages, counted in ((1, 2), (2, 4), (3, 5)):
        monkeypatch.setattr("tenure.postgres.operation_outcome._PAGES", pages)
        now = await store.operations.made(done.id)
        assert now is not None
        assert (now.states, now.complete) == ({"queued": counted}, counted == 5)
