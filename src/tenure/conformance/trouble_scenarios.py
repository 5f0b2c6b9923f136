"""What a worker meets in trouble: lost leases, lost answers, errors, a restart of the dispatcher, a frozen machine."""

from __future__ import annotations

import asyncio
import signal
from typing import Final

from tenure.conformance.exchange import Hold
from tenure.conformance.result import Fault
from tenure.conformance.worker_scenarios import Scenario, outlast
from tenure.conformance.worker_trial import LEASE_S, Trial

_SHORT_JOB_S: Final = 0.2
#: Seconds in which no dispatcher can be reached.
_DOWN_S: Final = 1.5


async def lost_lease(trial: Trial) -> None:
    """Another worker gets the job while the first one still runs it."""
    job_id, seconds, elsewhere = await trial.while_it_sleeps(trial.take_over)
    await trial.until(
        lambda: any(report.is_lost_lease for report in trial.reports(job_id)),
        f"sent nothing about job {job_id} after its lease was lost, not even a heartbeat",
    )
    await outlast(trial, seconds)
    await _kept_by_the_other(trial, elsewhere.job_id)
    await trial.succeed_elsewhere(elsewhere)


async def _kept_by_the_other(trial: Trial, job_id: str) -> None:
    shown = await trial.show(job_id)
    trial.require(shown["lease_owner"] == "another-worker", f"took job {job_id} from the worker that holds it")


async def late_completion(trial: Trial) -> None:
    """The worker's completion arrives after another worker got the job."""
    held = trial.proxy.disturb("succeed", "held")
    job_id = await trial.enqueue("sleep", seconds=_SHORT_JOB_S)
    await trial.until(lambda: held.met, f"did not complete job {job_id}")
    if (elsewhere := await trial.take_over(job_id)) is None:
        raise Fault(f"completed job {job_id} twice at the same time")
    held.go_on.set()
    await trial.until(
        lambda: any(report.is_lost_lease for report in trial.ends(job_id)), f"did not complete job {job_id}"
    )
    await trial.goes_on()
    await trial.succeed_elsewhere(elsewhere)
    await outlast(trial, _SHORT_JOB_S)


async def server_errors(trial: Trial) -> None:
    """The dispatcher answers 503, and BUSY, for a while."""
    planned = [
        trial.proxy.disturb("claim", "unavailable", 2),
        trial.proxy.disturb("heartbeat", "unavailable"),
        trial.proxy.disturb("succeed", "unavailable", 2),
        trial.proxy.disturb("succeed", "busy"),
    ]
    await trial.goes_on()
    job_id = await trial.enqueue("sleep", seconds=LEASE_S)
    shown = await trial.ended(
        job_id, "succeeded", fault=f"gave up job {job_id} after answers that can be retried (503, BUSY)"
    )
    trial.require(shown["claims"] == 1, f"claimed job {job_id} {shown['claims']} times")
    for each in planned:
        trial.require(not each.left, f"sent too few calls of {each.verb} to meet the planned errors")


async def lost_answers(trial: Trial) -> None:
    """The answers to a claim, a heartbeat and a completion get lost after the dispatcher has acted."""
    claim = trial.proxy.disturb("claim", "lost")
    trial.proxy.disturb("heartbeat", "lost")
    trial.proxy.disturb("succeed", "lost")
    job_id = await trial.enqueue("sleep", seconds=LEASE_S)

    def repeated() -> bool:
        keys = [found.key for exchange in trial.proxy.exchanges if (found := exchange.claim())]
        return bool(claim.met) and keys.count(claim.met[0].claim().key) > 1  # type: ignore[union-attr]

    await trial.until(
        repeated, "did not repeat a claim with the same claim_key after its answer was lost: the job stays"
    )
    shown = await trial.ended(job_id, "succeeded")
    trial.require(shown["claims"] == 1, f"claimed job {job_id} {shown['claims']} times")
    await trial.until(
        lambda: len(trial.ends(job_id)) > 1,
        f"did not repeat the completion of job {job_id} after its answer was lost",
    )
    await trial.goes_on()


async def dispatcher_restart(trial: Trial) -> None:
    """No dispatcher can be reached for a while; then another one is at the same address."""
    job_id = await trial.enqueue("sleep", seconds=2 * LEASE_S)
    await trial.claimed(job_id)
    await trial.proxy.close()
    await asyncio.gather(trial.restart(), asyncio.sleep(_DOWN_S))
    await trial.proxy.open()
    shown = await trial.ended(job_id, "succeeded")
    trial.require(shown["claims"] == 1, f"claimed job {job_id} {shown['claims']} times")
    await trial.goes_on()


async def frozen_minute(trial: Trial) -> None:
    """The worker's machine stands still for a minute; another worker gets the job, and ends it."""

    async def freeze(job_id: str) -> Hold | None:
        trial.worker.signal_group(signal.SIGSTOP)
        try:
            if (elsewhere := await trial.take_over(job_id)) is not None:
                await trial.succeed_elsewhere(elsewhere)
            return elsewhere
        finally:
            trial.worker.signal_group(signal.SIGCONT)

    job_id, seconds, _ = await trial.while_it_sleeps(freeze)
    await outlast(trial, seconds)
    shown = await trial.show(job_id)
    trial.require(shown["result"] == "by another worker", f"replaced the result of job {job_id}")


TROUBLE: Final = (
    Scenario("lost-lease", "drops a job that another worker got, and does not complete it", lost_lease),
    Scenario("late-completion", "accepts that a completion came too late", late_completion),
    Scenario("server-errors", "repeats calls that were answered 503 or BUSY", server_errors),
    Scenario("lost-answers", "repeats calls whose answers were lost, with the same keys", lost_answers),
    Scenario("dispatcher-restart", "keeps its jobs while no dispatcher can be reached", dispatcher_restart),
    Scenario("frozen-minute", "goes on after it stood still for a minute, without harm", frozen_minute),
)
