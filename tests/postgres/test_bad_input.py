"""A bad call gets a typed error that says what to do, and writes nothing at all; every JSON value comes back equal."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tenure.errors import (
    BadInput,
    InvalidTransition,
    JobNotFound,
    PayloadTooLarge,
    StaleLease,
    TenureError,
    UnknownContract,
)  # fmt: skip
from tenure.jobs.job import Failure, Held, Job, NewJob
from tenure.jobs.outcome import Enqueued
from tenure.postgres.store import Store
from tests.harness import Harness
from tests.holder_calls import calls

Call = Callable[[Store], Awaitable[object]]
Case = tuple[Call, type[TenureError], str]

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


def everything(db: Harness) -> dict[str, list[dict[str, Any]]]:
    """Every row of every table, with the transaction that wrote it."""
    tables = db.sql("select tablename from pg_tables where schemaname = 'tenure' order by 1")
    return {row["tablename"]: db.sql(f"select xmin::text, * from tenure.{row['tablename']}") for row in tables}


async def each_is_refused(store: Store, db: Harness, cases: Mapping[str, Case]) -> None:
    """Assert that every call raises its error, with its message, and that no row of any table changed."""
    before, wrong = everything(db), {}
    for what, (call, expected, message) in cases.items():
        try:
            answer = await call(store)
        except Exception as error:
            if not isinstance(error, expected) or message not in str(error):
                wrong[what] = repr(error)
        else:
            wrong[what] = f"accepted: {answer}"
        after = everything(db)
        if after != before:
            wrong[f"{what}: written"] = str([table for table in after if after[table] != before[table]])
            before = after
    assert wrong == {}


def calling(
    call: Callable[[Store, Any], Awaitable[object]], value: Any, error: type[TenureError], message: str
) -> Case:
    """A call with this value."""
    return lambda store: call(store, value), error, message


def enqueue(error: type[TenureError], message: str, **fields: Any) -> Case:
    """A job with these fields, on top of one that is fine."""
    return lambda store: store.enqueue(NewJob(**{"type": "t", **fields})), error, message


async def test_bad_job_writes_nothing(store: Store, db: Harness) -> None:
    cases = {
        "an unknown contract": enqueue(UnknownContract, "no contract 'nope' is registered; ", contract="nope"),
        "an unknown version": enqueue(UnknownContract, "no contract 'standard version 9' is registered", version="9"),
        "an empty type": enqueue(BadInput, "type must be a non-empty string", type=""),
        "a type of blanks": enqueue(BadInput, "type must be a non-empty string", type="  "),
        "a long type": enqueue(BadInput, "type has 201 characters; at most 200", type="t" * 201),
        "a long queue": enqueue(BadInput, "queue has 101 characters; at most 100", queue="q" * 101),
        "a long tenant": enqueue(BadInput, "tenant_id has 101 characters; at most 100", tenant_id="t" * 101),
        "a long key": enqueue(BadInput, "key has 256 characters; at most 255", key="k" * 256),
        "an empty key": enqueue(BadInput, "key must be a non-empty string", key=""),
        "an empty queue": enqueue(BadInput, "queue must be a non-empty string", queue=""),
        "an empty tenant": enqueue(BadInput, "tenant_id must be a non-empty string", tenant_id=""),
        "NUL in a type": enqueue(BadInput, "type contains a NUL character", type="a\x00"),
        "NUL in a queue": enqueue(BadInput, "queue contains a NUL character", queue="a\x00"),
        "NUL in a tenant": enqueue(BadInput, "tenant_id contains a NUL character", tenant_id="a\x00"),
        "NUL in a key": enqueue(BadInput, "key contains a NUL character", key="a\x00"),
        "a payload that is no JSON": enqueue(BadInput, "payload is not JSON", payload=object()),
        "a payload of NaN": enqueue(BadInput, "payload is not JSON", payload={"a": float("nan")}),
        "a payload with NUL": enqueue(BadInput, "payload contains a NUL", payload={"a": [{"b": "\x00"}]}),
        "a payload with half a character": enqueue(BadInput, "payload contains a lone surrogate", payload="\ud800"),
        "a payload over the limit": enqueue(PayloadTooLarge, "at most 1048576 are allowed", payload="x" * 1_048_575),
        "priority 10": enqueue(BadInput, "priority is 10; it must be within 0..9", priority=10),
        "priority 11": enqueue(BadInput, "priority is 11; it must be within 0..9", priority=11),
        "priority -1": enqueue(BadInput, "priority is -1; it must be within 0..9", priority=-1),
        "priority True": enqueue(BadInput, "priority must be a whole number, not True", priority=True),
        "priority '5'": enqueue(BadInput, "priority must be a whole number, not '5'", priority="5"),
        "no attempts": enqueue(BadInput, "max_attempts of contract standard is 0; it must be", max_attempts=0),
        "too many attempts": enqueue(BadInput, "it must be within 1..1000", max_attempts=1001),
        "four retries": enqueue(BadInput, "it must be within 3..3", contract="gate_b2", max_attempts=4),
        "two retries": enqueue(BadInput, "it must be within 3..3", contract="gate_b2", max_attempts=2),
        "a time without zone": enqueue(BadInput, "run_at must be a datetime with a time", run_at=datetime(2030, 1, 1)),
        "a time and a delay": enqueue(BadInput, "give either run_at or delay_ms, not both", run_at=NOON, delay_ms=5),
        "a negative delay": enqueue(BadInput, "delay_ms is -1; it must be within 0..", delay_ms=-1),
    }  # fmt: skip
    await each_is_refused(store, db, cases)


async def test_batch_with_one_bad_job_at_its_end_writes_nothing(store: Store, db: Harness) -> None:
    fine = [NewJob("t"), NewJob("t", key="k"), NewJob("t", contract="phase27")]
    bad = {
        "a": NewJob("t", object()),
        "b": NewJob("t", contract="nope"),
        "c": NewJob("t", contract="gate_b2", max_attempts=1),
    }
    cases = {
        what: calling(lambda store, job: store.enqueue_many([*fine, *fine, job]), job, BadInput, "")
        for what, job in bad.items()
    }
    await each_is_refused(store, db, cases)


def claim(error: type[TenureError], message: str, **options: Any) -> Case:
    """A claim with these options, on top of one that is fine."""
    return lambda store: store.claim(**{"worker": "w", **options}), error, message


async def test_bad_claim_takes_nothing(store: Store, db: Harness) -> None:
    for contract in ("standard", "reliability"):
        await store.enqueue(NewJob("t", contract=contract))
    await each_is_refused(store, db, {
        "an unknown contract": claim(UnknownContract, "no contract 'nope' is registered", contract="nope"),
        "limit 0": claim(BadInput, "limit is 0; it must be within 1..10000", limit=0),
        "limit -1": claim(BadInput, "limit is -1; it must be within 1..10000", limit=-1),
        "limit 10001": claim(BadInput, "limit is 10001; it must be within 1..10000", limit=10_001),
        "limit True": claim(BadInput, "limit must be a whole number, not True", limit=True),
        "no queues": claim(BadInput, "at least one queue name", queues=[]),
        "an empty queue": claim(BadInput, "queue must be a non-empty string", queues=["default", ""]),
        "a long queue": claim(BadInput, "queue has 101 characters", queues=["q" * 101]),
        "NUL in a queue": claim(BadInput, "queue contains a NUL", queues=["a\x00"]),
        "an empty worker": claim(BadInput, "worker must be a non-empty string", worker=""),
        "a long worker": claim(BadInput, "worker has 201 characters; at most 200", worker="w" * 201),
        "NUL in a worker": claim(BadInput, "worker contains a NUL", worker="a\x00"),
        "a short lease": claim(BadInput, "it must be within 2000..86400000", lease_ms=1_999),
        "a long lease": claim(BadInput, "it must be within 30000..120000", contract="reliability", lease_ms=120_001),
        "a key that is no UUID": claim(BadInput, "must be UUIDs, not 'abc'", claim_key="abc"),
        "by id, a key that is no UUID": (
            lambda store: store.claim_by_id([1], worker="w", claim_key="abc"), BadInput, "must be UUIDs, not 'abc'",
        ),
        "by id, no worker": (lambda store: store.claim_by_id([1], worker=""), BadInput, "worker must be a non-empty"),
    })  # fmt: skip


async def two_held(store: Store) -> tuple[Job, Job]:
    """Two jobs, each held under a lease of its own."""
    await store.enqueue_many([NewJob("t"), NewJob("t")])
    (one,), (two,) = await store.claim(worker="a"), await store.claim(worker="b")
    return one, two


def finish(proof: Held, error: type[TenureError], message: str) -> dict[str, Case]:
    """Both ways of finishing, and the start, with this proof."""
    return {
        "succeed": (lambda store: store.succeed(proof, {"a": 1}), error, message),
        "fail": (lambda store: store.fail(proof, Failure("no")), error, message),
    }


async def test_bad_proof_moves_nothing(store: Store, db: Harness) -> None:
    one, two = await two_held(store)
    proofs: dict[str, tuple[Held, type[TenureError], str]] = {
        "the token of another job": (replace(one.held, token=two.held.token), StaleLease, "is held by a since"),
        "a made-up token": (replace(one.held, token=uuid4()), StaleLease, "Next: drop this work and claim again"),
        "too few claims": (replace(one.held, claims=0), StaleLease, f"job {one.id} is held by a"),
        "too many claims": (replace(one.held, claims=2), StaleLease, f"job {one.id} is held by a"),
        "another job's id": (replace(one.held, id=two.id), StaleLease, f"job {two.id} is held by b"),
        "an unknown job": (replace(one.held, id=999_999), JobNotFound, "has the id 999999. Next: check the id"),
        "an unknown version": (replace(one.held, version="9"), UnknownContract, "'standard version 9'"),
        "an unknown contract": (replace(one.held, contract="nope"), UnknownContract, "'nope version 1'"),
        "another contract": (replace(one.held, contract="phase27"), TenureError, "under contract"),
    }
    cases = {f"{verb}, {what}": case for what, proof in proofs.items() for verb, case in finish(*proof).items()}
    await each_is_refused(store, db, cases)


async def test_bad_result_moves_nothing(store: Store, db: Harness) -> None:
    one, _ = await two_held(store)
    bad: dict[str, tuple[Any, type[TenureError], str]] = {
        "no JSON": (object(), BadInput, "result is not JSON"),
        "NUL": ("\x00", BadInput, "result contains a NUL"),
        "too large": ("x" * 1_048_575, PayloadTooLarge, "result has"),
    }
    await each_is_refused(store, db, {
        what: calling(lambda store, value: store.succeed(one.held, value), value, error, message)
        for what, (value, error, message) in bad.items()
    })  # fmt: skip
    assert (await store.succeed(one.held, {"fine": True})).state == "succeeded"


async def test_second_finish_moves_nothing(store: Store, db: Harness) -> None:
    one, _ = await two_held(store)
    await store.succeed(one.held)
    await each_is_refused(store, db, finish(one.held, InvalidTransition, f"job {one.id} is succeeded"))


async def test_what_only_an_untyped_caller_can_send_is_refused_too(store: Store, db: Harness) -> None:
    one, _ = await two_held(store)
    await store.enqueue(NewJob("t", queue="d"))
    await each_is_refused(store, db, {
        "a token that is no UUID": finish(replace(one.held, token="abc"), BadInput, "must be UUIDs")["succeed"],  # type: ignore[arg-type]
        "an id beyond 64 bits": finish(replace(one.held, id=2**70), TenureError, "")["succeed"],
        "claims beyond 32 bits": finish(replace(one.held, claims=2**40), TenureError, "")["succeed"],
        "by id, an id beyond 64 bits": (lambda store: raised(store.claim_by_id([2**70], worker="w")), TenureError, ""),
        "a text instead of queues": claim(BadInput, "queue", queues="default"),
        "NUL in the maker's name": (lambda store: store.enqueue(NewJob("t"), created_by="a\x00"), BadInput, "NUL"),
        "a negative limit of upkeep": (lambda store: store.reap("standard", limit=-1), BadInput, "limit"),
    })  # fmt: skip


async def raised(answers: Awaitable[list[Any]]) -> object:
    """The only answer of a batch; a refusal is raised."""
    (answer,) = await answers
    if isinstance(answer, TenureError):
        raise answer
    return answer


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=20)
documents = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(texts, inner, max_size=5),
    max_leaves=20,
)


def same(sent: Any, got: Any) -> bool:
    """Equal, but that a float may come back as the whole number that it was written as (1e+23)."""
    if isinstance(sent, float):
        return type(got) in (int, float) and float(got) == sent
    if isinstance(sent, list):
        return isinstance(got, list) and len(sent) == len(got) and all(map(same, sent, got))
    if isinstance(sent, dict):
        return isinstance(got, dict) and sent.keys() == got.keys() and all(same(sent[key], got[key]) for key in sent)
    return type(sent) is type(got) and bool(sent == got)


async def there_and_back(dsn: str, values: list[Any]) -> None:
    """Send each value as a payload, and back again as a result and in a batch."""
    async with Store.open(dsn) as store:
        made = await store.enqueue_many(
            [NewJob("t", value, key=f"{uuid4()}" if n % 2 else None) for n, value in enumerate(values)]
        )
        sent = {one.job_id: value for one, value in zip(made, values, strict=True) if isinstance(one, Enqueued)}
        won = await store.claim(worker="w", limit=len(values))
        assert {job.id for job in won} == set(sent)
        for job in won:
            assert same(sent[job.id], job.payload), f"{sent[job.id]!r} came back as {job.payload!r}"
        await store.report("succeed", calls([job.held for job in won], results=[job.payload for job in won]))
        for job in await store.jobs([job.id for job in won]):
            assert same(sent[job.id], job.payload)
            assert same(sent[job.id], job.result)


@settings(
    derandomize=True, max_examples=60, deadline=None, database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
@given(values=st.lists(documents, min_size=1, max_size=4))
def test_any_json_value_comes_back_equal(dsn: str, values: list[Any]) -> None:
    asyncio.run(there_and_back(dsn, values))


async def test_text_that_looks_like_an_escaped_nul_comes_back_equal(dsn: str) -> None:
    await there_and_back(
        dsn, ["\\u0000", {"\\u0000": ["\\\\u0000", '"}', "{NULL}", "NULL", None]}, "", [], {}, None, 2**200]
    )
