"""`tenure verify`'s audit: a sound database is found sound, and every way to break it is named, and nothing else is."""

from __future__ import annotations

import json
import sys

import psycopg
import pytest

from tenure.contracts import BUILT_IN
from tenure.postgres.store import Store
from tenure.proof import AuditReport, Violation, audit
from tests.harness import Harness
from tests.proof.breaks import EFFECTS, ELSEWHERE, LETTERS, LOGS, ROWS, Break
from tests.proof.conftest import World
from tests.proof.histories import WIDTH

BREAKS = [*ROWS, *LOGS, *LETTERS, *EFFECTS]
#: The module: its name in its package is the function's.
AUDITING = sys.modules["tenure.proof.audit"]


async def audited(dsn: str) -> AuditReport:
    """What an audit of this database finds."""
    async with Store.open(dsn, connections=1) as store:
        return await audit(store)


def broken(dsn: str, sql: str) -> None:
    """Change the database as nobody may: without triggers."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("set session_replication_role = replica")
        connection.execute(sql.encode())


@pytest.mark.core
async def test_every_kind_of_life_is_sound(world: World) -> None:
    report = await audited(world.dsn)
    assert (report.violations, report.more) == ([], 0)
    with Harness(world.dsn) as db:
        live, done = (db.value(f"select count(*) from tenure.{table}") for table in ("job", "job_done"))
        assert (report.live, report.jobs) == (live, live + done)
        assert report.events == db.value("select count(*) from tenure.event")
        left = db.value("select count(*) from tenure.dead_letter where job_id < 1048576")
        assert (left, report.letters) == (2, db.value("select count(*) from tenure.dead_letter") - left)
        assert report.ranges == db.value("select count(*) from tenure.range")
        roles = {row["role"] for row in db.sql("select role from tenure.job")}
        assert roles == {"ready", "waiting", "leased", "active", "settling"}
        ends = {(row["contract"], row["state"]) for row in db.sql("select contract, state from tenure.job_done")}
        assert ends == {
            (name, state)
            for name, contract in BUILT_IN.items()
            for state, at in contract.states.items()
            if "done" in at
        }


@pytest.mark.parametrize(("jobs", "rows"), [(1, 50_000), (7, 50_000), (5_000, 1), (5_000, 20)])
async def test_how_large_a_page_is_makes_no_difference(
    world: World, monkeypatch: pytest.MonkeyPatch, jobs: int, rows: int
) -> None:
    twin = next(one for one in ROWS if one.name == "live and done at once")  # on one page, always
    broken(world.dsn, twin.sql.format(id=world.lived[twin.of]))
    whole = await audited(world.dsn)
    monkeypatch.setattr(AUDITING, "PAGE", jobs)
    monkeypatch.setattr(AUDITING, "LOG_ROWS", rows)
    pages = await audited(world.dsn)
    assert [violation.promise for violation in whole.violations] == ["the end is one"]
    whole.seconds = pages.seconds = 0
    assert pages == whole


async def test_a_page_of_long_logs_is_short(world: World) -> None:
    async with Store.open(world.dsn) as store:
        page = await store.audit.page(WIDTH - 1, 2 * WIDTH, 5_000, 10)
        *before, last = [job.seq for job in page.jobs]
        assert sum(before) < 10 <= sum(before) + last
        assert sum(log.text.count("\x1e") + 1 for log in page.logs) == sum(before) + last


@pytest.mark.usefixtures("lived_once")
@pytest.mark.parametrize("one", BREAKS, ids=lambda one: one.name)
async def test_what_was_broken_is_named_and_nothing_else(request: pytest.FixtureRequest, one: Break) -> None:
    world: World = request.getfixturevalue("own_world" if "alter table" in one.sql else "world")
    job_id = world.lived[one.of]
    with Harness(world.dsn) as db:
        last = len(db.log(job_id))
    broken(world.dsn, one.sql.format(id=job_id, last=last))
    found = (await audited(world.dsn)).violations
    wanted = {(one.promise, job_id), *((one.promise, world.lived[other]) for other in one.also)}
    assert {(violation.promise, violation.job_id) for violation in found} == wanted
    assert len(found) == len(wanted)
    assert one.says in next(violation.what for violation in found if violation.job_id == job_id)


@pytest.mark.usefixtures("lived_once")
@pytest.mark.parametrize(("sql", "wanted", "says"), [one[1:] for one in ELSEWHERE], ids=[one[0] for one in ELSEWHERE])
async def test_what_belongs_to_no_job_is_named(
    request: pytest.FixtureRequest, sql: str, wanted: list[tuple[str, int | None]], says: str
) -> None:
    ddl = sql.startswith(("alter", "drop"))
    world: World = request.getfixturevalue("own_world" if ddl else "world")
    broken(world.dsn, sql)
    found = (await audited(world.dsn)).violations
    assert [(violation.promise, violation.job_id) for violation in found] == wanted
    assert says in found[0].what


@pytest.mark.parametrize(
    ("path", "value", "of_jobs"),
    [
        ("{invalid_transition}", "NOPE", False),
        ("{counter,on}", ["claim"], True),
        ("{budget,extra}", 0, True),
    ],
)
async def test_a_contract_that_was_changed_is_named(world: World, path: str, value: object, of_jobs: bool) -> None:
    sql = f"update tenure.contract set declaration = jsonb_set(declaration::jsonb, '{path}', '{json.dumps(value)}')"
    broken(world.dsn, f"{sql} where name = 'gate_b2'")
    found = (await audited(world.dsn)).violations
    what = f"gate_b2 {BUILT_IN['gate_b2'].version} was changed after it was registered"
    assert found[0] == Violation("the contract", None, what)
    ours = {job_id for name, job_id in world.lived.ids.items() if name.startswith("gate_b2")}
    others = {violation.job_id for violation in found[1:]}
    assert bool(others) == of_jobs
    assert others <= ours
    with psycopg.connect(world.dsn, autocommit=True) as connection:  # and also when the fingerprint was changed with it
        connection.execute("update tenure.contract set digest = %s where name = 'gate_b2'", (await digest(world.dsn),))
    first, *rest = (await audited(world.dsn)).violations
    assert first.what.endswith("is registered with another machine than ours")
    assert rest == found[1:]


async def digest(dsn: str) -> str:
    """The fingerprint of what is registered as gate_b2 now."""
    async with Store.open(dsn) as store:
        return next(c.digest() for (name, _), c in (await store.audit.contracts()).items() if name == "gate_b2")


async def test_a_contract_that_is_not_registered_is_named_for_each_of_its_jobs(world: World) -> None:
    broken(world.dsn, "delete from tenure.contract where name = 'simple'")
    found = (await audited(world.dsn)).violations
    ours = {job_id for name, job_id in world.lived.ids.items() if name.startswith("simple")}
    assert {violation.job_id for violation in found} == ours
    assert {violation.promise for violation in found} == {"the contract"}


async def test_many_violations_are_counted_not_kept(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AUDITING, "_MAX_VIOLATIONS", 5)
    broken(world.dsn, "update tenure.job_done set seq = seq + 1")
    report = await audited(world.dsn)
    assert (len(report.violations), report.more) == (5, report.jobs - report.live - 5)


async def test_a_range_that_is_leaving_is_not_missed(world: World) -> None:
    broken(world.dsn, "update tenure.range set leaving = pg_current_xact_id()")
    broken(world.dsn, "delete from tenure.job_done; delete from tenure.job")
    report = await audited(world.dsn)
    assert (report.violations, report.jobs) == ([], 0)
