"""Two connections on one row: whoever comes second waits, then is judged by what the first one left."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tenure.errors import InvalidTransition, NotDue, Refused, StaleLease
from tenure.jobs.job import Held, Job
from tenure.jobs.outcome import Moved, Outcome
from tests.races.sessions import CONTRACTS, Arena

pytestmark = pytest.mark.core

Answer = type[Moved] | type[Job] | type[Refused]

#: What a waiter that held the lease is told once the first session's move is committed.
_AFTER_COMMIT: dict[str, Answer] = {
    "lock": Moved, "start": Moved, "succeed": InvalidTransition, "fail": StaleLease, "reap": StaleLease,
    "take": StaleLease,
}  # fmt: skip

#: What a claim by id is told after a committed move that made the job ready or waiting, where that is not NotDue.
_CLAIM_AFTER: dict[tuple[str, str], Answer] = {
    ("dispatcher", "fail"): InvalidTransition,  # Failed waits for the reconciler, not for a claim
    ("dispatcher", "reap"): InvalidTransition,
    ("phase27", "reap"): InvalidTransition,  # at its limit: failed for good
    ("standard", "reap"): Job,  # an expired lease is due again at once
    ("reliability", "reap"): Job,
}


def told(contract: str, waiter: str, holder: str, end: str) -> Answer:
    """What the second session must be told."""
    if waiter == "claim":
        if holder == "lock" or (holder == "claim" and end == "rollback"):
            return Job
        if end == "commit" and holder in ("fail", "reap"):
            return _CLAIM_AFTER.get((contract, holder), NotDue)
        return InvalidTransition
    if end == "commit":
        return InvalidTransition if (waiter, holder) == ("start", "start") else _AFTER_COMMIT[holder]
    if holder in ("reap", "take") and contract == "reliability":
        return StaleLease  # nobody took it, but it had expired: forfeited
    if holder == "start" and waiter != "start":
        return InvalidTransition  # still assigned
    return Moved


def cells() -> Iterator[Any]:
    """Every pair of verbs that can meet; the first one moves before the second comes, or while it waits."""
    for contract in CONTRACTS:
        pairs = [(w, h) for w in ("succeed", "fail") for h in ("lock", "succeed", "fail", "reap", "take")]
        pairs += [("claim", h) for h in ("lock", "claim", "succeed", "fail", "reap")]
        if contract == "reliability":
            pairs += [("start", h) for h in ("lock", "start", "reap", "take")]
            pairs += [(w, "start") for w in ("succeed", "fail", "claim")]
        for waiter, holder in pairs:
            for end in ("commit", "rollback"):
                for moves in ("before", "during") if holder != "lock" else ("never",):
                    name = f"{contract}-{waiter}-behind-{holder}-{moves}-{end}"
                    yield pytest.param(contract, waiter, holder, moves, end, id=name)


def prepared(arena: Arena, contract: str, waiter: str, holder: str) -> tuple[int, Held | None]:
    """A job in the state in which both verbs make sense."""
    if waiter == "claim" and holder in ("lock", "claim"):
        return arena.made(contract)[0], None
    options = {"max_attempts": 1} if (contract, holder) == ("phase27", "reap") else {}
    held, _ = arena.held(contract, started="start" not in (waiter, holder), **options)
    if holder in ("reap", "take"):
        arena.db.expire(held.id)
    return held.id, held


def first_moves(arena: Arena, contract: str, holder: str, job_id: int, held: Held | None) -> None:
    """The first session's verb; it must succeed, or the test shows nothing."""
    first = arena.first
    answer: object = None
    if holder == "claim":
        answer = first.claim_by_id(contract, job_id)
    elif holder == "reap":
        (answer,) = [outcome for outcome in first.upkeep("reap", contract) if outcome.job_id == job_id]
    elif holder == "take":
        assert held is not None
        answer = first.take(held)
    elif holder != "lock":
        assert held is not None
        answer = first.finish(holder, held)
    assert not isinstance(answer, Refused), answer


def second_asks(arena: Arena, contract: str, waiter: str, job_id: int, held: Held | None) -> Job | Outcome | None:
    """The second session's verb."""
    if waiter == "claim":
        return arena.second.claim_by_id(contract, job_id)
    assert held is not None
    return arena.second.finish(waiter, held)


_ROW = "select * from tenure.job where id = %s union all select * from tenure.job_done where id = %s"
_LOG = "select * from tenure.event where job_id = %s order by seq"


@pytest.mark.parametrize(("contract", "waiter", "holder", "moves", "end"), list(cells()))
def test_waiter_is_judged_by_what_the_holder_left(
    arena: Arena, contract: str, waiter: str, holder: str, moves: str, end: str
) -> None:
    db, first = arena.db, arena.first
    job_id, held = prepared(arena, contract, waiter, holder)
    row, log = db.row(job_id), db.log(job_id)
    first.begin()
    first.lock(job_id)
    if moves == "before":
        first_moves(arena, contract, holder, job_id, held)
    answer = arena.behind(lambda: second_asks(arena, contract, waiter, job_id, held))
    if moves == "during":
        first_moves(arena, contract, holder, job_id, held)
    if end == "commit":
        (row,), log = first.sql(_ROW, job_id, job_id), first.sql(_LOG, job_id)
    assert not answer.done()
    first.end(end)
    outcome = answer.result(60)

    expected = told(contract, waiter, holder, end)
    assert type(outcome) is expected, outcome
    if isinstance(outcome, Refused):
        assert (db.row(job_id), db.log(job_id)) == (row, log), "a refusal must change nothing"
        if (holder, end, expected) == ("take", "commit", StaleLease):
            assert isinstance(outcome, StaleLease)
            assert outcome.held_by == "first"
    else:
        assert db.log(job_id)[: len(log)] == log
        assert len(db.log(job_id)) > len(log)
        assert db.row(job_id)["state"] == outcome.state
        assert db.row(job_id)["claims"] == row["claims"] + (waiter == "claim")
    db.log_is_sound(job_id)


@pytest.mark.parametrize("contract", CONTRACTS)
def test_log_follows_the_transitions_though_the_later_statement_began_first(arena: Arena, contract: str) -> None:
    held, _ = arena.held(contract)
    arena.first.begin()
    arena.first.lock(held.id)
    claim = arena.behind(lambda: arena.second.claim_by_id(contract, held.id))
    began = arena.db.value("select query_start from pg_stat_activity where pid = %s", arena.second.pid)
    arena.first.give_back(held)
    arena.first.end("commit")
    job = claim.result(60)

    assert isinstance(job, Job)
    assert job.claims == 2
    *_, failed, claimed = [event for event in arena.db.log(held.id) if event["trigger"] != "promote"]
    assert (failed["actor"], claimed["trigger"], claimed["actor"]) == ("second", "claim", "second")
    assert began < failed["ts"] < claimed["ts"]
    arena.db.log_is_sound(held.id)
