"""Say what became of a job, and go on saying it until the database has answered.

The worker tells facts: a result, a failure, a wish to wait or to stop. What they lead to is the contract's business,
and whether and when a job runs again is decided by `fail_task` alone. Effects that a failure names are undone here,
newest first, before it is final.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from tenure.contract import Contract
from tenure.directive import Cancel, Snooze
from tenure.errors import BadInput, Busy, CannotConnect, ConnectionLost, Refused, Unavailable
from tenure.job import Failure
from tenure.outcome import Moved
from tenure.patience import Patience
from tenure.queue import Decision
from tenure.task import context_parameter
from tenure.worker.handle import Done, Verdict
from tenure.worker.running import Running
from tenure.worker.source import JobSource

_log = logging.getLogger("tenure.worker")
T = TypeVar("T")

_AWAY = (ConnectionLost, CannotConnect, Unavailable, Busy)
Became = Moved | Decision | Refused


async def insisting(say: Callable[[], Awaitable[T]]) -> T:
    """Say it until it was heard: a database that is away comes back, and a repeat is refused or answered as before."""
    patience = Patience()
    while True:
        try:
            return await say()
        except _AWAY as error:
            _log.debug("not heard, and said again: %s", error)
            await patience.wait()


async def settle(source: JobSource, contract: Contract, running: Running, verdict: Verdict) -> Became:
    """Tell the database what became of a job; what it made of that, or why it refused."""
    held = running.held
    try:
        if isinstance(verdict, Done):
            return await _succeed(source, running, verdict)
        if isinstance(verdict, Snooze) and contract.path("snooze") is not None:
            delay_ms = verdict.milliseconds
            return await insisting(lambda: source.snooze(held, delay_ms))
        if isinstance(verdict, Snooze):
            verdict = Failure(f"the handler put the job off, and contract {contract.name} has no such path", "Snooze")
        if isinstance(verdict, Cancel) and contract.path("cancel") is not None:
            reason = verdict.reason
            return await insisting(lambda: source.cancelled(held, reason))
        if isinstance(verdict, Cancel):
            verdict = Failure(
                f"the handler cancelled the job, and contract {contract.name} has no such path", "PermanentError"
            )
        return await _fail(source, running, verdict)
    except Refused as refused:
        return refused


async def _succeed(source: JobSource, running: Running, done: Done) -> Became:
    try:
        return await insisting(lambda: source.succeed(running.held, done.result))
    except BadInput as error:  # too large, or not what PostgreSQL can store: it would be the same next time
        return await _fail(source, running, Failure(str(error), "PermanentError", code=error.code, stage="output"))


async def _fail(source: JobSource, running: Running, failure: Failure) -> Became:
    decision = await insisting(lambda: source.fail(running.held, failure))
    return await _compensate(source, running, decision) if decision.compensate else decision


async def _compensate(source: JobSource, running: Running, decision: Decision) -> Became:
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
        return await insisting(lambda: source.compensation_failed(held, failure))
    return await insisting(lambda: source.compensated(held))


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
