"""Jobs that expire: one that has not begun in time is cancelled and never runs; one that has begun is left alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from tenure.contracts import BUILT_IN
from tenure.errors import BadInput, Refused
from tenure.jobs.job import Failure, NewJob
from tenure.jobs.why import explain_job
from tenure.postgres.claim import Claimer
from tenure.postgres.store import Store
from tenure.proof.audit import audit
from tenure.upkeep.rounds import once
from tests.harness import Harness
from tests.postgres.test_statement_count import Counted, counting
from tests.postgres.test_unloggable import SPOIL

#: The contracts whose jobs can be cancelled before they begin.
CANCELS = [name for name, contract in BUILT_IN.items() if contract.path("cancel", contract.initial)]


@pytest.fixture
async def counted(store: Store) -> AsyncIterator[Counted]:
    """The statements of this store; what it reads once is read."""
    await store.claim(worker="w")
    with counting() as found:
        yield found


async def expired(store: Store, db: Harness, count: int = 1, **more: Any) -> list[int]:
    """Jobs that expired a second ago and have not begun."""
    answers = await store.enqueue_many([NewJob("send", expires_ms=60_000, **more)] * count)
    ids = [answer.job_id for answer in answers]
    db.sql("update tenure.job set expires_at = clock_timestamp() - interval '1 s' where id = any (%s)", ids)
    return [job_id for job_id in ids if job_id is not None]


@pytest.mark.parametrize("contract", CANCELS)
async def test_a_job_that_did_not_begin_is_cancelled_with_its_reason(store: Store, db: Harness, contract: str) -> None:
    (late,) = await expired(store, db, contract=contract)
    early = (await store.enqueue(NewJob("send", contract=contract, expires_ms=60_000))).job_id
    assert await store.cancel_expired() == 1
    row = db.row(late)
    assert row["state"] == BUILT_IN[contract].path("cancel", BUILT_IN[contract].initial).end.state  # type: ignore[union-attr]
    (entry,) = db.log(late)
    assert (entry["trigger"], entry["reason"], entry["actor"]) == ("cancel", "expired", "tenure:upkeep")
    assert db.row(early)["role"] == "ready"
    assert await store.cancel_expired() == 0
    assert (await audit(store)).violations == []


@pytest.mark.parametrize("contract", sorted(set(BUILT_IN) - set(CANCELS)))
async def test_a_contract_without_a_way_to_cancel_refuses_an_expiry(store: Store, db: Harness, contract: str) -> None:
    with pytest.raises(BadInput, match="no cancel from"):
        await store.enqueue(NewJob("send", contract=contract, expires_ms=60_000))
    assert db.value("select count(*) from tenure.job") == 0


@pytest.mark.parametrize("contract", CANCELS)
@pytest.mark.parametrize("shared", [False, True], ids=["alone", "shared"])
@pytest.mark.parametrize("tenant", ["default", "acme"])
async def test_no_claim_hands_out_an_expired_job_and_the_next_one_is_found_behind_a_backlog(
    store: Store, db: Harness, contract: str, shared: bool, tenant: str
) -> None:
    late = await expired(store, db, 2_500, contract=contract, tenant_id=tenant, priority=0)
    due = (await store.enqueue(NewJob("send", contract=contract, tenant_id=tenant))).job_id
    claimers = [Claimer(f"w{n}", 3, uuid4()) for n in range(1 + shared)]
    of = None if tenant == "default" else tenant
    answers = await store.claim_for_many(contract, ["default"], claimers, tenant=of)
    jobs = [job for answer in answers if isinstance(answer, list) for job in answer]
    assert [job.id for job in jobs] == [due]
    assert db.value("select count(*) from tenure.job where id = any (%s)", late) == 0
    assert db.value("select count(*) from tenure.event where trigger = 'claim'") == 1


async def test_a_claim_takes_what_is_due_from_between_expired_jobs(store: Store, db: Harness) -> None:
    (first,) = await expired(store, db)
    due = (await store.enqueue(NewJob("send"))).job_id
    (last,) = await expired(store, db)
    assert [job.id for job in await store.claim(worker="w", limit=10)] == [due]
    assert [db.row(job_id)["claims"] for job_id in (first, last)] == [0, 0]


@pytest.mark.parametrize("shared", [False, True], ids=["alone", "shared"])
async def test_a_claim_looks_for_expired_jobs_only_where_it_met_some(
    store: Store, db: Harness, counted: Counted, shared: bool
) -> None:
    (elsewhere,) = await expired(store, db, queue="elsewhere")

    async def claim(verb: str, queue: str) -> list[Any]:
        claimers = [Claimer(f"w{n}") for n in range(1 + shared)]
        return [*await counted(verb, store.claim_for_many("standard", [queue], claimers))]

    assert await claim("nothing", "default") == [[]] * (1 + shared)
    assert counted.verbs == {"nothing": 1}
    assert db.row(elsewhere)["role"] == "ready"
    assert await claim("met", "elsewhere") == [[]] * (1 + shared)
    assert counted.verbs["met"] > 2
    assert db.row(elsewhere)["role"] == "done"


@pytest.mark.parametrize("contract", CANCELS)
async def test_an_expired_job_that_cannot_be_logged_goes_into_quarantine_and_stops_nobody(
    store: Store, db: Harness, contract: str
) -> None:
    bad = await expired(store, db, 2, contract=contract, priority=0)
    due = (await store.enqueue(NewJob("send", contract=contract))).job_id
    db.sql(SPOIL, bad)
    assert [job.id for job in await store.claim(contract, worker="w", limit=1)] == [due]
    assert all("could not be logged" in reason for reason in _quarantine_reasons(db, bad))
    assert [db.row(job_id)["claims"] for job_id in bad] == [0, 0]
    # Upkeep passes them too, and cancels what stands behind them.
    (late,) = await expired(store, db, contract=contract)
    assert await store.cancel_expired(limit=1) == 1
    assert db.row(late)["role"] == "done"


async def test_upkeep_puts_an_expired_job_that_cannot_be_logged_into_quarantine(store: Store, db: Harness) -> None:
    (bad,) = await expired(store, db)
    db.sql(SPOIL, [bad])
    assert await store.cancel_expired() == 0
    assert "could not be logged" in _quarantine_reasons(db, [bad])[0]


async def test_a_claim_by_id_refuses_an_expired_job(store: Store, db: Harness) -> None:
    (late,) = await expired(store, db)
    (answer,) = await store.claim_by_id([late], worker="w")
    assert isinstance(answer, Refused)
    assert answer.reason_code == "EXPIRED"
    assert db.row(late)["claims"] == 0
    with pytest.raises(Refused, match="expired"):
        await store.transition(late, "running", actor="ada")


async def test_a_job_that_has_begun_does_not_expire_in_a_retry(store: Store, db: Harness) -> None:
    made = await store.enqueue(NewJob("send", expires_ms=60_000))
    (job,) = await store.claim(worker="w")
    assert db.row(made.job_id)["expires_at"] is None
    await store.fail(job.held, Failure("later"))
    # As a worker of the release before leaves it, which does not know expiries.
    db.sql("update tenure.job set expires_at = now() - interval '1 hour', due_at = now() - interval '1 s'")
    assert await store.cancel_expired() == 0
    assert [again.id for again in await store.claim(worker="w")] == [made.job_id]


async def test_find_leaves_out_a_job_that_has_begun(store: Store, db: Harness) -> None:
    begun = (await store.enqueue(NewJob("send", expires_ms=60_000))).job_id
    (job,) = await store.claim(worker="w")
    assert job.id == begun
    await store.fail(job.held, Failure("later"))
    (late,) = await expired(store, db)
    # As a worker of the release before leaves it.
    db.sql("update tenure.job set expires_at = now() - interval '1 hour' where id = %s", begun)
    assert await store.cancel_expired() == 1
    assert (db.row(late)["role"], db.row(begun)["role"]) == ("done", "ready")


async def test_a_repeat_of_a_claim_that_met_only_expired_jobs_is_not_stale(store: Store, db: Harness) -> None:
    await expired(store, db, 3)
    key = uuid4()
    assert await store.claim(worker="w", claim_key=key) == []
    assert db.value("select count(*) from tenure.claim") == 0
    made = await store.enqueue(NewJob("send"))
    assert [job.id for job in await store.claim(worker="w", claim_key=key)] == [made.job_id]


async def test_an_expiry_at_this_very_moment_is_past(store: Store, db: Harness) -> None:
    assert db.value("select tenure.is_expired('2026-01-01', 0, '2026-01-01')")
    assert not db.value("select tenure.is_expired('2026-01-02', 0, '2026-01-01')")
    assert not db.value("select tenure.is_expired('2026-01-01', 1, '2026-01-01')")
    assert not db.value("select tenure.is_expired(null, 0, '2026-01-01')")


async def test_times_are_counted_from_the_enqueue_or_given(store: Store, db: Harness) -> None:
    at = datetime(2030, 1, 1, tzinfo=UTC)
    first, second = await store.enqueue_many([NewJob("a", expires_ms=90_000), NewJob("b", expires_at=at)])
    row = db.row(first.job_id)  # type: ignore[arg-type]
    assert row["expires_at"] - row["created_at"] == timedelta(seconds=90)
    assert db.row(second.job_id)["expires_at"] == at  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"expires_ms": 0}, "at least a millisecond"),
        ({"expires_ms": 1.5}, "at least a millisecond"),
        ({"expires_at": datetime(2030, 1, 1)}, "time zone"),
        ({"expires_ms": 1, "expires_at": datetime(2030, 1, 1, tzinfo=UTC)}, "not both"),
        ({"expires_ms": 1_000, "delay_ms": 1_000}, "before it is due"),
        (
            {"expires_at": datetime(2030, 1, 1, tzinfo=UTC), "run_at": datetime(2030, 1, 1, tzinfo=UTC)},
            "before it is due",
        ),
    ],
)
async def test_a_wrong_expiry_is_refused(store: Store, given: dict[str, Any], told: str) -> None:
    with pytest.raises(BadInput, match=told):
        await store.enqueue(NewJob("send", **given))


async def test_one_round_of_upkeep_cancels_expired_jobs_of_all_contracts(store: Store, db: Harness) -> None:
    for contract in CANCELS:
        await expired(store, db, 2, contract=contract)
    reports = {report.part: report for report in await once(store)}
    assert (reports["cancel expired"].did, reports["cancel expired"].trouble) == (2 * len(CANCELS), None)


async def test_a_locked_job_is_left_to_the_next_round(store: Store, db: Harness, dsn: str) -> None:
    late = await expired(store, db, 2)
    with Harness(dsn) as other, other.connection.transaction():
        other.sql("select from tenure.job where id = %s for update", late[0])
        assert await store.cancel_expired() == 1
    assert await store.cancel_expired() == 1


async def test_a_job_that_runs_again_by_an_operator_has_no_expiry(store: Store, db: Harness) -> None:
    (late,) = await expired(store, db)
    await store.cancel_expired()
    again = await store.requeue(late, actor="ada")
    assert db.row(again)["expires_at"] is None
    assert [job.id for job in await store.claim(worker="w")] == [again]


async def test_why_tells_of_the_expiry_and_of_the_end(store: Store, db: Harness) -> None:
    made = (await store.enqueue(NewJob("send", expires_ms=60_000))).job_id
    assert any("expires at" in sentence for sentence in await _why(store, made))
    db.sql("update tenure.job set expires_at = clock_timestamp()")
    assert any("no claim takes it" in sentence for sentence in await _why(store, made))
    await store.cancel_expired()
    assert any("expired" in sentence for sentence in await _why(store, made))


def _quarantine_reasons(db: Harness, ids: list[int]) -> list[str]:
    return [str(db.row(job_id)["quarantine_reason"]) for job_id in ids]


async def _why(store: Store, job_id: int) -> list[str]:
    seen = await store.details(job_id)
    return explain_job(seen.job, seen.log, seen.contract, seen.now, seen.situation)
