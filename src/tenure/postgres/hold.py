"""The verbs of a job's holder, many calls at a time: each call is answered or refused by itself.

    report(verb, calls) ─▶ a batch for each contract and version ─▶ one statement ─▶ an answer for each call

A batch that meets a lock timeout goes on without the locked rows, so that one open transaction does not stall its
neighbours. When the database fails between two batches, the calls of the later ones get the error as their answer.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeVar, cast
from uuid import UUID

from tenure.contracts.declaration import RetryVerdict
from tenure.errors import BadInput, Busy, IdempotencyConflict, Refused, TenureError
from tenure.jobs import validation
from tenure.jobs.holder_call import HOLDER_VERBS, HolderCall
from tenure.jobs.job import Failure, Held
from tenure.jobs.outcome import Effect, Moved, Noted, Outcome
from tenure.postgres import notes
from tenure.postgres.bound_contract import NOTES, BoundContract
from tenure.postgres.connect import is_unstorable
from tenure.postgres.datasets.outputs import Additions, prepare_additions, store_additions
from tenure.postgres.engine import EngineUser, only_answer
from tenure.postgres.flow_advance import advance_after
from tenure.postgres.idempotency import find_answered, read_moved, replay
from tenure.postgres.move import Batch, move, succeed
from tenure.postgres.settle import settle_after
from tenure.postgres.statement import Atomic, Plan, carried, if_any, statement

T = TypeVar("T")
#: The name of a verb in `bound_contract.TRIGGERS_BY_VERB`, where it differs.
_MOVES = {"cancelled": "cancel"}
_HANDED_BACK = '{"type": "HandedBack", "message": "handed back unfinished", "code": "HANDED_BACK"}'


class HolderVerbs(EngineUser):
    """The verbs of a job's holder; part of the store. The single forms raise the refusal that `report` returns."""

    async def start(self, held: Held, *, key: str | None = None) -> Moved | None:
        """Report that the handler starts; None under a contract without that step."""
        return cast("Moved | None", await self.report_one("start", HolderCall(held, key)))

    async def succeed(self, held: Held, result: Any = None, *, key: str | None = None) -> Moved:
        """End a job as succeeded, with its result."""
        return cast("Moved", await self.report_one("succeed", HolderCall(held, key, result=result)))

    async def fail(self, held: Held, failure: Failure | BaseException, *, key: str | None = None) -> Moved:
        """Report a failure; the answer says whether and when the job runs again, or which effects to undo first."""
        return cast("Moved", await self.report_one("fail", HolderCall(held, key, failure=failure)))

    async def compensated(self, held: Held, *, key: str | None = None) -> Moved:
        """End a failed job whose effects are undone; it ends with its failure."""
        return cast("Moved", await self.report_one("compensated", HolderCall(held, key)))

    async def compensation_failed(
        self, held: Held, failure: Failure | BaseException, *, key: str | None = None
    ) -> Moved:
        """Report that the effects of a failed job could not be undone: an operator must look at it."""
        return cast("Moved", await self.report_one("compensation_failed", HolderCall(held, key, failure=failure)))

    async def heartbeat(self, held: Held, *, key: str | None = None) -> Noted:
        """Report that the work goes on; renews the lease when half of it is over. The answer says whether to stop."""
        return cast("Noted", await self.report_one("heartbeat", HolderCall(held, key)))

    async def progress(self, held: Held, value: Any) -> Noted:
        """Store the progress of the work."""
        return cast("Noted", await self.report_one("progress", HolderCall(held, value=value)))

    async def checkpoint(self, held: Held, value: Any) -> Noted:
        """Store a value for the next attempt."""
        return cast("Noted", await self.report_one("checkpoint", HolderCall(held, value=value)))

    async def snooze(self, held: Held, delay_ms: int, *, key: str | None = None) -> Moved:
        """Delay the job; this attempt does not count against its budget."""
        return cast("Moved", await self.report_one("snooze", HolderCall(held, key, delay_ms=delay_ms)))

    async def hand_back(
        self, held: Held, delay_ms: int = 0, *, reason: str | None = None, key: str | None = None
    ) -> Moved | Noted:
        """Return the job unfinished: by the contract's own path, else as if its lease had expired."""
        return cast(
            "Moved | Noted", await self.report_one("hand_back", HolderCall(held, key, delay_ms=delay_ms, reason=reason))
        )

    async def cancelled(self, held: Held, reason: str | None = None, *, key: str | None = None) -> Moved:
        """End the job as cancelled, by its holder: after a cancel request, or by its own decision."""
        return cast("Moved", await self.report_one("cancelled", HolderCall(held, key, reason=reason)))

    async def effect(self, held: Held, node: str, result: Any = None, *, compensable: bool = False) -> Effect:
        """Record the effect of a node under the lease: once per job, over all attempts."""
        validation.check_name("node", node)
        text = None if result is None else validation.to_json("result", result, self._max_bytes)
        bound = await self._engine.bound_contract(held.contract, held.version)
        if compensable and not bound.contract.compensates:
            why = f"contract {bound.contract.name} undoes no effects"
            raise BadInput(f"{why}. Next: record the effect without compensable")
        plan = partial(notes.record_effect, bound, held, node, text, compensable=compensable)
        return self._only_noted("effect", await self._engine.run(plan))

    async def undone(self, held: Held, node: str) -> None:
        """Record that the effect of a node is undone: after a crash the next holder does not undo it again."""
        validation.check_name("node", node)
        bound = await self._engine.bound_contract(held.contract, held.version)
        self._only_noted("undone", await self._engine.run(lambda: notes.record_undone(bound, held, node)))

    async def effects(self, job_id: int) -> dict[str, Any]:
        """The nodes of a job with a recorded effect, newest first, with the result of each."""
        validation.check_integer("id", job_id, 1, validation.MAX_ID)
        rows = await self._engine.ask("list_effects", id=job_id)
        return {node: None if result is None else json.loads(result) for node, result, _ in rows}

    async def report_one(self, verb: str, call: HolderCall) -> Any:
        """Report a verb for one job; raises its refusal."""
        return only_answer(await self.report(verb, [call]))

    async def report(self, verb: str, calls: Sequence[HolderCall]) -> list[Any]:
        """Report a verb (`HOLDER_VERBS`); one answer per call, in order: Moved, Noted, None (no such step) or an error.

        Refuses bad input before anything is written. An error of a whole batch is raised when it is the only batch.
        """
        documents = [_check(verb, call, self._max_bytes) for call in calls]
        additions = {
            n: prepare_additions(call, self._max_bytes)
            for n, call in enumerate(calls)
            if call.outputs or call.dataset_events
        }
        validation.check_integer("number of jobs", len(calls), 0, validation.MAX_BATCH)
        groups = _groups(calls)
        answers: list[Any] = [None] * len(calls)
        for places in groups:
            try:
                send = partial(self._send, verb, calls, documents, additions=additions.get(places[0]))
                part_answers = await _one_by_one_if_bad(send, places)
            except TenureError as error:
                if len(groups) == 1 and not (additions and isinstance(error, Refused)):
                    raise
                part_answers = [error] * len(places)
            for n, answer in zip(places, part_answers, strict=True):
                answers[n] = answer
        self._engine.refusals.note(verb, answers)
        return answers

    def _only_noted(self, verb: str, answer: T | Refused) -> T:
        """The answer of a call about one job; counts its refusal and raises it."""
        self._engine.refusals.note(verb, [answer])
        return only_answer([answer])

    async def _send(
        self,
        verb: str,
        all_calls: Sequence[HolderCall],
        all_documents: Sequence[str | None],
        places: Sequence[int],
        *,
        additions: Additions | None = None,
    ) -> list[Any]:
        """Send the calls at these places, which are of one contract and version; with `additions`, it is one call."""
        calls, documents = [all_calls[n] for n in places], [all_documents[n] for n in places]
        contract, version = calls[0].held.contract, calls[0].held.version
        bound = await self._engine.bound_contract(contract, version, beat=verb == "heartbeat")
        if verb == "start" and bound.contract.path("start") is None:
            return [None] * len(calls)
        held = [call.held for call in calls]
        batch = Batch(bound, _MOVES.get(verb, verb), [lease.id for lease in held], held)
        if calls[0].key is not None and HOLDER_VERBS[verb].takes_key:
            batch.keys = [call.key for call in calls]
        if verb == "compensated":
            outcomes = await self._engine.run(lambda: _compensated(batch))
            await advance_after(self._engine, outcomes, self._max_bytes)
            return outcomes
        if verb == "hand_back" and bound.reclaims:  # the next claim takes over the job when the lease is over
            let_go = Batch(bound, "let_go", batch.ids, held)  # without keys: a repeat changes nothing
            return await self._engine.run(lambda: notes.note(let_go))
        if verb in NOTES:
            batch.notes = if_any(documents) or if_any(["true" if call.blocks else None for call in calls]) or None
            is_beat = verb == "heartbeat" and batch.keys is None  # with a key it waits for its row
            return await self._engine.run(partial(notes.note, batch, skip_locked=verb == "heartbeat"), beat=is_beat)
        events = [validation.to_json("event", event, self._max_bytes) for event in calls[0].events]
        stored = _StoredWith(events, additions) if events or additions else None
        if stored is not None and batch.keys is not None:
            batch.notes = [stored.fingerprint()]  # a repeat must have the same ones
        if "failure" in HOLDER_VERBS[verb].facts:
            return await self._report_failures(batch, calls, stored)
        _add_facts(verb, batch, calls, documents)
        answers: list[Any] = []
        for part in carried(range(len(calls)), documents):
            try:
                answers += await self._finish(batch if len(part) == len(calls) else batch.select(part), stored)
            except TenureError as error:
                if not answers:
                    raise
                answers += [error] * len(part)  # the parts before it are done
        return answers

    async def _report_failures(
        self, batch: Batch, calls: Sequence[HolderCall], stored: _StoredWith | None
    ) -> list[Outcome]:
        """Report failures; in ASCII when the database's encoding lacks a character: a failure is always reportable."""
        try:
            _add_failures(batch, calls, self._max_bytes)
            return await self._finish(batch, stored)
        except BadInput as error:
            if not is_unstorable(error) or len(calls) > 1:
                raise
        _add_failures(batch, calls, self._max_bytes, in_ascii=True)
        return await self._finish(batch, stored)

    async def _finish(self, batch: Batch, stored: _StoredWith | None) -> list[Outcome]:
        """Move held jobs; a batch that met a locked row goes on without it."""
        try:
            outcomes = await self._engine.run(lambda: _move_and_settle(batch, stored))
        except Busy:
            outcomes = await self._engine.run(lambda: _move_and_settle(batch, stored, skip_locked=True))
        await advance_after(self._engine, outcomes, self._max_bytes)
        return outcomes


class _StoredWith(NamedTuple):
    """What is stored in the transaction that ends a job: events as JSON, and additions to datasets."""

    events: Sequence[str]
    additions: Additions | None

    def fingerprint(self) -> str:
        """JSON that is the same for the same events and additions."""
        own = [] if self.additions is None else [json.dumps(self.additions.fingerprint())]
        return f"[{','.join([*self.events, *own])}]"


def _check(verb: str, call: HolderCall, max_bytes: int) -> str | None:
    """Check a call; returns its result or value as JSON."""
    held = call.held
    if not isinstance(held, Held):
        raise BadInput(f"held must be the job.held of a claimed job; got a {type(held).__name__}")
    if not (
        type(held.token) is UUID and 0 < held.id <= validation.MAX_ID and 0 <= held.claims <= validation.MAX_CLAIMS
    ):
        validation.check_held(held)
    if call.key is not None:
        validation.check_name("key", call.key)
    if call.reason is not None:
        validation.check_name("reason", call.reason)
    if call.delay_ms:
        validation.check_integer("delay_ms", call.delay_ms, 0, validation.MAX_DELAY_MS)
    if verb in ("progress", "checkpoint"):
        return validation.to_json(verb, call.value, max_bytes)
    if "failure" in HOLDER_VERBS[verb].facts and not isinstance(call.failure, (Failure, BaseException)):
        raise BadInput(f"failure must be a Failure or an exception; got {call.failure!r}")
    return None if call.result is None else validation.to_json("result", call.result, max_bytes)


def _groups(calls: Sequence[HolderCall]) -> list[list[int]]:
    """The places of calls that go together: same contract and version, with keys or without; additions go alone."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for n, call in enumerate(calls):
        held = call.held
        group = (
            held.contract,
            held.version,
            call.key is not None,
            n if call.events or call.outputs or call.dataset_events else None,
        )
        groups.setdefault(group, []).append(n)
    return list(groups.values())


async def _one_by_one_if_bad(send: Callable[[Sequence[int]], Awaitable[list[Any]]], places: Sequence[int]) -> list[Any]:
    """Send a batch; when one call makes PostgreSQL refuse all of it, send each call alone."""
    try:
        return await send(places)
    except BadInput:
        if len(places) == 1:
            raise
    answers: list[Any] = []
    for n in places:
        try:
            answers += await send([n])
        except TenureError as error:
            answers.append(error)
    return answers


def _add_facts(verb: str, batch: Batch, calls: Sequence[HolderCall], documents: Sequence[str | None]) -> None:
    """Add the columns of facts that this verb carries."""
    if verb == "succeed":
        batch.results = documents
    if verb in ("snooze", "hand_back"):
        batch.delays = [call.delay_ms for call in calls]
    if verb == "hand_back" and not batch.bound.moves["hand_back"]["hands_back"]:
        batch.errors = [_HANDED_BACK] * len(calls)
    elif verb in ("hand_back", "cancelled"):
        batch.reasons = [call.reason for call in calls]


def _add_failures(batch: Batch, calls: Sequence[HolderCall], max_bytes: int, *, in_ascii: bool = False) -> None:
    """Add the failures as columns: their facts, and the contract's retry verdict and reason."""
    failures = [
        call.failure if isinstance(call.failure, Failure) else Failure.of(cast("BaseException", call.failure))
        for call in calls
    ]
    facts = [dict(failure.facts(in_ascii=in_ascii)) for failure in failures]
    batch.errors = [validation.to_json("error", fact, max_bytes) for fact in facts]
    if batch.verb == "fail":
        verdicts = [batch.bound.contract.retryable.verdict(fact) for fact in facts]
        batch.verdicts = [verdict.trigger for verdict in verdicts]
        batch.reasons = [_reason(batch.bound, verdict, fact) for verdict, fact in zip(verdicts, facts, strict=True)]


def _reason(bound: BoundContract, verdict: RetryVerdict, fact: dict[str, Any]) -> str | None:
    """The dead-letter reason of an error: its own code if that is one of the contract's reasons, else the verdict's."""
    code = fact.get("code")
    return code if verdict.reason and code in bound.contract.dead_letters.reasons else verdict.reason


def _move_and_settle(batch: Batch, stored: _StoredWith | None, *, skip_locked: bool = False) -> Plan[list[Outcome]]:
    """Move held jobs, then settle those that reached a commit point, in another transaction."""
    if stored is not None:
        outcomes: list[Outcome] = yield Atomic(_move_and_store(batch, stored, skip_locked=skip_locked))
    elif batch.verb == "succeed" and not skip_locked:
        outcomes = yield from succeed(batch)
    else:
        outcomes = yield from move(batch, skip_locked=skip_locked)
    return (yield from settle_after(batch.bound, outcomes))


def _move_and_store(batch: Batch, stored: _StoredWith, *, skip_locked: bool) -> Plan[list[Outcome]]:
    """End a held job and store what its holder reports with it: both, or neither."""
    if stored.additions and batch.keys is not None:
        yield statement("lock_jobs", {"ids": batch.ids})  # no other call with the same key ends the job from here on
    if repeated := (yield from _find_repeated(batch)):
        return repeated
    (outcome,) = yield from move(batch, skip_locked=skip_locked, is_atomic=True)
    if isinstance(outcome, Moved) and not outcome.compensate and batch.held:
        (held,) = batch.held
        if stored.events:
            values = {"id": held.id, "claims": held.claims, "bodies": list(stored.events)}
            yield statement("store_emitted_events", values)
        if stored.additions:
            yield from store_additions(held, outcome, stored.additions)
    return [outcome]


def _find_repeated(batch: Batch) -> Plan[list[Outcome]]:
    """The first answer to a call whose key was used before; read before the move, which a repeat makes fail."""
    if batch.keys is None or not (yield from find_answered(batch, [0])):
        return []
    outcomes: list[Any] = [IdempotencyConflict(str(batch.keys[0]), batch.ids[0])]
    yield from replay(batch, [0], outcomes, read_moved)
    return outcomes


def _compensated(batch: Batch) -> Plan[list[Outcome]]:
    """End failed jobs whose effects are undone: log that, then end the job by its stored failure."""
    outcomes: list[Outcome] = []
    for n in range(len(batch.ids)):
        outcomes += yield Atomic(_log_compensation_and_move(batch.select([n])))
    return (yield from settle_after(batch.bound, outcomes))


def _log_compensation_and_move(batch: Batch) -> Plan[list[Outcome]]:
    if repeated := (yield from _find_repeated(batch)):
        return repeated
    (noted,) = yield from notes.note(replace(batch, keys=None))
    if not isinstance(noted, Refused):
        yield statement("mark_effects_undone", {"id": batch.ids[0]})
    # A refused note means that the move is refused too.
    (moved,) = yield from move(batch, is_atomic=True)
    if isinstance(moved, Refused) and not isinstance(noted, Refused):
        raise moved  # the lease expired between the two: neither is done
    return [moved]
