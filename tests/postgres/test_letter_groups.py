"""Dead letters by cause: every letter is counted once in its group, with its status, whoever wrote or decided it."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from tenure.errors import BadInput, Refused
from tenure.jobs.job import Failure, NewJob
from tenure.postgres.store import Store
from tenure.upkeep import once
from tests.harness import Harness


def broken(cause: str, number: int = 0, release: str | None = None) -> Failure:
    """A failure for good, of this cause, with a traceback."""
    stack = (
        "Traceback (most recent call last):\n"
        f'  File "/srv/{release}/shop.py", line {number}, in {cause}\n    raise Broken(f"no {{x}}")\n'
        f"shop.Broken: no {number}\n"
    )
    return Failure(f"no {number}", "PermanentError", "Broken", stack, retryable=False, release=release)


async def fail(store: Store, failures: list[Failure], contract: str = "standard", **job: Any) -> list[int]:
    """Jobs that fail for good; the ids of their dead letters."""
    type_, tenant = job.get("type", "mail.send"), job.get("tenant", "acme")
    made = await store.enqueue_many([NewJob(type_, {"n": n}, contract, tenant_id=tenant) for n in range(len(failures))])
    ids = [one.job_id for one in made if one.job_id is not None]
    claimed = await store.claim_by_id(ids, worker="w", contract=contract)
    letters = []
    for one, failure in zip(claimed, failures, strict=True):
        assert not isinstance(one, Refused)
        await store.start(one.held)
        await store.fail(one.held, failure)
        letters.append((await store.letters.of_job(one.id)).id)
    return letters


async def count(store: Store) -> None:
    """Count all changes."""
    while await store.groups.count_changes():
        pass


def counted(db: Harness) -> None:
    """Assert that the groups say what the dead letters say."""
    assert db.value("select count(*) from tenure.dead_letter_change") == 0
    wrong = db.sql(
        "select g.id from tenure.dead_letter_group as g full join ("
        "    select group_id, count(*) as letters, count(*) filter (where l.status = 'open') as open, "
        "           min(created_at) as first_seen, max(created_at) as last_seen, max(l.id) as last_letter "
        "    from tenure.dead_letter as l left join tenure.dead_letter_cause as c on c.letter_id = l.id group by 1"
        ") as really on really.group_id = g.id "
        "where (g.letters, g.open, g.first_seen, g.last_seen, g.last_letter) is distinct from "
        "(really.letters, really.open, really.first_seen, really.last_seen, really.last_letter)"
    )
    assert wrong == []


async def test_letters_of_one_cause_make_one_group_with_its_counts(store: Store, db: Harness) -> None:
    sent = await fail(store, [broken("send", n, "1.0") for n in range(3)])
    sent += await fail(store, [broken("send", 7, "1.1")], tenant="zeta", type="mail.resend")
    other = await fail(store, [broken("receive", 1)], "gate_b2")
    assert (await store.groups.list(), await store.groups.uncounted()) == ([], 5)
    await count(store)
    counted(db)
    first, second = await store.groups.list()
    assert (first.letters, first.open, first.letter_id, first.error_type, first.code) == (
        4, 4, sent[-1], "PermanentError", "Broken"
    )  # fmt: skip
    assert first.message == "no <n>"
    assert "in send" in first.last_error["stack"]
    assert [(part.value, part.letters) for part in first.parts("release")] == [("1.0", 3), ("1.1", 1)]
    assert [(part.value, part.letters) for part in first.parts("tenant")] == [("acme", 3), ("zeta", 1)]
    assert [(part.value, part.open) for part in first.parts("type")] == [("mail.send", 3), ("mail.resend", 1)]
    assert [(part.value, part.open) for part in second.parts("release")] == [(None, 1)]
    assert (second.letter_id, second.parts("contract")[0].value) == (other[0], "gate_b2")
    assert [one.letters for one in await store.groups.list(tenant_id="zeta")] == [1]
    assert [one.letters for one in await store.groups.list(type="mail.send")] == [3, 1]
    assert [one.letters for one in await store.groups.list(contract="gate_b2")] == [1]
    shown = await store.groups.show(first.fingerprint)
    assert shown._replace(workers=None) == first
    assert shown.workers == [("w", 4, 4)]


async def test_decisions_change_the_open_count_and_close_a_group(store: Store, db: Harness) -> None:
    letters = await fail(store, [broken("send", n) for n in range(3)])
    await count(store)
    await store.letters.requeue(letters[0], actor="ada")
    await store.letters.request_discard(letters[1], person="ada", reason="spam")
    await count(store)
    counted(db)
    (group,) = await store.groups.list()
    assert (group.letters, group.open) == (3, 1)
    await store.letters.requeue(letters[2], actor="ada")
    await count(store)
    counted(db)
    assert await store.groups.list() == []
    assert [(one.letters, one.open) for one in await store.groups.list(closed=True)] == [(3, 0)]


async def test_a_letter_that_is_decided_before_it_is_counted_is_counted_once(store: Store, db: Harness) -> None:
    letters = await fail(store, [broken("send", n) for n in range(2)])
    await store.letters.requeue(letters[0], actor="ada")
    await count(store)
    counted(db)
    assert [(one.letters, one.open) for one in await store.groups.list()] == [(2, 1)]


async def test_changes_that_come_while_others_count_are_neither_lost_nor_doubled(store: Store, db: Harness) -> None:
    letters = await fail(store, [broken(f"cause_{'abc'[n % 3]}", n) for n in range(30)])

    async def decide() -> None:
        for letter in letters[::2]:
            await store.letters.requeue(letter, actor="ada")

    async with asyncio.TaskGroup() as group:
        group.create_task(decide())
        for _ in range(3):
            group.create_task(count(store))
    await count(store)
    counted(db)
    assert [(one.letters, one.open) for one in await store.groups.list()] == [(10, 5)] * 3


async def test_upkeep_counts_and_a_killed_count_leaves_nothing_behind(store: Store, db: Harness) -> None:
    await fail(store, [broken("send")])
    db.sql("create function public.die() returns trigger language plpgsql as $$ begin raise 'killed'; end $$")
    db.sql("create trigger die before insert on tenure.dead_letter_cause for each row execute function public.die()")
    reports = {report.part: report for report in await once(store)}
    assert "killed" in str(reports["group letters"].trouble)
    assert (await store.groups.list(), await store.groups.uncounted()) == ([], 1)
    db.sql("drop trigger die on tenure.dead_letter_cause")
    reports = {report.part: report for report in await once(store)}
    assert (reports["group letters"].did, reports["group letters"].trouble) == (1, None)
    counted(db)


async def test_a_group_that_does_not_exist_is_refused(store: Store) -> None:
    with pytest.raises(Refused, match="no group nope"):
        await store.groups.show("nope")


async def test_a_cause_is_named_by_the_message_of_its_example(store: Store) -> None:
    await fail(store, [Failure("'vat_id'", "KeyError", retryable=False), Failure("no", "ValueError", retryable=False)])
    while await store.groups.count_changes():
        pass
    titles = {group.message: (group.title, group.fields()["example"]) for group in await store.groups.list()}
    assert titles == {"<text>": ("KeyError, as in: 'vat_id'", "'vat_id'"), "no": ("ValueError: no", "no")}
    with pytest.raises(BadInput):
        await store.groups.list(tenant_id=" ")


async def test_a_list_of_groups_reads_no_dead_letters_but_its_examples(store: Store, db: Harness) -> None:
    letters = await fail(store, [broken(f"cause_{'abc'[n % 3]}", n) for n in range(12)])
    await count(store)
    columns = "contract, tenant_id, type, reason_code, last_error, counter, claims, correlation_id, trace_id, failed_at"
    db.sql(
        f"insert into tenure.dead_letter (job_id, {columns}) "
        f"select n, {columns} from tenure.dead_letter, generate_series(1000, 5000) as n where id = {letters[0]}"
    )
    db.sql("analyze tenure.dead_letter")
    db.sql("select pg_stat_reset()")
    assert len(await store.groups.list()) == 3
    await store.close()  # its backend reports what it read when it ends
    read = "select seq_tup_read + idx_tup_fetch as rows from pg_stat_user_tables where relname = 'dead_letter'"
    give_up = time.monotonic() + 30
    while not (rows := await asyncio.to_thread(db.value, read)) and time.monotonic() < give_up:
        pass
    assert rows < 100, "it has read the dead letters"
