"""`tenure jobs`: list jobs, look at a job, read its log, ask why it is (not) running, cancel it, run it again."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import typer

from tenure.cli.database import database, with_store
from tenure.cli.given import number, user
from tenure.cli.listing import list_
from tenure.cli.shown import as_json, as_text, card, ids_as_text, refusal, table
from tenure.errors import BadInput, Refused

if TYPE_CHECKING:
    from tenure.event import Logged
    from tenure.outcome import Moved, Noted
    from tenure.postgres.reading import Look
    from tenure.postgres.store import Store


class Mode(StrEnum):
    """How a held job is cancelled."""

    soft = "soft"
    hard = "hard"


_Id = typer.Argument(metavar="ID", help="The job's id.")
_Ids = typer.Argument(metavar="ID...", help="The jobs' ids.")
_Mode = typer.Option(Mode.soft, "--mode", help="soft asks a holder to stop; hard takes the job from it at once.")
_Reason = typer.Option(None, "--reason", help="Why; it goes to the log.")
_Actor = typer.Option(None, "--actor", help="Who asks; default the operating system's user name.")
_Database = typer.Option(None, "--database-url", help="Which database; default DATABASE_URL, else the embedded one.")
_Json = typer.Option(False, "--json", help="The same, as JSON.")


def add_to(app: typer.Typer) -> None:
    """Add the group of commands."""
    group = typer.Typer(no_args_is_help=True, help="List jobs, look at them, ask why, cancel them, run them again.")
    group.command("list")(list_)
    for command in (show, events, why, cancel, requeue):
        group.command(command.__name__)(command)
    app.add_typer(group, name="jobs")


def show(job_id: str = _Id, database_url: str | None = _Database, in_json: bool = _Json) -> None:
    """Show a job: where it stands and since when, who holds it, what went wrong, what can be done next."""
    seen = _look(job_id, database_url)
    job = seen.job
    if in_json:
        named = {"contract": job.contract, "state": job.state, "queue": job.queue, "type": job.type}
        print(as_json({"id": str(job.id), **named, "tenant_id": job.tenant_id, "record": seen.record}))
        return
    from tenure.why import next_steps

    title = f"job {job.id}: {job.type} (contract {job.contract} {job.version})"
    steps = [f"tenure jobs why {job.id}", *next_steps(job, seen.contract, seen.around)]
    print("\n".join(card(title, _shown(seen), steps)))


def events(job_id: str = _Id, database_url: str | None = _Database, in_json: bool = _Json) -> None:
    """Print a job's log in order: every hop, and every fact that its contract writes down."""
    seen = _look(job_id, database_url)
    if in_json:
        print(as_json([ids_as_text(asdict(event), "job_id") for event in seen.log]))
    elif not seen.log:
        print(
            f"job {seen.job.id} is {seen.job.state} as it was enqueued: nothing has happened to it yet", file=sys.stderr
        )
    else:
        head = ("time (UTC)", "from → to", "trigger", "actor", seen.contract.counter.name, "reason", "what")
        print("\n".join(table(head, [_event(event) for event in seen.log])))


def why(job_id: str = _Id, database_url: str | None = _Database, in_json: bool = _Json) -> None:
    """Say in a few sentences why a job is (not) running, or why it ended as it did."""
    from tenure import why as domain

    seen = _look(job_id, database_url)
    job = seen.job
    said = domain.why(job, seen.log, seen.contract, seen.now, seen.around)
    steps = domain.next_steps(job, seen.contract, seen.around)
    if in_json:
        print(as_json({"id": str(job.id), "state": job.state, "role": job.role, "why": said, "next": steps}))
        return
    print("\n".join([*said, *(f"Next: {step}" for step in steps[:1])]))


def cancel(
    job_ids: list[str] = _Ids,
    mode: Mode = _Mode,
    reason: str | None = _Reason,
    actor: str | None = _Actor,
    database_url: str | None = _Database,
    in_json: bool = _Json,
) -> None:
    """Cancel jobs and say what became of each; exits 1 when any was refused."""
    wanted = list(dict.fromkeys(number("id", job_id) for job_id in job_ids))
    answers: list[dict[str, Any]] = []

    async def one_by_one(store: Store) -> None:
        for job_id in wanted:
            try:
                told = _cancelled(await store.cancel(job_id, mode=mode.value, reason=reason, actor=actor or user()))
            except (Refused, BadInput) as error:  # of this job alone: its contract may not cancel so, or not from there
                code, message = refusal(error)
                told = {"id": str(job_id), "refused": {"code": code, "message": message}}
            answers.append(told)
            if not in_json:
                _say(told)

    try:
        with_store(database_url, one_by_one)
    finally:  # when the database goes away half-way, what was done before is still said
        if in_json:
            print(as_json(answers))
    if any("refused" in answer for answer in answers):
        raise typer.Exit(1)


def requeue(
    job_id: str = _Id, actor: str | None = _Actor, database_url: str | None = _Database, in_json: bool = _Json
) -> None:
    """Run a finished job again, as a new job that points back to it."""
    wanted = number("id", job_id)
    made = with_store(database_url, lambda store: store.requeue(wanted, actor=actor or user()))
    if in_json:
        print(as_json({"id": str(wanted), "requeued_as": str(made)}))
    else:
        print(f"job {wanted} runs again as job {made}\nNext: tenure jobs show {made}")


def _look(job_id: str, database_url: str | None) -> Look:
    from tenure.postgres.reading import look
    from tenure.settings import Settings

    wanted = number("id", job_id)
    with database(database_url) as dsn:
        return look(dsn, wanted, Settings.load().numbers)


def _shown(seen: Look) -> Iterator[tuple[str, str | None]]:
    """The card of a job."""
    from tenure.wording import failure, when

    job, around, now = seen.job, seen.around, seen.now
    since = next((event.ts for event in reversed(seen.log) if event.hop), job.created_at)
    yield "state", f"{job.state} since {when(since, now)}"
    if job.lease_owner and job.lease_expires_at:
        yield "held by", f"{job.lease_owner}, lease until {when(job.lease_expires_at, now)}"
        beat = around.last_heartbeat_at
        yield "heartbeat", when(beat, now) if beat else "none yet"
    if job.cancel_requested_at:
        yield "asked to stop", when(job.cancel_requested_at, now)
    counter, budget = seen.contract.counter, seen.contract.budget
    allowed = budget.executions(job.max_attempts, job.raises)
    claimed = f"claimed {job.claims} of at most {allowed} times"
    yield "attempts", f"{counter.name} {job.counter}, {budget.name} {job.max_attempts}; {claimed}"
    if job.role in ("ready", "waiting"):
        yield "due", when(job.due_at, now) if job.due_at else "at once"
    if job.last_error is not None:
        yield "last error", failure(job.last_error)
    yield "payload", as_text(job.payload)
    for name, document in (("result", job.result), ("progress", seen.progress), ("checkpoint", job.checkpoint)):
        yield name, None if document is None else as_text(document)
    paused = " (paused)" if around.paused and job.role != "done" else ""
    yield "queue", f"{job.queue}{paused}, priority {job.priority}, tenant {job.tenant_id}"
    made_by = f" by {seen.created_by}" if seen.created_by else ""
    keyed = f", key {job.idempotency_key}" if job.idempotency_key else ""
    yield "enqueued", f"{when(job.created_at, now)}{made_by}{keyed}"
    yield from _kin(seen)
    yield "trace", f"{job.trace_id}, correlation {job.correlation_id}"


def _kin(seen: Look) -> Iterator[tuple[str, str | None]]:
    """Where the job came from, and what came of it."""
    if seen.origin is not None:
        yield "runs again", f"job {seen.origin.job_id}, from its dead letter {seen.origin.id}"
    elif seen.ran_before is not None:
        yield "runs again", f"job {seen.ran_before}"
    if seen.letter is not None:
        yield "dead letter", f"{seen.letter.id}, {seen.letter.status}: {seen.letter.reason_code}"
    if seen.around.again is not None:
        yield "run again as", f"job {seen.around.again}"


def _event(event: Logged) -> tuple[str, ...]:
    from tenure.wording import failure, span

    facts = event.facts if isinstance(event.facts, dict) else {}
    what = [
        *([failure(facts["error"])] if facts.get("error") else []),
        *([f"next after {span(facts['delay_ms'])}"] if facts.get("delay_ms") else []),
    ]
    way = f"{event.from_state} → {event.to_state}" if event.hop else f"(fact in {event.to_state})"
    return (
        f"{event.ts:%Y-%m-%d %H:%M:%S.%f}", way, event.trigger, event.actor, f"{event.counter}/{event.max_attempts}",
        "" if event.reason in (None, event.trigger) else event.reason, "; ".join(what),
    )  # fmt: skip


def _cancelled(answer: Moved | Noted) -> dict[str, Any]:
    """What became of a job: it ended, or its holder was asked to stop."""
    from tenure.outcome import Moved

    if isinstance(answer, Moved):
        return {"id": str(answer.job_id), "cancelled": True, "state": answer.state, "from_state": answer.from_state}
    return {
        "id": str(answer.job_id),
        "cancelled": False,
        "asked_to_stop": True,
        "lease_expires_at": answer.lease_expires_at,
    }


def _say(told: dict[str, Any]) -> None:
    if "refused" in told:
        print(f"{told['refused']['code']}: {told['refused']['message']}", file=sys.stderr)
    elif told["cancelled"]:
        print(f"job {told['id']}: {told['from_state']} → {told['state']}")
    else:
        print(f"job {told['id']}: its holder is asked to stop. Next: tenure jobs why {told['id']}")
