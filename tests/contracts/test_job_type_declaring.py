"""Declaring job types: kept once and found by every process, within the contract's ranges, all of a call or nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tenure.contracts import BUILT_IN
from tenure.errors import BadInput, UnknownContract
from tenure.jobs.job_type import JobType
from tenure.postgres.store import Store
from tenure.upkeep import once
from tests.contracts.job_types import beat, lease, made_and_taken, make, take
from tests.harness import Harness

every_contract = pytest.mark.parametrize("contract", BUILT_IN)

FULL = JobType(
    "index", "reliability", lease_ttl_sec=45.5, heartbeat_sec=12, sla_sec=40, renews=False, max_attempts=2,
    backoff_base_ms=250, backoff_cap_ms=4_000, on_exhausted="failed",
)  # fmt: skip
NOT_SECONDS: tuple[Any, ...] = ("60", True, float("nan"), float("inf"), -1, 0, 10**400, [60], {})
NOT_WHOLE: tuple[Any, ...] = (0, -1, 2.0, "3", True, float("nan"), [3], 10**30)
BAD: dict[str, tuple[Any, ...]] = {
    "type": ("", "  ", None, 5, "a\x00b", "\ud800", "x" * 201),
    "lease_ttl_sec": (*NOT_SECONDS, 29.9, 120.1),
    "heartbeat_sec": (*NOT_SECONDS, 9.9, 30.1),
    "sla_sec": (*NOT_SECONDS, 366 * 86_400 + 1),
    "renews": (None, "yes", "no", 1, 2, [True]),
    "max_attempts": (*NOT_WHOLE, 1001),
    "backoff_base_ms": (*NOT_WHOLE, 86_400_001),
    "backoff_cap_ms": (*NOT_WHOLE, 604_800_001),
    "on_exhausted": ("", "queued", "cancelled", "succeeded", "FAILED", 5, ["failed"]),
}


async def test_what_was_declared_is_listed_and_declaring_it_again_changes_nothing(store: Store, db: Harness) -> None:
    two = [FULL, JobType("mail")]
    assert await store.types.declare(two) == 2
    assert await store.types.list() == two, "by contract, then by type"
    assert await store.types.list("standard") == [JobType("mail")]
    before = db.sql("select xmin::text, * from tenure.job_type order by type")
    assert await store.types.declare(two) == 0
    assert await store.types.declare([]) == 0
    assert db.sql("select xmin::text, * from tenure.job_type order by type") == before
    assert await store.types.declare([replace(FULL, max_attempts=3), JobType("mail")]) == 1


async def test_a_change_of_any_number_is_a_change_and_leaving_it_out_takes_it_back(store: Store) -> None:
    new = {"lease_ttl_sec": 60, "heartbeat_sec": 13, "sla_sec": 41, "renews": True, "on_exhausted": "dead_lettered"}
    for name in BAD:
        if name == "type":
            continue
        changed = replace(FULL, **{name: new.get(name, 7)})  # type: ignore[arg-type]
        plain = replace(FULL, **{name: getattr(JobType("plain"), name)})
        await store.types.declare([FULL])
        assert await store.types.declare([changed]) == 1, name
        assert await store.types.list() == [changed]
        assert await store.types.declare([plain]) == (0 if name == "renews" else 1), name
        assert await store.types.list() == [plain]


async def not_refused(store: Store, given: Any) -> str | None:
    """What came of declaring this, where that was not to call it bad input."""
    try:
        return f"taken: {await store.types.declare(given)}"
    except BadInput:
        return None
    except Exception as error:  # a fault to be seen beside the others, not the first one only
        return f"{type(error).__name__}: {error}"


async def test_a_bad_value_of_any_field_is_bad_input_and_nothing_is_written(store: Store) -> None:
    await store.types.declare([FULL])
    faults = []
    for field, values in BAD.items():
        for value in values:
            bad = replace(JobType("new", "reliability"), **{field: value})
            # A good neighbour is not written either.
            if fault := await not_refused(store, [replace(FULL, max_attempts=9), bad]):
                faults.append((field, value, fault))
    assert faults == []
    assert await store.types.list() == [FULL]


async def test_a_bad_number_is_named_also_where_the_work_and_the_lease_are_compared(store: Store) -> None:
    bad: Any = "long"
    for field in ("sla_sec", "lease_ttl_sec"):
        given = {"sla_sec": 600, "lease_ttl_sec": 60, field: bad}
        with pytest.raises(BadInput, match=f"{field} is 'long'"):
            await store.types.declare([JobType("work", "reliability", renews=False, **given)])
    assert await store.types.list() == []


async def test_what_is_no_list_of_job_types_is_bad_input(store: Store) -> None:
    faults = []
    for given in (["index"], [None], [{"type": "index"}], [FULL, "mail"], FULL, None, "index", 7):
        if fault := await not_refused(store, given):
            faults.append((given, fault))
    assert faults == []
    assert await store.types.list() == []


async def test_every_fault_of_a_type_is_said_at_once(store: Store) -> None:
    bad = JobType("bad", "reliability", lease_ttl_sec=5, heartbeat_sec=5, max_attempts=0, on_exhausted="queued")
    with pytest.raises(BadInput, match="job type bad of contract reliability") as refusal:
        await store.types.declare([bad])
    for name in ("lease_ttl_sec is 5", "heartbeat_sec is 5", "max_attempts is 0", "on_exhausted is one of"):
        assert name in str(refusal.value)


async def test_a_type_of_an_unknown_contract_is_refused(store: Store) -> None:
    strangers: tuple[Any, ...] = ("nope", "", "Reliability", None, 5)
    for contract in strangers:
        with pytest.raises(UnknownContract):
            await store.types.declare([FULL, JobType("mail", contract)])
    assert await store.types.list() == []


async def test_a_type_declared_twice_in_a_call_is_refused_but_not_the_name_under_two_contracts(store: Store) -> None:
    for second in (FULL, replace(FULL, max_attempts=5)):
        with pytest.raises(BadInput, match="index of contract reliability is declared twice"):
            await store.types.declare([FULL, JobType("mail"), second])
    assert await store.types.list() == []
    assert await store.types.declare([FULL, JobType("index", "standard", max_attempts=9)]) == 2


@every_contract
async def test_each_contract_takes_what_it_can_honour_and_says_what_it_cannot(
    store: Store, db: Harness, contract: str
) -> None:
    plain = BUILT_IN[contract]
    low, high = plain.lease.minimum_ms / 1000, plain.lease.maximum_ms / 1000
    for length in (low, high):
        await store.types.declare([JobType("mail", contract, lease_ttl_sec=length)])
        job = await made_and_taken(store, contract, "mail")
        assert lease(db, job.id).total_seconds() == length
    for length in (low - 0.001, high + 0.001):
        with pytest.raises(BadInput, match="lease_ttl_sec"):
            await store.types.declare([JobType("mail", contract, lease_ttl_sec=length)])
    for limit in (plain.budget.minimum, plain.budget.maximum):
        await store.types.declare([JobType("mail", contract, max_attempts=limit)])
        assert db.row(await make(store, contract, "mail"))["max_attempts"] == limit
    for limit in (plain.budget.minimum - 1, plain.budget.maximum + 1):
        with pytest.raises(BadInput, match="max_attempts"):
            await store.types.declare([JobType("mail", contract, max_attempts=limit)])
    if contract != "reliability":
        with pytest.raises(BadInput, match="the contract has no heartbeat of its own"):
            await store.types.declare([JobType("mail", contract, heartbeat_sec=15)])
        with pytest.raises(BadInput, match="on_exhausted is not to be chosen under this contract"):
            await store.types.declare([JobType("mail", contract, on_exhausted="failed")])
    assert await store.types.list() == [JobType("mail", contract, max_attempts=plain.budget.maximum)]


async def test_the_three_retries_of_document_004_stay_three(store: Store) -> None:
    for limit in (0, 1, 2, 4, 5):
        with pytest.raises(BadInput, match=f"max_attempts is {limit}; it must be a whole number within 3..3"):
            await store.types.declare([JobType("mail", "gate_b2", max_attempts=limit)])
    assert await store.types.declare([JobType("mail", "gate_b2", max_attempts=3)]) == 1


async def test_upkeep_of_a_process_without_the_application_honours_the_types(
    store: Store, db: Harness, dsn: str
) -> None:
    await store.types.declare([
        JobType("quick", "reliability", lease_ttl_sec=120, heartbeat_sec=10, max_attempts=1),
        JobType("slow", "reliability", lease_ttl_sec=120, heartbeat_sec=30),
        JobType("mail", "simple", backoff_base_ms=500_000, backoff_cap_ms=600_000, lease_ttl_sec=100),
    ])  # fmt: skip
    quick, slow = [await made_and_taken(store, "reliability", kind) for kind in ("quick", "slow")]
    mail = await made_and_taken(store, "simple", "mail")
    beat(db, quick.id, 25)  # by the contract's own beat, this one would be at work
    beat(db, slow.id, 35)  # and this one an orphan
    db.expire(mail.id)
    async with Store.open(dsn) as fresh:
        reports = [report for report in await once(fresh) if report.part == "reap" and report.did]
        assert [(report.contract, report.did) for report in reports] == [("reliability", 1), ("simple", 1)]
        assert [db.row(job.id)["state"] for job in (quick, slow)] == ["dead_lettered", "running"]
        wait = db.log(mail.id)[-2]["facts"]["delay_ms"]
        assert 375_000 <= wait <= 625_000
        db.due(mail.id)
        await take(fresh, "simple", "mail")
        assert lease(db, mail.id).total_seconds() == 100
