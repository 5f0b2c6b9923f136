"""Every dead letter has all its fields, whatever way its job took into the dead letters."""

from __future__ import annotations

import pytest

from tenure.contracts import BUILT_IN
from tenure.contracts.declaration import Contract
from tenure.postgres.store import Store
from tests.contracts.ways_to_letters import Traveller, Way, ways
from tests.decisions import REVIEW, register
from tests.harness import Harness

_KEEPING = [*(one for one in BUILT_IN.values() if one.dead_letters.mode != "none"), REVIEW]
#: Fields that only a job which was claimed can have.
_OF_CLAIMED = {"last_owner", "last_lease_expires_at"}
#: Of a letter that nobody has decided about.
_UNDECIDED = {
    "requeued_as", "requeued_by", "discard_reason", "discard_asked_by", "discard_asked_key", "discard_asked_at",
    "discard_approved_by", "discard_approved_at",
}  # fmt: skip


def faults(db: Harness, job: Traveller, way: Way) -> list[str]:
    """What is missing or wrong in the letter of a job, as the table has it and as the contract's view shows it."""
    table = "select * from tenure.dead_letter where job_id = %s"
    view = next(view.name for view in job.contract.views if view.rows == "letters")
    if not db.sql(table, job.id):
        return [f"no letter; it went {db.hops(job.id)}"]
    row = db.one(table, job.id)
    shown = db.one(f"select * from tenure_{job.contract.name}.{view} where job_id = %s", job.id)
    may_miss = _UNDECIDED if job.claims else _UNDECIDED | _OF_CLAIMED
    every = {**row, **{f"{view}.{name}": value for name, value in shown.items() if name not in may_miss}}
    missing = [f"{name} is missing" for name, value in every.items() if value is None and name not in may_miss]
    missing += ["last_error has no message"] if not row["last_error"].get("message") else []
    before = db.row(job.id)
    expected = {
        "counter": before["counter"], "claims": job.claims, "payload": {"n": 7}, "status": "open",
        "correlation_id": db.value("select tenure.made_id('correlation', %s)", job.id),
    }  # fmt: skip
    if job.lease:
        expected |= dict(zip(("last_owner", "last_lease_expires_at"), job.lease, strict=True))
    missing += [f"{name} is {row[name]} and not {value}" for name, value in expected.items() if row[name] != value]
    allowed = job.contract.dead_letters.reasons
    if allowed and row["reason_code"] not in allowed:
        missing.append(f"reason {row['reason_code']}")
    taken = [event["trigger"] for event in db.log(job.id) if event["hop"] and event["from_state"] == way.source]
    if taken[-1] != way.path.trigger:
        missing.append(f"it went by {taken[-1]}")
    return missing


@pytest.mark.req("S2-42", "S2-43", "S4-30")
@pytest.mark.parametrize(
    "contract",
    [*(one for one in BUILT_IN.values() if one.dead_letters.mode != "none"), REVIEW],
    ids=lambda one: one.name,
)
async def test_every_way_into_the_dead_letters_fills_every_field(
    dsn: str, store: Store, db: Harness, contract: Contract
) -> None:
    register(dsn, REVIEW)
    all_ways = list(ways(contract))
    by_letter = {(way.path.trigger, way.source) for way in all_ways}
    assert len(by_letter) >= 5
    found = [f"{way}: {fault}" for way in all_ways for fault in faults(db, await way.go(store, db), way)]
    assert found == [], "\n".join(found)
