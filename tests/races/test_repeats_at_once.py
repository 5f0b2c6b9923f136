"""One request made by several at once, with one key: one effect, and all are told the same.

Eight callers are released together; two are led by the hand, so that the second is seen to wait for the first.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any
from uuid import uuid4

import pytest

from tenure.errors import IdempotencyConflict, Refused
from tenure.jobs.job import Held, Job
from tenure.postgres.dead_letters import DeadLetter
from tenure.postgres.store import Store
from tests.contracts.repeats import FATAL, KEYED, everything, say
from tests.harness import at_once
from tests.races.sessions import Arena, Session, now

pytestmark = [pytest.mark.serial, pytest.mark.core]

CALLERS = 8
ENDS = pytest.mark.parametrize("end", ["commit", "rollback"])
Ask = Callable[[Store], Coroutine[Any, Any, Any]]


@pytest.fixture(scope="module")
def callers(file_dsn: str) -> Iterator[list[Session]]:
    """Eight processes' connections, warm."""
    with ExitStack() as stack:
        sessions = [stack.enter_context(Session(file_dsn, f"caller-{n}")) for n in range(CALLERS)]
        for session in sessions:
            now(session.store.contracts())
        yield sessions


def answer(session: Session, ask: Ask) -> Any:
    """What a session is told: an answer, or the refusal's name."""
    try:
        return now(ask(session.store))
    except Refused as refusal:
        return refusal.reason_code


def all_at_once(callers: list[Session], ask: Ask) -> list[Any]:
    """What each of the eight is told."""
    return at_once(CALLERS, lambda n: answer(callers[n], ask))


def in_hand(arena: Arena, contract: str, verb: str) -> Held:
    """A job whose holder may say this verb next."""
    options = {"max_attempts": 1} if verb == "end" and contract != "gate_b2" else {}
    held, _ = arena.held(contract, started=verb != "start", **options)
    if verb.startswith("compensat"):
        now(arena.second.store.effect(held, "charge", compensable=True))
        now(arena.second.store.fail(held, FATAL))
    return held


def saying(verb: str, held: Held, key: str) -> Ask:
    """A holder's call, ready for any session."""
    return lambda store: say(store, verb, held, key)  # type: ignore[return-value]  # every verb is a coroutine


def written_once(arena: Arena, job_id: int, key: str) -> None:
    """Assert that one log row, and only one, was written by this key."""
    assert [event["request_key"] for event in arena.db.log(job_id)].count(key) == 1
    arena.db.log_is_sound(job_id)


@pytest.mark.req("S2-20")
@pytest.mark.parametrize("verb", ["start", "heartbeat", "renew", "succeed", "fail", "end", "cancelled", "compensated"])
def test_eight_reliability_holders_with_one_key_have_one_effect_and_one_answer(
    arena: Arena, callers: list[Session], verb: str
) -> None:
    held = in_hand(arena, "reliability", verb)
    if verb == "renew":
        arena.db.wear(held.id)
    logged = len(arena.db.log(held.id))
    answers = all_at_once(callers, saying("heartbeat" if verb == "renew" else verb, held, "k"))
    assert not isinstance(answers[0], str), f"refused: {answers[0]}"
    assert answers == [answers[0]] * CALLERS
    written = {"renew": ["heartbeat", "renewed"], "compensated": ["compensated", "fatal"]}
    assert len(arena.db.log(held.id)) == logged + len(written.get(verb, [verb]))
    written_once(arena, held.id, "k")


@pytest.mark.req("S2-20")
def test_eight_reliability_claims_with_one_key_take_one_job(arena: Arena, callers: list[Session]) -> None:
    job_id, queue = arena.made("reliability")
    key = uuid4()
    answers = all_at_once(callers, lambda store: store.claim("reliability", [queue], worker="w1", claim_key=key))
    assert [[job.id for job in jobs] for jobs in answers] == [[job_id]] * CALLERS
    assert answers == [answers[0]] * CALLERS
    assert len(arena.db.log(job_id)) == 1


def test_repeat_of_a_claim_that_has_its_rows_but_not_yet_its_key_gets_the_same_jobs(
    arena: Arena, callers: list[Session]
) -> None:
    waits = "select coalesce((select wait_event_type = 'Lock' from pg_stat_activity where pid = %s), false)"
    for _ in range(8):
        _, queue = arena.made("standard")
        key = uuid4()
        arena.first.begin()
        arena.first.sql("insert into tenure.claim (key) values (%s)", key)  # the claim waits here, with its row locked
        first = arena.behind(lambda key=key, queue=queue: arena.second.claim("standard", queue, key=key))  # type: ignore[misc]
        with ThreadPoolExecutor() as pool:
            repeat = pool.submit(callers[0].claim, "standard", queue, key=key)
            while not arena.db.value(waits, callers[0].pid):
                assert not repeat.done(), f"the repeat did not wait: {repeat.result()}"
            arena.first.end("rollback")
            assert [job.id for job in repeat.result(60)] == [job.id for job in first.result(60)] != []


OPERATIONS: dict[str, Callable[[int], Ask]] = {
    "cancel, hard": lambda job_id: lambda store: store.cancel(job_id, mode="hard", actor="ada", key=f"cancel {job_id}"),
    "cancel, soft": lambda job_id: lambda store: store.cancel(job_id, actor="ada", key=f"cancel {job_id}"),
    "dead_letter": lambda job_id: (
        lambda store: store.dead_letter(job_id, reason_code="timeout", actor="ada", key=f"letter {job_id}")
    ),
    "transition": lambda job_id: lambda store: store.transition(job_id, "failed", actor="ada", key=f"to {job_id}"),
}


@pytest.mark.req("S2-20")
@pytest.mark.parametrize("operation", OPERATIONS)
def test_eight_operators_with_one_key_have_one_effect_and_one_answer(
    arena: Arena, callers: list[Session], operation: str
) -> None:
    held = in_hand(arena, "reliability", "succeed")
    logged = len(arena.db.log(held.id))
    answers = all_at_once(callers, OPERATIONS[operation](held.id))
    assert not isinstance(answers[0], str), f"refused: {answers[0]}"
    assert answers == [answers[0]] * CALLERS
    # A request to stop is no event of this document; the others are one.
    assert len(arena.db.log(held.id)) == logged + (operation != "cancel, soft")
    assert arena.db.value("select count(*) from tenure.key where job_id = %s", held.id) == 1
    arena.db.log_is_sound(held.id)


@pytest.mark.parametrize("contract", [name for name in KEYED if name != "reliability"])
def test_eight_holders_with_one_key_have_one_effect_under_every_contract(
    arena: Arena, callers: list[Session], contract: str
) -> None:
    for verb in KEYED[contract]:
        if (contract, verb) == ("gate_b2", "end"):
            continue  # two transactions: below
        held = in_hand(arena, contract, verb)
        answers = all_at_once(callers, saying(verb, held, "k"))
        assert not isinstance(answers[0], str), f"{verb} refused: {answers[0]}"
        assert answers == [answers[0]] * CALLERS, verb
        written_once(arena, held.id, "k")


def test_eight_tellers_of_a_gate_b2_jobs_end_end_it_once_and_are_told_how_far_it_was(
    arena: Arena, callers: list[Session]
) -> None:
    for _ in range(10):
        held = in_hand(arena, "gate_b2", "end")
        ask = saying("end", held, "k")
        answers = all_at_once(callers, ask)
        # The end is two transactions, and who looks between them sees dlq_pending; in all else they are told the same.
        assert {(one.state, one.role) for one in answers} <= {("dlq_pending", "settling"), ("failed", "done")}
        assert len({one._replace(state="", role="") for one in answers}) == 1
        assert {answer(session, ask).state for session in callers} == {"failed"}
        assert arena.db.value("select count(*) from tenure.dead_letter where job_id = %s", held.id) == 1
        written_once(arena, held.id, "k")


def test_eight_holders_with_one_key_and_eight_bodies_have_one_effect(arena: Arena, callers: list[Session]) -> None:
    held = in_hand(arena, "standard", "succeed")
    answers = at_once(CALLERS, lambda n: answer(callers[n], lambda store: store.succeed(held, {"n": n}, key="k")))
    (winner,) = [n for n in range(CALLERS) if answers[n] != "IDEMPOTENCY_CONFLICT"]
    assert answers[winner].state == "succeeded"
    assert arena.db.row(held.id)["result"] == {"n": winner}
    written_once(arena, held.id, "k")


@pytest.mark.parametrize("way", ["job", "letter"])
def test_eight_requeues_with_one_key_make_one_job(arena: Arena, callers: list[Session], way: str) -> None:
    held = in_hand(arena, "standard", "succeed")
    if way == "letter":
        now(arena.second.store.dead_letter(held.id, reason_code="timeout", actor="ada"))
    else:
        now(arena.second.store.succeed(held))
    made = all_at_once(callers, lambda store: store.requeue(held.id, actor="ada", key=f"requeue {held.id}"))
    assert made == [made[0]] * CALLERS
    assert arena.db.row(made[0])["state"] == "queued"
    both = "select (select count(*) from tenure.rerun where job_id = %s) + (select count(*) from tenure.dead_letter "
    assert arena.db.value(both + "where job_id = %s and status = 'requeued')", held.id, held.id) == 1


def test_eight_approvals_with_one_key_are_one_discard(arena: Arena, callers: list[Session]) -> None:
    held = in_hand(arena, "gate_b2", "succeed")
    operator = arena.second.store
    now(operator.dead_letter(held.id, reason_code="timeout", actor="policy"))
    letter = now(operator.letters.of_job(held.id)).id
    for person, call in (
        (
            "ada",
            lambda store: store.letters.request_discard(letter, person="ada", reason="no use", key=f"ask {letter}"),
        ),
        ("bob", lambda store: store.letters.approve_discard(letter, person="bob", key=f"agree {letter}")),
    ):
        answers = all_at_once(callers, call)
        assert isinstance(answers[0], DeadLetter), f"{person} refused: {answers[0]}"
        assert answers == [answers[0]] * CALLERS
    assert answers[0].status == "discarded"


def test_eight_refused_calls_with_one_key_are_all_refused_and_leave_none(arena: Arena, callers: list[Session]) -> None:
    held = in_hand(arena, "phase27", "succeed")
    before = everything(arena.db)
    answers = all_at_once(callers, lambda store: store.cancel(held.id, actor="ada", key="in vain"))
    assert answers == ["INVALID_TRANSITION"] * CALLERS
    assert everything(arena.db) == before


@ENDS
@pytest.mark.parametrize("verb", KEYED["reliability"])
def test_a_repeat_waits_for_its_twin_and_does_it_only_when_that_was_undone(arena: Arena, verb: str, end: str) -> None:
    held = in_hand(arena, "reliability", verb)
    ask = saying(verb, held, "k")
    arena.first.begin()
    first = answer(arena.first, ask)
    twin = arena.behind(lambda: answer(arena.second, ask))
    arena.first.end(end)
    second = twin.result(60)
    assert not isinstance(second, str), f"refused: {second}"
    if end == "commit":
        assert second == first
    written_once(arena, held.id, "k")


@ENDS
@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_operators_repeat_waits_for_its_twin(arena: Arena, operation: str, end: str) -> None:
    held = in_hand(arena, "reliability", "succeed")
    ask = OPERATIONS[operation](held.id)
    arena.first.begin()
    first = answer(arena.first, ask)
    twin = arena.behind(lambda: answer(arena.second, ask))
    arena.first.end(end)
    second = twin.result(60)
    assert not isinstance(second, str), f"refused: {second}"
    if end == "commit":
        assert second == first
    assert arena.db.value("select count(*) from tenure.key where job_id = %s", held.id) == 1
    arena.db.log_is_sound(held.id)


@pytest.mark.parametrize(("before", "after"), [("start", "succeed"), ("heartbeat", "succeed"), ("start", "heartbeat")])
def test_a_key_that_is_being_spent_on_one_step_serves_no_other_step(arena: Arena, before: str, after: str) -> None:
    held = in_hand(arena, "reliability", before)
    arena.first.begin()
    answer(arena.first, saying(before, held, "k"))
    waiting = arena.behind(lambda: answer(arena.second, saying(after, held, "k")))
    arena.first.end("commit")
    assert waiting.result(60) == IdempotencyConflict.code
    written_once(arena, held.id, "k")


def test_a_repeated_failure_and_the_next_holder_do_not_meet(arena: Arena) -> None:
    held = in_hand(arena, "standard", "fail")
    first = answer(arena.second, saying("fail", held, "k"))
    arena.db.due(held.id)
    arena.first.begin()
    taken = arena.first.claim_by_id("standard", held.id)
    repeat = arena.behind(lambda: answer(arena.second, saying("fail", held, "k")))
    arena.first.end("commit")
    assert repeat.result(60) == first
    assert isinstance(taken, Job)
    assert arena.db.row(held.id)["lease_token"] == taken.lease_token
    written_once(arena, held.id, "k")
