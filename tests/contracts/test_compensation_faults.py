"""Compensation when its holder is lost: no effect is forgotten, and no statement is the only one that knows of it."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import pytest

from tenure.errors import InvalidTransition, Refused, StaleLease
from tenure.jobs.job import Job, NewJob
from tenure.jobs.outcome import Moved
from tenure.postgres.statement import Atomic, Plan, Statement
from tenure.postgres.store import Store
from tests.contracts.compensation import (
    ENDINGS,
    REFUND_REFUSED,
    Ending,
    compensating,
    ended_badly,
    everything,
    undone,
    worked,
)
from tests.contracts.reliability import PERMANENT, assigned, letters, running, shown, types
from tests.harness import Harness
from tests.races.sessions import OneConnection, Session, now

BEGUN = ["job_claimed", "job_started"]


async def lose(store: Store, db: Harness, job: Job) -> None:
    """Let the job's holder be gone, and its lease closed."""
    db.expire(job.id)
    (outcome,) = await store.reap("reliability")
    assert isinstance(outcome, Moved)


@pytest.mark.req("S2-50")
@pytest.mark.parametrize("ending", [ending for ending in ENDINGS.values() if ending.max_attempts > 1])
async def test_the_next_holder_is_told_the_failure_and_finishes_what_was_begun(
    store: Store, db: Harness, ending: Ending
) -> None:
    first = await ended_badly(store, ending)
    await lose(store, db, first)
    assert (shown(db, first.id)["status"], undone(db, first.id)) == ("queued", {"charge": False, "ship": False})
    second = await running(store, "w2")
    assert second.id == first.id
    assert second.pending["error"] == dict(ending.failure.facts())
    assert second.pending["reason"] == ending.reason
    # It runs nothing: its own failure names the same effects, and the first failure stands.
    with pytest.raises(Refused):
        await store.succeed(second.held)
    assert (await store.fail(second.held, PERMANENT)).compensate == ("ship", "charge")
    assert (await store.compensated(second.held)).state == ending.state
    assert shown(db, first.id)["last_error"]["message"] == ending.failure.message
    assert types(db, first.id) == [*BEGUN, "job_requeued", *BEGUN, "job_compensated", f"job_{ending.state}"]
    db.log_is_sound(first.id)


@pytest.mark.parametrize("way", ["claim", "claim_by_id", "the same key again", "jobs"])
async def test_every_way_to_get_the_job_tells_what_is_pending(store: Store, db: Harness, way: str) -> None:
    first = await compensating(store)
    assert first.pending is None, "as it was when it was claimed"
    await lose(store, db, first)
    key = "4ab6ef8e-7d55-4b40-8f2b-d3f0dbb1dd16"
    if way == "jobs":
        (job,) = await store.jobs([first.id])
    elif way == "claim_by_id":
        (taken,) = await store.claim_by_id([first.id], worker="w2", contract="reliability")
        assert isinstance(taken, Job)
        job = taken
    else:
        job = await assigned(store, "w2", claim_key=key)
        if way == "the same key again":
            job = await assigned(store, "w2", claim_key=key)
    assert (job.pending["trigger"], job.pending["error"]["code"]) == ("fatal", "NO_ACCOUNT")


async def test_the_next_holder_may_say_so_without_failing_again_once_it_has_started(store: Store, db: Harness) -> None:
    first = await compensating(store)
    await lose(store, db, first)
    second = await assigned(store, "w2")
    before = everything(db, first.id)
    with pytest.raises(InvalidTransition):
        await store.compensated(second.held)
    assert everything(db, first.id) == before, "document 002 knows no way from assigned to failed"
    await store.start(second.held)
    assert (await store.compensated(second.held)).state == "failed"
    assert types(db, first.id).count("job_compensated") == 1
    assert undone(db, first.id) == {"charge": True, "ship": True}


async def test_the_next_holder_may_give_up_before_it_starts(store: Store, db: Harness) -> None:
    first = await compensating(store)
    await lose(store, db, first)
    second = await assigned(store, "w2")
    assert (await store.compensation_failed(second.held, REFUND_REFUSED)).state == "dead_lettered"
    (letter,) = letters(db, first.id)
    assert (letter["reason_code"], letter["last_owner"]) == ("compensation_failed", "w2")
    assert letter["last_error"]["failure"]["code"] == "NO_ACCOUNT"


@pytest.mark.req("S2-50")
@pytest.mark.parametrize("asked", [False, True], ids=["", "asked to stop"])
@pytest.mark.parametrize("standing", ["running", "assigned"])
async def test_with_no_claim_left_a_lost_compensation_is_set_aside(
    store: Store, db: Harness, standing: str, asked: bool
) -> None:
    job = await compensating(store, max_attempts=1 if standing == "running" else 2)
    if standing == "assigned":
        await lose(store, db, job)
        job = await assigned(store, "w2")
    if asked:
        await store.cancel(job.id, actor="ada")
    db.expire(job.id)
    shown = len(types(db, job.id))
    (outcome,) = await store.reap("reliability")
    assert isinstance(outcome, Moved)
    assert (outcome.from_state, outcome.state) == (standing, "dead_lettered")
    assert types(db, job.id)[shown:] == ["job_dead_lettered"]
    (letter,) = letters(db, job.id)
    assert (letter["reason_code"], letter["last_owner"]) == ("compensation_failed", "w2" if job.claims > 1 else "w1")
    assert undone(db, job.id) == {"charge": False, "ship": False}
    db.log_is_sound(job.id)
    # Why the job failed at all is what the person who looks at it has to know.
    assert "no such account" in str(letter["last_error"])


@pytest.mark.parametrize("budget", [1, 2])
async def test_a_compensation_that_is_handed_back_goes_the_way_of_a_lost_lease(
    store: Store, db: Harness, budget: int
) -> None:
    job = await compensating(store, max_attempts=budget)
    await store.hand_back(job.held)
    if budget == 2:
        assert (await assigned(store, "w2")).pending["error"]["code"] == "NO_ACCOUNT"
    else:
        assert [letter["reason_code"] for letter in letters(db, job.id)] == ["compensation_failed"]


async def test_a_soft_cancel_of_a_job_that_is_being_undone_ends_it_as_cancelled(store: Store, db: Harness) -> None:
    held, lost = await compensating(store), await compensating(store)
    for job in (held, lost):
        await store.cancel(job.id, actor="ada")
    assert (await store.compensated(held.held)).state == "cancelled"
    assert types(db, held.id) == [*BEGUN, "job_compensated", "job_cancelled"]
    # Its holder dies: the cancel waits for the next one to undo what is left.
    await lose(store, db, lost)
    assert shown(db, lost.id)["status"] == "queued"
    again = await running(store, "w2")
    assert again.pending is not None
    assert (await store.compensated(again.held)).state == "cancelled"
    assert types(db, lost.id)[-3:] == ["job_started", "job_compensated", "job_cancelled"]


async def test_a_soft_cancel_between_two_holders_does_not_forget_what_is_to_be_undone(
    store: Store, db: Harness
) -> None:
    job = await compensating(store)
    await lose(store, db, job)
    await store.cancel(job.id, actor="ada")
    # Either it still waits for somebody to undo the rest, or a person is told of it.
    waits = [row["pending"] for row in db.sql("select pending from tenure.job where id = %s", job.id)]
    aside = [letter["reason_code"] for letter in letters(db, job.id)]
    assert any(waits) or aside == ["compensation_failed"]


@pytest.mark.parametrize("taken", [False, True], ids=["expired", "taken by another"])
async def test_a_holder_that_lost_the_lease_is_refused_whatever_it_says(store: Store, db: Harness, taken: bool) -> None:
    for job in (await worked(store), await compensating(store)):
        db.expire(job.id)
        if taken:
            (other,) = await store.claim_by_id([job.id], worker="w2", contract="reliability")
            assert isinstance(other, Job)
        before = everything(db, job.id)
        calls: list[Any] = [
            store.fail(job.held, PERMANENT), store.compensated(job.held), store.cancelled(job.held),
            store.compensation_failed(job.held, REFUND_REFUSED), store.hand_back(job.held), store.succeed(job.held),
            store.effect(job.held, "mail", compensable=True), store.heartbeat(job.held),
        ]  # fmt: skip
        for call in calls:
            with pytest.raises(StaleLease):
                await call
        assert everything(db, job.id) == before
        await store.cancel(job.id, mode="hard", actor="test")


class Killed(Exception):
    """The process that made a call is no more."""


class Interrupted(OneConnection):
    """An engine in which something happens after the statement of this name, also inside a transaction."""

    def __init__(self, connection: Any, after: str, event: Callable[[], None]) -> None:
        super().__init__(connection)
        self.after, self.event = after, event

    async def run(self, plan: Callable[[], Plan[Any]], *, beat: bool = False) -> Any:
        return await super().run(lambda: self._watched(plan()), beat=beat)

    def _watched(self, plan: Plan[Any]) -> Generator[Any, Any, Any]:
        step = next(plan)
        while True:
            rows = yield Atomic(self._watched(step.plan)) if isinstance(step, Atomic) else step
            if isinstance(step, Statement) and step.query.name == self.after:
                self.event()
            try:
                step = plan.send(rows)
            except StopIteration as stop:
                return stop.value


def killed() -> None:
    """The process ends here."""
    raise Killed


def test_a_holder_killed_after_it_asked_and_before_the_failure_was_kept_has_changed_nothing(
    db: Harness, dsn: str
) -> None:
    with Session(dsn, "w1") as session:
        job = now(worked(session.store))
        before = everything(db, job.id)
        with pytest.raises(Killed):
            now(Store(Interrupted(session.connection, "finish", killed)).fail(job.held, PERMANENT))
        assert everything(db, job.id) == before
        assert now(session.store.fail(job.held, PERMANENT)).compensate == ("ship", "charge")


@pytest.mark.parametrize("meanwhile", ["expired", "taken", "cancelled hard", "succeeded", "cancelled softly"])
def test_whatever_happens_before_the_failure_is_kept_it_is_kept_by_the_holder_alone(
    db: Harness, dsn: str, meanwhile: str
) -> None:
    with Session(dsn, "w1") as session, Session(dsn, "other") as other:
        job = now(worked(session.store))

        def happens() -> None:
            if meanwhile in ("expired", "taken"):
                db.expire(job.id)
            if meanwhile == "taken":
                assert isinstance(other.claim_by_id("reliability", job.id), Job)
            if meanwhile == "succeeded":
                now(other.store.succeed(job.held))
            if meanwhile.startswith("cancelled"):
                now(other.store.cancel(job.id, mode=meanwhile.split()[1].removesuffix("ly"), actor="ada"))

        failing = Store(Interrupted(session.connection, "finish", happens)).fail(job.held, PERMANENT)
        if meanwhile == "cancelled softly":
            assert now(failing).compensate == ("ship", "charge")
            assert now(session.store.compensated(job.held)).state == "cancelled"
        else:
            with pytest.raises((StaleLease, InvalidTransition)):  # succeeded: by the very same holder
                now(failing)
            assert db.row(job.id)["pending"] is None
        assert types(db, job.id).count("job_compensated") == (meanwhile == "cancelled softly")
        db.log_is_sound(job.id)


@pytest.mark.req("S2-50")
@pytest.mark.parametrize("after", ["note", "mark_effects_undone", "finish"])
def test_the_note_and_the_end_of_a_compensation_are_one_transaction(db: Harness, dsn: str, after: str) -> None:
    with Session(dsn, "w1") as session:
        job = now(compensating(session.store))
        before = everything(db, job.id)
        with pytest.raises(Killed):
            now(Store(Interrupted(session.connection, after, killed)).compensated(job.held))
        assert everything(db, job.id) == before
        assert now(session.store.compensated(job.held)).state == "failed"
    assert types(db, job.id) == [*BEGUN, "job_compensated", "job_failed"]


def test_a_lease_that_runs_out_between_the_note_and_the_end_undoes_both(db: Harness, dsn: str) -> None:
    with Session(dsn, "w1") as session:
        job = now(compensating(session.store))
        before = everything(db, job.id)

        def runs_out() -> None:
            session.sql("update tenure.job set lease_expires_at = now() - interval '1 second' where id = %s", job.id)

        with pytest.raises(StaleLease):
            now(Store(Interrupted(session.connection, "mark_effects_undone", runs_out)).compensated(job.held))
        assert everything(db, job.id) == before


async def test_after_a_last_claim_was_handed_back_a_failure_names_the_effects_again(store: Store) -> None:
    job = await worked(store, max_attempts=1)
    handed = await store.hand_back(job.held)
    assert isinstance(handed, Moved)
    assert handed.compensate == ("ship", "charge")
    assert (await store.fail(job.held, PERMANENT)).compensate == ("ship", "charge")


async def test_an_operators_start_is_no_sign_of_life_of_a_lost_holder(store: Store, db: Harness) -> None:
    await store.enqueue(NewJob("t", contract="reliability"))
    (job,) = await store.claim("reliability", worker="w1")
    await store.heartbeat(job.held)
    db.sql("update tenure.job set last_heartbeat_at = now() - interval '1 minute' where id = %s", job.id)
    await store.transition(job.id, "running", actor="ada")
    with pytest.raises(StaleLease):
        await store.succeed(job.held)
    assert [type(one) for one in await store.reap("reliability")] == [Moved]
