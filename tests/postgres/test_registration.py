"""Contracts are registered by name and version: never changed in place, only added to, and old rows keep their own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from tenure.contracts import BUILT_IN
from tenure.contracts.declaration import Contract, DeadLetterRules, Event, Retryable, RetryVerdict, View
from tenure.contracts.notation import path, states
from tenure.contracts.numbers import Backoff, Budget, Counter, Jitter, Lease
from tenure.contracts.stored_form import from_description
from tenure.errors import ContractChanged, Unsound
from tenure.jobs.job import Failure, Job, NewJob
from tenure.jobs.outcome import Moved
from tenure.postgres.migrate import MigrationReport, migrate
from tenure.postgres.store import Store
from tests.harness import Harness
from tests.holder_calls import calls

GATE_B2 = BUILT_IN["gate_b2"]

_STATES = states(asked="ready", shelved="waiting", doing="active", delivered="done", lost="done")

#: A user's own contract: what a seventh file would hold.
ERRAND = Contract(
    name="errand",
    version="1",
    title="Errands: asked, doing, delivered or lost; a failure is shelved",
    states=_STATES,
    initial="asked",
    paths=(
        path("claim", "asked > doing"),
        path("succeed", "doing > delivered"),
        path("retry", "doing > shelved", due="backoff"),
        path("promote", "shelved > asked", due="now"),
        path("exhaust", "doing > lost", letter="too_often"),
        path("expire", "doing > shelved", due="now"),
        path("expire_at_cap", "doing > lost", letter="runner_lost"),
    ),
    counter=Counter("tries", initial=10, on=("retry",)),
    budget=Budget("patience", default=2),
    backoff=Backoff(base_seconds=0.1, cap_seconds=1, jitter=Jitter(form="multiply", low=1, high=1)),
    lease=Lease(seconds=5),
    retryable=Retryable("any"),
    dead_letters=DeadLetterRules("record"),
    views=(
        View("errands", "jobs", {"errand": "id", "where": "state", "tries": "counter", "what": "payload"}),
        View("steps", "events", {"errand": "job_id", "n": "seq", "step": "name", "facts": "payload"}),
        View("losses", "letters", {"errand": "job_id", "why": "reason"}),
    ),
    events=(
        Event("taken", ("claim",), {"by": "actor"}),
        Event("shelved", ("retry",), {"after_ms": "delay_ms"}),
        Event("lost", ("exhaust", "expire_at_cap"), {"tries": "counter"}),
    ),
)

#: Its next version gives up at once on what will never work.
NEXT = replace(
    ERRAND,
    version="2",
    states={**ERRAND.states, "hopeless": ("done",)},
    paths=(*ERRAND.paths, path("fatal", "doing > hopeless")),
    retryable=Retryable("class", {"PermanentError": RetryVerdict("fatal")}),
)
HOPELESS = Failure("never", type="PermanentError")


def registered(db: Harness) -> list[dict[str, Any]]:
    """Every row of the registry."""
    return db.sql("select * from tenure.contract order by name, version")


def _another_state(declared: dict[str, Any]) -> None:
    declared["states"]["parked"] = ["done"]
    declared["paths"].append(
        {**declared["paths"][1], "trigger": "cancel", "hops": [{"state": "parked", "role": "done"}]}
    )


CHANGES: Mapping[str, Callable[[dict[str, Any]], Any]] = {
    "a state": _another_state,
    "a transition": lambda d: d["paths"][8]["sources"].append("queued"),
    "the number of retries": lambda d: d["budget"].update(default=4, maximum=4),
    "the factor of the formula": lambda d: d["backoff"].update(factor=3.0),
    "the jitter of the formula": lambda d: d["backoff"]["jitter"].update(high=500),
}


@pytest.mark.req("S4-60")
def test_changed_machine_under_the_same_version_is_refused(dsn: str, db: Harness) -> None:
    before = registered(db)
    for what, change in CHANGES.items():
        declared = GATE_B2.describe()
        change(declared)
        with pytest.raises(
            ContractChanged, match=r"gate_b2 2026.02.21-r3 is registered with another machine.*new version"
        ):
            migrate(dsn, {"gate_b2": from_description(declared)})
        assert registered(db) == before, f"{what} was registered"


@pytest.mark.req("S4-60")
def test_only_the_named_numbers_are_settings(dsn: str, db: Harness) -> None:
    before = registered(db)
    other = GATE_B2.with_numbers({"backoff_base_ms": 5, "backoff_cap_ms": 50, "lease_ms": 2_000})
    assert migrate(dsn, {"gate_b2": other}) == MigrationReport(renumbered=["gate_b2 2026.02.21-r3"])
    assert migrate(dsn, {"gate_b2": other}) == MigrationReport()
    assert migrate(dsn, {"gate_b2": GATE_B2}) == MigrationReport(renumbered=["gate_b2 2026.02.21-r3"])
    assert registered(db) == before
    with pytest.raises(Unsound, match="max_attempts is 4; only 3 is accepted"):
        GATE_B2.with_numbers({"max_attempts": 4})


def test_version_that_takes_something_away_is_refused(dsn: str, db: Harness) -> None:
    migrate(dsn, {"errand": NEXT})
    before = registered(db)
    less = replace(ERRAND, version="3")
    with pytest.raises(
        ContractChanged, match="errand 3 is not an additive change of 2: state hopeless is gone"
    ) as refusal:
        migrate(dsn, {"errand": less})
    assert "path fatal from doing is gone" in str(refusal.value)
    assert "Next: keep what was there, or give the contract a new name" in str(refusal.value)
    assert registered(db) == before


def test_added_version_is_registered_beside_the_old_one(dsn: str, db: Harness) -> None:
    migrate(dsn, {"errand": ERRAND})
    report = migrate(dsn, {"errand": NEXT})
    assert report.registered == ["errand 2"]
    assert report.rebuilt == ["CHECK on tenure.job", "CHECK on tenure.job_done"]
    versions = db.sql("select version, digest from tenure.contract where name = 'errand' order by registered_at")
    assert [tuple(row.values()) for row in versions] == [("1", ERRAND.digest()), ("2", NEXT.digest())]


def accepts(db: Harness, contract: str, state: str) -> bool:
    """Whether the database lets a row of this contract be in this state."""
    try:
        with db.connection.transaction(force_rollback=True):
            db.sql(
                "insert into tenure.job (contract, version, state, role, type, max_attempts, seq) "
                "values (%s, '1', %s, 'ready', 't', 1, 1)", contract, state,
            )  # fmt: skip
    except psycopg.errors.CheckViolation as refusal:
        return refusal.diag.constraint_name != "job_state"
    return True


@pytest.mark.req("S4-09", "S4-51")
def test_check_knows_exactly_the_states_of_each_contract(db: Harness) -> None:
    every = {state for contract in BUILT_IN.values() for state in contract.states} | {"nonsense", ""}
    for contract in BUILT_IN.values():
        assert {state for state in every if accepts(db, contract.name, state)} == set(contract.describe()["states"])
    assert {state for state in every if accepts(db, "errand", state)} == set()


def test_check_learns_the_states_of_a_new_version(dsn: str, db: Harness) -> None:
    migrate(dsn, {"errand": ERRAND})
    assert (accepts(db, "errand", "asked"), accepts(db, "errand", "hopeless")) == (True, False)
    migrate(dsn, {"errand": NEXT})
    assert (accepts(db, "errand", "hopeless"), accepts(db, "standard", "hopeless")) == (True, False)


def test_check_guards_finished_jobs_too(db: Harness) -> None:
    with pytest.raises(psycopg.errors.CheckViolation, match="job_done_state"):
        db.sql(
            "insert into tenure.job_done (id, contract, version, state, role, type, max_attempts) "
            "values (1, 'phase27', '1', 'succeeded', 'done', 't', 1)"
        )


@pytest.fixture
async def errands(dsn: str) -> AsyncIterator[Store]:
    """A store on a database that knows the user's own contract."""
    migrate(dsn, {"errand": ERRAND})
    async with Store.open(dsn) as opened:
        yield opened


async def taken(store: Store) -> Job:
    """The next errand, claimed."""
    (job,) = await store.claim("errand", worker="runner")
    return job


async def test_users_own_contract_works_end_to_end(errands: Store, db: Harness) -> None:
    made = await errands.enqueue(NewJob("fetch", {"what": "milk"}, contract="errand"))
    first = await errands.fail((await taken(errands)).held, Failure("closed"))
    assert (first.trigger, first.state, first.delay_ms, first.counter) == ("retry", "shelved", 100, 11)
    db.due(made.job_id)
    assert [type(outcome) for outcome in await errands.promote("errand")] == [Moved]
    last = await errands.fail((await taken(errands)).held, Failure("closed"))
    assert (last.trigger, last.state, last.will_retry) == ("exhaust", "lost", False)
    assert db.hops(made.job_id) == ["asked->doing", "doing->shelved", "shelved->asked", "asked->doing", "doing->lost"]
    db.log_is_sound(made.job_id)
    assert db.sql("select * from tenure_errand.errands") == [
        {"errand": made.job_id, "where": "lost", "tries": 11, "what": {"what": "milk"}}
    ]
    assert db.sql("select * from tenure_errand.losses") == [{"errand": made.job_id, "why": "too_often"}]
    steps = db.sql("select n, step, facts from tenure_errand.steps order by n")
    assert [tuple(step.values()) for step in steps] == [
        (1, "taken", {"by": "runner"}),
        (2, "shelved", {"after_ms": 100}),
        (4, "taken", {"by": "runner"}),
        (5, "lost", {"tries": 11}),
    ]


async def two_versions(store: Store, dsn: str) -> tuple[Job, Job]:
    """A claimed errand of version 1, and one of version 2."""
    await store.enqueue(NewJob("old", contract="errand"))
    old = await taken(store)
    migrate(dsn, {"errand": NEXT})
    await store.enqueue(NewJob("new", contract="errand", version="2"))
    new = await taken(store)
    assert (old.version, new.version) == ("1", "2")
    return old, new


async def test_rows_move_by_the_machine_of_their_own_version(errands: Store, dsn: str, db: Harness) -> None:
    old, new = await two_versions(errands, dsn)
    outcomes = await errands.report("fail", calls([old.held, new.held], failures=[HOPELESS, HOPELESS]))
    assert [outcome.state for outcome in outcomes if isinstance(outcome, Moved)] == ["shelved", "hopeless"]
    assert [db.row(job.id)["version"] for job in (old, new)] == ["1", "2"]
    db.log_is_sound(old.id, new.id)


async def test_old_rows_finish_while_a_newer_version_exists(errands: Store, dsn: str, db: Harness) -> None:
    old, _ = await two_versions(errands, dsn)
    await errands.fail(old.held, HOPELESS)
    db.due(old.id)
    async with Store.open(dsn) as later:
        assert [type(outcome) for outcome in await later.promote("errand")] == [Moved]
        again = await taken(later)
        assert (again.id, again.version, again.claims) == (old.id, "1", 2)
        assert (await later.succeed(again.held)).state == "delivered"
    db.log_is_sound(old.id)


async def test_expired_leases_of_old_rows_are_closed_while_a_newer_version_exists(
    errands: Store, dsn: str, db: Harness
) -> None:
    old, new = await two_versions(errands, dsn)
    db.expire(old.id, new.id)
    async with Store.open(dsn) as later:
        outcomes = await later.reap("errand")
    assert [type(outcome) for outcome in outcomes] == [Moved, Moved]
    assert [db.row(job.id)["state"] for job in (old, new)] == ["shelved", "shelved"]


async def test_old_row_is_claimed_by_id_while_a_newer_version_exists(errands: Store, dsn: str) -> None:
    made = await errands.enqueue(NewJob("old", contract="errand"))
    migrate(dsn, {"errand": NEXT})
    async with Store.open(dsn) as later:
        (job,) = await later.claim_by_id([made.job_id], worker="runner", contract="errand")
    assert isinstance(job, Job)
    assert job.version == "1"


async def test_job_is_made_under_the_newest_version_unless_it_names_one(errands: Store, dsn: str, db: Harness) -> None:
    migrate(dsn, {"errand": NEXT})
    async with Store.open(dsn) as later:
        newest = await later.enqueue(NewJob("walk", contract="errand"))
        named = await later.enqueue(NewJob("walk", contract="errand", version="1"))
    assert [db.row(made.job_id)["version"] for made in (newest, named)] == ["2", "1"]
