"""One thing that is broken stops nothing else, and what PostgreSQL could not do is said in our own words.

A contract of a newer release, a locked row, a lost connection, a record that cannot be written, a view that somebody
built on ours: the neighbours go on, and the one that could not says why.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tenure.contracts import BUILT_IN
from tenure.errors import (
    BadInput,
    Busy,
    CannotConnect,
    ConnectionLost,
    NotPermitted,
    Refused,
    SchemaError,
    TenureError,
    Unavailable,
    UnknownContract,
)
from tenure.jobs.job import Failure, NewJob
from tenure.jobs.outcome import Moved
from tenure.postgres import statement
from tenure.postgres.migrate import migrate
from tenure.postgres.store import Store
from tests.harness import Harness
from tests.holder_calls import calls


@pytest.fixture
def other(dsn: str) -> Iterator[Harness]:
    """Somebody else's connection."""
    with Harness(dsn) as harness:
        yield harness


def on_insert(db: Harness, table: str, body: str) -> None:
    """Let PL/pgSQL run for every row that is about to be inserted."""
    db.sql(
        f"create function public.meddle() returns trigger language plpgsql as $$ begin {body} return new; end $$;"
        f"create trigger meddle before insert on tenure.{table} for each row execute function public.meddle()"
    )


BROKEN: Mapping[str, Callable[[dict[str, Any]], Any]] = {
    "an unknown field": lambda d: d.update(colour="green"),
    "an unknown field of a part": lambda d: d["lease"].update(colour="green"),
    "a part that is missing": lambda d: d.pop("counter"),
    "a machine that is not sound": lambda d: d.update(initial="nowhere"),
    "states in another form": lambda d: d.update(states=list(d["states"])),
}


async def whole_life(store: Store, db: Harness, contract: str) -> None:
    """Assert that jobs of this contract are made, claimed, reaped and finished."""
    made = await store.enqueue(NewJob("t", contract=contract))
    (job,) = await store.claim(contract, worker="w")
    db.expire(job.id)
    assert [type(outcome) for outcome in await store.reap(contract)] == [Moved]
    db.due(job.id)
    (again,) = await store.claim(contract, worker="w")
    assert (again.id, again.claims) == (made.job_id, 2)
    assert (await store.succeed(again.held)).role == "done"


@pytest.mark.parametrize("what", BROKEN)
async def test_declaration_of_a_newer_release_disturbs_no_other_contract(
    store: Store, dsn: str, db: Harness, what: str
) -> None:
    await whole_life(store, db, "standard")
    newer, alien = BUILT_IN["gate_b2"].describe(), BUILT_IN["phase27"].describe()
    newer["version"], alien["name"] = "later", "alien"
    for declared in (newer, alien):
        BROKEN[what](declared)
        db.sql(
            "insert into tenure.contract (name, version, digest, declaration) values (%s, %s, 'x', %s)",
            declared["name"], declared["version"], json.dumps(declared),
        )  # fmt: skip
    async with Store.open(dsn) as opened:
        for process in (store, opened):
            await whole_life(process, db, "standard")
            await whole_life(process, db, "gate_b2")  # by the version that it can read
            for job in (NewJob("t", contract="alien"), NewJob("t", contract="gate_b2", version="later")):
                with pytest.raises(UnknownContract, match=r"(?s)is registered, but this process cannot use it \(.+\)"):
                    await process.enqueue(job)
            with pytest.raises(UnknownContract, match="alien 1 is registered, but this process cannot use it"):
                await process.claim("alien", worker="w")


@pytest.fixture
def timeouts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The engine's statements that waited for a lock in vain, by their text."""
    seen: list[str] = []
    execute = statement._execute

    async def noted(connection: psycopg.AsyncConnection[Any], step: Any) -> Any:
        try:
            return await execute(connection, step)
        except psycopg.errors.LockNotAvailable:
            seen.append(step.query.text)
            raise

    monkeypatch.setattr(statement, "_execute", noted)
    return seen


@pytest.mark.parametrize("verb", ["succeed", "fail"])
async def test_finish_behind_locked_rows_waits_once(
    dsn: str, db: Harness, other: Harness, verb: str, timeouts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.postgres.connect.LOCK_TIMEOUT_MS", 300)
    async with Store.open(dsn) as store:
        await store.enqueue_many([NewJob("t") for _ in range(20)])
        held = [job.held for job in await store.claim(worker="w", limit=20)]
        locked = [one.id for one in held[::2]]
        before = db.fingerprint(*locked)
        with other.connection.transaction(force_rollback=True):
            other.sql("select from tenure.job where id = any(%s) for update", locked)
            if verb == "succeed":
                outcomes = await store.report("succeed", calls(held))
            else:
                outcomes = await store.report("fail", calls(held, failures=[Failure("no")] * 20))
        assert len(timeouts) == 1
        assert [type(outcome) for outcome in outcomes] == [Busy, Moved] * 10
        assert [outcome.job_id for outcome in outcomes] == [one.id for one in held]
        assert db.fingerprint(*locked)[:10] == before[:10]
        again = await store.report("succeed", calls(held[::2]))
        assert [type(outcome) for outcome in again] == [Moved] * 10


async def test_serialization_failure_is_tried_again(store: Store, db: Harness) -> None:
    db.sql("create sequence public.tries")
    on_insert(
        db, "job",
        "if nextval('public.tries') <= 2 then raise exception 'once more' using errcode = '40001'; end if;",
    )  # fmt: skip
    made = await store.enqueue(NewJob("t"))
    assert (made.made, db.value("select last_value from public.tries")) == (True, 3)
    assert db.value("select count(*) from tenure.job") == 1


async def test_serialization_failure_that_never_ends_is_busy(store: Store, db: Harness) -> None:
    on_insert(db, "job", "raise exception 'once more' using errcode = '40001';")
    with pytest.raises(Busy):
        await store.enqueue(NewJob("t"))


@pytest.mark.parametrize("code", ["53100", "53200", "57014"])
async def test_what_the_server_cannot_do_is_unavailable_and_changes_nothing(
    store: Store, db: Harness, code: str
) -> None:
    await store.enqueue(NewJob("t"))
    (job,) = await store.claim(worker="w")
    on_insert(db, "event", f"raise exception 'no room' using errcode = '{code}';")
    before = db.fingerprint(job.id)
    with pytest.raises(Unavailable, match=r"could not execute the call \(no room\); nothing was done"):
        await store.succeed(job.held)
    assert db.fingerprint(job.id) == before
    db.sql("drop trigger meddle on tenure.event")
    assert (await store.succeed(job.held)).state == "succeeded"


async def test_cancelled_statement_is_unavailable_and_changes_nothing(store: Store, db: Harness) -> None:
    on_insert(db, "job", "perform pg_sleep(100);")
    enqueuing = asyncio.create_task(store.enqueue(NewJob("t")))
    cancel = (
        "select pg_cancel_backend(pid) from pg_stat_activity "
        "where wait_event = 'PgSleep' and datname = current_database()"
    )
    while not db.sql(cancel):
        assert not enqueuing.done()
        await asyncio.sleep(0.01)
    with pytest.raises(Unavailable, match="canceling statement due to user request"):
        await enqueuing
    assert db.value("select count(*) from tenure.job") == 0


async def test_lost_connections_cost_one_call_at_most(store: Store, db: Harness) -> None:
    made = await store.enqueue(NewJob("t"))
    await asyncio.gather(*(store.jobs([made.job_id]) for _ in range(16)))
    ended = db.sql(
        "select pg_terminate_backend(pid, 60000) from pg_stat_activity "
        "where application_name = 'tenure' and datname = current_database()"
    )
    assert len(ended) > 1
    lost: list[TenureError] = []
    for _ in range(10):
        try:
            assert len(await store.jobs([made.job_id])) == 1
        except ConnectionLost as error:
            lost.append(error)
    assert len(lost) <= 1
    assert all("may or may not have happened" in str(error) for error in lost)


async def test_unreachable_database_is_said_at_once(dsn: str) -> None:
    nowhere = make_conninfo("", host="127.0.0.1", port=1, dbname="x", user="u", password="s3cret")
    with pytest.raises(CannotConnect, match=r"refused.*Next: check the address") as refusal:
        async with asyncio.timeout(60):  # and not when its patience is over
            await Store.connect(nowhere, patience_s=3_600)
    assert "s3cret" not in str(refusal.value)
    with pytest.raises(NotPermitted, match=r"does not exist.*Next: check the name"):
        await Store.connect(make_conninfo(dsn, dbname="nowhere"))


@pytest.mark.parametrize("address", ["mysql://u:s3cret@h/d", "u:s3cret@h/d", "postgresql://u:s3cret@h/d?colour=green"])
async def test_address_that_is_none_is_refused_without_its_password(address: str) -> None:
    for ask in (Store.connect, lambda given: asyncio.to_thread(migrate, given)):
        with pytest.raises(BadInput, match="the address of the database") as refusal:
            await ask(address)
        assert "s3cret" not in f"{refusal.value} {refusal.value.__cause__}"


async def test_closed_store_says_so(dsn: str) -> None:
    store = await Store.connect(dsn)
    await store.close()
    for call in (store.enqueue(NewJob("t")), store.claim(worker="w"), store.reap("standard"), store.jobs([1])):
        with pytest.raises(BadInput, match="this store is closed"):
            await call


def settling(db: Harness, *types: str) -> list[int]:
    """Jobs that a crash left at their commit point, set aside by an operator while they waited to be retried."""
    return [
        db.value(
            "with job as (insert into tenure.job (contract, version, state, role, max_attempts, type, seq) "
            "values ('gate_b2', %s, 'dlq_pending', 'settling', 3, %s, 1) returning id), "
            "log as (insert into tenure.event (job_id, ts, seq, claims, counter, max_attempts, contract, trigger, "
            "from_state, to_state, actor) select id, clock_timestamp(), 1, 0, 0, 3, 'gate_b2', 'dead_letter', "
            "'retrying', 'dlq_pending', 'ada' from job) select id from job",
            BUILT_IN["gate_b2"].version, each,
        )
        for each in types
    ]  # fmt: skip


def refuse_records_of_bad_jobs(db: Harness) -> None:
    """Let no dead letter be written for jobs of the type `bad`."""
    on_insert(db, "dead_letter", "if new.type = 'bad' then raise exception 'unwritable'; end if;")


@pytest.mark.parametrize("limit", [1, 2, 5, 1000])
async def test_record_that_cannot_be_written_holds_up_no_other(store: Store, db: Harness, limit: int) -> None:
    ids = settling(db, "bad", "good", "good", "good", "good")
    refuse_records_of_bad_jobs(db)
    before = db.fingerprint(ids[0])[:1]
    outcomes: dict[int | None, Any] = {outcome.job_id: outcome for outcome in await store.settle("gate_b2", limit)}
    refused = outcomes[ids[0]]
    assert isinstance(refused, Refused)
    assert refused.reason_code == "NOT_SETTLED"
    assert "unwritable" in str(refused)
    assert db.fingerprint(ids[0])[:1] == before
    for _ in ids:  # a round may stop at its limit; the next ones go on
        await store.settle("gate_b2", limit)
    assert [db.row(job_id)["state"] for job_id in ids] == ["dlq_pending"] + ["failed"] * 4
    db.sql("drop trigger meddle on tenure.dead_letter")
    assert [type(outcome) for outcome in await store.settle("gate_b2", limit)] == [Moved]
    assert db.value("select count(*) from tenure_gate_b2.dlq_items") == 5
    db.log_is_sound(*ids)


async def test_good_job_behind_a_bad_one_settles_in_the_same_round(store: Store, db: Harness) -> None:
    bad, good = settling(db, "bad", "good")
    refuse_records_of_bad_jobs(db)
    first, second = await store.settle("gate_b2", limit=1)
    assert (first.job_id, isinstance(first, Refused)) == (bad, True)
    assert isinstance(second, Moved)
    assert (second.job_id, second.state) == (good, "failed")


def test_view_that_somebody_built_on_ours_is_named_when_ours_must_change(dsn: str, db: Harness) -> None:
    standard = BUILT_IN["standard"]
    jobs, *others = standard.views
    wider = replace(jobs, columns={**jobs.columns, "claims": "claims"})
    later = {"standard": replace(standard, version="2", views=(wider, *others))}
    db.sql("create view public.mine as select id, state from tenure_standard.jobs")
    with pytest.raises(SchemaError, match=r"tenure_standard.*jobs.*must change.*view mine depends.*Next: drop that"):
        migrate(dsn, later)
    assert db.sql("select * from public.mine") == []
    db.sql("drop view public.mine")
    assert "view tenure_standard.jobs" in migrate(dsn, later).rebuilt
    assert db.sql("select claims from tenure_standard.jobs") == []


async def test_nobody_truncates_the_log(store: Store, db: Harness) -> None:
    await store.enqueue(NewJob("t"))
    await store.claim(worker="w")
    for change in ("truncate tenure.event", "truncate tenure.event cascade", "delete from tenure.event"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="the log only grows"):
            db.sql(change)
    assert db.value("select count(*) from tenure.event") == 1


def test_reader_sees_no_keys(dsn: str, db: Harness) -> None:
    for _ in range(2):  # granting again gives no more
        migrate(dsn, grants=True)
        db.sql("set role tenure_read")
        assert db.sql("select * from tenure.job") == []
        for table in ("claim", "key"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege, match=f"denied for table {table}"):
                db.sql(f"select * from tenure.{table}")
        db.sql("reset role")
