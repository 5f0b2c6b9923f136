"""The short way of a success answers, moves and logs as the gate alone does, whatever became of the jobs meanwhile."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from tenure.contracts import BUILT_IN
from tenure.errors import Busy, InvalidTransition, Refused, StaleLease
from tenure.jobs.job import Held, Job, NewJob
from tenure.jobs.outcome import Moved, Outcome
from tenure.postgres import connect, move
from tenure.postgres.store import Store
from tests.harness import Harness
from tests.holder_calls import calls
from tests.postgres.asked import asked_by
from tests.postgres.short_way import CASES, SHORT, STRICT, prepared, seen, through_the_gate_alone
from tests.races.conftest import arena, file_arena, file_dsn
from tests.races.sessions import Arena, now
from tests.worker.working import until

__all__ = ["arena", "file_arena", "file_dsn"]
pytestmark = pytest.mark.core

CONTRACTS = pytest.mark.parametrize("contract", [*SHORT, "strict"])


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the statements that successes ask for, as they are asked."""
    return asked_by(move, monkeypatch)


async def chosen(store: Store, contract: str) -> str:
    """The contract under which jobs are made; "strict" is `standard` with other numbers."""
    await store.contracts()  # read from the database before one of them is replaced
    if contract == "strict":
        store._engine.registry.add(STRICT)
    return "standard" if contract == "strict" else contract


def test_these_contracts_have_a_short_way() -> None:
    assert SHORT == ["standard", "phase27", "dispatcher", "simple", "gate_b2"]


@CONTRACTS
async def test_of_every_state_the_short_way_says_and_does_what_the_gate_does(
    store: Store, db: Harness, contract: str
) -> None:
    name = await chosen(store, contract)
    cases = list(CASES)
    results: list[Any] = [None if n % 3 == 0 else {"n": n} for n, _ in enumerate(cases)]
    ours = await prepared(store, db, name, cases)
    theirs = await prepared(store, db, name, cases)
    short = await store.report("succeed", calls(ours, results=results))
    with through_the_gate_alone(store):
        alone = await store.report("succeed", calls(theirs, results=results))
    moved = []
    for n, case in enumerate(cases):
        mine, other = seen(db, ours[n], [short[n]]), seen(db, theirs[n], [alone[n]])
        assert mine == other, case
        if type(short[n]) is Moved:
            moved.append(case)
            db.log_is_sound(ours[n].id)
    strict = ["lease ran out", "beats missed", "own beats missed"]
    always = ["fresh", "renewed", "own beats kept", "holder without a name", "asked to stop", "clock stepped back"]
    late = [] if contract == "strict" else strict
    assert sorted(moved) == sorted([*always, "progress", "put off before", "effects to undo", *late])


@CONTRACTS
@pytest.mark.parametrize("seed", range(4))
async def test_any_batch_comes_out_as_the_gate_alone_would_have_it(
    store: Store, db: Harness, contract: str, seed: int
) -> None:
    chance = random.Random(f"{contract} {seed}")
    name = await chosen(store, contract)
    cases = chance.choices(list(CASES), k=8) + ["fresh"] * 4
    chance.shuffle(cases)
    ours, theirs = await prepared(store, db, name, cases), await prepared(store, db, name, cases)
    # Some are asked for twice, as a holder and its ghost may be in one batch, in any order.
    order = [(n, False) for n in range(len(cases))] + [(chance.randrange(len(cases)), True) for _ in range(5)]
    chance.shuffle(order)
    results = [n for n, _ in order]
    short = await store.report("succeed", calls(_batch(ours, order), results=results))
    with through_the_gate_alone(store):
        alone = await store.report("succeed", calls(_batch(theirs, order), results=results))
    for n, case in enumerate(cases):
        places = [place for place, (m, _) in enumerate(order) if m == n]
        mine = seen(db, ours[n], [short[place] for place in places])
        assert mine == seen(db, theirs[n], [alone[place] for place in places]), (case, order)
        assert sum(type(short[place]) is Moved for place in places) <= 1, "one job was ended twice"


def _batch(held: list[Held], order: list[tuple[int, bool]]) -> list[Held]:
    again = [Held(one.id, one.claims + one.id % 2, one.token, one.contract, one.version) for one in held]
    return [again[n] if repeated else held[n] for n, repeated in order]


async def test_plain_successes_need_one_statement(store: Store, db: Harness, asked: list[str]) -> None:
    for name in SHORT:
        held = await prepared(store, db, name, ["fresh"] * 5)
        asked.clear()
        assert all(type(one) is Moved for one in await store.report("succeed", calls(held)))
        assert asked == ["succeed_in_one_pass"], name


async def test_a_key_takes_the_way_through_the_gate(store: Store, db: Harness, asked: list[str]) -> None:
    (held,) = await prepared(store, db, "standard", ["fresh"])
    asked.clear()
    first = await store.succeed(held, 1, key="once")
    assert asked == ["finish"]
    assert await store.succeed(held, 1, key="once") == first


def three(arena: Arena) -> list[Held]:
    """Three jobs that the second session holds."""
    return [arena.held("standard")[0] for _ in range(3)]


def succeed(arena: Arena, held: list[Held]) -> list[Outcome]:
    """The second session says that they ended well."""
    return now(arena.second.store.report("succeed", calls(held, results=[held.id for held in held])))


def renew(arena: Arena, held: Held) -> None:
    """The first session beats for the job, which renews its lease."""
    arena.first.sql("update tenure.job set lease_expires_at = now() + interval '20 minutes' where id = %s", held.id)


def reclaim(arena: Arena, held: Held) -> None:
    """The first session takes the job away from its holder."""
    arena.first.sql("update tenure.job set lease_expires_at = now() - interval '1 second' where id = %s", held.id)
    assert isinstance(arena.first.take(held), Job)


def end(arena: Arena, held: Held) -> None:
    """The first session ends the job by the holder's own proof."""
    assert type(arena.first.finish("succeed", held)) is Moved


@pytest.fixture(params=["standard", "strict"])
def way(request: pytest.FixtureRequest, arena: Arena) -> Iterator[str]:
    """Under `standard` a success is one pass; under "strict", whose leases run out by themselves, it locks first."""
    registry = arena.second.store._engine.registry
    now(arena.second.store.contracts())  # read from the database before one of them is replaced
    if request.param == "strict":
        registry.add(STRICT)
    yield request.param
    registry.add(BUILT_IN["standard"])


@pytest.mark.parametrize("how", ["commit", "rollback"])
@pytest.mark.parametrize(
    ("meanwhile", "answer"),
    [
        (lambda arena, held: arena.first.lock(held.id), Moved),
        (renew, Moved),
        (reclaim, StaleLease),
        (end, InvalidTransition),
    ],
    ids=["locked", "renewed", "reclaimed", "ended"],
)
def test_whoever_waited_for_a_row_is_judged_by_what_it_is_then_and_moves_it_once(
    arena: Arena, way: str, asked: list[str], meanwhile: Callable[[Arena, Held], None], answer: type, how: str
) -> None:
    held = three(arena)
    arena.first.begin()
    meanwhile(arena, held[1])
    asked.clear()
    waiting = arena.behind(lambda: succeed(arena, held))
    arena.first.end(how)
    outcomes = waiting.result(60)
    expected = Moved if how == "rollback" else answer
    assert [type(one) for one in outcomes] == [Moved, expected, Moved]
    changed = (reclaim, end) if way == "standard" else (renew, reclaim, end)
    assert asked[0] == ("succeed_in_one_pass" if way == "standard" else "succeed")
    assert ("finish" in asked) == (how == "commit" and meanwhile in changed), "the gate decides what this way does not"
    arena.db.log_is_sound(*[one.id for one in held])
    for one in held:
        ended = [event for event in arena.db.log(one.id) if event["trigger"] == "succeed"]
        assert len(ended) == (one is not held[1] or expected is not StaleLease)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores that are opened from now on wait a fifth of a second for a row."""
    monkeypatch.setattr(connect, "LOCK_TIMEOUT_MS", 200)


@pytest.mark.parametrize("case", ["fresh", "claimed again"])
async def test_a_row_that_stays_locked_costs_its_neighbours_no_answer(
    impatient: None, dsn: str, db: Harness, case: str
) -> None:
    async with Store.open(dsn) as store:
        held = await prepared(store, db, "standard", ["fresh", case, "fresh"])
        with psycopg.connect(dsn) as other:
            other.execute("select from tenure.job where id = %s for update", [held[1].id])
            outcomes = await store.report("succeed", calls(held))
            other.rollback()
        assert [type(one) for one in outcomes] == [Moved, Busy, Moved]
        (again,) = await store.report("succeed", calls(held[1:2]))
        assert type(again) is (Moved if case == "fresh" else StaleLease)


_LOCK = "select from tenure.job where id = %s for update"
_WAITING = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"


@pytest.mark.serial
def test_a_deadlock_in_the_gate_costs_no_answer_of_the_short_way(dsn: str, db: Harness) -> None:
    async def held_by_us(store: Store) -> list[Held]:
        return await prepared(store, db, "standard", ["fresh", *["claimed again"] * 3])

    async def both() -> list[Outcome]:
        async with Store.open(dsn) as store:
            held = await held_by_us(store)
            with psycopg.connect(dsn) as other, psycopg.connect(dsn) as gate:
                other.execute("set deadlock_timeout = '100s'")  # the store is to be the victim
                other.execute(_LOCK, [held[3].id])
                gate.execute(_LOCK, [held[2].id])
                said = asyncio.create_task(store.report("succeed", calls(held)))
                await until(lambda: db.value("select count(*) from tenure.job_done") == 1)
                await until(lambda: db.value(_WAITING) == 1)
                # The other waits for what the store has before the store waits for what the other has: the store, which
                # closes the circle, is the one that looks for it.
                locking = threading.Thread(target=other.execute, args=(_LOCK, [held[1].id]))
                locking.start()
                await until(lambda: db.value(_WAITING) == 2)
                gate.rollback()
                await until(lambda: not locking.is_alive(), 60)
                other.rollback()
                return await said

    moved, *refused = asyncio.run(both())
    assert type(moved) is Moved
    assert {type(one) for one in refused} <= {StaleLease, Busy}, "the other may still have had their rows"


async def test_the_short_way_refuses_nothing_by_itself(store: Store, db: Harness, asked: list[str]) -> None:
    await store.enqueue(NewJob("t"))
    (job,) = await store.claim(worker="w")
    stranger = Held(job.id, job.claims + 1, job.held.token, job.contract, job.version)
    before = db.fingerprint(job.id)
    asked.clear()
    (refused,) = await store.report("succeed", calls([stranger]))
    assert isinstance(refused, Refused)
    assert asked == ["succeed_in_one_pass", "succeed_in_flow", "finish"]
    assert db.fingerprint(job.id) == before


@pytest.mark.parametrize(
    ("node", "statements"),
    [(None, ["succeed_in_one_pass"]), (10**9, ["succeed_in_one_pass", "succeed_in_flow"])],
    ids=["alone", "in a flow"],
)
async def test_holders_that_are_late_but_have_forfeited_nothing_need_no_gate(
    store: Store, db: Harness, asked: list[str], node: int | None, statements: list[str]
) -> None:
    held = await prepared(store, db, "standard", ["lease ran out", "fresh", "beats missed"])
    db.sql("update tenure.job set flow_node = %s", node)
    asked.clear()
    assert all(type(one) is Moved for one in await store.report("succeed", calls(held)))
    assert asked == statements


async def test_each_job_of_a_batch_gets_its_own_result(store: Store, db: Harness) -> None:
    held = (await prepared(store, db, "standard", ["fresh"] * 6 + ["renewed"] * 6))[::-1]
    await store.report("succeed", calls(held, results=[one.id for one in held]))
    assert [db.row(one.id)["result"] for one in held] == [one.id for one in held]
