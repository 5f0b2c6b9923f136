"""Contract `phase27`: its four knobs, its determinism, and the exact numbers of whole histories."""

from __future__ import annotations

import random
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from tenure.contracts import BUILT_IN
from tenure.contracts.declaration import Contract
from tenure.errors import BadInput
from tenure.jobs.job import Failure, Job
from tenure.model.backoff import delay_ms
from tenure.postgres.migrate import migrate
from tenure.postgres.store import Store
from tenure.settings import Settings
from tests.contracts.phase27 import (
    RUN,
    Boom,
    centre_of,
    claimed,
    events,
    fail_times,
    made,
    pattern,
    payloads,
    take,
    task,
    work,
)
from tests.harness import Harness

KINDS = {"task.running", "task.completed", "task.failed", "task.requeued"}


def knobs(**environ: str) -> Any:
    """The numbers of a process started with these variables and no others."""
    return Settings.load(environ).numbers


async def delays(store: Store, db: Harness, times: int) -> list[tuple[int, int]]:
    """Fail a new task so often; each delay with its centre, the delay without its jitter."""
    task_id = await made(store, max_attempts=times + 1)
    await fail_times(store, db, task_id, times)
    shown = [payload["backoff_ms"] for payload in payloads(db, task_id, "task.failed")]
    return [(ms, round(centre_of(task_id, n, ms))) for n, ms in enumerate(shown, 1)]


async def lease_of_a_claim(store: Store, db: Harness) -> timedelta:
    """How long a claim of a new task lasts."""
    task_id = await made(store)
    assert await claimed(store) == [task_id]
    lease: timedelta = task(db, task_id)["lock_expires_at"] - events(db, task_id)[-1]["ts"]
    return lease


@pytest.mark.req("S0-57")
async def test_task_lock_ms_is_the_length_of_a_lease(dsn: str, db: Harness) -> None:
    for environ, wanted in (({}, 60_000), ({"TASK_LOCK_MS": "7777"}, 7777)):
        async with Store.open(dsn, numbers=knobs(**environ)) as store:
            assert await lease_of_a_claim(store, db) == timedelta(milliseconds=wanted)


@pytest.mark.req("S0-58")
async def test_task_max_attempts_is_the_limit_of_new_tasks_and_the_rows_own_wins(dsn: str, db: Harness) -> None:
    for environ, limit in (({}, 5), ({"TASK_MAX_ATTEMPTS": "3"}, 3)):
        async with Store.open(dsn, numbers=knobs(**environ)) as store:
            default = await made(store)
            assert task(db, default)["max_attempts"] == limit
            await fail_times(store, db, default, limit)
            assert (task(db, default)["status"], task(db, default)["attempt"]) == ("failed", limit)
            own = await made(store, max_attempts=2)
            assert task(db, own)["max_attempts"] == 2
            await fail_times(store, db, own, 2)
            assert (task(db, own)["status"], task(db, own)["attempt"]) == ("failed", 2)


@pytest.mark.req("S0-59")
async def test_task_retry_base_ms_is_the_first_delay_before_its_jitter(dsn: str, db: Harness) -> None:
    for environ, base in (({}, 1500), ({"TASK_RETRY_BASE_MS": "377"}, 377)):
        async with Store.open(dsn, numbers=knobs(**environ)) as store:
            for n, (shown, centre) in enumerate(await delays(store, db, 3)):
                wanted = base * 2**n
                assert 0.7 * wanted - 1 <= shown <= 1.3 * wanted + 1
                assert centre == pytest.approx(wanted, abs=1)


@pytest.mark.req("S0-60")
async def test_task_retry_cap_ms_caps_the_delay_before_its_jitter(dsn: str, db: Harness) -> None:
    for environ, cap in (({}, 60_000), ({"TASK_RETRY_CAP_MS": "4999"}, 4999)):
        async with Store.open(dsn, numbers=knobs(**environ)) as store:
            for n, (shown, centre) in enumerate(await delays(store, db, 9)):
                wanted = min(cap, 1500 * 2**n)
                assert 0.7 * wanted - 1 <= shown <= 1.3 * wanted + 1
                assert centre == pytest.approx(wanted, abs=1)


@pytest.mark.req("S0-60")
@pytest.mark.parametrize(
    ("environ", "cap"),
    [({"TASK_RETRY_CAP_MS": "777"}, 777), ({"TASK_RETRY_BASE_MS": "90001"}, 60_000)],
    ids=["lower cap", "higher base"],
)
async def test_a_cap_below_the_base_caps_every_delay(dsn: str, db: Harness, environ: dict[str, str], cap: int) -> None:
    async with Store.open(dsn, numbers=knobs(**environ)) as store:
        assert [centre for _, centre in await delays(store, db, 3)] == pytest.approx([cap] * 3, abs=1)


@pytest.mark.req("S0-57", "S0-58", "S0-59", "S0-60")
@pytest.mark.parametrize("name", ["TASK_LOCK_MS", "TASK_MAX_ATTEMPTS", "TASK_RETRY_BASE_MS", "TASK_RETRY_CAP_MS"])
@pytest.mark.parametrize("value", ["0", "-1", "abc", "", "1.5"])
def test_a_bad_knob_is_refused_at_start_by_name(name: str, value: str) -> None:
    with pytest.raises(BadInput, match=name):
        Settings.load({name: value})


@pytest.mark.req("S0-61")
@pytest.mark.parametrize("contract", BUILT_IN.values(), ids=lambda contract: contract.name)
def test_the_delay_is_a_function_of_id_and_claims_the_same_in_sql_and_python(db: Harness, contract: Contract) -> None:
    chance = random.Random(27)
    asked = [(chance.randrange(1, 2**40), chance.randrange(1, 13), chance.randrange(0, 2)) for _ in range(400)]
    asked += [(n, claims, 0) for n in range(1, 60) for claims in (1, 2, 4, 7, 200)]
    backoff, jitter = contract.backoff, contract.backoff.jitter
    query = (
        "select tenure.backoff_ms(id, claims, raises, %s, %s, %s, %s, %s, %s, %s) as ms "
        "from unnest(%s::bigint[], %s::int[], %s::int[]) with ordinality as a (id, claims, raises, n) order by n"
    )
    parameters = [
        backoff.base_ms, backoff.factor, backoff.cap_ms, jitter.form, jitter.low, jitter.high, backoff.cap_after_jitter,
        *map(list, zip(*asked, strict=True)),
    ]  # fmt: skip
    in_python = [delay_ms(backoff, *each) for each in asked]
    for _ in ("once", "and again"):
        assert [row["ms"] for row in db.sql(query, *parameters)] == in_python
    assert len(set(in_python)) > 100, "another id or claim, another delay"


async def history(store: Store, db: Harness) -> list[tuple[Any, ...]]:
    """A history with every kind of end; its events and final rows without the times."""
    failing, succeeding, crashing = (
        await made(store),
        await made(store, max_attempts=4),
        await made(store, max_attempts=2),
    )
    for _ in range(5):
        for job in await store.claim("phase27", worker="w1", limit=10):
            if job.id == failing or (job.id == succeeding and job.counter < 3):
                await store.fail(job.held, Failure("boom", code="E1"))
            elif job.id == succeeding:
                await store.succeed(job.held)
        db.due(failing, succeeding)
        db.expire(crashing)
        await store.reap("phase27")
    times = {"ts", "available_at"}
    told = [
        (event["kind"], {key: value for key, value in event["payload"].items() if key not in times})
        for task_id in (failing, succeeding, crashing)
        for event in events(db, task_id)
    ]
    rows = [task(db, task_id) for task_id in (failing, succeeding, crashing)]
    return told + [(row["status"], row["attempt"], row["max_attempts"]) for row in rows]


@pytest.mark.req("S0-61")
async def test_the_same_history_twice_gives_the_same_states_events_and_delays(
    store: Store, db: Harness, empty_dsn: str
) -> None:
    first = await history(store, db)
    migrate(empty_dsn)
    async with Store.open(empty_dsn) as other_store:
        with Harness(empty_dsn) as other_db:
            second = await history(other_store, other_db)
    assert second == first
    assert [end[0] for end in first[-3:]] == ["failed", "completed", "failed"]
    assert sum(1 for event in first if event[0] == "task.failed" and "backoff_ms" in event[1]) == 4 + 2


async def test_no_event_speaks_of_cancels_dead_letters_heartbeats_or_renewals(store: Store, db: Harness) -> None:
    await history(store, db)
    found = db.sql("select distinct kind from tenure_phase27.task_events")
    assert {row["kind"] for row in found} == KINDS
    definition = db.value("select pg_get_viewdef('tenure_phase27.task_events'::regclass)").lower()
    assert not [word for word in ("cancel", "dead", "dlq", "heartbeat", "renew") if word in definition]
    assert db.value("select count(*) from tenure.event where not hop") == 0
    assert db.value("select count(*) from tenure.dead_letter") == 0


@pytest.mark.req("S0-63")
async def test_an_always_failing_task_makes_10_transitions_and_14_events(store: Store, db: Harness) -> None:
    task_id = await made(store)
    db.spy()
    ran: list[int] = []

    def handler(job: Job) -> None:
        ran.append(job.counter)
        raise Boom("always")

    await work(store, db, handler)
    assert ran == [1, 2, 3, 4, 5]
    row = task(db, task_id)
    assert (row["status"], row["attempt"]) == ("failed", 5)
    wanted = ["queued->running", "running->queued"] * 4 + ["queued->running", "running->failed"]
    assert db.hops(task_id) == [f"{hop.old}->{hop.new}" for hop in db.seen(task_id)] == wanted
    assert Counter(wanted) == {"queued->running": 5, "running->queued": 4, "running->failed": 1}
    db.log_is_sound(task_id)
    shapes = Counter((event["kind"], event["payload"].get("terminal")) for event in events(db, task_id))
    assert shapes == {
        ("task.running", None): 5, ("task.failed", False): 4, ("task.requeued", None): 4, ("task.failed", True): 1,
    }  # fmt: skip
    one_turn = ["running", "failed", "requeued"]
    assert [kind for kind, _ in pattern(db, task_id)] == (one_turn * 5)[:-1]
    limited = {*RUN, "max_attempts"}
    for event in events(db, task_id):
        payload = event["payload"]
        more = {
            "task.running": set(), "task.requeued": {"available_at"},
            "task.failed": {"terminal", "error"} | (set() if payload.get("terminal") else {"backoff_ms"}),
        }[event["kind"]]  # fmt: skip
        assert payload.keys() == limited | more
    waited = [payload["backoff_ms"] for payload in payloads(db, task_id, "task.failed")[:-1]]
    intervals = [(1050, 1950), (2100, 3900), (4200, 7800), (8400, 15600)]
    assert [low <= ms <= high for ms, (low, high) in zip(waited, intervals, strict=True)] == [True] * 4


@pytest.mark.req("S0-63")
async def test_success_on_the_first_run_makes_2_transitions_and_2_events(store: Store, db: Harness) -> None:
    task_id = await made(store)
    db.spy()
    await store.succeed((await take(store)).held)
    assert [(hop.old, hop.new) for hop in db.seen(task_id)] == [("queued", "running"), ("running", "completed")]
    assert db.hops(task_id) == ["queued->running", "running->completed"]
    assert pattern(db, task_id) == [("running", 1), ("completed", 1)]
    db.log_is_sound(task_id)


@pytest.mark.req("S0-63", "S0-22")
async def test_a_task_whose_worker_always_dies_makes_5_running_and_1_terminal_failed(store: Store, db: Harness) -> None:
    task_id = await made(store)
    db.spy()
    for n in range(1, 6):
        assert (await take(store, f"w{n}")).id == task_id
        db.expire(task_id)
        assert len(await store.reap("phase27")) == (n == 5), "an orphan is reclaimed by a claim, until its cap"
    assert await claimed(store) == []
    assert pattern(db, task_id) == [*(("running", n) for n in range(1, 6)), ("failed", 5)]
    assert payloads(db, task_id, "task.failed")[0]["terminal"] is True
    assert [hop.new for hop in db.seen(task_id)] == ["running"] * 5 + ["failed"]
    row = task(db, task_id)
    assert (row["status"], row["attempt"], row["last_error"]["terminal"]) == ("failed", 5, True)
    assert not {"backoff_ms", "next_available_at"} & row["last_error"].keys()
    db.log_is_sound(task_id)
