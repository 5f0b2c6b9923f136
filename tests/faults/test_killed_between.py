"""A process is killed between two of its statements, at every such point: the job ends where its contract says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tenure.errors import Refused
from tenure.jobs.job import Failure, Job
from tenure.jobs.outcome import Moved, Noted
from tenure.postgres.dead_letters import DeadLetter
from tenure.postgres.store import Store
from tests.faults.steps import Point, Work, killed_everywhere
from tests.races.duels import way
from tests.races.sessions import TRANSIENT, Arena, now

pytestmark = [pytest.mark.serial, pytest.mark.timeout(300)]

FATAL = Failure("bad input", code="BAD", retryable=False)

#: Where a contract cancels softly: its name, and the state in which a cancelled job is.
CANCELLED = {"standard": "cancelled", "dispatcher": "Canceled", "reliability": "cancelled", "simple": "CANCELLED"}


def last_words() -> Iterator[Any]:
    """Every contract with every way in which its worker may end what it was asked to stop; most in the long run."""
    short = {("standard", "cancelled"), ("dispatcher", "hand_back"), ("reliability", "fail"), ("simple", "cancelled")}
    for contract in CANCELLED:
        for last_word in ("cancelled", "fail", "hand_back"):
            long = (contract, last_word) not in short
            yield pytest.param(contract, last_word, marks=[pytest.mark.prove] if long else [])


@pytest.mark.parametrize(("contract", "last_word"), list(last_words()))
def test_soft_cancelled_job_whose_worker_dies_ends_cancelled_and_never_runs_again(
    arena: Arena, contract: str, last_word: str
) -> None:
    def scene() -> tuple[tuple[int, str], Work]:
        job_id, queue = arena.made(contract)

        async def work(store: Store, point: Point) -> None:
            (job,) = await store.claim(contract, [queue], worker="mortal")
            await store.start(job.held)
            point("asked to stop")
            assert (await store.heartbeat(job.held)).cancel_requested
            await store.checkpoint(job.held, {"page": 7})
            if last_word == "fail":
                await store.fail(job.held, TRANSIENT)
            else:
                await getattr(store, last_word)(job.held)

        return (job_id, queue), work

    def at(subject: tuple[int, str], point: str) -> None:
        if point == "asked to stop":
            assert isinstance(ask_to_stop(arena, subject[0]), Noted)

    ended_by_worker = 0
    for (job_id, queue), reached in killed_everywhere(arena.db, scene, at):
        held = arena.db.row(job_id)["role"] == "active"  # one that has not started is cancelled at once
        ended_by_worker += arena.db.row(job_id)["role"] == "done"
        if "asked to stop" not in reached:  # then it is asked for now, of a worker that is dead or never came
            assert isinstance(ask_to_stop(arena, job_id), Noted if held else Moved)
        hops = arena.db.hops(job_id)
        assert arena.second.claim(contract, queue) == []
        if held:
            assert arena.db.hops(job_id) == hops, "nobody but time may take it from its worker"
            arena.db.expire(job_id)
            assert arena.second.claim(contract, queue) == []
            arena.second.upkeep("reap", contract)
            hops.append(f"{hops[-1].split('->')[1]}->{CANCELLED[contract]}")
        assert arena.db.hops(job_id) == hops, reached
        assert arena.db.row(job_id)["state"] == CANCELLED[contract]
        assert [event["trigger"] for event in arena.db.log(job_id)].count("cancel") == 1
        assert arena.db.value("select count(*) from tenure.dead_letter where job_id = %s", job_id) == 0
        assert arena.second.claim(contract, queue) == []
        arena.db.log_is_sound(job_id)
    assert ended_by_worker == 1, "only at the last point was it the worker who ended the job"


def ask_to_stop(arena: Arena, job_id: int) -> Moved | Noted:
    """Cancel softly, as an operator."""
    return now(arena.second.store.cancel(job_id, reason="enough", actor="ada"))


def about_to_be_dead(arena: Arena, verb: str) -> tuple[int, Work]:
    """A job of gate_b2, and the verb that dead-letters it in two transactions."""
    if verb == "settle":
        job_id = arena.pending()
    else:
        held, _ = arena.held("gate_b2")
        job_id = held.id
        if verb == "reap":
            for _ in range(3):
                arena.second.give_back(held)
                job = arena.second.claim_by_id("gate_b2", job_id)
                assert isinstance(job, Job)
                held = job.held
            arena.db.expire(job_id)

    async def work(store: Store, _: Point) -> None:
        if verb == "fail":
            await store.fail(held, FATAL)
        elif verb == "reap":
            await store.reap("gate_b2")
        else:
            await store.settle("gate_b2")

    return job_id, work


@pytest.mark.parametrize("verb", ["fail", "reap", "settle"])
def test_gate_b2_killed_between_its_transactions_is_settled_by_upkeep_with_one_letter(arena: Arena, verb: str) -> None:
    retried = ["retry", "claim"] * 3 if verb == "reap" else []
    trigger = "expire_at_cap" if verb == "reap" else "fatal"
    left_in = []
    for job_id, reached in killed_everywhere(arena.db, lambda: about_to_be_dead(arena, verb), lambda *_: None):
        row, letters = arena.db.row(job_id), letters_of(arena, job_id)
        left_in.append(row["state"])
        assert len(letters) == (row["state"] == "failed"), reached
        # At the commit point there is no lease; the end keeps the token of the holder whose own call led there.
        ended_by_its_holder = row["state"] == "failed" and verb != "reap"
        assert (row["lease_token"] is not None) == (row["state"] == "running" or ended_by_its_holder)
        if (verb, row["state"]) == ("fail", "running"):  # its report never came: a lost worker, tried again
            arena.db.expire(job_id)
            arena.second.upkeep("reap", "gate_b2")
            assert arena.db.hops(job_id) == way("gate_b2", "claim", "expire")
        else:
            arena.second.upkeep("reap", "gate_b2")
            arena.second.upkeep("settle", "gate_b2")
            assert arena.db.hops(job_id) == way("gate_b2", "claim", *retried, trigger, "settle"), reached
            assert [letter["status"] for letter in letters_of(arena, job_id)] == ["open"]
        arena.db.log_is_sound(job_id)
        before = arena.db.fingerprint(job_id)
        assert arena.second.upkeep("reap", "gate_b2") == arena.second.upkeep("settle", "gate_b2") == []
        assert arena.db.fingerprint(job_id) == before
    # Before the first transaction, between the two (where it waits, nothing half done), after the second.
    stages = ["running", "dlq_pending", "failed"][verb == "settle" :]
    assert left_in == sorted(left_in, key=stages.index)
    assert set(left_in) == set(stages)
    assert left_in.count("dlq_pending") >= 5


def letters_of(arena: Arena, job_id: int) -> list[dict[str, Any]]:
    """The job's dead letters."""
    return arena.db.sql("select * from tenure.dead_letter where job_id = %s", job_id)


def letter_of_a_dead_job(arena: Arena) -> int:
    """An open dead letter of gate_b2."""
    held, _ = arena.held("gate_b2")
    arena.second.finish("fail", held, FATAL)
    (letter,) = letters_of(arena, held.id)
    return int(letter["id"])


def decide(arena: Arena, verb: str, letter_id: int, person: str, **given: str) -> DeadLetter | str:
    """Ask for, or agree to, a discard; the letter after it, or the refusal's code."""
    try:
        return now(getattr(arena.second.store.letters, verb)(letter_id, person=person, **given))  # type: ignore[no-any-return]
    except Refused as refusal:
        return refusal.reason_code


def shown(arena: Arena, letter_id: int) -> DeadLetter:
    """The letter as it is now."""
    return now(arena.second.store.letters.show(letter_id))


def waits_for_another_person(arena: Arena, letter_id: int) -> None:
    """Assert that the request stays open for as long as it takes, and that Ada, however spelled, cannot approve it."""
    arena.db.sql(
        "update tenure.dead_letter set discard_asked_at = discard_asked_at - interval '40 days' where id = %s",
        letter_id,
    )
    asked = shown(arena, letter_id)
    assert (asked.status, asked.discard_asked_by, asked.discard_reason) == ("open", "Ada", "a duplicate")
    for verb in ("reap", "settle", "promote"):
        arena.second.upkeep(verb, "gate_b2")
    for spelled in ("Ada", "ADA", "  ada ", "aDa\u00a0", "\uff21\uff44\uff41"):
        assert decide(arena, "approve_discard", letter_id, spelled) == "APPROVAL_REQUIRED", spelled
    for person in ("ada", "Cyd"):
        assert decide(arena, "request_discard", letter_id, person, reason="me too") == "APPROVAL_REQUIRED"
    assert shown(arena, letter_id) == asked, "a refusal changes nothing"


def test_discard_asked_for_by_a_process_that_dies_stays_open_until_another_person_approves(arena: Arena) -> None:
    def scene() -> tuple[int, Work]:
        letter_id = letter_of_a_dead_job(arena)

        async def work(store: Store, _: Point) -> None:
            await store.letters.request_discard(letter_id, person="Ada", reason="a duplicate")

        return letter_id, work

    asked = []
    for letter_id, _ in killed_everywhere(arena.db, scene, lambda *_: None):
        asked.append(shown(arena, letter_id).discard_asked_by is not None)
        if not asked[-1]:
            assert decide(arena, "approve_discard", letter_id, "Bob") == "APPROVAL_REQUIRED"
            assert isinstance(decide(arena, "request_discard", letter_id, "Ada", reason="a duplicate"), DeadLetter)
        waits_for_another_person(arena, letter_id)
        done = decide(arena, "approve_discard", letter_id, "Bob")
        assert isinstance(done, DeadLetter)
        assert (done.status, done.discard_asked_by, done.discard_approved_by) == ("discarded", "Ada", "Bob")
        assert decide(arena, "approve_discard", letter_id, "Cyd") == "DLQ_DISCARD_CONFLICT"
    assert asked == sorted(asked)
    assert set(asked) == {False, True}


def test_discard_whose_approver_dies_is_approved_once(arena: Arena) -> None:
    def scene() -> tuple[int, Work]:
        letter_id = letter_of_a_dead_job(arena)
        decide(arena, "request_discard", letter_id, "Ada", reason="a duplicate")

        async def work(store: Store, _: Point) -> None:
            await store.letters.approve_discard(letter_id, person="Bob")

        return letter_id, work

    approved = []
    for letter_id, _ in killed_everywhere(arena.db, scene, lambda *_: None):
        approved.append(shown(arena, letter_id).status == "discarded")
        if not approved[-1]:
            waits_for_another_person(arena, letter_id)
        told = decide(arena, "approve_discard", letter_id, "Cyd")
        if approved[-1]:
            assert told == "DLQ_DISCARD_CONFLICT"
        done = shown(arena, letter_id)
        assert (done.status, done.discard_approved_by) == ("discarded", "Bob" if approved[-1] else "Cyd")
    assert approved == sorted(approved)
    assert set(approved) == {False, True}
