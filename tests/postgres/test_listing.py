"""Lists of jobs: live ones, then finished ones, newest first, page by page without gaps, and never without a bound."""

from __future__ import annotations

import itertools
import re
from typing import Any

import psycopg
import pytest

from tenure.errors import BadInput, UnknownContract
from tenure.jobs.job import Failure, Job, NewJob
from tenure.postgres import search
from tenure.postgres.connect import engine_dsn
from tenure.postgres.search import Page
from tenure.postgres.statement import Query, query
from tenure.postgres.store import Store
from tests.harness import Harness
from tests.holder_calls import calls

HOPELESS = Failure("x" * 2_000, type="PermanentError", code="NO", retryable=False)


async def mixed(store: Store, number: int = 20) -> list[int]:
    """Jobs of which every third succeeded, every fifth died, and the rest is queued; as a list shows them."""
    made = await store.enqueue_many(
        [
            NewJob("even" if n % 2 == 0 else "odd", {"n": n}, queue=f"q{n % 4}", tenant_id=f"t{n % 3}")
            for n in range(number)
        ]
    )
    ids = [one.job_id for one in made if one.job_id is not None]
    for n, job_id in enumerate(ids):
        if n % 3 == 0 or n % 5 == 0:
            (job,) = await store.claim_by_id([job_id], worker="w")
            assert not isinstance(job, Exception)
            await (store.succeed(job.held) if n % 3 == 0 else store.fail(job.held, HOPELESS))
    finished = [job_id for n, job_id in enumerate(ids) if n % 3 == 0 or n % 5 == 0]
    return [*sorted(set(ids) - set(finished), reverse=True), *finished[::-1]]


def ids(page: Page) -> list[int]:
    """The ids on a page."""
    return [job.id for job in page.jobs]


async def leafed(store: Store, limit: int, **wanted: Any) -> list[int]:
    """The ids on all pages."""
    seen: list[int] = []
    after: str | None = None
    while True:
        page = await store.find(limit=limit, after=after, **wanted)
        assert len(page.jobs) <= limit
        seen += ids(page)
        if page.next is None:
            return seen
        after = page.next


async def test_live_jobs_stand_before_finished_ones_each_newest_first(store: Store) -> None:
    made = await mixed(store)
    page = await store.find(limit=100)
    assert (ids(page), page.next, page.stopped) == (made, None, False)
    assert {job.state for job in page.jobs} == {"queued", "succeeded", "dead"}
    dead = next(job for job in page.jobs if job.state == "dead")
    assert dead.last_error == {"type": "PermanentError", "code": "NO", "message": "x" * 300}
    assert dead.finished_at is not None


@pytest.mark.parametrize("limit", [1, 3, 7, 20, 21])
async def test_pages_follow_each_other_without_gap_or_repeat(store: Store, limit: int) -> None:
    made = await mixed(store)
    assert await leafed(store, limit) == made
    assert await leafed(store, limit, type="odd") == [job_id for job_id in made if (job_id - min(made)) % 2 == 1]


async def test_each_filter_and_all_together(store: Store) -> None:
    made = await mixed(store)
    await store.enqueue(NewJob("odd", contract="phase27", queue="q1"))
    jobs = {job.id: job for job in (await store.find(limit=100)).jobs}
    for column, value in (
        ("state", "queued"), ("state", "succeeded"), ("state", "dead"), ("type", "odd"), ("queue", "q3"),
        ("tenant_id", "t2"), ("contract", "phase27"), ("contract", "standard"), ("type", "nothing"),
    ):  # fmt: skip
        page = await store.find(limit=100, **{column: value})  # type: ignore[arg-type]
        assert ids(page) == [job_id for job_id, job in jobs.items() if getattr(job, column) == value], (column, value)
        assert page.next is None
    page = await store.find(state="queued", type="odd", queue="q1", tenant_id="t1", contract="standard")
    assert ids(page)
    assert set(ids(page)) < set(made)


async def test_an_age_is_counted_from_when_a_job_was_made_whatever_its_id(
    store: Store, db: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await mixed(store)
    ages = {job_id: 60 * (n * 7 % 20) for n, job_id in enumerate(made)}  # in minutes 0 to 19, in no order
    for table in ("job", "job_done"):
        for job_id, age in ages.items():
            db.sql(f"update tenure.{table} set created_at = now() - interval '{age} s' where id = {job_id}")
    for older, younger in ((330, None), (None, 330), (330, 750), (750, 330), (0, None), (None, 0)):
        wanted = [one for one in made if (older or 0) <= ages[one] < (86_400 if younger is None else younger)]
        page = await store.find(older_s=older, younger_s=younger)
        assert (ids(page), page.next) == (wanted, None), (older, younger)
    odd = [one for one in made if (one - min(made)) % 2 == 1 and ages[one] > 330]
    assert ids(await store.find(older_s=330.5, type="odd")) == odd
    oldest = await store.find(older_s=1_110, limit=1)  # far down the list, and yet on the first page
    assert (ids(oldest), oldest.stopped) == ([made[17]], False)
    # Old jobs stand behind many new ones: an age is looked for as far as any filter, and goes on from there.
    monkeypatch.setattr(search, "SCAN", 5)
    assert await leafed(store, 2, older_s=330) == [one for one in made if ages[one] > 330]


async def test_a_filter_that_matches_little_stops_and_says_where_to_go_on(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "SCAN", 10)
    await store.enqueue(NewJob("needle"))
    made = await mixed(store, 40)
    needle = min(made) - 1
    (job,) = await store.claim_by_id([needle], worker="w")
    assert isinstance(job, Job)
    await store.succeed(job.held)
    pages = [await store.find(type="needle")]
    while (after := pages[-1].next) is not None:
        assert pages[-1].stopped
        pages.append(await store.find(type="needle", after=after))
        assert len(pages) < 10
    assert len(pages) > 2
    assert [ids(page) for page in pages if page.jobs] == [[needle]]


async def test_a_live_state_is_not_looked_for_among_the_finished(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "SCAN", 5)
    await store.enqueue(NewJob("first", queue="old"))
    made = await store.enqueue_many([NewJob("t")] * 30)
    jobs = await store.claim(worker="w", limit=30)
    await store.report("succeed", calls([job.held for job in jobs]))
    page = await store.find(state="queued")
    assert [job.type for job in page.jobs] == ["first"]
    assert (page.next, len(made)) == (None, 30)
    assert (await store.find(state="succeeded", limit=2)).next is not None


async def test_old_live_jobs_are_found_before_the_bound_ends_the_walk_among_finished_ones(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "SCAN", 5)
    waiting = [(await store.enqueue(NewJob("mail", queue="slow"))).job_id for _ in range(3)]
    await store.enqueue_many([NewJob("mail")] * 30)
    await store.report("succeed", calls([job.held for job in await store.claim(worker="w", limit=30)]))
    page = await store.find(type="mail", limit=10)
    assert ids(page)[:3] == waiting[::-1]
    assert [job.state for job in page.jobs[3:]] == ["succeeded"] * 5
    assert page.stopped


async def test_page_whose_bound_ends_among_live_jobs_shows_no_finished_one(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "SCAN", 5)
    await store.enqueue(NewJob("mail"))
    await store.report("succeed", calls([job.held for job in await store.claim(worker="w")]))
    waiting = (await store.enqueue(NewJob("mail"))).job_id
    await store.enqueue_many([NewJob("other")] * 8)
    found: list[tuple[int, str]] = []
    page = await store.find(type="mail")
    while True:
        found += [(job.id, job.state) for job in page.jobs]
        if page.next is None:
            break
        page = await store.find(type="mail", after=page.next)
    assert [job_id == waiting for job_id, _ in found] == [True, False]


async def test_what_cannot_be_asked_is_refused(store: Store) -> None:
    with pytest.raises(
        BadInput, match=r"no job can be in state 'runing'; the registered contracts have the states .*running"
    ):
        await store.find(state="runing")
    with pytest.raises(
        BadInput, match=r"no job can be in state 'retrying'; contract standard has the states cancelled, dead"
    ):
        await store.find(state="retrying", contract="standard")
    with pytest.raises(UnknownContract):
        await store.find(contract="standart")
    for wrong in ({"limit": 0}, {"limit": 1001}, {"after": "0"}, {"after": "live-0"}, {"after": "done-1"},
                  {"queue": ""}, {"type": "x" * 201}, {"older_s": -1},
                  {"older_s": float("nan")}, {"younger_s": 1e300}, {"younger_s": "1h"}):  # fmt: skip
        with pytest.raises(BadInput):
            await store.find(**wrong)


@pytest.mark.pristine
@pytest.mark.parametrize("analyzed", [False, True])
async def test_a_page_reads_no_more_rows_of_a_full_table_than_its_bound(
    store: Store, db: Harness, analyzed: bool
) -> None:
    columns = "id, contract, version, state, role, max_attempts, type, due_at, finished_at"
    db.sql(
        "alter table tenure.job set (autovacuum_enabled = false); "
        f"insert into tenure.job ({columns}) select n, 'standard', '1', 'queued', 'ready', 5, 't', now(), null "
        f"from generate_series(1, 20000, 2) as n; insert into tenure.job_done ({columns}) "
        "select n, 'standard', '1', 'succeeded', 'done', 5, 't', now(), now() from generate_series(2, 20000, 2) as n"
    )
    if analyzed:
        db.sql("analyze tenure.job; analyze tenure.job_done")
    assert ids(await store.find(limit=6, after="live-15001")) == list(range(14_999, 14_987, -2))
    assert ids(await store.find(limit=6, after="finished-15001")) == list(range(15_000, 14_988, -2))
    for name, aged in itertools.product(("find_live", "find_finished"), (False, True)):
        plan = explained(db, query(name), aged=aged)
        assert "Seq Scan" not in plan, plan
        read = re.findall(r"Index.* Scan.* on job\w*.*actual rows=([\d.]+)", plan)
        passed = re.findall(r"Rows Removed by Filter: (\d+)", plan)
        assert read
        assert max(map(float, [*read, *passed])) <= 60, plan
        assert (passed != [], "interval" in plan) == (aged, aged), "who asks for no age pays for none"


def explained(db: Harness, asked: Query, *, aged: bool) -> str:
    """How the engine finds a page in the middle of a full table, of which no job is an hour old."""
    values = {"low": "0", "after": "15001", "scan": "51", "limit": "51"} | ({"older_ms": "3600000"} if aged else {})
    with psycopg.connect(engine_dsn(db.dsn)) as engine:
        engine.execute(b"prepare asked as " + asked.text.encode())
        given = ", ".join(f"'{values[name]}'" if name in values else "null" for name in asked.names)
        rows = engine.execute(f"explain (analyze, costs off, timing off) execute asked ({given})".encode()).fetchall()
    return "\n".join(row[0] for row in rows)


async def test_jobs_are_found_by_error_payload_reason_and_cause(store: Store, db: Harness) -> None:
    made = await store.enqueue_many([
        NewJob("t", {"user": {"id": n}, "tags": ["a", str(n)], "on": n == 2, "to": "Ada"}) for n in range(4)
    ])  # fmt: skip
    ids_ = [one.job_id for one in made if one.job_id is not None]
    for n, job_id in enumerate(ids_[:3]):
        (job,) = await store.claim_by_id([job_id], worker="w")
        assert isinstance(job, Job)
        await store.fail(job.held, Failure(f"Timed out {n}", "PermanentError", code=f"C{n}", retryable=n == 0))
    while await store.groups.count_changes():
        pass
    group = db.value(
        "select fingerprint from tenure.dead_letter_cause as c join tenure.dead_letter as l on l.id = letter_id "
        "where job_id = %s", ids_[1],
    )  # fmt: skip

    async def found(**wanted: Any) -> list[int]:
        page = await store.find(limit=100, **wanted)
        assert (page.next, page.stopped) == (None, False)
        return sorted(ids(page))

    for wanted, expected in (
        ({"error": "tiMED"}, [0, 1, 2]), ({"error": "c1"}, [1]), ({"error": "PermanentError C2"}, [2]),
        ({"error": "nothing"}, []), ({"payload": [(("user", "id"), "2")]}, [2]),
        ({"payload": [(("on",), "true")]}, [2]),
        ({"payload": [(("tags", "1"), "3")]}, [3]), ({"payload": [(("user",), '{"id": 1}')]}, [1]),
        ({"payload": [(("to",), "Ada"), (("user", "id"), "0")]}, [0]), ({"payload": [(("nope",), "1")]}, []),
        ({"reason": "permanent_error"}, [0, 1, 2]), ({"reason": "nope"}, []), ({"group": group}, [1]),
        ({"group": group, "error": "C1", "state": "dead"}, [1]),
    ):  # fmt: skip
        assert await found(**wanted) == [ids_[n] for n in expected], wanted


async def test_a_filter_of_documents_stops_earlier(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "SCAN_DOCUMENTS", 5)
    needle = (await store.enqueue(NewJob("t", {"n": 7}))).job_id
    await store.enqueue_many([NewJob("t")] * 12)
    pages = [await store.find(payload=[(("n",), "7")], limit=2)]
    while (after := pages[-1].next) is not None:
        assert pages[-1].stopped
        pages.append(await store.find(payload=[(("n",), "7")], limit=2, after=after))
    assert [ids(page) for page in pages] == [[], [], [needle]]


async def test_held_and_dead_jobs_are_found_at_once_behind_many_others(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "SCAN", 5)
    for contract in ("standard", "gate_b2"):
        await store.enqueue(NewJob("held", contract=contract))
    held = [job.id for contract in ("standard", "gate_b2") for job in await store.claim(contract, worker="w")]
    dead = await died(store, 6)
    await store.enqueue_many([NewJob("t")] * 30)
    await store.report("succeed", calls([job.held for job in await store.claim(worker="w", limit=15)]))
    for wanted, expected in (
        ({"state": "running"}, held), ({"state": "running", "contract": "gate_b2"}, held[1:]),
        ({"state": "running", "type": "t"}, []), ({"state": "dead"}, dead),
        ({"state": "dead", "queue": "q1"}, dead[1::2]),
        ({"reason": "permanent_error", "tenant_id": "t2"}, dead[2::3]), ({"reason": "nope"}, []),
    ):  # fmt: skip
        page = await store.find(limit=100, **wanted)  # type: ignore[arg-type]
        assert (ids(page), page.next, page.stopped) == (expected[::-1], None, False), wanted
    # A state that jobs of another contract have without a dead letter is looked for among all.
    assert (await store.find(state="failed")).stopped


@pytest.mark.parametrize(("letters", "candidates"), [(3, 1_000), (10_000, 2), (3, 2), (6, 1_000)])
async def test_pages_of_dead_jobs_follow_each_other_without_gap_or_repeat(
    store: Store, db: Harness, monkeypatch: pytest.MonkeyPatch, letters: int, candidates: int
) -> None:
    monkeypatch.setattr(search, "SCAN_DOCUMENTS", letters)
    monkeypatch.setattr(search, "_CANDIDATES", candidates)
    dead = (await died(store, 6))[::-1]
    while await store.groups.count_changes():
        pass
    group = db.value("select fingerprint from tenure.dead_letter_cause limit 1")
    for wanted in ({"state": "dead"}, {"reason": "permanent_error"}, {"group": group}):
        for limit in (1, 2, 6):
            assert await leafed(store, limit, **wanted) == dead
            assert await leafed(store, limit, **wanted, error="nothing") == []
            assert await leafed(store, limit, **wanted, older_s=0, type="even") == dead[1::2]
    db.sql("delete from tenure.job_done where id = any (%s)", dead[1:4])  # as their range is dropped
    assert await leafed(store, 2, group=group) == [dead[0], *dead[4:]]


async def test_cause_with_very_many_letters_is_walked_by_jobs(
    store: Store, db: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "SCAN_DOCUMENTS", 3)
    dead = await died(store, 6)
    other = Failure("another cause", type="OtherError", retryable=False)
    await store.enqueue_many([NewJob("t")] * 2)
    await store.report(
        "fail", calls([job.held for job in await store.claim(worker="w", limit=2)], failures=[other] * 2)
    )
    while await store.groups.count_changes():
        pass
    group = db.value(
        "select fingerprint from tenure.dead_letter_cause join tenure.dead_letter on id = letter_id where job_id = %s",
        dead[0],
    )
    assert await leafed(store, 2, group=group) == dead[::-1]


async def died(store: Store, number: int) -> list[int]:
    """Jobs that have failed for good, for one cause, oldest first."""
    made = [NewJob(("even", "odd")[n % 2], queue=f"q{n % 2}", tenant_id=f"t{n % 3}") for n in range(number)]
    await store.enqueue_many(made)
    jobs = sorted(await store.claim(queues=["q0", "q1"], worker="w", limit=number), key=lambda job: job.id)
    await store.report("fail", calls([job.held for job in jobs], failures=[HOPELESS] * number))
    return [job.id for job in jobs]
