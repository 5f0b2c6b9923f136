"""Three roles: the app can do what workers, operators and upkeep do and nothing else, the reader only looks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tenure.contracts import BUILT_IN
from tenure.errors import Refused, Unavailable
from tenure.jobs.api_key import hash_key
from tenure.jobs.job import Failure, Job, NewJob
from tenure.jobs.job_type import JobType
from tenure.jobs.live_worker import LiveWorker
from tenure.jobs.outcome import Moved
from tenure.jobs.unique import Unique
from tenure.postgres.migrate import Migration, MigrationReport, migrate, migrations
from tenure.postgres.store import Store
from tenure.proof import audit
from tests.contracts.gate_b2 import left_pending
from tests.harness import Harness
from tests.postgres.retiring import full, leaving, long_ago, retired

Login = Callable[[str], str]
every = pytest.mark.parametrize("contract", BUILT_IN)
TRANSIENT = Failure("later", type="TransientError", retryable=True)
FATAL = Failure("no", type="PermanentError", retryable=False)


@pytest.fixture
def login(dsn: str, db: Harness) -> Iterator[Login]:
    """Makes people of a role, who are gone afterwards; roles are the whole cluster's, so each has a name of its own."""
    migrate(dsn, grants=True)
    made: list[str] = []

    def person(role: str) -> str:
        made.append(f"person_{uuid4().hex[:12]}")
        db.sql(f"create role {made[-1]} login password 'x' in role {role}")
        return make_conninfo(dsn, user=made[-1], password="x")

    yield person
    for name in made:
        db.sql(f"drop owned by {name}")
        db.sql(f"drop role {name}")


async def held(store: Store, contract: str, **given: Any) -> Job:
    """A job in the hands of its handler."""
    queue = f"q-{uuid4().hex[:8]}"
    await store.enqueue(NewJob("t", {"n": 1}, contract, queue=queue, **given))
    (job,) = await store.claim(contract, [queue], worker="w")
    await store.start(job.held)
    return job


async def ended(store: Store, contract: str, failure: Failure = FATAL) -> int:
    """A job that failed for good."""
    job = await held(store, contract, **({} if contract == "gate_b2" else {"max_attempts": 1}))
    assert (await store.fail(job.held, failure)).role == "done"
    return job.id


async def allowed(call: Any) -> Any:
    """What a call gives; a refusal by the contract will do, one for want of rights will not."""
    try:
        return await call
    except Refused as refusal:
        return refusal


@every
async def test_the_app_does_everything_that_a_worker_does(login: Login, db: Harness, contract: str) -> None:
    async with Store.open(login("tenure_app")) as app:
        await app.outbox.publish({"default": "https://queue.example/1/default"})
        made = await app.enqueue_many([NewJob("t", contract=contract), NewJob("t", contract=contract, key="k")])
        assert [getattr(one, "made", None) for one in made] == [True, True]
        job = await held(app, contract)
        await app.heartbeat(job.held)
        await app.progress(job.held, {"half": True})
        await app.checkpoint(job.held, {"at": 7})
        assert (await app.effect(job.held, "charge", {"receipt": 1})).recorded
        assert await app.effects(job.id) == {"charge": {"receipt": 1}}
        assert (await app.succeed(job.held, {"ok": 1}, key="once")).role == "done"
        assert (await app.succeed(job.held, {"ok": 1}, key="once")).role == "done"
        for verb in (
            lambda one: app.fail(one, TRANSIENT), lambda one: app.fail(one, FATAL), lambda one: app.snooze(one, 5),
            app.hand_back, app.cancelled, app.compensated, lambda one: app.compensation_failed(one, FATAL),
        ):  # fmt: skip
            job = await held(app, contract)
            await allowed(verb(job.held))
        (by_id,) = await app.claim_by_id([made[0].job_id or 0], worker="w", contract=contract)
        assert isinstance(by_id, Job)
        ids = [row["id"] for row in db.sql("select id from tenure.job union all select id from tenure.job_done")]
        assert len(await app.jobs(ids)) == 10
        assert (await app.events(by_id.id))[0].trigger == "claim"
    db.log_is_sound(*ids)


async def test_the_app_undoes_effects(login: Login, db: Harness) -> None:
    async with Store.open(login("tenure_app")) as app:
        job = await held(app, "reliability")
        await app.effect(job.held, "charge", compensable=True)
        assert (await app.fail(job.held, FATAL)).compensate == ("charge",)
        assert (await app.compensated(job.held)).state == "failed"
        assert db.value("select count(*) from tenure.effect where compensated_at is not null") == 1


@every
async def test_the_app_does_everything_that_an_operator_does(login: Login, db: Harness, contract: str) -> None:
    states = BUILT_IN[contract].states
    async with Store.open(login("tenure_app")) as app:
        for mode in ("soft", "hard"):
            for key in (None, f"cancel {mode}"):
                job = await held(app, contract)
                try:
                    await allowed(app.cancel(job.id, mode=mode, reason="no use", actor="ada", key=key))
                except ValueError:
                    assert mode not in BUILT_IN[contract].cancel_modes
        for to in states:
            job = await held(app, contract)
            await allowed(app.transition(job.id, to, actor="ada", reason="so", key=f"to {to}"))
        job = await held(app, contract)
        reasons = BUILT_IN[contract].dead_letters.reasons or ("operator",)
        await allowed(app.dead_letter(job.id, reason_code=reasons[0], actor="ada", key="aside"))
        old = await ended(app, contract)
        new = await app.requeue(old, actor="ada", key="again")
        assert await app.requeue(old, actor="ada", key="again") == new
        await app.reruns(old)
        assert await app.types.declare([JobType("t", contract, max_attempts=3)]) == 1
        assert await app.types.declare([JobType("t", contract, backoff_base_ms=2_000)]) == 1
        assert len(await app.types.list(contract)) == 1
        assert (await app.queues.pause("mail", actor="ada"))[1]
        assert "mail" in [queue.name for queue in await app.queues.list()]
        assert await app.queues.resume("mail", actor="ada")
        made, text = await app.keys.create("k", ["work"], None, None, "ada")
        assert await app.keys.find(hash_key(text)) == (made, True)
        assert (await app.keys.revoke(made.id, "ada"))[1]
        assert len((await app.find(contract=contract)).jobs) > 0
        await app.outbox.unpublish()
        assert sorted(await app.contracts()) == sorted(BUILT_IN)
        assert (await audit(app)).violations == []


@pytest.mark.parametrize("contract", ["standard", "reliability", "gate_b2"])
async def test_the_app_decides_about_dead_letters(login: Login, contract: str) -> None:
    failure = Failure("bad", type="ValidationError", retryable=False)
    async with Store.open(login("tenure_app")) as app:
        back, gone = [await app.letters.of_job(await ended(app, contract, failure)) for _ in range(2)]
        assert await app.letters.requeue(back.id, actor="ada", key="again") > back.job_id
        letter = await app.letters.request_discard(gone.id, person="ada", reason="no use", key="ask")
        if letter.status == "open":
            letter = await app.letters.approve_discard(gone.id, person="bob", key="agree")
        assert letter.status == "discarded"
        assert (await app.letters.show(back.id)).status == "requeued"


async def test_the_app_keeps_jobs_up(login: Login, store: Store, db: Harness) -> None:
    pending = (await store.enqueue(NewJob("t", contract="gate_b2"))).job_id
    await left_pending(store, db, pending)
    async with Store.open(login("tenure_app")) as app:
        for contract in BUILT_IN:
            job = await held(app, contract, **({} if contract == "gate_b2" else {"max_attempts": 1}))
            db.expire(job.id)
            assert [isinstance(moved, Moved) for moved in await app.reap(contract)] == [True]
        job = await held(app, "dispatcher")
        await app.outbox.publish({job.queue: "https://queue.example/1/jobs"})
        await app.fail(job.held, TRANSIENT)
        db.due(job.id)
        assert len(await app.promote("dispatcher")) == 1
        assert db.value("select count(*) from tenure.outbox where job_id = %s", job.id) == 1
        assert len(await app.settle("gate_b2")) == 1
        assert await app.extend_ranges(6) == 2
        job = await held(app, "reliability")
        await app.heartbeat(job.held)
        assert await app.history.forget_payloads(0) == 1
        # Below the lowest range: its job has left.
        db.sql("insert into tenure.key (tenant_id, key, verb, hash, job_id, created_at) "
               "values ('t', 'k', 'v', 'h', -1, 'epoch')")  # fmt: skip
        db.sql("insert into tenure.claim (key, at) values (%s, 'epoch')", uuid4())
        assert await app.history.forget_keys() == 1
        assert await app.history.forget_claims() == 1
        assert await app.history.vacuum() is False
    assert (await audit(store)).violations == []


async def test_the_app_lives_in_ranges_that_were_made_after_the_grants(login: Login, db: Harness) -> None:
    app, reader = login("tenure_app"), login("tenure_read")
    async with Store.open(app) as store:
        await store.extend_ranges(9)
        full(db, 8)
        job = await held(store, "standard")
        await store.succeed(job.held)
        assert len(await store.events(job.id)) == 2
    with psycopg.connect(reader, autocommit=True) as looking:
        assert looking.execute("select count(*) from tenure_standard.events").fetchall() == [(2,)]
        assert looking.execute("select count(*) from tenure.event_9").fetchall() == [(2,)]


NEITHER = [
    *(f"truncate tenure.{table}" for table in ("job", "job_done", "event", "event_0", "key")),
    *(f"drop table tenure.{table}" for table in ("job", "job_done", "event", "event_0", "key")),
    "delete from tenure.event", "delete from tenure.event_0", "delete from tenure.job_done",
    "delete from tenure.job_done_0", "delete from tenure.effect", "delete from tenure.rerun",
    "delete from tenure.dead_letter", "delete from tenure.job_type", "delete from tenure.range",
    "delete from tenure.queue", "delete from tenure.api_key", "delete from tenure.emitted",
    "update tenure.api_key set scopes = '{admin}'", "update tenure.api_key set expires_at = null",
    "update tenure.emitted set body = '{}'",
    "delete from tenure.installation", "delete from tenure.contract", "delete from tenure.migration",
    "update tenure.event set actor = 'nobody'", "update tenure.event_0 set facts = null",
    "update tenure.event set ts = now(), facts = null", "update tenure.job_done set state = 'dead'",
    "update tenure.job_done_0 set result = null", "update tenure.rerun set as_job_id = 1",
    "update tenure.effect set result = null", "update tenure.range set leaving = null",
    "update tenure.range set taken = now()",
    "update tenure.installation set id = gen_random_uuid()", "update tenure.contract set digest = 'x'",
    "update tenure.migration set checksum = 'x'",
    "insert into tenure.contract values ('mine', '1', 'x', '{}')", "insert into tenure.range values (-1, 0)",
    "insert into tenure.migration values (9999, 'later', 'x')", "insert into tenure.installation values (false)",
    "insert into tenure.event_0 select * from tenure.event",
    "insert into tenure.job_done_0 select * from tenure.job_done",
    "select setval('tenure.job_id_seq', 1)", "alter sequence tenure.job_id_seq restart",
    "alter table tenure.job drop constraint job_valid", "alter domain tenure.valid_job drop constraint job_state",
    "alter table tenure.event disable trigger keep_the_log",
    "alter table tenure.event detach partition tenure.event_0", "create table tenure.mine (id int)",
    "create function tenure.mine() returns int language sql return 1", "create schema mine",
    "create or replace function tenure.keep_the_log() returns trigger language plpgsql as 'begin return new; end'",
    "create view tenure_standard.mine as select 1", "drop view tenure_standard.jobs",
    "set session_replication_role = replica", "create role mine", "grant tenure_owner to current_user",
]  # fmt: skip


def refused(connection: psycopg.Connection[Any], command: str) -> bool:
    """Whether a command is refused for want of rights; the log's own guard says so too."""
    try:
        with connection.transaction(force_rollback=True):
            connection.execute(command.encode())
    except psycopg.errors.InsufficientPrivilege:
        return True
    except psycopg.errors.ObjectNotInPrerequisiteState as error:
        return "view" in str(error)  # nobody writes to a view of several tables
    return False


@pytest.mark.parametrize("role", ["tenure_app", "tenure_read"])
async def test_neither_role_rewrites_the_past_nor_changes_the_schema(login: Login, store: Store, role: str) -> None:
    await ended(store, "standard")
    with psycopg.connect(login(role), autocommit=True) as person:
        assert [command for command in NEITHER if not refused(person, command)] == []


async def test_of_the_log_the_app_can_only_forget_payloads(login: Login, store: Store, db: Harness) -> None:
    await ended(store, "standard")
    before = db.sql("select * from tenure.event order by job_id, seq")
    with psycopg.connect(login("tenure_app"), autocommit=True) as app:
        assert refused(app, "update tenure.event set facts = '{}'")
        assert refused(app, 'update tenure.event set facts = facts || \'{"error": {"code": "OTHER"}}\'')
        assert db.sql("select * from tenure.event order by job_id, seq") == before
        app.execute("update tenure.event set facts = null")
    after = db.sql("select * from tenure.event order by job_id, seq")
    assert after == [{**event, "facts": None} for event in before]


async def test_the_app_registers_no_contract_and_retires_no_range(login: Login, store: Store, db: Harness) -> None:
    job_id = await leaving(store, db)
    app = login("tenure_app")
    before = db.sql("select * from tenure.range order by low"), db.sql("select * from tenure.contract")
    with pytest.raises(Exception, match="permission denied"):
        migrate(app, {"errand": replace(BUILT_IN["phase27"], name="errand")})
    async with Store.open(app) as worker:
        with pytest.raises(Unavailable, match="only the owner of the tables can drop ranges"):
            await worker.history.retire_ranges()
    assert (db.sql("select * from tenure.range order by low"), db.sql("select * from tenure.contract")) == before
    assert len(await store.jobs([job_id])) == 1
    assert await asyncio.wait_for(retired(store), 40) == 1


async def test_the_reader_reads_everything_but_keys(login: Login, store: Store, db: Harness) -> None:
    for contract in BUILT_IN:
        await ended(store, contract)
    relations = db.sql(
        "select schemaname || '.' || quote_ident(viewname) as name from pg_views where schemaname like 'tenure\\_%' "
        "union all select 'tenure.' || tablename from pg_tables where schemaname = 'tenure' order by 1"
    )
    with psycopg.connect(login("tenure_read"), autocommit=True) as reader:
        hidden = [row["name"] for row in relations if refused(reader, f"select * from {row['name']}")]
        assert hidden == ["tenure.api_key", "tenure.claim", "tenure.key"]
        assert reader.execute("select state from tenure_standard.jobs").fetchall() == [("dead",)]
        writes = [
            command
            for row in relations
            for command in (f"delete from {row['name']}", f"insert into {row['name']} default values")
        ]
        assert [command for command in writes if not refused(reader, command)] == []
        for command in (
            "update tenure.job set priority = 0", "update tenure.installation set publishing = true",
            "update tenure.event set facts = null", "select tenure.extend_ranges(9)",
            "select nextval('tenure.job_id_seq')", "select id from tenure.job for update",
            "lock table tenure.job in row exclusive mode",
        ):  # fmt: skip
            assert refused(reader, command), command


async def test_grants_given_again_give_nothing_more(login: Login, dsn: str, db: Harness) -> None:
    granted = (
        "select table_name, grantee, privilege_type from information_schema.role_table_grants "
        "where grantee like 'tenure\\_%' order by 1, 2, 3"
    )
    before = db.sql(granted)
    assert migrate(dsn, grants=True).granted == ["tenure_owner", "tenure_app", "tenure_read"]
    assert db.sql(granted) == before
    assert not [row for row in before if row["grantee"] == "tenure_read" and row["privilege_type"] != "SELECT"]


def strangers(db: Harness) -> list[str]:
    """What of Tenure's belongs to somebody other than its owner."""
    rows = db.sql(
        "select relname as name, relowner as owner, relnamespace as namespace from pg_class where relkind <> 'i' "
        "union all select proname, proowner, pronamespace from pg_proc "
        "union all select nspname, nspowner, oid from pg_namespace"
    )
    ours = {row["oid"] for row in db.sql("select oid from pg_namespace where nspname ~ '^tenure(_|$)'")}
    owner = db.value("select 'tenure_owner'::regrole::oid")
    assert len([row for row in rows if row["namespace"] in ours]) > 50
    return [row["name"] for row in rows if row["namespace"] in ours and row["owner"] != owner]


async def test_the_owner_owns_migrates_retires_and_vacuums(login: Login, store: Store, db: Harness) -> None:
    assert strangers(db) == []
    await leaving(store, db)
    owner = login("tenure_owner")
    assert migrate(owner).registered == []
    async with Store.open(owner) as keeper:
        assert await keeper.history.vacuum() is True
        assert await retired(keeper) == 1
        assert await keeper.extend_ranges(9) > 0
    assert strangers(db) == []


@pytest.mark.parametrize("who", ["the owner", "the superuser"])
async def test_what_a_later_release_replaces_keeps_its_readers_and_its_owner(
    login: Login, dsn: str, db: Harness, who: str
) -> None:
    app, reader, owner = login("tenure_app"), login("tenure_read"), login("tenure_owner")
    db.sql("comment on view tenure_standard.jobs is 'of an earlier release'")
    assert migrate(owner if who == "the owner" else dsn).rebuilt == ["view tenure_standard.jobs"]
    for person in (app, reader):
        with psycopg.connect(person, autocommit=True) as looking:
            assert looking.execute("select count(*) from tenure_standard.jobs").fetchall() == [(0,)]
    assert strangers(db) == []


async def test_a_database_that_an_earlier_release_granted_needs_no_new_grants(login: Login, db: Harness) -> None:
    for table in ("published_queue", "unique_job"):
        db.sql(f"revoke insert, update, delete on tenure.{table} from tenure_app")
    db.sql("revoke execute on function tenure.enqueue from tenure_app")
    db.sql(next(migration.sql for migration in migrations() if migration.name == "0006_rights"))
    async with Store.open(login("tenure_app")) as app:
        await app.outbox.publish({"default": "https://queue.example/1/default"})
        await app.enqueue(NewJob("t", unique=Unique("waiting")))
    with psycopg.connect(login("tenure_app"), autocommit=True) as caller:
        assert caller.execute("select tenure.enqueue('t')").fetchone() is not None


async def test_what_a_later_migration_makes_the_app_may_use_without_new_grants(
    login: Login, dsn: str, db: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, reader = login("tenure_app"), login("tenure_read")
    make = "create table tenure.shelf (name text primary key); grant insert, update on tenure.shelf to tenure_app;"
    known = (*migrations(), Migration(999, "0999_shelf", make))
    monkeypatch.setattr("tenure.postgres.migrate.migrations", lambda: known)
    assert migrate(dsn).applied == ["0999_shelf"]
    with psycopg.connect(app, autocommit=True) as worker:
        worker.execute("insert into tenure.shelf values ('mail')")
        worker.execute("update tenure.shelf set name = 'post'")
    with psycopg.connect(reader, autocommit=True) as looking:
        assert looking.execute("select name from tenure.shelf").fetchall() == [("post",)]
        assert refused(looking, "insert into tenure.shelf values ('x')")
    assert strangers(db) == []


async def test_the_app_pauses_queues_and_the_reader_sees_them(login: Login, db: Harness) -> None:
    app, reader = login("tenure_app"), login("tenure_read")
    async with Store.open(app) as worker:
        assert (await worker.queues.pause("mail", actor="ada"))[1]
        assert await worker.claim(queues=["mail"], worker="w") == []
        assert await worker.queues.resume("mail", actor="ada")
    with psycopg.connect(reader, autocommit=True) as looking:
        assert looking.execute("select name from tenure.queue").fetchall() == [("mail",)]
        assert refused(looking, "insert into tenure.queue (name) values ('x')")
    assert strangers(db) == []


async def test_the_app_keeps_workers_and_types_and_the_reader_only_looks(login: Login, db: Harness) -> None:
    worker = LiveWorker("w", ("mail",), ("standard",), ("send",), "shop", declares=(JobType("send", max_attempts=7),))
    async with Store.open(login("tenure_app")) as app:
        await app.workers.enter([worker])
        await app.workers.see([worker])
        await app.types.declare(worker.declares, application="shop", by="w")
        assert await app.types.withdraw("shop") == []
        made = await app.enqueue(NewJob("send", queue="mial"))
        await app.change_queue([made.job_id], "mail", actor="ada")
        with psycopg.connect(login("tenure_read"), autocommit=True) as looking:
            assert looking.execute("select name from tenure.live_worker").fetchall() == [("w",)]
            assert refused(looking, "delete from tenure.worker")
            assert refused(looking, "update tenure.worker set busy = 1")
        await app.workers.leave(worker)
        db.sql("update tenure.job_type set updated_at = updated_at - interval '1 minute'")  # its worker has started
        assert await app.types.withdraw("shop") == [("standard", "send")]
        assert await app.workers.forget() == 0
    assert db.value("select count(*) from tenure.worker") == 0


async def test_the_reader_sees_which_keys_there_are_and_no_hash(login: Login, db: Harness) -> None:
    app, reader = login("tenure_app"), login("tenure_read")
    async with Store.open(app) as dispatcher:
        key, _ = await dispatcher.keys.create("k", ["work"], "acme", None, "ada")
        assert (await dispatcher.keys.revoke(key.id, "ada"))[1]
        async with Store.open(reader) as looking:
            assert [found.key.name for found in await looking.keys.list()] == ["k"]
    with psycopg.connect(reader, autocommit=True) as person:
        for command in ("select hash", "select *", "select sha256(hash)", "select a"):
            assert refused(person, f"{command} from tenure.api_key as a"), command
        assert refused(person, "update tenure.api_key set revoked_at = null, revoked_by = null")
        assert person.execute("select count(*) from tenure.emitted").fetchall() == [(0,)]
    with psycopg.connect(app, autocommit=True) as person:
        person.execute("insert into tenure.emitted (job_id, claims, body) values (1, 1, '{}')")
        person.execute("update tenure.emitted set routed_at = now()")
        assert refused(person, "update tenure.api_key set tenant_id = null")
    assert strangers(db) == []


async def test_the_owner_brings_a_contract_and_gives_the_grants_for_it(login: Login, db: Harness) -> None:
    contracts = {**BUILT_IN, "errand": replace(BUILT_IN["phase27"], name="errand", version="1")}
    assert migrate(login("tenure_owner"), contracts, grants=True).registered == ["errand 1"]
    async with Store.open(login("tenure_app")) as app:
        job = await held(app, "errand")
        assert (await app.succeed(job.held)).state == "completed"
    with psycopg.connect(login("tenure_read"), autocommit=True) as looking:
        assert looking.execute("select count(*) from tenure_errand.tasks").fetchall() == [(1,)]
    assert strangers(db) == []


async def test_somebody_who_may_create_in_an_empty_database_makes_it_all(login: Login, empty_dsn: str) -> None:
    person = str(conninfo_to_dict(login("tenure_owner"))["user"])
    address = make_conninfo(empty_dsn, user=person, password="x")
    with Harness(empty_dsn) as db:
        db.sql(f"grant create on database {db.connection.info.dbname} to {person}")
        assert len(migrate(address).registered) == len(BUILT_IN)
        assert migrate(address) == MigrationReport()
        async with Store.open(address) as store:
            job = await held(store, "standard")
            await store.succeed(job.held)
            assert await store.history.vacuum() is True
            full(db)
            long_ago(db, 0)
            assert await retired(store) == 1
        db.sql(f"drop owned by {person} cascade")
