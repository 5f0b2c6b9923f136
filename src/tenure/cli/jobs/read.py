"""`tenure jobs list`, `show`, `events` and `why`: find jobs, show one, its log, and the reason for its state."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tenure.cli.command import Output, Store, call_store, command, table_output
from tenure.cli.options import DatabaseUrl, JobId, Limit, OnlyContract, OnlyQueue, OnlyTenant, OnlyType, merge_filters
from tenure.cli.output import card, document, job_summary, table, traceback
from tenure.jobs.event import LogEntry
from tenure.jobs.formats import describe_failure, elapsed, format_duration, format_time, ids_to_text
from tenure.jobs.search import parse
from tenure.jobs.why import explain_job, explain_node, next_commands, next_commands_of_node

if TYPE_CHECKING:
    from tenure.postgres.read import JobDetails
    from tenure.postgres.search import JobSummary

_HEAD = ("id", "state", "type", "queue", "tenant", "contract", "claims", "changed (UTC)", "ran", "worker", "last error")
_Query = Annotated[str, typer.Argument(metavar="[QUERY]", help="A search, like 'state:dead type:mail.send age:>1h'.")]
_State = Annotated[str | None, typer.Option("--state", help="Only this state, by its contract's name for it.")]
_After = Annotated[
    str | None, typer.Option("--after", metavar="PLACE", help="Go on after a page: its `next`, like live-41.")
]


@command
def list_(
    query: _Query = "",
    state: _State = None,
    type_: OnlyType = None,
    queue: OnlyQueue = None,
    tenant: OnlyTenant = None,
    contract: OnlyContract = None,
    limit: Limit = 50,
    after: _After = None,
    database_url: DatabaseUrl = None,
) -> Output:
    """List jobs, first the live and then the finished ones, each newest first, a page at a time."""
    search = parse(query)
    options = {"state": state, "type": type_, "queue": queue, "tenant": tenant, "contract": contract}
    used = {name: value for name, value in options.items() if value is not None}
    filters = merge_filters(search, used)
    page = call_store(database_url, lambda store: store.find(**filters, limit=limit, after=after, with_workers=True))
    data = {"jobs": [job.fields() for job in page.jobs], "next": page.next, "stopped": page.stopped}
    if page.next is None:
        return table_output(data, _HEAD, map(_summary_row, page.jobs), "no job matches")
    repeated = [str(search)] if str(search) else []
    for name, value in used.items():
        repeated += [f"--{name}", value]
    reason = "many jobs were looked at, and older ones were not" if page.stopped else "there are more"
    arguments = shlex.join([*repeated, "--limit", str(limit), "--after", page.next])
    lines = table(_HEAD, map(_summary_row, page.jobs)) if page.jobs else ()
    return Output(data, lines, [f"{reason}. Next: tenure jobs list {arguments}"])


@command
async def show(store: Store, job_id: JobId) -> Output:
    """Show a job: its state and since when, its holder, its last error, the next steps."""
    details = await store.details(job_id)
    job = details.job
    title = f"job {job.id}: {job.type} (contract {job.contract} {job.version})"
    steps = [f"tenure jobs why {job.id}", *next_commands(job, details.contract, details.situation)]
    lines = card(title, _card_rows(details), steps, job.last_error)
    return Output({**job_summary(job), "record": details.record}, lines)


@command
async def events(store: Store, job_id: JobId) -> Output:
    """Print a job's log in order: every hop, and every fact that its contract records."""
    details = await store.details(job_id)
    return table_output(
        [ids_to_text(asdict(event), "job_id") for event in details.log],
        ("time (UTC)", "from → to", "trigger", "actor", details.contract.counter.name, "reason", "what"),
        map(_event_row, details.log),
        f"job {job_id} is {details.job.state} as it was enqueued: nothing has happened to it yet",
    )


@command
async def why(store: Store, job_id: JobId) -> Output:
    """Explain in a few sentences why a job is (not) running, or why it ended as it did."""
    if (waiting := await store.flows.find_waiting(job_id)) is not None:
        sentences, steps = explain_node(waiting), next_commands_of_node(waiting)
        data = {"id": str(job_id), "state": waiting.node.state, "role": waiting.role, "why": sentences, "next": steps}
        return Output(data, [*sentences, *(f"Next: {step}" for step in steps[:1])])
    details = await store.details(job_id)
    job = details.job
    sentences = explain_job(job, details.log, details.contract, details.now, details.situation)
    steps = next_commands(job, details.contract, details.situation)
    trace = [] if job.state in details.contract.successes() else traceback(job.last_error)
    data = {"id": str(job.id), "state": job.state, "role": job.role, "why": sentences, "next": steps}
    return Output(data, [*sentences, *trace, *(f"Next: {step}" for step in steps[:1])])


def _summary_row(job: JobSummary) -> tuple[Any, ...]:
    return (
        job.id, _state(job), job.type, job.queue, job.tenant_id, job.contract, job.claims, job.updated_at, _ran(job),
        job.worker, describe_failure(job.last_error) if job.last_error else None,
    )  # fmt: skip


def _state(job: JobSummary) -> str:
    """The state, and when a job that waits for its time is due."""
    if job.role not in ("ready", "waiting") or job.due_at is None or job.due_at <= job.updated_at:
        return job.state
    what = "retry" if job.last_error is not None else "due"
    return f"{job.state}, {what} at {job.due_at:%H:%M:%S}"


def _ran(job: JobSummary) -> str | None:
    """How long the last run took, or takes already."""
    if job.ran_s is None:
        return None
    return f"{format_duration(job.ran_s * 1_000)}{'' if job.role == 'done' else ' so far'}"


def _card_rows(details: JobDetails) -> Iterator[tuple[str, str | None]]:
    """The named values of a job's card."""
    job, around, now = details.job, details.situation, details.now
    since = next((event.ts for event in reversed(details.log) if event.hop), job.created_at)
    yield "state", f"{job.state} since {format_time(since, now)}"
    if job.lease_owner and job.lease_expires_at:
        yield "held by", f"{job.lease_owner}, lease until {format_time(job.lease_expires_at, now)}"
        heartbeat = around.last_heartbeat_at
        yield "heartbeat", format_time(heartbeat, now) if heartbeat else "none yet"
    elif details.last_worker is not None:
        yield "last worker", details.last_worker
    if job.started_at and job.finished_at:
        yield "ran", f"{elapsed(job.started_at, job.finished_at)}, from its last claim to its end"
    elif job.started_at and job.role in ("leased", "active"):
        yield "ran", f"{elapsed(job.started_at, now)} so far"
    yield from (("decided", decision) for decision in _decisions(details))
    if job.cancel_requested_at:
        yield "asked to stop", format_time(job.cancel_requested_at, now)
    counter, budget = details.contract.counter, details.contract.budget
    allowed = budget.executions(job.max_attempts, job.raises)
    claimed = f"claimed {job.claims} of at most {allowed} times"
    yield "attempts", f"{counter.name} {job.counter}, {budget.name} {job.max_attempts}; {claimed}"
    if job.role in ("ready", "waiting"):
        yield "due", format_time(job.due_at, now) if job.due_at else "at once"
        if around.expires_at is not None:
            yield "expires", f"{format_time(around.expires_at, now)}, unless it has begun"
    if job.last_error is not None:
        yield "last error", describe_failure(job.last_error)
    yield "payload", document(job.payload)
    yield "result", document(job.result)
    yield "progress", document(details.progress)
    yield "checkpoint", document(job.checkpoint)
    paused = " (paused)" if around.paused and job.role != "done" else ""
    yield "queue", f"{job.queue}{paused}, priority {job.priority}, tenant {job.tenant_id}"
    created_by = f" by {details.created_by}" if details.created_by else ""
    key = f", key {job.idempotency_key}" if job.idempotency_key else ""
    yield "enqueued", f"{format_time(job.created_at, now)}{created_by}{key}"
    if details.origin is not None:
        yield "runs again", f"job {details.origin.job_id}, from its dead letter {details.origin.id}"
    elif details.ran_before is not None:
        yield "runs again", f"job {details.ran_before}"
    if details.letter is not None:
        yield "dead letter", f"{details.letter.id}, {details.letter.status}: {details.letter.reason_code}"
    if around.again is not None:
        yield "run again as", f"job {around.again}"
    yield "trace", f"{job.trace_id}, correlation {job.correlation_id}"


def _decisions(details: JobDetails) -> Iterator[str]:
    """Who decided what about a job, when and why, the first decision first."""
    for event in details.log:
        if event.hop and event.trigger in details.contract.decisions:
            reason = f": {event.reason}" if event.reason and event.reason != event.trigger else ""
            yield f"{event.trigger} by {event.actor}, {format_time(event.ts, details.now)}{reason}"


def _event_row(event: LogEntry) -> tuple[str | None, ...]:
    facts = event.facts if isinstance(event.facts, dict) else {}
    what = [
        *([describe_failure(facts["error"])] if facts.get("error") else []),
        *([f"next after {format_duration(facts['delay_ms'])}"] if facts.get("delay_ms") else []),
    ]
    states = f"{event.from_state} → {event.to_state}" if event.hop else f"(fact in {event.to_state})"
    return (
        f"{event.ts:%Y-%m-%d %H:%M:%S.%f}", states, event.trigger, event.actor, f"{event.counter}/{event.max_attempts}",
        None if event.reason == event.trigger else event.reason, "; ".join(what),
    )  # fmt: skip
