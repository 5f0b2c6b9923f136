"""Keys in batches, and keys that are none: each job of a batch has its own, and a bad one stops the call unwritten."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tenure.contracts import BUILT_IN
from tenure.errors import BadInput, IdempotencyConflict, InvalidTransition, Refused, StaleLease
from tenure.jobs.job import Held, NewJob
from tenure.jobs.outcome import Moved
from tenure.postgres.store import Store
from tests.contracts.repeats import FATAL, KEYED, TRANSIENT, everything, hold, say
from tests.harness import Harness
from tests.holder_calls import calls

every_contract = pytest.mark.parametrize("contract", BUILT_IN)

BAD_KEYS: dict[str, Any] = {
    "empty": "",
    "blank": "   ",
    "too long": "k" * 256,
    "with a NUL": "a\x00b",
    "a lone surrogate": "\ud800",
    "no text": 7,
}


async def several(store: Store, contract: str, count: int) -> list[Held]:
    """As many jobs in the hands of one holder."""
    await store.enqueue_many([NewJob("t", contract=contract) for _ in range(count)])
    held = [job.held for job in await store.claim(contract, worker="w1", limit=count)]
    await store.report("start", calls(held))
    assert len(held) == count
    return held


@every_contract
async def test_a_batch_of_repeats_and_new_ones_answers_each_its_own_and_does_only_the_new(
    store: Store, db: Harness, contract: str
) -> None:
    held = await several(store, contract, 6)
    keys: list[str | None] = [f"k{n}" for n in range(6)]
    results = [{"n": n} for n in range(6)]
    first = await store.report("succeed", calls(held[:3], results=results[:3], keys=keys[:3]))
    done = db.fingerprint(*(one.id for one in held[:3]))
    whole = await store.report("succeed", calls(held, results=results, keys=keys))
    assert whole[:3] == first
    assert [type(one) for one in whole] == [Moved] * 6
    assert [one.job_id for one in whole] == [one.id for one in held]
    assert db.fingerprint(*(one.id for one in held[:3])) == done
    before = everything(db)
    assert await store.report("succeed", calls(held, results=results, keys=keys)) == whole
    backwards = await store.report("succeed", calls(held[::-1], results=results[::-1], keys=keys[::-1]))
    assert backwards == whole[::-1]
    assert everything(db) == before
    db.log_is_sound(*(one.id for one in held))


@every_contract
async def test_repeats_conflicts_and_refusals_of_one_batch_do_not_touch_each_other(
    store: Store, db: Harness, contract: str
) -> None:
    repeated, conflicting, unkeyed, fresh, lost = await several(store, contract, 5)
    failures = [TRANSIENT, TRANSIENT, TRANSIENT]
    first = await store.report(
        "fail", calls([repeated, conflicting, unkeyed], failures=failures, keys=["a", "b", None])
    )
    stale = Held(lost.id, lost.claims + 1, lost.token, lost.contract, lost.version)
    others = [repeated, conflicting, unkeyed, stale]
    before = db.fingerprint(*(one.id for one in others))
    answers = await store.report(
        "fail",
        calls(
            [repeated, conflicting, unkeyed, fresh, stale],
            failures=[TRANSIENT, FATAL, TRANSIENT, TRANSIENT, TRANSIENT],
            keys=["a", "b", None, "a", "e"],
        ),
    )
    assert answers[0] == first[0]
    assert [type(answer) for answer in answers] == [Moved, IdempotencyConflict, StaleLease, Moved, StaleLease]
    assert db.fingerprint(*(one.id for one in others)) == before
    db.log_is_sound(*(one.id for one in (*others, fresh)))


@every_contract
async def test_one_job_twice_in_a_batch_by_one_key_is_done_once_and_answered_twice(
    store: Store, db: Harness, contract: str
) -> None:
    one, two, three = await several(store, contract, 3)
    ghost = Held(two.id, two.claims, two.token, two.contract, two.version)
    ends = await store.report("succeed", calls([two, one, ghost], keys=["k", "k", "k"]))
    assert [type(end) for end in ends] == [Moved] * 3
    assert ends[0] == ends[2]
    assert [event["trigger"] for event in db.log(two.id)].count("succeed") == 1
    answers = await store.report(
        "fail",
        calls(
            [three, three, three, three], failures=[TRANSIENT, TRANSIENT, FATAL, TRANSIENT], keys=["k", "k", "k", None]
        ),
    )
    assert answers[0] == answers[1]
    assert [type(answer) for answer in answers] == [Moved, Moved, IdempotencyConflict, StaleLease]
    db.log_is_sound(one.id, two.id, three.id)


async def test_a_batch_over_all_contracts_is_repeated_whole(store: Store, db: Harness) -> None:
    held = [(await hold(store, contract, "start")).held for contract in BUILT_IN]
    keys = [f"start {one.id}" for one in held]
    started = await store.report("start", calls(held, keys=keys))
    assert [type(one) for one in started] == [
        Moved if BUILT_IN[one.contract].path("start") else type(None) for one in held
    ]
    assert await store.report("start", calls(held, keys=keys)) == started
    ends = await store.report("succeed", calls(held, keys=["k"] * len(held)))
    before = everything(db)
    assert await store.report("succeed", calls(held, keys=["k"] * len(held))) == ends
    refused = await store.report("succeed", calls(held, keys=[None] * len(held)))
    assert [type(one) for one in refused] == [InvalidTransition] * len(held)
    assert everything(db) == before


async def test_snoozes_and_hand_backs_in_batches_are_repeated_by_their_keys(store: Store, db: Harness) -> None:
    held = await several(store, "standard", 4)
    snoozed = await store.report("snooze", calls(held[:2], delays=[1_000, 2_000], keys=["a", "b"]))
    back = await store.report("hand_back", calls(held[2:], delays=[3_000] * 2, keys=["a", "b"]))
    before = everything(db)
    assert await store.report("snooze", calls(held[:2], delays=[1_000, 2_000], keys=["a", "b"])) == snoozed
    assert await store.report("hand_back", calls(held[2:], delays=[3_000] * 2, keys=["a", "b"])) == back
    swapped = await store.report("snooze", calls(held[:2], delays=[2_000, 1_000], keys=["a", "b"]))
    assert [type(one) for one in swapped] == [IdempotencyConflict] * 2
    assert everything(db) == before


@pytest.mark.parametrize("key", BAD_KEYS.values(), ids=BAD_KEYS)
async def test_a_key_that_is_none_is_refused_by_every_holders_verb_and_nothing_is_written(
    store: Store, db: Harness, key: Any
) -> None:
    for contract in ("standard", "reliability"):
        for verb in KEYED[contract]:
            job = await hold(store, contract, verb)
            before = everything(db)
            with pytest.raises(BadInput, match="key"):
                await say(store, verb, job.held, key)
            assert everything(db) == before, verb


@pytest.mark.parametrize("key", BAD_KEYS.values(), ids=BAD_KEYS)
async def test_a_key_that_is_none_is_refused_by_every_operators_verb_and_nothing_is_written(
    store: Store, db: Harness, key: Any
) -> None:
    waiting, job = await store.enqueue(NewJob("t", queue="other")), await hold(store, "standard")
    done, dead = await hold(store, "standard"), await hold(store, "gate_b2")
    await store.succeed(done.held)
    await store.dead_letter(dead.id, reason_code="timeout", actor="ada")
    letter = (await store.letters.of_job(dead.id)).id
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: store.enqueue(NewJob("t", key=key)),
        lambda: store.cancel(job.id, actor="ada", key=key),
        lambda: store.cancel(job.id, mode="hard", actor="ada", key=key),
        lambda: store.transition(job.id, "succeeded", actor="ada", key=key),
        lambda: store.transition(waiting.job_id, "running", actor="ada", key=key),
        lambda: store.dead_letter(job.id, reason_code="x", actor="ada", key=key),
        lambda: store.requeue(done.id, actor="ada", key=key),
        lambda: store.letters.requeue(letter, actor="ada", key=key),
        lambda: store.letters.request_discard(letter, person="ada", reason="no use", key=key),
        lambda: store.letters.approve_discard(letter, person="ada", key=key),
    ]
    before = everything(db)
    for call in calls:
        with pytest.raises(BadInput, match="key"):
            await call()
    assert everything(db) == before


async def test_a_bad_key_among_good_ones_stops_the_whole_batch_over_any_contracts(store: Store, db: Harness) -> None:
    held = [(await hold(store, contract)).held for contract in BUILT_IN]
    keys: list[str | None] = [*(f"k{n}" for n in range(len(held) - 1)), ""]
    before = everything(db)
    count = len(held)
    for verb, report in (
        ("succeed", calls(held, keys=keys)),
        ("fail", calls(held, failures=[TRANSIENT] * count, keys=keys)),
        ("hand_back", calls(held, keys=keys)),
    ):
        with pytest.raises(BadInput, match="key"):
            await store.report(verb, report)
        assert everything(db) == before


async def test_a_batch_may_have_keys_for_some_of_its_jobs(store: Store) -> None:
    held = await several(store, "standard", 2)
    assert not [
        one for one in await store.report("succeed", calls(held, keys=["k" * 255, None])) if isinstance(one, Refused)
    ]
