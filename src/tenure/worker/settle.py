"""Say what became of a job, and go on saying it until the database has answered.

The worker tells facts: a result, a failure, a wish to wait or to stop. What they lead to is the contract's business,
and whether and when a job runs again is decided by `fail_task` alone. Effects that a failure names are undone here,
newest first, before it is final. Every failed attempt is logged once, with what was decided.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any, TypeVar

from tenure.contract import Contract
from tenure.directive import Snooze
from tenure.errors import BadInput, Busy, CannotConnect, ConnectionLost, NotPermitted, Refused, TenureError, Unavailable
from tenure.event import Logged
from tenure.job import Failure, Held
from tenure.outcome import Moved
from tenure.patience import Patience
from tenure.queue import Decision
from tenure.task import context_parameter
from tenure.worker.failure_log import log_failure
from tenure.worker.handle import Done, Verdict
from tenure.worker.running import Running
from tenure.worker.source import JobSource

_log = logging.getLogger("tenure.worker")
T = TypeVar("T")

#: So many tries, some seconds, are nobody's business.
_WORTH_SAYING = 5
_ASK_AGAIN = (ConnectionLost, CannotConnect, Unavailable, Busy)
Became = Moved | Decision | Refused
#: What a holder says last of a job.
_LAST_WORDS = ("succeed", "retry", "exhaust", "fatal", "snooze", "cancel", "dead_letter", "compensation_failed")
#: What the queue makes of a failure.
_DECISIONS = ("retry", "exhaust", "fatal")


async def insisting(say: Callable[[], Awaitable[T]], *about: Running) -> T:
    """Say it until it was heard: a database that is away comes back, and a repeat is refused or answered as before.

    That an answer did not come is noted on the jobs that it is about: something of it may have been heard.
    """
    patience, tries = None, 0
    while True:
        try:
            return await say()
        except _ASK_AGAIN as error:
            if isinstance(error, NotPermitted):
                raise
            for running in about:
                running.answer_lost = True
            tries += 1
            if tries == _WORTH_SAYING:
                _log.warning("what became of jobs is not heard, and is said again until it is: %s", error)
            patience = patience or Patience()
            await patience.wait()


async def settle(source: JobSource, contract: Contract, running: Running, verdict: Verdict) -> Became:
    """Tell the database what became of a job; what it made of that, or why it refused."""
    try:
        try:
            return await _told(source, contract, running, verdict)
        except (BadInput, ValueError, OverflowError, TypeError) as error:
            # Too large, or nothing that can be stored: it would be the same next time.
            return await _fail(source, running, Failure(str(error), "PermanentError", stage="output", retryable=False))
    except Refused as refused:
        return await ours(source, running, refused)


async def _told(source: JobSource, contract: Contract, running: Running, verdict: Verdict) -> Became:
    held = running.held
    if isinstance(verdict, Failure):
        return await _fail(source, running, verdict)
    if isinstance(verdict, Done):
        return await insisting(lambda: _succeed(source, held, verdict.result), running)
    wanted = "snooze" if isinstance(verdict, Snooze) else "cancel"
    if contract.path(wanted) is None:
        why = f"the handler returned {type(verdict).__name__}, and contract {contract.name} has no such path"
        return await _fail(source, running, Failure(why, "PermanentError", retryable=False))
    if isinstance(verdict, Snooze):
        delay_ms = verdict.milliseconds
        moved = await insisting(lambda: source.snooze(held, delay_ms), running)
    else:
        reason = verdict.reason
        moved = await insisting(lambda: source.cancelled(held, reason), running)
    return await _compensate(source, running, moved) if moved.compensate else moved


async def _succeed(source: JobSource, held: Held, result: Any) -> Moved:
    (answer,) = await source.succeed([held], [result])
    if isinstance(answer, TenureError):
        raise answer
    return answer


async def ours(source: JobSource, running: Running, refused: Refused) -> Became:
    """What a refusal means: that somebody else has the job, or that an answer of ours was lost on its way here."""
    held = running.held
    if not running.answer_lost:
        return refused
    log = await insisting(lambda: source.log(held.id))
    last = [
        row
        for row in log
        if row.claims == held.claims and row.hop and row.actor == running.job.lease_owner and row.trigger in _LAST_WORDS
    ]
    return _moved(last) if last else refused


def _moved(hops: Sequence[Logged]) -> Moved:
    """The move that a holder's hops were; a job that goes on has its due time in the log."""
    last = hops[-1]
    due = next((row.facts["due_at"] for row in hops if row.facts and row.facts.get("due_at")), None)
    return Moved(
        last.job_id, last.trigger, hops[0].from_state, last.to_state, "done" if due is None else "ready", last.claims,
        last.counter, last.ts, None if due is None else datetime.fromisoformat(due),
    )  # fmt: skip


async def _fail(source: JobSource, running: Running, failure: Failure) -> Became:
    """Report a failure, undo what it names, and log what was decided."""
    try:
        decision = await insisting(lambda: source.fail(running.held, failure), running)
        became = await _compensate(source, running, decision) if decision.compensate else decision
    except Refused as refused:
        became = await ours(source, running, refused)
        if isinstance(became, Moved) and became.trigger in _DECISIONS:
            became = Decision.of(became)
    log_failure(running.job, failure, became)
    return became


async def _compensate(source: JobSource, running: Running, decision: Decision | Moved) -> Became:
    """Undo what the job did, newest first; what is undone stays undone if this process dies in the middle."""
    held = running.held
    try:
        results = await insisting(lambda: source.effects(held.id))
        for node in decision.compensate:
            await _undo(running, node, results.get(node))
            await insisting(lambda node=node: source.undone(held, node))  # type: ignore[misc]
    except Refused:
        raise
    except Exception as error:
        failure = Failure.of(error)
        return await insisting(lambda: source.compensation_failed(held, failure), running)
    return await insisting(lambda: source.compensated(held), running)


async def _undo(running: Running, node: str, result: Any) -> None:
    undo = running.task.undo.get(node) if running.task else None
    if undo is None:
        raise LookupError(f"nothing here knows how to undo {node!r}")
    takes = context_parameter(undo)
    wanted = next((name for name in inspect.signature(undo).parameters if name != takes), None)
    given = {name: value for name, value in ((takes, running.ctx), (wanted, result)) if name is not None}
    if inspect.iscoroutinefunction(undo):
        await undo(**given)
    else:
        await asyncio.to_thread(undo, **given)
