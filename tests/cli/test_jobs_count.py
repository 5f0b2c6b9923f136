"""`tenure jobs count`, searches by worker and run time, and what lists say of them."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest

from tenure.errors import BadInput
from tenure.jobs.job import Failure, Job, NewJob
from tenure.postgres import search
from tenure.postgres.store import Store
from tests.cli.conftest import Asking
from tests.harness import Harness

AGAIN = Failure("again", type="TransientError", code="AGAIN", retryable=True)


async def worked(store: Store, db: Harness) -> list[int]:
    """Four jobs: ended by w1 in 20 s, ended by w2 in 1 s, held by w1 for 30 s, and one that waits for a retry."""
    made = await store.enqueue_many([NewJob("t", tenant_id=("a", "b")[n % 2]) for n in range(4)])
    ids = [one.job_id or 0 for one in made]
    for job_id, worker in zip(ids, ("w1", "w2", "w1", "w2"), strict=True):
        (job,) = await store.claim_by_id([job_id], worker=worker)
        assert isinstance(job, Job)
        if job_id in ids[:2]:
            await store.succeed(job.held)
        elif job_id == ids[3]:
            await store.fail(job.held, AGAIN)
    for job_id, seconds in ((ids[0], 20), (ids[1], 1)):
        db.sql(
            "update tenure.job_done set started_at = finished_at - %s * interval '1 s' where id = %s", seconds, job_id
        )
    db.sql("update tenure.job set started_at = now() - interval '30 s' where id = %s", ids[2])
    return ids


async def test_jobs_are_found_by_worker_and_run_time(store: Store, db: Harness) -> None:
    first, second, held, waits = await worked(store, db)
    for wanted, expected in (
        ({"worker": "w1"}, [held, first]), ({"worker": "w2"}, [second]), ({"worker": "w"}, []),
        ({"longer_s": 10.0}, [held, first]), ({"shorter_s": 10.0}, [second]),
        ({"longer_s": 10.0, "shorter_s": 25.0}, [first]), ({"worker": "w1", "longer_s": 25.0}, [held]),
    ):  # fmt: skip
        page = await store.find(**wanted)
        assert [job.id for job in page.jobs] == expected, wanted
        assert not page.stopped
    page = await store.find(with_workers=True)
    assert {job.id: job.worker for job in page.jobs} == {first: "w1", second: "w2", held: "w1", waits: "w2"}
    ran = {job.id: job.ran_s for job in page.jobs}
    assert (ran[first], ran[second], ran[waits]) == (20.0, 1.0, None)
    assert (ran[held] or 0) >= 30


async def test_a_search_by_worker_reads_a_bounded_number_of_rows(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "SCAN_DOCUMENTS", 3)
    await store.enqueue_many([NewJob("t")] * 8)
    for job in await store.claim(worker="w", limit=8):
        await store.succeed(job.held)
    page = await store.find(worker="nobody", limit=2)
    assert (page.jobs, page.stopped) == ([], True)
    assert (await store.find(worker="nobody", limit=2, after=page.next)).next != page.next


async def test_a_job_that_ends_between_two_reads_is_listed_once(
    store: Store, db: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await store.enqueue(NewJob("t"))
    real = search._search

    def ends_meanwhile(*given: Any) -> Any:
        plan, answer = real(*given), None
        while True:
            try:
                asked = plan.send(answer)
            except StopIteration as end:
                return end.value
            answer = yield asked
            db.sql(
                "with ended as (delete from tenure.job returning *) insert into tenure.job_done select "
                "(jsonb_populate_record(null::tenure.job_done, to_jsonb(ended) || "
                """'{"role": "done", "state": "succeeded"}')).* from ended"""
            )

    monkeypatch.setattr(search, "_search", ends_meanwhile)
    assert [(one.id, one.role) for one in (await store.find()).jobs] == [(made.job_id, "ready")]


async def test_count_says_how_many_by_what_and_since_when(
    store: Store, ask: Asking, db: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    await worked(store, db)
    done = ask.run("jobs", "count", "--by", "tenant")
    assert done.stderr == "4 jobs match\n"
    head, *rows = done.stdout.splitlines()
    assert re.split(r"  +", head) == ["tenant", "jobs", "first made (UTC)", "last made (UTC)"]
    assert [row.split()[:2] for row in rows] == [["a", "2"], ["b", "2"]]
    said = ask.said("jobs", "count", "state:succeeded", "--by", "worker")
    assert (said["total"], said["complete"], said["next"]) == (2, True, None)
    assert [(one["value"], one["jobs"]) for one in said["groups"]] == [("w1", 1), ("w2", 1)]
    with pytest.raises(BadInput, match="are counted by tenant, type"):
        await store.count(by="age")
    monkeypatch.setattr(search, "MAX_PAGE", 1)
    monkeypatch.setattr(search, "_FULL_PAGES", 3)
    part = await store.count(by="queue")
    assert (part.total, part.to_json()["complete"]) == (3, False)
    assert (await store.count(by="queue", after=part.next)).total == 1


async def test_lists_say_when_a_retry_is_due_and_show_who_ran_an_ended_job(
    store: Store, ask: Asking, db: Harness
) -> None:
    first, _, _, waits = await worked(store, db)
    rows = {line.split()[0]: line for line in ask.text("jobs", "list").splitlines()[1:]}
    assert re.search(r"queued, retry at \d\d:\d\d:\d\d ", rows[str(waits)])
    assert re.search(r" 20 s +w1$", rows[str(first)])
    shown = ask.text("jobs", "show", str(first))
    assert re.search(r"last worker +w1", shown)
    assert re.search(r"ran +20", shown)
    assert "requeue" not in shown, "a job that ended well is not to be run again"


async def test_a_search_that_goes_on_is_one_copied_command_away(store: Store, ask: Asking) -> None:
    for n in range(3):
        await store.enqueue(NewJob("t", tenant_id="slow mail", key=f"k{n}"))
        (job,) = await store.claim(worker="w")
        await store.fail(job.held, Failure("no", type="PermanentError", retryable=False))
    asked = ["dlq", "list", "error:no", "--tenant", "slow mail", "--limit", "2"]
    done = ask.run(*asked)
    found = re.search(r"there are more\. Next: tenure (.*)", done.stderr)
    assert found
    assert len(ask.text(*shlex.split(found[1])).splitlines()) == 2
