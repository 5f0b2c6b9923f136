"""What every worker meets in normal work: claims, heartbeats, failures, cancels, and its own end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from tenure.conformance.worker_trial import LEASE_S, Trial

#: Heartbeats that a worker must send during a job of three leases. A right one sends about nine.
_HEARTBEATS: Final = 3
_SIGTERM_EXITS: Final = (0, 128 + 15, -15)


class Scenario(NamedTuple):
    """A scenario: its name, what it is about, and the function that plays it."""

    name: str
    about: str
    play: Callable[[Trial], Awaitable[None]]


async def claim(trial: Trial) -> None:
    """Two jobs for the worker, one after the other, and one of a type that it does not know."""
    foreign = await trial.enqueue("someone-elses", value=1)
    for value in ({"text": "grüße", "numbers": [1, 2.5, None]}, "again"):
        job_id = await trial.enqueue("echo", value=value)
        shown = await trial.ended(job_id, "succeeded")
        trial.require(shown["result"] == value, f"stored {shown['result']!r} as the result of echo, and not {value!r}")
        trial.require(shown["claims"] == 1, f"claimed job {job_id} {shown['claims']} times")
    shown = await trial.show(foreign)
    trial.require(shown["claims"] == 0, "claimed a job of type someone-elses, for which it has no handler")


async def heartbeat(trial: Trial) -> None:
    """A job of three leases."""
    seconds = 3 * LEASE_S
    job_id = await trial.enqueue("sleep", seconds=seconds)
    shown = await trial.ended(job_id, "succeeded")
    beats = len([report for report in trial.reports(job_id, "heartbeat") if report.status == 200])
    trial.require(
        beats >= _HEARTBEATS,
        f"sent {beats or 'no'} heartbeats during a job of {seconds} s whose lease is {LEASE_S} s: "
        "every third of lease_seconds is right",
    )
    trial.require(shown["claims"] == 1, f"claimed job {job_id} {shown['claims']} times")


async def failure(trial: Trial) -> None:
    """A job that fails, runs again, and fails for the last time."""
    job_id = await trial.enqueue("fail", max_attempts=2, message="the disk is full", permanent=False)
    shown = await trial.ended(job_id, "dead", "succeeded")
    trial.require(shown["state"] == "dead", "reported a failed handler as a success")
    trial.require(shown["claims"] == 2, f"a job with two attempts ran {shown['claims']} times")
    error = shown["last_error"] or {}
    trial.require(
        "the disk is full" in str(error.get("message")),
        f"did not report the handler's error text: the stored error is {error.get('message')!r}",
    )
    await trial.goes_on()


async def permanent_failure(trial: Trial) -> None:
    """A job whose failure no retry can help."""
    job_id = await trial.enqueue("fail", max_attempts=3, message="no such customer", permanent=True)
    shown = await trial.ended(job_id, "dead", "succeeded")
    trial.require(
        shown["claims"] == 1,
        f"did not say that a failure is permanent: the job ran {shown['claims']} times (send the error's type as "
        "PermanentError)",
    )
    await trial.goes_on()


async def cancel_soft(trial: Trial) -> None:
    """The worker is asked to stop a job."""
    job_id, _, _ = await trial.while_it_sleeps(lambda job_id: trial.cancel(job_id, "soft"))
    shown = await trial.ended(job_id, "cancelled", "succeeded", "dead")
    asked = sum(report.cancel_requested for report in trial.reports(job_id, "heartbeat", "progress", "checkpoint"))
    trial.require(
        shown["state"] == "cancelled",
        f"ignored a cancel: job {job_id} ended as {shown['state']} although {asked or 'no'} heartbeat answers said "
        "cancel_requested" + ("" if asked else " (it sent none after the cancel)"),
    )
    await trial.goes_on()


async def cancel_hard(trial: Trial) -> None:
    """A job is cancelled at once, while the worker runs it."""
    job_id, seconds, _ = await trial.while_it_sleeps(lambda job_id: trial.cancel(job_id, "hard"))
    await trial.until(
        lambda: any(report.is_lost_lease for report in trial.reports(job_id)),
        f"sent nothing about job {job_id} after a hard cancel, not even a heartbeat",
    )
    await outlast(trial, seconds)


async def outlast(trial: Trial, seconds: float) -> None:
    """Wait until everything that the worker does now is over, by its own clock: it sleeps once more as long."""
    job_id = await trial.enqueue("sleep", seconds=seconds)
    await trial.ended(job_id, "succeeded", fault=f"did not run the next job ({job_id})")


async def sigterm(trial: Trial) -> None:
    """The worker must stop while it runs a job: it finishes it or hands it back, and leaves nothing claimed."""
    job_id = await trial.enqueue("sleep", seconds=2 * LEASE_S)
    await trial.claimed(job_id)
    trial.worker.terminate()
    late = await trial.enqueue("echo", value="after SIGTERM")
    code = await trial.exited()
    trial.require(code in _SIGTERM_EXITS, f"ended with exit code {code} after SIGTERM")
    for each in (job_id, late):
        shown = await trial.show(each)
        trial.require(
            shown["lease_owner"] is None,
            f"ended while it held job {each}: nobody runs it before its lease ends, and an attempt is lost",
        )
    trial.require(
        not any(report.verb == "fail" for report in trial.reports(job_id)),
        f"reported job {job_id} as failed because it had to stop: hand-back costs no attempt",
    )


NORMAL_WORK: Final = (
    Scenario("claim", "claims jobs of its own types and stores their results", claim),
    Scenario("heartbeat", "sends heartbeats while a job runs longer than its lease", heartbeat),
    Scenario("failure", "reports a failure with its text, and runs the job again", failure),
    Scenario("permanent-failure", "says when a retry cannot help", permanent_failure),
    Scenario("cancel-soft", "stops a job when cancel_requested is true, and reports it as cancelled", cancel_soft),
    Scenario("cancel-hard", "drops a job that was cancelled at once", cancel_hard),
    Scenario("sigterm", "finishes or hands back its jobs on SIGTERM", sigterm),
)
