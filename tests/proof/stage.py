"""A stage: one job at a time, acted on through the store's own verbs, beside the model that says what must come of it.

After every step the job's row, the log rows that it got, its dead letter and the answer are compared with the model's,
and its log is folded. What differs is told as a story: what was done from the start, a line a step, and the difference.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Self
from uuid import uuid4

import psycopg

from tenure.contracts.declaration import HELD, Contract
from tenure.errors import Refused
from tenure.jobs.job import Failure, Held, Job, NewJob
from tenure.jobs.job_type import JobType
from tenure.jobs.outcome import Effect
from tenure.model.counterexample import Counterexample, Move, World
from tenure.model.step import HOLDER_ACTIONS, Action, LogRow, RefusedStep, Standing, Stepped, pass_commit_point, step
from tenure.postgres.connect import engine_dsn
from tenure.postgres.registry import Registry
from tenure.postgres.store import Store
from tenure.proof.audit import Violation, audit
from tests.decisions import OWN, register
from tests.harness import Harness
from tests.proof.compare import (
    LOOK,
    Known,
    Said,
    expected,
    fold_differences,
    log_differences,
    may_cancel,
    row_differences,
    said,
    type_of,
)
from tests.races.sessions import OneConnection, now

#: Nothing comes by itself: what is put off, or waits for its backoff, is due when a test says so.
LATER_MS = 3_600_000

UPKEEP = ("reap", "promote", "settle")

_FAILURES = (
    Failure("no answer", type="TransientError", retryable=True),
    Failure("broken", type="PermanentError", retryable=False),
    Failure("bad input", type="ValidationError", retryable=False),
)

# A commit point is where the engine may be stopped: a record that cannot be written leaves the job there.
_STOP = """
create table public.stopped (job_id bigint primary key);
create function public.stop() returns trigger language plpgsql as $$
begin
    if exists (select from public.stopped where job_id = new.job_id) then raise exception 'stopped here'; end if;
    return new;
end $$;
create trigger stop before insert on tenure.dead_letter for each row execute function public.stop();
"""


class Stage:
    """A database in which jobs of one contract are played."""

    def __init__(self, dsn: str, contract: Contract) -> None:
        numbers = {"backoff_base_ms": LATER_MS, "backoff_cap_ms": 2 * LATER_MS}
        if contract.name in OWN:
            register(dsn, contract)
        self.contract = contract.with_numbers(numbers)
        self.db = Harness(dsn)
        self.db.sql("set plan_cache_mode = force_generic_plan")  # planning over all ranges would cost most of a look
        self.connection = psycopg.connect(engine_dsn(dsn), autocommit=True)
        engine = OneConnection(self.connection)
        engine.registry = Registry({contract.name: numbers})
        self.store = Store(engine)
        self.steps = 0
        self._jobs = itertools.count(1)
        wishes = contract.choices("exhaust")
        now(self.store.types.declare([JobType(type_of(wish), contract.name, on_exhausted=wish) for wish in wishes]))
        if contract.path("settle"):
            self.db.sql(_STOP)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()
        self.db.connection.close()

    def enter(self, born: Standing) -> Player:
        """A new job, alone in its queue."""
        queue = f"queue-{next(self._jobs)}"
        job = NewJob(type_of(born.chosen_end), contract=self.contract.name, queue=queue, max_attempts=born.limit)
        job.delay_ms = None if born.due else LATER_MS
        return Player(self, now(self.store.enqueue(job)).job_id, queue, born)

    def audited(self) -> list[Violation]:
        """What `tenure verify` finds wrong with all that was played."""
        return now(audit(self.store)).violations

    @contextmanager
    def stopping(self, job_id: int) -> Iterator[None]:
        """While this lasts, the engine cannot go on from the job's commit point."""
        self.db.sql("insert into public.stopped values (%s)", job_id)
        yield
        self.db.sql("delete from public.stopped where job_id = %s", job_id)


def failure(contract: Contract, verdict: str) -> Failure:
    """An error of which the contract makes that."""
    return next(
        one for one in (*_FAILURES, Failure("odd")) if contract.retryable.verdict(one.facts()).trigger == verdict
    )


class Player:
    """One job on the stage, how the model says that it stands, and what was done to it so far."""

    def __init__(self, stage: Stage, job_id: int, queue: str, born: Standing) -> None:
        self.stage, self.contract, self.store = stage, stage.contract, stage.store
        self.id, self.queue, self.born = job_id, queue, born
        self.model = born
        self.story: list[tuple[Move, World]] = []
        self.known = Known()
        self.log: list[LogRow] = []
        self.row = self._look()
        self._agree(row_differences(self.contract, self.row, born))

    def act(self, action: Action, *, stopped: bool = False) -> None:
        """Do it, and compare everything with the model; `stopped` leaves a job at the commit point that it reaches."""
        contract, before = self.contract, self.model
        outcome = step(contract, before, action) if may_cancel(contract, action) else RefusedStep("invalid")
        stopped = stopped and isinstance(outcome, Stepped) and outcome.after.role == "settling" != before.role
        if not stopped:
            outcome = pass_commit_point(contract, outcome)
        after, rows = (outcome.after, outcome.rows) if isinstance(outcome, Stepped) else (before, ())
        self.stage.steps += 1
        self.story.append((Move(self._who(action), action), World(after, ())))
        with self.stage.stopping(self.id) if stopped else nullcontext():
            answer = self._answer(action)
        must, row = expected(contract, before, action, outcome, self.known), self._look()
        wrong = [] if answer == must else [f"the answer is {answer}, and must be {must}"]
        wrong += row_differences(contract, row, after)
        wrong += log_differences(row["log"], rows, self.row["seq"], row["seq"])
        self.log += [LogRow(*event[1:]) for event in row["log"]]
        wrong += fold_differences(contract, self.born.limit, self.log, after)
        idle = isinstance(outcome, RefusedStep) or (action.verb in (*UPKEEP, "cancel") and after == before)
        if idle and row["xmin"] != self.row["xmin"]:
            wrong.append("the row was written, and must be left alone")
        self._agree(wrong)
        self.model, self.row = after, row

    def _look(self) -> dict[str, Any]:
        """The row, live or finished, with what is new in the log."""
        beat = self.contract.lease.heartbeat
        orphaned_ms = beat.default_ms * beat.missed if beat else None
        values = {"id": self.id, "seq": len(self.log), "orphaned_ms": orphaned_ms}
        (row,) = self.stage.db.connection.execute(LOOK.encode(), values).fetchall()
        return row

    def _answer(self, action: Action) -> Said:
        try:
            return said(self._do(action))
        except Exception as fault:
            fault.add_note(self._told([f"the call raised {fault!r}"]))
            raise

    def _agree(self, wrong: list[str]) -> None:
        if wrong:
            raise AssertionError(self._told(wrong))

    def _told(self, wrong: list[str]) -> str:
        """The story so far, and what is wrong at its end."""
        born = f"{self.contract.name}: a job with a limit of {self.born.limit}, {'due' if self.born.due else 'not due'}"
        wish = f", of a type that wishes to end in {self.born.chosen_end}" if self.born.chosen_end else ""
        told = Counterexample("PostgreSQL and the model", "they differ", self.story).lines()
        return "\n".join(["", born + wish, *told, *(f"  {difference}" for difference in wrong)])

    def _who(self, action: Action) -> str:
        if action.verb in HOLDER_ACTIONS:
            if action.proof not in self.known.won:
                return "a stranger"
            return f"the {'holder' if action.proof == self.model.claims else 'lost holder'} of claim {action.proof}"
        if action.verb in ("lapse", "ripen"):
            return "time"
        return "upkeep" if action.verb in UPKEEP else "a worker" if action.verb == "claim" else "an operator"

    def _do(self, action: Action) -> Any:
        """Say it to the store; a refusal is an answer."""
        verb = action.verb
        if verb in ("lapse", "ripen"):
            return self._pass_time(action)
        try:
            if verb in HOLDER_ACTIONS:
                return now(self._as_holder(action, self._proof(action.proof)))
            if verb in UPKEEP:
                moved = now(getattr(self.store, verb)(self.contract.name))
                return next((outcome for outcome in moved if outcome.job_id == self.id), None)
            answer = now(self._from_outside(action))
        except Refused as refused:
            return refused
        if isinstance(answer, list):
            answer = answer[0] if answer else None
        if isinstance(answer, Job):
            self.known.won[answer.claims] = answer.held
        return answer

    def _pass_time(self, action: Action) -> None:
        db, role = self.stage.db, self.model.role
        if action.verb == "ripen" and role in ("ready", "waiting") and not self.model.timeless:
            db.due(self.id)
        elif action.verb == "lapse" and role in HELD:
            if action.flag and self.contract.lease.heartbeat and self.row["last_heartbeat_at"]:
                db.sql("update tenure.job set last_heartbeat_at = now() - interval '1 day' where id = %s", self.id)
            else:
                db.expire(self.id)

    def _proof(self, claim: int | None) -> Held:
        """What the claim of that number won; for one that nobody won, and for None, something made up."""
        if claim in self.known.won:
            return self.known.won[claim]
        number = self.model.claims if claim is None else claim
        return Held(self.id, number, uuid4(), self.contract.name, self.contract.version)

    def _as_holder(self, action: Action, held: Held) -> Coroutine[Any, Any, Any]:
        store, delay = self.store, 0 if action.flag else LATER_MS
        if action.verb == "effect":
            return self._effect(held, compensable=action.flag)
        calls: dict[str, Callable[[], Coroutine[Any, Any, Any]]] = {
            "start": lambda: store.start(held),
            "heartbeat": lambda: store.heartbeat(held),
            "succeed": lambda: store.succeed(held, {"ok": True}),
            "fail": lambda: store.fail(held, failure(self.contract, action.verdict)),
            "snooze": lambda: store.snooze(held, delay),
            "hand_back": lambda: store.hand_back(held, delay),
            "cancelled": lambda: store.cancelled(held, "asked to stop"),
            "compensated": lambda: store.compensated(held),
            "compensation_failed": lambda: store.compensation_failed(held, Failure("cannot be undone")),
        }
        return calls[action.verb]()

    async def _effect(self, held: Held, *, compensable: bool) -> Effect:
        node = f"node-{len(self.story)}"
        effect = await self.store.effect(held, node, {"n": len(self.story)}, compensable=compensable)
        if compensable:
            self.known.nodes.append(node)
        return effect

    def _from_outside(self, action: Action) -> Coroutine[Any, Any, Any]:
        """What workers without a job, and operators, do."""
        store, worker = self.store, f"worker-{self.model.claims + 1}"
        self.known.owners[self.model.claims + 1] = worker
        if action.verb == "claim" and action.flag:
            return store.claim(self.contract.name, [self.queue], worker=worker)
        if action.verb == "claim":
            return self._claim(worker)
        if action.verb == "cancel":
            return store.cancel(self.id, mode=action.to, reason="enough", actor="ada")
        if action.verb == "dead_letter":
            reasons = self.contract.dead_letters.reasons or ("operator",)
            return store.dead_letter(self.id, reason_code=reasons[0], actor="ada")
        assert action.verb == "transition", action
        return store.transition(self.id, action.to, actor=worker)

    async def _claim(self, worker: str) -> Job | Refused:
        (answer,) = await self.store.claim_by_id([self.id], worker=worker, contract=self.contract.name)
        return answer
