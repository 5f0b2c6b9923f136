"""`tenure replay --job`: what happened to any recorded job happens again, and a log that was tampered with does not."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest

from tenure.contracts import BUILT_IN
from tenure.errors import JobNotFound
from tenure.jobs.job import NewJob
from tenure.jobs.job_type import JobType
from tenure.jobs.outcome import Outcome
from tenure.postgres.store import Store
from tenure.proof import audit
from tenure.proof.gate_b2_cases import FAST_NUMBERS, REPLAY_QUEUE
from tenure.proof.replay import replay
from tests.harness import Harness
from tests.proof.conftest import World
from tests.proof.histories import LIVES, Player

_REPLAYING = sys.modules["tenure.proof.replay"]
_LET_LEASES_RUN_OUT = """
update tenure.job set lease_expires_at = now() - interval '1 second'
where queue = 'tenure-replay' and role in ('leased', 'active')
"""


class Quick(Store):
    """A store for which time passes as soon as upkeep is waited for."""

    dsn: str

    async def reap(self, contract: str, limit: int = 1000, **options: Any) -> list[Outcome]:
        """Let the replay's leases have run out, then close them."""
        async with await psycopg.AsyncConnection.connect(self.dsn, autocommit=True) as connection:
            await connection.execute(_LET_LEASES_RUN_OUT)
        return await super().reap(contract, limit)


@pytest.fixture
async def quick(request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    """A store whose waits are milliseconds, on the lived database or on one of the test's own."""
    dsn = request.getfixturevalue("world").dsn if "world" in request.fixturenames else request.getfixturevalue("dsn")
    async with Quick.open(dsn, numbers=dict.fromkeys(BUILT_IN, FAST_NUMBERS)) as store:
        assert isinstance(store, Quick)
        store.dsn = dsn
        yield store


@pytest.mark.parametrize("contract", LIVES)
async def test_every_recorded_life_happens_again(world: World, quick: Store, contract: str) -> None:
    ours = {name: job_id for name, job_id in world.lived.ids.items() if name.startswith(f"{contract}: ")}
    parted = {}
    for name, job_id in ours.items():
        report = await replay(quick, job_id)
        assert report.as_job_id != job_id
        if report.first_difference is not None:
            parted[name] = (report.first_difference, report.why)
        else:
            assert report.replayed == report.recorded, name
    assert parted == {}
    with Harness(world.dsn) as db:
        left = db.sql("select id, state from tenure.job where queue = %s", REPLAY_QUEUE)
        again = db.value("select count(*) from tenure.job_done where queue = %s", REPLAY_QUEUE)
    assert (left, again) == ([], len(ours)), "nothing is left that could run, or that keeps its range"
    assert (await audit(quick)).violations == []


async def test_a_replay_changes_nothing_of_the_recorded_job(world: World, quick: Store) -> None:
    ids = [world.lived["standard: running"], world.lived["reliability: compensating"]]
    with Harness(world.dsn) as db:
        before = [*db.fingerprint(*ids)[:2], *(db.log(job_id) for job_id in ids)]
        for job_id in ids:
            await replay(quick, job_id)
        assert [*db.fingerprint(*ids)[:2], *(db.log(job_id) for job_id in ids)] == before


async def test_a_replay_gives_the_same_facts_again(quick: Store, db: Harness) -> None:
    player = Player(quick, db)
    job_id = await player.live("reliability", "claim* undoable:pay undoable:ship break compensated", 2, type="ship")
    row = db.row((await replay(quick, job_id)).as_job_id)
    first = db.row(job_id)
    for column in ("contract", "version", "type", "payload", "max_attempts", "state", "claims", "counter", "seq"):
        assert row[column] == first[column], column
    assert row["last_error"].keys() == first["last_error"].keys()
    assert row["last_error"]["message"] == first["last_error"]["message"] == "never again"
    nodes = "select node, claims, result, compensable, compensated_at is not null as undone from tenure.effect " \
        "where job_id = %s order by at"  # fmt: skip
    assert db.sql(nodes, row["id"]) == db.sql(nodes, job_id) != []


def tamper(db: Harness, sql: str, *values: Any) -> None:
    """Change a log as nobody may."""
    db.sql("set session_replication_role = replica")
    db.sql(sql, *values)


@pytest.mark.parametrize(
    ("change", "place", "says"),
    [
        ("counter = 7 where seq = 5", 5, "recorded claim: queued → running (claim 3, counter 7); replayed claim: "
         "queued → running (claim 3, counter 3)"),
        ("claims = 7 where seq = 2", 2, "recorded retry: running → queued (claim 7, counter 1); replayed"),
        ("to_state = 'dead' where seq = 10", 10, "recorded succeed: running → dead"),
        ("trigger = 'succeed', to_state = 'succeeded' where seq = 4", 5, "only in the record (claim: Invalid"),
        ("trigger = 'claim', actor = 'w' where seq = 2", 2, "only in the record (claim: InvalidTransition"),
        ("trigger = 'start' where seq = 6", 6, "only in the record"),
        ("trigger = 'vanish' where seq = 8", 8, "recorded vanish: running → queued (claim 4, counter 4); replayed"),
        ("trigger = 'beat', hop = false, actor = 'w' where seq = 8", 8, "only in the record (beat: Stuck: w does"),
        ("trigger = 'promote', actor = 'tenure:upkeep' where seq = 4", 4, "only in the record (promote: Stuck: "
         "the job was not due within 0.2 seconds"),
    ],
)  # fmt: skip
async def test_a_tampered_log_parts_at_the_right_row(
    quick: Store, db: Harness, monkeypatch: pytest.MonkeyPatch, change: str, place: int, says: str
) -> None:
    monkeypatch.setattr(_REPLAYING, "_DUE_TIMEOUT_S", 0.2)
    job_id = await Player(quick, db).live("standard", LIVES["standard"]["rich"][0])
    assert (await replay(quick, job_id)).first_difference is None
    what, _, which = change.partition(" where ")
    tamper(db, f"update tenure.event set {what} where {which} and job_id = %s", job_id)
    report = await replay(quick, job_id)
    assert report.first_difference == place
    assert says in str(report.why)
    assert report.replayed[: place - 1] == report.recorded[: place - 1]
    assert db.sql("select id from tenure.job") == []


async def test_a_second_end_is_only_in_the_record(quick: Store, db: Harness) -> None:
    job_id = await Player(quick, db).live("phase27", "claim succeed")
    columns = "claims, counter, max_attempts, contract, trigger, from_state, to_state, actor"
    again = f"select job_id, ts, 3, {columns} from tenure.event where job_id = %s and seq = 2"
    tamper(db, f"insert into tenure.event (job_id, ts, seq, {columns}) {again}", job_id)
    report = await replay(quick, job_id)
    assert report.first_difference == 3
    assert "succeed: running → completed (claim 1, counter 1): only in the record" in str(report.why)


async def test_a_log_whose_end_was_cut_out_goes_on_in_the_replay(quick: Store, db: Harness) -> None:
    job_id = await Player(quick, db).live("gate_b2", "claim break")
    tamper(db, "delete from tenure.event where job_id = %s and seq = 4", job_id)
    report = await replay(quick, job_id)
    assert report.first_difference == 4
    assert report.why == "settle: dlq_recorded → failed (claim 1, counter 0): only in the replay"


async def test_renewals_depend_on_the_clock_and_rows_keep_their_numbers(quick: Store, db: Harness) -> None:
    player = Player(quick, db)
    job_id = await player.live("reliability", "claim*")
    db.wear(job_id)
    (job,) = await quick.jobs([job_id])
    await quick.heartbeat(job.held)
    await quick.succeed(job.held)
    assert [row["trigger"] for row in db.log(job_id)] == ["claim", "start", "heartbeat", "renewed", "succeed"]
    assert (await replay(quick, job_id)).first_difference is None
    tamper(db, "update tenure.event set counter = 3 where job_id = %s and seq = 5", job_id)
    assert (await replay(quick, job_id)).first_difference == 5


async def test_a_type_that_waits_too_long_says_so(quick: Store, db: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_REPLAYING, "_DUE_TIMEOUT_S", 0.2)
    await quick.types.declare([JobType("slow", backoff_base_ms=60_000, backoff_cap_ms=60_000)])
    job_id = await Player(quick, db).live("standard", "claim fail claim succeed", type="slow")
    report = await replay(quick, job_id)
    assert report.first_difference == 3
    assert "the job was not due within 0.2 seconds" in str(report.why)


async def test_others_jobs_do_not_disturb_a_replay(quick: Store, db: Harness) -> None:
    """Upkeep that moves somebody else's job is not taken for what happened to this one."""
    player = Player(quick, db)
    job_id = await player.live("dispatcher", "claim lose promote claim fail promote")
    for _ in range(3):
        other = await player.live("dispatcher", "claim fail")
        db.due(other)
        db.expire(await player.live("dispatcher", "claim"))
    report = await replay(quick, job_id)
    assert (report.first_difference, report.why) == (None, None)


async def test_a_job_that_is_not_there_is_refused_and_nothing_is_made(quick: Store, db: Harness) -> None:
    with pytest.raises(JobNotFound):
        await replay(quick, 4711)
    assert db.value("select count(*) from tenure.job") == 0


async def test_a_job_without_a_log_has_nothing_to_differ(quick: Store, db: Harness) -> None:
    made = await quick.enqueue(NewJob("t", json.loads('{"deep": [1, {"er": null}]}')))
    report = await replay(quick, made.job_id)
    assert (report.recorded, report.replayed, report.first_difference) == ([], [], None)
    assert db.row(report.as_job_id)["state"] == "cancelled"
