"""An application with a contract of its own: what it may say, and which databases it may use."""

from __future__ import annotations

import logging
from dataclasses import replace

import psycopg
import pytest

from tenure.app import App
from tenure.contracts import BUILT_IN, Lease, path
from tenure.errors import BadInput, ContractChanged, InvalidTransition, JobFailed, UnknownContract
from tenure.jobs.job import NewJob
from tenure.postgres.migrate import migrate
from tenure.postgres.store import Store
from tenure.settings import Settings
from tenure.testing import use_database
from tests.decisions import PURCHASE, register
from tests.harness import Harness
from tests.http.conftest import serving

SECOND = replace(
    PURCHASE, version="2", states={**PURCHASE.states, "on_hold": ("waiting",)}, views=(), events=(),
    paths=(
        *PURCHASE.paths, path("hold", "waiting_approval > on_hold"), path("resume", "on_hold > waiting_approval"),
    ),
)  # fmt: skip


@pytest.fixture(autouse=True)
def no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DATABASE_URL", "TENURE_DISPATCHER_URL"):
        monkeypatch.delenv(name, raising=False)


def shop(dsn: str | None = None, *contracts: object, **options: object) -> App:
    """An app with one task, under its own contract."""
    declared = contracts or (PURCHASE,)
    made = App(dsn, contracts=declared, contract="purchase", **options)  # type: ignore[arg-type]

    @made.task
    async def buy(what: str) -> str:
        return f"bought {what}"

    return made


async def test_a_database_that_does_not_know_the_contract_is_refused_with_the_command(dsn: str, db: Harness) -> None:
    async with shop(dsn) as app:
        with pytest.raises(UnknownContract, match=r"purchase 1 is not registered .* tenure migrate --app .*:app"):
            await app.tasks["buy"].enqueue("a desk")
        with pytest.raises(UnknownContract, match="tenure migrate --app"):
            await app.worker().run(until_idle=True, handle_signals=False)
    assert db.sql("select count(*) from tenure.job") == [{"count": 0}]


async def test_another_machine_under_the_same_version_is_refused(dsn: str) -> None:
    register(dsn, PURCHASE)
    other = replace(PURCHASE, paths=(*PURCHASE.paths, path("cancel", "draft|approved|running > rejected")))
    async with shop(dsn, other) as app:
        with pytest.raises(ContractChanged, match="give the changed contract a new version"):
            await app.tasks["buy"].enqueue("a desk")


async def test_code_of_the_old_version_goes_on_beside_the_new_one(dsn: str) -> None:
    register(dsn, PURCHASE)
    async with shop(dsn) as old:
        first = await old.tasks["buy"].enqueue("a desk")
        register(dsn, SECOND)
        async with shop(dsn) as restarted, shop(dsn, SECOND) as new:
            second = await restarted.tasks["buy"].enqueue("a chair")
            assert [(await new.job(job)).version for job in (first, second)] == ["1", "2"]
            for job in (first, second):
                await new.transition(job, "waiting_approval")
            with pytest.raises(BadInput, match="contract purchase 1 has no state 'on_hold'"):
                await new.transition(first, "on_hold")
            await new.transition(second, "on_hold")
            await new.transition(first, "approved")
            await new.worker().run(until_idle=True, handle_signals=False)
            assert await new.result(first, timeout=20) == "bought a desk"


async def test_a_database_made_for_tests_gets_the_contract_by_itself(dsn: str) -> None:
    with use_database(dsn):
        async with shop() as app:
            job = await app.tasks["buy"].enqueue("a desk")
            assert (await app.job(job)).state == "draft"


async def test_a_decision_through_a_dispatcher_is_the_same(dsn: str) -> None:
    own_code = replace(PURCHASE, invalid_transition="PURCHASE_REFUSED")
    register(dsn, own_code)
    with serving(dsn) as url:
        async with shop(None, own_code, dispatcher_url=url) as app:
            desk, yacht = [await app.tasks["buy"].enqueue(what) for what in ("a desk", "a yacht")]
            moved = await app.transition(yacht, "rejected", reason="too dear")
            assert (moved.trigger, moved.state) == ("reject", "rejected")
            with pytest.raises(InvalidTransition) as refused:
                await app.transition(desk, "approved")
            assert refused.value.reason_code == "PURCHASE_REFUSED"
            with pytest.raises(JobFailed, match="too dear"):
                await app.result(yacht)
    async with Store.open(dsn) as store:
        ((entry,),) = [await store.events(yacht.id)]
        assert (entry.trigger, entry.reason) == ("reject", "too dear")


async def test_a_claim_is_no_decision(dsn: str) -> None:
    register(dsn, PURCHASE)
    async with shop(dsn) as app:
        job = await app.tasks["buy"].enqueue("a desk")
        await app.transition(job, "waiting_approval")
        await app.transition(job, "approved")
        with pytest.raises(BadInput, match="by a claim, which a worker makes"):
            await app.transition(job, "running")


def test_the_options_of_a_task_are_checked_by_its_own_contract() -> None:
    app = shop()
    with pytest.raises(BadInput, match="job type slow of contract purchase"):
        app.task(name="slow", lease=0.5)(lambda: None)
    with pytest.raises(BadInput, match="under contract purchase, which compensates no effects"):
        app.tasks["buy"].compensate("pay")(lambda paid: None)


WRONG = {
    "the name of a built-in contract": ([replace(PURCHASE, name="standard")], "comes with Tenure"),
    "two of one name": ([PURCHASE, SECOND], "given twice"),
    "no contract": (["purchase"], "takes tenure.Contract objects"),
}


@pytest.mark.parametrize("what", WRONG)
def test_an_app_refuses(what: str) -> None:
    contracts, message = WRONG[what]
    with pytest.raises(BadInput, match=message):
        App(contracts=contracts)  # type: ignore[arg-type]


def test_settings_name_the_numbers_of_an_own_contract(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENURE_PURCHASE_LEASE_MS", "45000")
    assert shop().settings.numbers["purchase"] == {"lease_ms": 45_000}
    monkeypatch.setenv("TENURE_PURCHASE_LEASE_MS", "1")
    with pytest.raises(BadInput, match="TENURE_PURCHASE_LEASE_MS"):
        shop()


async def test_a_process_without_the_app_takes_the_numbers_too(dsn: str, caplog: pytest.LogCaptureFixture) -> None:
    register(dsn, PURCHASE)
    environ = {"TENURE_PURCHASE_LEASE_MS": "45000", "TENURE_NOBODYS_MAX_ATTEMPTS": "2"}
    with caplog.at_level(logging.WARNING, "tenure"):
        async with Store.open(dsn, numbers=Settings.load(environ).numbers) as store:
            assert (await store.contract("purchase")).lease == Lease(seconds=45)
    assert "contract nobodys, which is not registered" in caplog.text
    async with Store.open(dsn, numbers=Settings.load({"TENURE_PURCHASE_LEASE_MS": "1"}).numbers) as store:
        with pytest.raises(UnknownContract, match="lease_ms is 1"):
            await store.enqueue(NewJob("buy", contract="purchase"))
        assert (await store.enqueue(NewJob("other"))).made


@pytest.fixture
def bare(dsn: str, db: Harness) -> str:
    """A database that knows the contract, whose views and CHECK were lost."""
    register(dsn, SECOND)
    db.sql("drop view tenure_purchase.jobs")
    db.sql("alter domain tenure.valid_job drop constraint job_state")
    return dsn


def test_migrate_without_the_contract_keeps_its_views_and_its_check(bare: str, db: Harness) -> None:
    report = migrate(bare)
    assert "view tenure_purchase.jobs" in report.rebuilt
    assert report.registered == []
    assert db.sql("select count(*) from tenure_purchase.jobs") == [{"count": 0}]
    insert = (
        "insert into tenure.job (contract, version, state, role, type, max_attempts) "
        "values ('purchase', '2', %s, %s, 't', 1)"
    )
    db.sql(insert, "draft", "waiting")
    for state, role in (("draft", "ready"), ("approved", "ready"), ("nowhere", "waiting")):
        with pytest.raises(psycopg.errors.CheckViolation):
            db.sql(insert, state, role)


def test_an_old_release_of_the_code_does_not_take_columns_from_the_views(dsn: str, db: Harness) -> None:
    register(dsn, PURCHASE)
    register(dsn, SECOND)
    assert migrate(dsn, {**BUILT_IN, "purchase": PURCHASE}).rebuilt == []
    ((events,),) = [row.values() for row in db.sql("select pg_get_viewdef('tenure_purchase.events'::regclass)")]
    assert "'hold'" in events


async def test_a_task_that_people_decide_about_runs_under_no_other_contract(
    dsn: str, store: Store, db: Harness
) -> None:
    register(dsn, PURCHASE)
    async with shop(dsn) as app:
        around = await store.enqueue(NewJob("buy", {"what": "a yacht"}))
        await app.worker().run(until_idle=True, handle_signals=False)
        with pytest.raises(BadInput, match="runs only under contract purchase, where people decide, and not under 'st"):
            app.tasks["buy"].options(contract="standard")
        with pytest.raises(
            JobFailed, match=r"runs only under contract purchase.*Next: enqueue it again with contract="
        ):
            await app.result(around.job_id)
    assert db.value("select claims from tenure.job_done where id = %s", around.job_id) == 1


async def test_a_refused_decision_names_the_paths_that_there_are(dsn: str) -> None:
    register(dsn, PURCHASE)
    async with shop(dsn) as app:
        ticket = await app.tasks["buy"].enqueue("a desk")
        with pytest.raises(
            InvalidTransition,
            match=r"is draft, and contract purchase has no path to approved \(there are paths to rejected, waiting",
        ):
            await app.transition(ticket, "approved", actor="ada")
