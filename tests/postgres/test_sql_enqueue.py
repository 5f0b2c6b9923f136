"""`tenure.enqueue` makes from SQL the job that the library makes, in the caller's transaction."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from psycopg.conninfo import make_conninfo
from psycopg.types.json import Jsonb

from tenure.contracts import BUILT_IN
from tenure.errors import BadInput, IdempotencyConflict
from tenure.jobs.job import NewJob
from tenure.jobs.job_type import JobType
from tenure.jobs.validation import LENGTHS, MAX_BYTES, MAX_DEPTH, check_new_job
from tenure.postgres.enqueue import _hash
from tenure.postgres.migrate import migrate
from tenure.postgres.store import Store
from tests.app.callers import done
from tests.harness import Harness
from tests.postgres.listening import Ear
from tests.worker.working import until

_EXCEPT = ("id", "created_at", "updated_at", "due_at", "idempotency_key", "payload")
_LIVE = "select * from tenure.job order by id"


def call(**options: Any) -> tuple[str, dict[str, Any]]:
    """A call with named parameters."""
    return "select tenure.enqueue(" + ", ".join(f"{name} => %({name})s" for name in options) + ")", options


def enqueue(connection: psycopg.Connection[Any], **options: Any) -> int:
    """Enqueue from SQL; the id."""
    text, values = call(**options)
    row = connection.execute(text.encode(), values).fetchone()
    assert row is not None
    return int(row[0])


@pytest.fixture
def sql(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection of any program."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection


OPTIONS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "all":
        {
            "payload": {"a": [1, {"b": None}]}, "queue": "q", "priority": 0, "tenant_id": "acme", "max_attempts": 2,
            "correlation_id": "c", "trace_id": "t" * 200,
        },
}  # fmt: skip


@pytest.mark.parametrize("contract", BUILT_IN)
@pytest.mark.parametrize("options", OPTIONS)
async def test_row_is_the_one_that_the_library_makes(
    store: Store, db: Harness, sql: psycopg.Connection[Any], contract: str, options: str
) -> None:
    given = dict(OPTIONS[options])
    if "max_attempts" in given:
        given["max_attempts"] = BUILT_IN[contract].budget.minimum
    json_given = {"payload": Jsonb(given["payload"])} if given else {}
    await store.types.declare([JobType("limited", contract, max_attempts=BUILT_IN[contract].budget.maximum)])
    for job_type in ("plain", "limited"):
        enqueue(sql, type=job_type, contract=contract, **(given | json_given))
        await store.enqueue(NewJob(job_type, contract=contract, **given))
    rows = db.sql(_LIVE)
    for mine, theirs in zip(rows[::2], rows[1::2], strict=True):
        assert {k: v for k, v in mine.items() if k not in _EXCEPT} == {
            k: v for k, v in theirs.items() if k not in _EXCEPT
        }
        assert mine["payload"] == theirs["payload"]
        assert mine["due_at"] == mine["created_at"] == mine["updated_at"]
    assert len(rows) == 4


async def test_due_time_is_given_or_computed(store: Store, db: Harness, sql: psycopg.Connection[Any]) -> None:
    due = datetime(2100, 1, 2, 3, 4, 5, 678, UTC)
    at, later = enqueue(sql, type="t", run_at=due), enqueue(sql, type="t", delay="90 seconds")
    assert db.row(at)["due_at"] == due
    row = db.row(later)
    assert (row["due_at"] - row["created_at"]).total_seconds() == 90
    assert await store.claim("standard", worker="w") == []


async def test_job_that_sql_made_runs_to_its_end(store: Store, sql: psycopg.Connection[Any]) -> None:
    made = enqueue(sql, type="t", payload=Jsonb({"n": 1}))
    (job,) = await store.claim("standard", worker="w")
    assert (job.id, job.payload) == (made, {"n": 1})
    assert (await store.succeed(job.held, {"ok": True})).state == "succeeded"


def deep(levels: int) -> Any:
    """Lists in lists."""
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


#: Options that both ways refuse, as the library takes them, and the SQLSTATE.
WRONG: list[tuple[dict[str, Any], str]] = [
    *(({name: "x" * (LENGTHS[name] + 1)}, "22023") for name in ("type", "queue", "tenant_id", "key", "trace_id")),
    ({"correlation_id": "x" * 201}, "22023"),
    *(({name: " \t\n"}, "22023") for name in ("type", "queue", "tenant_id", "key", "trace_id", "correlation_id")),
    ({"priority": -1}, "22023"),
    ({"priority": 10}, "22023"),
    ({"max_attempts": 0}, "22023"),
    ({"max_attempts": 1_001}, "22023"),
    ({"payload": "x" * (MAX_BYTES - 1)}, "54000"),
    ({"payload": {"a": ["é" * (MAX_BYTES // 2 - 6), 1, 2]}}, "54000"),
    ({"payload": deep(MAX_DEPTH + 1)}, "22023"),
    ({"payload": {"a": deep(MAX_DEPTH)}}, "22023"),
]


@pytest.mark.parametrize(("options", "state"), WRONG, ids=range(len(WRONG)))
def test_what_the_library_refuses_is_refused(
    db: Harness, sql: psycopg.Connection[Any], options: dict[str, Any], state: str
) -> None:
    with pytest.raises(BadInput):
        check_new_job(BUILT_IN["standard"], NewJob(**{"type": "t", **options}))
    if "payload" in options:
        options = {"payload": Jsonb(options["payload"])}
    with pytest.raises(psycopg.Error) as refused:
        enqueue(sql, **{"type": "t", **options})
    assert refused.value.sqlstate == state
    assert db.value("select count(*) from tenure.job") == 0


@pytest.mark.parametrize(
    "options",
    [
        *({name: "é" * LENGTHS[name]} for name in ("type", "queue", "tenant_id", "key", "trace_id", "correlation_id")),
        {"max_attempts": 1_000},
        {"payload": "x" * (MAX_BYTES - 2)},
        {"payload": {"a": ["é" * (MAX_BYTES // 2 - 7), 1, 2]}},
        {"payload": ["a, b: c", *([1] * 400_000)]},
        {"payload": [{"a": ', : \\", '}] * 50_000},
        {"payload": deep(MAX_DEPTH)},
        {"payload": None},
    ],
    ids=range(13),
)
def test_what_the_library_takes_is_taken(db: Harness, sql: psycopg.Connection[Any], options: dict[str, Any]) -> None:
    check_new_job(BUILT_IN["standard"], NewJob(**{"type": "t", **options}))
    if "payload" in options:
        options = {"payload": Jsonb(options["payload"])}
    enqueue(sql, **{"type": "t", **options})
    assert db.value("select count(*) from tenure.job") == 1


@pytest.mark.parametrize(
    ("arguments", "state"),
    [
        ("'t', run_at => now(), delay => '1s'", "22023"),
        ("'t', delay => '-1s'", "22023"),
        ("'t', delay => '3661 days'", "22023"),
        ("'t', run_at => 'infinity'", "22023"),
        ("'t', run_at => '-infinity'", "22023"),
        ("'t', contract => 'nowhere'", "42704"),
        ("null", "22023"),
        *(
            (f"'t', {name} => null", "22023")
            for name in ("payload", "queue", "contract", "priority", "tenant_id", "notify")
        ),
    ],
)
def test_wrong_values_of_sql_alone_are_refused(
    db: Harness, sql: psycopg.Connection[Any], arguments: str, state: str
) -> None:
    with pytest.raises(psycopg.Error) as refused:
        sql.execute(f"select tenure.enqueue({arguments})".encode())
    assert refused.value.sqlstate == state
    assert db.value("select count(*) from tenure.job") == 0


async def test_newest_registered_version_of_a_contract_is_taken(db: Harness, sql: psycopg.Connection[Any]) -> None:
    db.sql(
        "insert into tenure.contract (name, version, digest, declaration) select name, '2', 'd', declaration "
        "from tenure.contract where name = 'standard'"
    )
    assert db.row(enqueue(sql, type="t"))["version"] == "2"


async def test_key_makes_one_job_from_sql_and_from_the_library(
    store: Store, db: Harness, sql: psycopg.Connection[Any]
) -> None:
    payload = {"to": 'Ünï 😀\x7f\n"\\', "amounts": [1.5, -2, 10**20, 0.1, 1e-7, 3.0], "a": {"b": None, "A": True}}
    for n, (first_from_sql, contract) in enumerate([(True, "standard"), (False, "phase27")]):
        key = f"k{n}"
        job = NewJob("t", {**payload, "$timeout": 3}, contract, key=key, tenant_id="acme")
        ways: list[Callable[[], Any]] = [
            lambda key=key, contract=contract: enqueue(  # type: ignore[misc]
                sql, type="t", payload=Jsonb(payload), contract=contract, key=key, tenant_id="acme"
            ),
            lambda job=job: store.enqueue(job),  # type: ignore[misc]
        ]
        first, second = [await done(way()) for way in (ways if first_from_sql else reversed(ways))]
        assert getattr(first, "job_id", first) == getattr(second, "job_id", second)
        assert db.value("select count(*) from tenure.job where idempotency_key = %s", key) == 1
        with pytest.raises(psycopg.errors.UniqueViolation, match="used before with another body") as refused:
            enqueue(sql, type="t", payload=Jsonb({}), contract=contract, key=key, tenant_id="acme")
        assert refused.value.diag.message_hint == "Next: use a new key"
        with pytest.raises(IdempotencyConflict):
            await store.enqueue(NewJob("other", payload, contract, key=key, tenant_id="acme"))
    enqueue(sql, type="t", key="k0")  # another tenant
    assert db.value("select count(*) from tenure.job") == 3


_NUMBERS = st.one_of(
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False).filter(lambda x: abs(x) < 1e16 and (x != 0 or str(x) == "0.0")),
)
_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=20)
_JSON = st.recursive(
    st.none() | st.booleans() | _NUMBERS | _TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXT, inner, max_size=4),
    max_leaves=20,
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(payload=_JSON, job_type=_TEXT)
@example(payload={"$timeout": 5, "a": ["$timeout"]}, job_type="t")
@example(payload=["$timeout", 1e15, 123456789012345.6, 1e-5, 0.0001, 9999999999999998.0, 5e-324], job_type="t")
def test_hash_of_a_key_is_the_same_in_both(dsn: str, payload: Any, job_type: str) -> None:
    with psycopg.connect(dsn, autocommit=True, options="-c extra_float_digits=0") as connection:
        row = connection.execute(
            "select tenure.sorted_json(jsonb_build_array('standard'::text, %s::text, "
            "case when jsonb_typeof(%s) = 'object' then %s - '$timeout' else %s end))",
            (job_type, *[Jsonb(payload)] * 3),
        ).fetchone()
    body = {k: v for k, v in payload.items() if k != "$timeout"} if isinstance(payload, dict) else payload
    assert row == (json.dumps(["standard", job_type, body], sort_keys=True),)
    assert _hash("standard", NewJob(job_type, payload))  # the same text, hashed


@pytest.mark.parametrize("commits", [True, False])
async def test_second_caller_with_a_key_waits_for_the_first(
    dsn: str, db: Harness, sql: psycopg.Connection[Any], commits: bool
) -> None:
    import asyncio

    waits = "select count(*) > 0 from pg_locks where not granted and pid <> pg_backend_pid()"
    with psycopg.connect(dsn) as first:
        one = enqueue(first, type="t", key="k")
        waiting = asyncio.create_task(asyncio.to_thread(enqueue, sql, type="t", key="k"))
        await until(lambda: waiting.done() or db.value(waits))
        assert not waiting.done()
        (first.commit if commits else first.rollback)()
        two = await waiting
    assert (one == two) is commits
    assert db.value("select array_agg(id) from tenure.job") == [two]


async def test_wakeup_of_a_transaction_is_one_and_comes_with_its_commit(dsn: str) -> None:
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as listening:
        await listening.execute("listen tenure")
        ear = Ear(listening)
        with psycopg.connect(dsn) as own:
            own.execute("select tenure.enqueue('t', queue => 'q') from generate_series(1, 50)")
            own.execute("select tenure.enqueue('t', queue => 'later', delay => '1h')")
            own.execute("select tenure.enqueue('t', queue => 'quiet', notify => false)")
            await ear.say("before")
            own.commit()
            own.execute("select tenure.enqueue('t')")
            own.rollback()
        await ear.say("end")
        assert await ear.until(lambda word: word == "end") == ["before", "standard:q", "end"]


def test_contract_with_wakeups_gets_them_while_publishing_is_on(db: Harness, sql: psycopg.Connection[Any]) -> None:
    enqueue(sql, type="t", contract="dispatcher")
    assert db.value("select count(*) from tenure.outbox") == 0
    db.sql("insert into tenure.published_queue (queue, url, fill_end) values ('default', 'https://queue.example/1', 0)")
    enqueue(sql, type="t")
    made = enqueue(sql, type="t", contract="dispatcher", delay="1h")
    assert db.sql(
        "select o.job_id, publish_at = j.due_at as same from tenure.outbox o join tenure.job j on j.id = job_id"
    ) == [{"job_id": made, "same": True}]


def test_beyond_the_last_id_range_no_job_is_made(db: Harness, sql: psycopg.Connection[Any]) -> None:
    db.sql("select setval('tenure.job_id_seq', (select max(high) from tenure.range) - 2)")
    assert enqueue(sql, type="t") == db.value("select max(high) - 1 from tenure.range")
    for options in ({}, {"key": "k"}):
        with pytest.raises(psycopg.errors.SequenceGeneratorLimitExceeded, match="no id range is left") as refused:
            enqueue(sql, type="t", **options)
        assert "extend_ranges" in str(refused.value.diag.message_hint)
    assert db.value("select count(*) from tenure.job") == 1
    assert db.value("select count(*) from tenure.key") == 0
    db.sql("select tenure.extend_ranges(4)")
    enqueue(sql, type="t", key="k")


def test_many_rows_of_a_query_become_jobs(db: Harness, sql: psycopg.Connection[Any]) -> None:
    db.sql("create table person (email text)")
    db.sql("insert into person select n || '@b.c' from generate_series(1, 10000) as n")
    sql.execute("select tenure.enqueue('send', jsonb_build_object('to', email), queue => 'mail') from person")
    assert db.value("select count(distinct payload ->> 'to') from tenure.job where queue = 'mail'") == 10_000


def test_objects_of_the_callers_own_do_not_come_in_between(db: Harness, sql: psycopg.Connection[Any]) -> None:
    db.sql("create schema evil")
    db.sql("create function evil.clock_timestamp() returns timestamptz language sql as 'select timestamptz ''epoch'''")
    db.sql("create function evil.nextval(text) returns bigint language sql as 'select 1::bigint'")
    db.sql("create table evil.job (id bigint)")
    sql.execute("set search_path = evil, pg_catalog")
    made = enqueue(sql, type="t", key="k")
    assert db.row(made)["created_at"].year > 2000
    assert sql.execute("show search_path").fetchone() == ("evil, pg_catalog",)


def test_app_may_enqueue_and_reader_and_others_may_not(dsn: str, db: Harness) -> None:
    migrate(dsn, grants=True)
    for role, may in (("tenure_app", True), ("tenure_owner", True), ("tenure_read", False), ("pg_monitor", False)):
        name = f"person_{uuid4().hex[:12]}"
        db.sql(f"create role {name} login password 'x' in role {role}")
        try:
            with psycopg.connect(make_conninfo(dsn, user=name, password="x"), autocommit=True) as person:
                if may:
                    enqueue(person, type="t", key=role)
                else:
                    with pytest.raises(psycopg.errors.InsufficientPrivilege):
                        enqueue(person, type="t")
        finally:
            db.sql(f"drop owned by {name}")
            db.sql(f"drop role {name}")
    assert db.value("select count(*) from tenure.job") == 2


def test_function_does_not_lend_its_owners_rights(db: Harness) -> None:
    assert db.value("select prosecdef from pg_proc where oid = 'tenure.enqueue'::regproc") is False
