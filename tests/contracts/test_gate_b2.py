"""Document 004, the model and its frozen state machine: fields, states, ends, and refusals in the document's code."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import psycopg
import pytest

from tenure.contracts.declaration import Hop, Path, Retryable
from tenure.contracts.numbers import Jitter
from tenure.errors import BadInput, ContractChanged, IdempotencyConflict, InvalidTransition, StaleLease, Unsound
from tenure.jobs.job import Held, NewJob
from tenure.jobs.outcome import Enqueued, Moved
from tenure.postgres.migrate import migrate
from tenure.postgres.store import Store
from tenure.settings import Settings
from tests.contracts.gate_b2 import (
    DEAD,
    GATE_B2,
    PERMANENT,
    TRANSIENT,
    fail,
    gaps_filled,
    items,
    make,
    records,
    shown,
    take,
    transitions,
)
from tests.harness import Harness, at_once
from tests.holder_calls import calls
from tests.races.sessions import Arena, Session

pytestmark = pytest.mark.core

CODE = "WF_STATE_TRANSITION_INVALID"
SEVEN = {"queued", "running", "retrying", "succeeded", "dlq_pending", "dlq_recorded", "failed"}
FIELDS = {
    "job_id": "bigint", "tenant_id": "text", "job_type": "text", "status": "text", "retry_count": "integer",
    "idempotency_key": "text", "trace_id": "text", "error_code": "text", "payload_json": "jsonb",
    "created_at": "timestamp with time zone", "updated_at": "timestamp with time zone",
}  # fmt: skip


def columns(db: Harness, view: str) -> dict[str, str]:
    """The columns of one of the document's relations, with their types."""
    rows = db.sql(
        "select column_name, data_type from information_schema.columns "
        "where table_schema = 'tenure_gate_b2' and table_name = %s",
        view,
    )
    return {row["column_name"]: row["data_type"] for row in rows}


@pytest.mark.req("S4-01")
async def test_the_contract_its_registration_and_its_jobs_say_the_documents_version(store: Store, db: Harness) -> None:
    assert GATE_B2.describe()["version"] == "2026.02.21-r3"
    assert db.value("select version from tenure.contract where name = 'gate_b2'") == "2026.02.21-r3"
    assert db.row(await make(store))["version"] == "2026.02.21-r3"


@pytest.mark.req("S4-03", "S4-04")
async def test_jobs_has_the_eleven_fields_under_their_names(store: Store, db: Harness) -> None:
    assert columns(db, "jobs").items() >= FIELDS.items()
    job_id = await make(store, payload={"n": 1}, tenant_id="acme", key="order-7", trace_id="t-1")
    row = shown(db, job_id)
    fresh = {
        "job_id": job_id, "tenant_id": "acme", "job_type": "settle", "status": "queued", "retry_count": 0,
        "idempotency_key": "order-7", "trace_id": "t-1", "error_code": None, "payload_json": {"n": 1},
    }  # fmt: skip
    assert {name: row[name] for name in fresh} == fresh
    assert row["created_at"] == row["updated_at"]


@pytest.mark.req("S4-05")
async def test_updated_at_changes_with_every_transition_and_created_at_never(store: Store, db: Harness) -> None:
    db.sql(
        "create table public.stamp (n bigint generated always as identity, id bigint, state text, "
        "    created_at timestamptz, updated_at timestamptz); "
        "create function public.stamp() returns trigger language plpgsql as $$ begin "
        "    insert into public.stamp (id, state, created_at, updated_at) "
        "    values (new.id, new.state, new.created_at, new.updated_at); return null; end $$; "
        "create trigger stamp after insert or update of state on tenure.job "
        "    for each row execute function public.stamp(); "
        "create trigger stamp after insert on tenure.job_done for each row execute function public.stamp()"
    )
    job_id = await make(store)
    await fail(store, db, job_id, 4)
    stamps = db.sql("select * from public.stamp where id = %s order by n", job_id)
    assert [stamp["state"] for stamp in stamps] == [
        "queued",
        *["running", "retrying"] * 3,
        "running",
        "dlq_pending",
        "failed",
    ]
    assert all(before["updated_at"] < after["updated_at"] for before, after in pairwise(stamps))
    assert {stamp["created_at"] for stamp in stamps} == {shown(db, job_id)["created_at"]}
    # The last of them is also what the row shows, and each is the time of its record.
    times = [record["ts"] for record in records(db, job_id)]
    assert {stamp["updated_at"] for stamp in stamps[1:]} <= set(times)
    assert shown(db, job_id)["updated_at"] == times[-1]


async def test_a_tenants_jobs_items_and_keys_are_its_own(store: Store, db: Harness) -> None:
    ids = {tenant: await make(store, tenant_id=tenant, key="order-7") for tenant in ("acme", "bolt")}
    ids["default"] = await make(store)
    assert len(set(ids.values())) == 3
    for _ in ids:
        await store.fail((await store.claim("gate_b2", worker="w1"))[0].held, PERMANENT)
    for tenant, job_id in ids.items():
        for view in ("jobs", "dlq_items"):
            rows = db.sql(f"select job_id from tenure_gate_b2.{view} where tenant_id = %s", tenant)
            assert [row["job_id"] for row in rows] == [job_id]
    for nobody in ("", "  ", None):
        with pytest.raises(BadInput, match="tenant_id"):
            await make(store, tenant_id=nobody)
    with pytest.raises(psycopg.errors.NotNullViolation):
        db.sql(
            "insert into tenure.job (contract, version, state, role, type, max_attempts, tenant_id) "
            "values ('gate_b2', '2026.02.21-r3', 'queued', 'ready', 't', 3, null)"
        )


@pytest.mark.req("S4-07")
async def test_sixteen_enqueues_of_one_tenant_with_one_key_make_one_job(store: Store, db: Harness, dsn: str) -> None:
    job = NewJob("settle", {"n": 1}, contract="gate_b2", tenant_id="acme", key="order-7")
    with ExitStack() as stack:
        sessions = [stack.enter_context(Session(dsn, f"caller-{n}")) for n in range(16)]
        answers = [answer for (answer,) in at_once(16, lambda n: sessions[n].enqueue(job))]
    made = [answer for answer in answers if isinstance(answer, Enqueued)]
    assert (len(made), len({answer.job_id for answer in made})) == (16, 1)
    assert [answer.made for answer in made].count(True) == 1
    assert db.value("select count(*) from tenure_gate_b2.jobs") == 1
    with pytest.raises(IdempotencyConflict):
        await store.enqueue(replace(job, payload={"n": 2}))
    assert (await store.enqueue(replace(job, tenant_id="bolt"))).made


@pytest.mark.req("S4-08")
async def test_error_code_is_that_of_the_last_error_and_null_before_any(store: Store, db: Harness) -> None:
    job_id, good = await make(store), await make(store, run_at=None, priority=9)
    assert shown(db, job_id)["error_code"] is None
    held = await take(store, db, job_id)
    assert shown(db, job_id)["error_code"] is None
    await store.fail(held, TRANSIENT)
    assert (shown(db, job_id)["status"], shown(db, job_id)["error_code"]) == ("retrying", "NET_DOWN")
    held = await take(store, db, job_id)
    assert shown(db, job_id)["error_code"] == "NET_DOWN"
    await store.fail(held, PERMANENT)
    assert (shown(db, job_id)["status"], shown(db, job_id)["error_code"]) == ("failed", "NO_ACCOUNT")
    await store.succeed(await take(store, db, good))
    assert shown(db, good)["error_code"] is None


@pytest.mark.req("S4-09", "S4-51")
def test_the_declared_states_are_those_of_the_status_column(db: Harness) -> None:
    assert set(GATE_B2.describe()["states"]) == SEVEN
    for table in ("job", "job_done"):
        check = db.value(
            "select pg_get_constraintdef(oid) from pg_constraint where conname = %s and contypid <> 0",
            f"{table}_state",
        )
        own = re.search(r"WHEN 'gate_b2'::text THEN \(+VALUE\)\.state = ANY \(ARRAY\[(.*?)\]", check)
        assert own
        assert set(re.findall(r"'(\w+)'", own[1])) == SEVEN


@pytest.mark.req("S4-11")
async def test_failed_appears_only_after_dlq_recorded(store: Store, db: Harness) -> None:
    db.spy()
    exhausted, fatal, lost = [await make(store, priority=n) for n in range(3)]
    await fail(store, db, exhausted, 4)
    await fail(store, db, fatal, 1, PERMANENT)
    for _ in range(4):
        await take(store, db, lost)
        db.expire(lost)
        await store.reap("gate_b2")
    for job_id in (exhausted, fatal, lost):
        assert shown(db, job_id)["status"] == "failed"
        assert [each for each in transitions(db, job_id) if each.endswith("->failed")] == ["dlq_recorded->failed"]
        assert transitions(db, job_id)[-3:] == DEAD
        gaps_filled(db, job_id)
    # No other way can even be declared.
    assert {source for source, end in GATE_B2.edges() if end == "failed"} == {"dlq_recorded"}
    around = Path("cancel", ("running",), (Hop("failed", "done"),))
    with pytest.raises(Unsound, match="around the dead-letter record"):
        replace(GATE_B2, paths=(*GATE_B2.paths, around))


@pytest.mark.req("S4-12")
@pytest.mark.parametrize("order", [("succeed", "fail"), ("fail", "succeed")], ids=" before ".join)
def test_of_a_success_and_a_failure_by_one_holder_the_first_is_taken(
    db: Harness, dsn: str, order: tuple[str, str]
) -> None:
    with Session(dsn, "one") as one, Session(dsn, "two") as two:
        arena = Arena(dsn, db, first=one, second=two)
        for _ in range(5):
            held, _queue = arena.held("gate_b2")
            one.begin()
            first = one.finish(order[0], held, PERMANENT)
            second = arena.behind(partial(two.finish, order[1], held, PERMANENT))
            one.end("commit")
            assert isinstance(first, Moved)
            assert isinstance(second.result(), InvalidTransition | StaleLease)
            ended_once(db, held, first, two)


@pytest.mark.req("S4-12")
def test_of_a_success_and_a_failure_at_the_same_moment_exactly_one_is_taken(db: Harness, dsn: str) -> None:
    with Session(dsn, "one") as one, Session(dsn, "two") as two:
        arena = Arena(dsn, db, first=one, second=two)
        calls = [partial(one.finish, "succeed"), partial(two.finish, "fail")]
        for _ in range(60):
            held, _queue = arena.held("gate_b2")
            answers = at_once(2, partial(called, calls, held))
            (won,) = [answer for answer in answers if isinstance(answer, Moved)]
            (lost,) = [answer for answer in answers if not isinstance(answer, Moved)]
            assert isinstance(lost, InvalidTransition | StaleLease)
            ended_once(db, held, won, two)


def called(calls: Sequence[Callable[..., Any]], held: Held, n: int) -> Any:
    """What the n-th of these calls answers to this holder."""
    return calls[n](held, PERMANENT)


def ended_once(db: Harness, held: Held, won: Moved, upkeep: Session) -> None:
    """Assert that the job went the winner's way and no other."""
    # A late call may have held the row when the failure went on to settle it: then upkeep does.
    upkeep.upkeep("settle", "gate_b2")
    expected = ["running->succeeded"] if won.trigger == "succeed" else DEAD
    assert transitions(db, held.id) == ["queued->running", *expected]
    assert len(items(db, held.id)) == (0 if won.trigger == "succeed" else 1)


@pytest.mark.parametrize("verb", ["succeeded", "failed", "retrying", "running"])
async def test_a_repeated_write_to_a_succeeded_job_is_refused_in_the_documents_code(
    store: Store, db: Harness, verb: str
) -> None:
    job_id = await make(store)
    held = await take(store, db, job_id)
    await store.succeed(held, {"n": 1})
    before = db.fingerprint(job_id)
    refusal: Any
    if verb == "running":
        (refusal,) = await store.claim_by_id([job_id], worker="w2", contract="gate_b2")
    elif verb == "succeeded":
        (refusal,) = await store.report("succeed", calls([held], results=[{"n": 1}]))
    else:
        (refusal,) = await store.report("fail", calls([held], failures=[PERMANENT if verb == "failed" else TRANSIENT]))
    assert isinstance(refusal, InvalidTransition)
    assert (refusal.reason_code, refusal.state) == (CODE, "succeeded")
    assert CODE in str(refusal)
    assert db.fingerprint(job_id) == before


async def test_a_running_or_failed_job_cannot_be_claimed_and_the_code_says_so(store: Store, db: Harness) -> None:
    failed, running = await make(store, priority=0), await make(store)
    await fail(store, db, failed, 1, PERMANENT)
    held = await take(store, db, running)
    before = db.fingerprint(failed, running)
    refusals: list[Any] = await store.claim_by_id([failed, running], worker="w2", contract="gate_b2")
    assert [refusal.reason_code for refusal in refusals] == [CODE, CODE]
    with pytest.raises(StaleLease):
        await store.succeed(Held(failed, 1, held.token, "gate_b2", GATE_B2.version))
    assert db.fingerprint(failed, running) == before


@pytest.mark.req("S4-60")
def test_the_frozen_machine_cannot_be_changed_under_its_version_but_its_parameters_can(db: Harness, dsn: str) -> None:
    budget, backoff = GATE_B2.budget, GATE_B2.backoff
    without_dead_letter = tuple(path for path in GATE_B2.paths if path.trigger != "dead_letter")
    quiet = replace(GATE_B2.events[0], on=tuple(on for on in GATE_B2.events[0].on if on != "dead_letter"))
    changed = [
        replace(GATE_B2, budget=replace(budget, maximum=5)),
        replace(GATE_B2, budget=replace(budget, default=4, minimum=4, maximum=4)),
        replace(GATE_B2, backoff=replace(backoff, factor=3.0)),
        replace(GATE_B2, backoff=replace(backoff, jitter=Jitter(form="add", low=0, high=500))),
        replace(GATE_B2, counter=replace(GATE_B2.counter, initial=1)),
        replace(GATE_B2, retryable=Retryable("any")),
        replace(GATE_B2, paths=without_dead_letter, events=(quiet,)),
    ]
    registered = db.sql("select * from tenure.contract where name = 'gate_b2'")
    for contract in changed:
        with pytest.raises(ContractChanged):
            migrate(dsn, {"gate_b2": contract})
    assert db.sql("select * from tenure.contract where name = 'gate_b2'") == registered
    parameters = replace(GATE_B2, backoff=replace(backoff, base_seconds=0.5, cap_seconds=60))
    assert migrate(dsn, {"gate_b2": parameters}).registered == []
    assert Settings.load({"WORKER_MAX_RETRIES": "3"}).numbers == {"gate_b2": {"max_attempts": 3}}
    for other in ("2", "4", "0"):
        with pytest.raises(BadInput, match="WORKER_MAX_RETRIES"):
            Settings.load({"WORKER_MAX_RETRIES": other})
        with pytest.raises(Unsound):
            GATE_B2.with_numbers({"max_attempts": int(other)})
