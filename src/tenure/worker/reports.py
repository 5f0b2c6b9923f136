"""Reports: what happened to a job, sent to the database until it answers, counted and logged.

    submit ─┬ the handler returned ─▶ batch of successes ─▶ _on_success_answers
            └ another outcome      ─▶ finish, in a task of its own: one call of the job source
                                        ─▶ undo effects, where the answer names some ─▶ log ─▶ count ─▶ middleware

The worker reports facts: a result, a failure, a wish to wait or to stop. The contract decides what follows; `fail_task`
alone decides whether and when a job runs again. Every failed attempt is logged once, with the decision.

A call whose answer was lost is repeated. The repeat may be refused because the first call was done. Then the job's log
tells which of this worker's hops was the last one, and that hop is the outcome.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextvars import Context, copy_context
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from tenure.client.batching import Batcher
from tenure.client.job_source import JobSource
from tenure.client.retry import retry
from tenure.context import Cancel, Snooze
from tenure.errors import (
    BadInput,
    Busy,
    CannotConnect,
    ConnectionLost,
    DatasetConflict,
    DatasetNotFound,
    NotPermitted,
    Refused,
    TenureError,
    Unavailable,
)
from tenure.jobs.event import LogEntry
from tenure.jobs.holder_call import HolderCall
from tenure.jobs.job import Failure, Job
from tenure.jobs.outcome import Moved, Outcome
from tenure.logs import fields_of
from tenure.task import MAX_RUN_S
from tenure.worker.failure_log import (
    log_cancelled,
    log_failed_after_end,
    log_failure,
    log_handed_back,
    log_lost,
    log_success,
)
from tenure.worker.handler import HandlerOutcome, Returned, undo_effect
from tenure.worker.job_history import find_own_end, find_taker, is_started, move_of
from tenure.worker.running_job import RunningJob
from tenure.worker.shared_parts import SharedParts

_log = logging.getLogger("tenure.worker")
T = TypeVar("T")

#: Log a warning only after this many failed attempts (a few seconds).
_LOG_AFTER = 5
_RETRIED = (ConnectionLost, CannotConnect, Unavailable, Busy)
#: How long handing jobs back may take, in seconds.
_HAND_BACK_S = 10.0
#: A success whose row is locked is sent again after this many seconds.
_BUSY_S = 0.2
#: Refusals of what a completion adds to datasets.
_WRONG_OUTPUTS = (DatasetConflict, DatasetNotFound)
_NOT_COMMITTED = Failure(
    "the handler called ctx.complete_in and returned, and that transaction was not committed. Next: commit it before "
    "the handler returns; await complete_in if the connection is asynchronous",
    "TransactionNotCommitted",
    retryable=True,
)


def retry_until_answered(call: Callable[[], Awaitable[T]], *jobs: RunningJob) -> Coroutine[Any, Any, T]:
    """Make a call until the database answers; raises what it refuses, and `NotPermitted`.

    After a failed attempt `answer_lost` is set on the jobs of the call: it may have been done.
    """
    return retry(call, _RETRIED, on_error=partial(_on_error, jobs))


def _on_error(jobs: Sequence[RunningJob], error: TenureError, failed: int) -> None:
    if isinstance(error, NotPermitted):
        raise error
    for running in jobs:
        running.answer_lost = True
    if failed == _LOG_AFTER:
        _log.warning(
            "a call about %s failed %d times, retrying until the database answers: %s",
            name_some(jobs) or "a running job", failed, error,
        )  # fmt: skip


def name_some(jobs: Sequence[RunningJob], at_most: int = 5) -> str:
    """The first of these jobs by id and type, and how many more there are."""
    named = ", ".join(f"job {running.job.id} of {running.job.type}" for running in jobs[:at_most])
    return f"{named} and {len(jobs) - at_most} more" if len(jobs) > at_most else named


def log_unreported(job: Job) -> None:
    """Log an error of this worker's own, because of which a job is not reported."""
    _log.exception(
        "job %d of %s could not be reported; its lease will end, and its contract decides whether it runs again",
        job.id, job.type, extra=fields_of(job),
    )  # fmt: skip


async def call_hook(hook: Awaitable[None]) -> None:
    """Call a middleware hook about something that has happened; log what it raises, because it can undo nothing."""
    try:
        await hook
    except Exception:
        _log.exception("a middleware hook raised; the job is not affected. Next: correct the middleware")


def _success(running: RunningJob, returned: Returned) -> HolderCall:
    """The report of a success, with what it adds to datasets."""
    if returned.additions is None:
        return HolderCall(running.held, result=returned.result)
    outputs, events = returned.additions
    return HolderCall(running.held, result=returned.result, outputs=outputs, dataset_events=events)


async def hand_back(
    source: JobSource, jobs: Sequence[Job], timeout_s: float, delay_ms: int = 0, reason: str | None = None
) -> Counter[str]:
    """Hand jobs back unfinished, each by its contract's path; counts of what happened to them."""
    counts = Counter[str]()
    try:
        async with asyncio.timeout(timeout_s):
            calls = [HolderCall(job.held, delay_ms=delay_ms, reason=reason) for job in jobs]
            answers = await source.report("hand_back", calls)
    except (TenureError, TimeoutError) as error:
        why = error if str(error) else f"no answer within {timeout_s:g} s"
        _log.warning("%d jobs could not be handed back, their leases end instead: %s", len(jobs), why)
        return counts
    for job, answer in zip(jobs, answers, strict=True):
        log_handed_back(job, answer, counts)
    return counts


class Reports:
    """The reports about the jobs of one worker; `release` is called when the last report about a job is answered."""

    def __init__(self, parts: SharedParts, release: Callable[[RunningJob], None]) -> None:
        self._source, self._slots, self._middleware = parts.source, parts.slots, parts.middleware
        self._release = release
        self._app_release = parts.release
        # In this context, and not in that of the handler whose success starts a batch.
        self._successes: Batcher[tuple[RunningJob, Returned], Moved] = Batcher(
            self._send_successes, on_answers=self._on_success_answers, context=copy_context()
        )
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def tasks(self) -> set[asyncio.Task[None]]:
        """The asyncio tasks under way."""
        return self._tasks | self._successes.tasks

    def submit(self, running: RunningJob, outcome: HandlerOutcome) -> None:
        """Report how a handler ended: a success in the next batch, any other outcome in a task of its own."""
        running.handler_ended = True
        if running.timeout_s < MAX_RUN_S:  # reports and undoing effects may take time too
            running.heartbeats_until = time.monotonic() + MAX_RUN_S
        if type(outcome) is not Returned or running.ends_in_transaction:
            self.finish(running, outcome)
            return
        if self._middleware:
            running.context = copy_context()
        self._slots.unanswered += 1
        self._successes.submit((running, outcome))

    def finish(
        self, running: RunningJob, outcome: HandlerOutcome | None, answer: Moved | Exception | None = None
    ) -> None:
        """Start the last steps of a job. `answer`: what the database has answered to a success, or to the start."""
        # Not in this task, which the handler may have cancelled.
        self.start_task(self._finish(running, outcome, answer), running.context)

    def start_task(self, coroutine: Coroutine[Any, Any, None], context: Context | None = None) -> None:
        """Start a task that `tasks` has until it ends."""
        task = asyncio.create_task(coroutine, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def start(self, running: RunningJob) -> None:
        """Report that the handler starts. A repeat after a lost answer may be refused: then the log decides."""
        try:
            await self.call("start", running)
        except Refused:
            if not running.answer_lost or not is_started(await self.read_log(running.job), running.job):
                raise

    async def hand_back(self, jobs: Sequence[RunningJob]) -> None:
        """Hand jobs back unfinished."""
        for running in jobs:
            running.heartbeats_until = 0.0
        self._slots.counts.update(await hand_back(self._source, [running.job for running in jobs], _HAND_BACK_S))

    def read_log(self, job: Job) -> Coroutine[Any, Any, list[LogEntry]]:
        """The log of a job."""
        return retry_until_answered(lambda: self._source.log(job.id))

    async def explain_lost_lease(self, running: RunningJob) -> None:
        """Count and log why a job no longer belongs to this worker: it was cancelled, or taken over."""
        try:
            log = await self._source.log(running.job.id)
        except TenureError:  # it cannot be read now; the job is lost in any case
            log = []
        own, entry = find_own_end(log, running.job), find_taker(log, running.job)
        if running.ends_in_transaction and own is not None:  # a heartbeat came between the commit and its note
            self._count(running, None, own)
            return
        if entry is not None and entry.trigger == "cancel":
            _note_cancel(running, entry)
            self._slots.counts["cancelled"] += 1
        else:
            log_lost(running.contract, running.job, entry)
            self._slots.counts["lost"] += 1

    def _send_successes(
        self, batch: Sequence[tuple[RunningJob, Returned]]
    ) -> Coroutine[Any, Any, Sequence[Moved | TenureError]]:
        calls = [_success(running, returned) for running, returned in batch]
        return retry_until_answered(lambda: self._source.report("succeed", calls), *(running for running, _ in batch))

    def _on_success_answers(
        self, batch: Sequence[tuple[RunningJob, Returned]], answers: Sequence[Moved | Exception]
    ) -> None:
        """Release the jobs that have succeeded; look after each of the others in a task of its own."""
        succeeded = busy = 0
        is_debug = _log.isEnabledFor(logging.DEBUG)
        for (running, returned), answer in zip(batch, answers, strict=True):
            if type(answer) is Moved and not self._middleware:
                succeeded += 1
                if is_debug:
                    log_success(running.job, answer)
                self._release(running)
            elif isinstance(answer, Busy):  # another transaction has locked its row
                busy += 1
                self.start_task(self._resubmit(running, returned))
            else:
                self.finish(running, returned, answer)
        self._slots.note_answers(len(batch) - busy)
        self._slots.counts["succeeded"] += succeeded

    async def _resubmit(self, running: RunningJob, returned: Returned) -> None:
        await asyncio.sleep(_BUSY_S)
        self._successes.submit((running, returned))

    async def _finish(
        self, running: RunningJob, outcome: HandlerOutcome | None, answer: Moved | Exception | None
    ) -> None:
        """Report the outcome where `answer` does not answer it, count it, call the middleware, release the job."""
        try:
            decided: Outcome
            if isinstance(answer, Moved):
                decided = answer
            elif isinstance(answer, Refused) and not isinstance(answer, _WRONG_OUTPUTS):
                decided = await self._explain_refusal(running, answer)
            else:
                assert outcome is not None
                if answer is not None:  # the batch failed because of another job, or this one may have been written
                    running.answer_lost = True
                decided = await self._report(running, outcome)
            self._count(running, outcome, decided)
            if outcome is not None:  # else its handler did not start
                for middleware in self._middleware:
                    await call_hook(middleware.finish(running.job, decided))
        except Exception:
            log_unreported(running.job)
        finally:
            self._release(running)

    async def _report(self, running: RunningJob, outcome: HandlerOutcome) -> Outcome:
        """Report how the handler ended; the move that the database made of it, or its refusal."""
        try:
            try:
                if isinstance(outcome, Failure):
                    return await self._fail(running, outcome)
                if isinstance(outcome, Returned) and running.ends_in_transaction:
                    return await self._report_own_end(running)
                if isinstance(outcome, Returned):
                    call = _success(running, outcome)
                    moved: Moved = await retry_until_answered(lambda: self._source.call("succeed", call), running)
                    return moved
                return await self._report_wish(running, outcome)
            except (BadInput, *_WRONG_OUTPUTS, ValueError, OverflowError, TypeError) as error:
                # The result is too large or cannot be stored as JSON, or the job does not write that dataset: another
                # attempt would give the same.
                code = error.code if isinstance(error, _WRONG_OUTPUTS) else None
                failure = Failure(str(error), "PermanentError", code=code, stage="output", retryable=False)
                return await self._fail(running, failure)
        except Refused as refused:
            return await self._explain_refusal(running, refused)

    async def _report_own_end(self, running: RunningJob) -> Outcome:
        """What became of a job whose handler ended it in its own transaction: that end, or a failure without a commit.

        While that transaction is open, the failure waits for its lock, and is refused if it commits.
        """
        own = find_own_end(await self.read_log(running.job), running.job)
        return await self._fail(running, _NOT_COMMITTED) if own is None else own

    async def _report_wish(self, running: RunningJob, wish: Snooze | Cancel) -> Outcome:
        """Report that a handler wants to run later, or to end its job as cancelled."""
        trigger = "snooze" if isinstance(wish, Snooze) else "cancel"
        if running.contract.path(trigger) is None:
            why = f"the handler returned {type(wish).__name__}, and contract {running.contract.name} has no {trigger}"
            return await self._fail(running, Failure(why, "PermanentError", retryable=False))
        if isinstance(wish, Snooze):
            moved = await self.call("snooze", running, delay_ms=wish.milliseconds)
        else:
            moved = await self.call("cancelled", running, reason=wish.reason)
        moved, undo = await self._undo_effects(running, moved)
        if undo is not None:
            log_failure(running.job, undo, moved)
        elif moved.trigger == "cancel" and isinstance(wish, Cancel):
            log_cancelled(running.job, "its handler", moved.state, wish.reason)
        elif moved.trigger == "cancel":
            log_cancelled(running.job, "request", moved.state, "its handler put it off")
        return moved

    async def _fail(self, running: RunningJob, failure: Failure) -> Outcome:
        """Report a failure, undo the effects that the answer names, and log the decision."""
        outcome: Outcome
        undo: Failure | None = None
        if self._app_release is not None:
            failure = replace(failure, release=self._app_release)
        try:
            outcome, undo = await self._undo_effects(running, await self.call("fail", running, failure=failure))
        except Refused as refused:
            outcome = await self._explain_refusal(running, refused)
            if running.stop_reason == "cancelled":
                return outcome
            if running.ends_in_transaction and isinstance(outcome, Moved) and outcome.trigger == "succeed":
                log_failed_after_end(running.job, failure, outcome)
                return outcome
        log_failure(running.job, failure, outcome, undo)
        return outcome

    async def _undo_effects(self, running: RunningJob, moved: Moved) -> tuple[Moved, Failure | None]:
        """Undo the effects that an answer names, newest first; the final move, and why an effect could not be undone.

        Each undone effect is recorded, so the next attempt does not undo it again if this process dies in between.
        """
        held = running.held
        if not moved.compensate:
            return moved, None
        try:
            results = await retry_until_answered(lambda: self._source.effects(held.id))
            for node in moved.compensate:
                await undo_effect(running, node, results.get(node))
                await retry_until_answered(partial(self._source.undone, held, node))
        except Refused:
            raise
        except Exception as error:
            failure = Failure.of(error)
            return await self.call("compensation_failed", running, failure=failure), failure
        return await self.call("compensated", running), None

    def call(self, verb: str, running: RunningJob, **facts: Any) -> Coroutine[Any, Any, Any]:
        """Report a holder's verb until it is answered."""
        call = HolderCall(running.held, **facts)
        return retry_until_answered(lambda: self._source.call(verb, call), running)

    async def _explain_refusal(self, running: RunningJob, refused: Refused) -> Outcome:
        """What a refusal means, by the job's log.

        This worker's own last hop, if an answer was lost. The hop that cancelled the job, if it was cancelled. Else the
        refusal itself: another worker holds the job, or it has ended.
        """
        try:
            log = await self.read_log(running.job)
        except (Refused, NotPermitted):  # the job was deleted, or this key may not read its log
            return refused
        if running.answer_lost and (own := find_own_end(log, running.job)) is not None:
            return own
        entry = find_taker(log, running.job)
        return refused if entry is None or entry.trigger != "cancel" else _note_cancel(running, entry)

    def _count(self, running: RunningJob, handler_outcome: HandlerOutcome | None, outcome: Outcome) -> None:
        """Count a reported job, and log it where nothing else does."""
        job, counts = running.job, self._slots.counts
        has_failed = isinstance(handler_outcome, Failure) and running.stop_reason != "cancelled"
        if isinstance(outcome, Refused):
            counts["refused"] += 1
            if not isinstance(handler_outcome, Failure):  # else the failure is logged together with the refusal
                _log.warning(
                    "job %d of %s: the database refused the outcome, which is not stored: %s",
                    job.id, job.type, outcome, extra=fields_of(job),
                )  # fmt: skip
        elif outcome.trigger == "succeed":
            counts["succeeded"] += 1
            log_success(job, outcome)
        elif outcome.trigger == "snooze":
            counts["snoozed"] += 1
            _log.debug("job %d of %s is snoozed by its handler", job.id, job.type)
        elif outcome.trigger == "cancel" and not has_failed:
            counts["cancelled"] += 1
        else:  # also where the result cannot be stored, or the contract has no snooze or cancel
            counts["retried" if outcome.will_retry else "failed"] += 1


def _note_cancel(running: RunningJob, entry: LogEntry) -> Moved:
    """Log a hard cancel, and take it for the job's outcome."""
    running.stop_reason = "cancelled"
    log_cancelled(running.job, entry.actor, entry.to_state, entry.reason)
    return move_of([entry])
